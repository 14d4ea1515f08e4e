"""Where a model is cut for a schedule whose parts compute forward passes twice."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipelines import forked, refusal
from thinwire.pipeline import BPK, DDG, DSP, FR, split
from thinwire.pipeline.split import balance, places, replays


def test_a_part_that_replays_is_charged_for_its_forward_passes_twice():
    """Eight modules of 3, a forward pass is 1 of them: 4 | 4 is 12, and 16 with a replay; 3 | 5 is 12 and 15."""
    modules = [3.0] * 8, [True] * 8
    assert balance(*modules, 2) == [4]
    assert balance(*modules, 2, [1.0] * 8, [True, False]) == [3]
    assert balance(*modules, 2, [1.0] * 8, [False, False]) == [4]


def test_of_cuts_that_cost_a_twentieth_more_the_one_that_hands_on_fewest_bytes_is_taken():
    """Parts of 10.5 and 10, of 10 and 10.5, of 12 and 8.5: a twentieth more than 10.5 is 11.025."""
    costs, trained = [10.0, 0.5, 1.5, 8.5], [True] * 4
    assert balance(costs, trained, 2) == [1]
    assert balance(costs, trained, 2, handed=[100, 100, 10, 0]) == [1]  # 12 is too much more
    assert balance(costs, trained, 2, handed=[100, 40, 10, 0]) == [2]
    assert balance(costs, trained, 2, handed=[40, 40, 10, 0]) == [1]
    assert balance([10.1, 0.4, 0.5, 10.0], trained, 2, handed=[8, 8, 8, 0]) == [2]  # 10.9, 10.5 and 11.0: the least


def test_parts_that_cost_alike_hand_on_little():
    """Three parts of four modules of 3: the largest is 6 wherever one cuts: two of three cuts are at 10 bytes."""
    costs, trained = [3.0] * 4, [True] * 4
    assert balance(costs, trained, 3) == [1, 2]
    assert balance(costs, trained, 3, handed=[100, 100, 10, 0]) == [1, 3]
    assert balance(costs, trained, 3, handed=[100, 10, 10, 0]) == [2, 3]


class Gives(nn.Module):
    """So many numbers after 20 ms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.gain = width, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return (x[:, :1] * self.gain).expand(-1, self.width)


def test_a_measured_model_is_cut_where_little_is_handed_on():
    """60 ms and 60, and as much if the module without parameters, which takes no time, is in the first part."""
    model = nn.Sequential(Gives(64), Gives(64), Gives(4096), nn.AvgPool1d(64), Gives(64), Gives(64), Gives(64))
    assert [len(part) for part in split(model, 2, sample=torch.zeros(1, 1))] == [4, 3]


def test_a_link_counts_as_a_part_does():
    """Parts of 6 | 6 with a link that is busy for 10, of 8 | 4 with one that is for 7, and of 11 | 1 with one for 1."""
    costs, trained, handed = [6.0, 2.0, 3.0, 1.0], [True] * 4, [100, 70, 10, 0]
    assert balance(costs, trained, 2, handed=handed) == [1]
    assert balance(costs, trained, 2, handed=handed, byte=0.05) == [1]  # 6, and 8 for the other
    assert balance(costs, trained, 2, handed=handed, byte=0.1) == [2]  # 10, and 8
    assert balance(costs, trained, 2, handed=handed, byte=10.0) == [2]  # 11 is more than half as much again as 6
    assert balance(costs, trained, 2, handed=[70, 70, 70, 0], byte=1.0) == [1]  # no link is better than another


def test_a_measured_model_is_cut_for_its_links():
    """60 ms | 60 with 262,144 bits between them: 262 ms at 1 Mbit/s, and before it 4,096, which are 4 ms."""
    make = lambda: nn.Sequential(Gives(128), Gives(128), Gives(8192), Gives(8192), Gives(8192), Gives(1))  # noqa: E731
    sample = torch.zeros(1, 1)
    assert [len(part) for part in split(make(), 2, sample=sample)] == [3, 3]
    assert [len(part) for part in split(make(), 2, sample=sample, mbit=1000)] == [3, 3]
    assert [len(part) for part in split(make(), 2, sample=sample, mbit=1)] == [2, 4]
    with pytest.raises(ValueError, match=r"split\(mbit=0\): Mbit/s of a link, at least 1e-06"):
        split(make(), 2, sample=sample, mbit=0)
    with pytest.raises(ValueError, match=r"split\(mbit=1\): bytes are measured with a sample; leave it out beside"):
        split(make(), 2, costs=[1.0] * 6, mbit=1)


class Disturbed(nn.Linear):
    """The first nine calls take 30 ms, and others 1."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Disturbed.calls += 1
        time.sleep(0.03 if Disturbed.calls <= 9 else 0.001)
        return super().forward(x)


def test_what_disturbs_a_moment_is_in_no_cost():
    """The first nine calls are slow: three measurements of each of three modules, had they been in a row."""
    model = nn.Sequential(*[Disturbed(2, 2) for _ in range(9)])
    assert [len(part) for part in split(model, 3, sample=torch.zeros(1, 2))] == [3, 3, 3]


def test_all_parts_but_the_last_replay_under_dsp_where_they_are_late():
    assert replays(DSP((1, 1, 0), (4, 2, 0)), 3) == replays(FR(), 3) == [True, True, False]
    assert replays(DSP((0, 1, 0), (2, 2, 0)), 3) == [True, True, False]
    assert replays(DSP((0, 0, 0), (0, 0, 0)), 3) == replays(BPK(), 3) == replays(DDG(), 3) == [False] * 3


class Slow(nn.Linear):
    """20 ms forward, and next to nothing back."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return super().forward(x)


def test_a_measured_model_is_cut_for_its_schedule():
    """Six modules alike: 3 | 3 without replays; with them 2 | 4, where both take 4 forward passes."""
    make = lambda: nn.Sequential(*[Slow(2, 2) for _ in range(6)])  # noqa: E731
    sample = torch.zeros(1, 2)
    assert [len(part) for part in split(make(), 2, sample=sample)] == [3, 3]
    assert [len(part) for part in split(make(), 2, sample=sample, schedule=DSP((1, 0), (2, 0)))] == [2, 4]
    with pytest.raises(ValueError, match="is for 3 parts, and the model is cut into 2"):
        split(make(), 2, sample=sample, schedule=DSP((1, 1, 0), (4, 2, 0)))


class Woven(nn.Module):
    """One activation for all layers, and a norm of the model's own between two layers of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.norm, self.relu, self.head = nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)

    def chain(self) -> list[nn.Module]:
        first, second = self.encoder
        return [first, self.relu, self.norm, second, self.relu, self.head]

    def forward(self, x: Tensor) -> Tensor:
        for module in self.chain():
            x = module(x)
        return x


@pytest.mark.parametrize("at", [[], [5], [3], [1, 4]])
def test_a_chain_keeps_its_order_and_its_repeats_and_the_names_of_the_model(at):
    model, x = Woven(), torch.randn(5, 4)
    parts = split(model, len(at) + 1, at=at)
    assert torch.equal(nn.Sequential(*parts)(x), model(x))
    assert torch.equal(nn.Sequential(*copy.deepcopy(parts))(x), model(x))
    assert {name for part in parts for name in part.state_dict()} == set(model.state_dict())
    assert list(places(parts)) == at


def test_a_module_and_one_within_it_may_both_be_in_a_chain():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True)

        def chain(self) -> list[nn.Module]:
            return [self.outer.linear1, self.outer.linear2, self.outer]

    model, x = Both(), torch.randn(2, 3, 4)
    part = split(model, 1, costs=[1, 1, 1])[0]
    assert torch.equal(part(x), model.outer(model.outer.linear2(model.outer.linear1(x))))
    assert list(part.state_dict()) == list(model.state_dict())


def test_a_list_of_torchs_and_a_sequential_of_ones_own_are_chains():
    class Own(nn.Sequential):
        pass

    class Other(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x)

    layers = [nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2))]
    for model in (nn.ModuleList(layers), Own(*layers)):
        parts = split(model, 2, at=[1])
        assert parts[0][0] is layers[0]
        assert [name for part in parts for name in part.state_dict()] == list(model.state_dict())
    with pytest.raises(ValueError, match="Other is no chain"):
        split(Other(nn.Linear(4, 4)), 1, costs=[1])


# -- several ranks --------------------------------------------------------------


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)])


def refused(rank: int) -> dict[str, Any]:
    """What is said on each of three ranks, of which rank 1 has something else than the others, and the seconds."""
    x, found = torch.randn(2, 4), {}
    cases: dict[str, Any] = {
        "length": lambda: split(layers(3 if rank == 1 else 4), 2, sample=x, timeout=20),
        "names": lambda: split([nn.ReLU() if rank == 1 and k == 1 else nn.Linear(4, 4) for k in range(4)], 2, sample=x),
        "no chain": lambda: split(nn.GRU(4, 4) if rank == 1 else layers(4), 2, sample=x, timeout=20),
        "sample": lambda: split(layers(4), 2, sample=x[:, :3] if rank == 1 else x, timeout=20),
        "schedule": lambda: split(layers(4), 2, sample=x, schedule=DSP((0,), (0,)) if rank == 1 else FR(), timeout=20),
    }
    for name, make in cases.items():
        began = time.monotonic()
        found[name] = [refusal(make), time.monotonic() - began]
    few = dist.new_group([0, 1])
    if rank < 2:  # the last rank does something else
        found["few"] = [len(part) for part in split(layers(4), 2, sample=x, group=few, timeout=20)]
    dist.barrier()
    began = time.monotonic()
    if rank != 1:
        found["missing"] = [refusal(lambda: split(layers(4), 2, sample=x, timeout=1)), time.monotonic() - began]
    else:
        time.sleep(3)
    return found


@pytest.mark.slow
def test_what_one_rank_cannot_cut_is_said_on_every_rank_within_the_time_limit(tmp_path):
    ranks = forked(3, refused, tmp_path)
    for rank, found in enumerate(ranks):
        assert found["length"][0] == "OutOfSync: split: rank 1 has another model than rank 0: 3 modules, not 4"
        assert found["names"][0].startswith(
            "OutOfSync: split: rank 1 has another model than rank 0: other names, types"
        )
        for name, said in (
            ("no chain", "ValueError: split: GRU is no chain"),
            ("schedule", "ValueError: DSP((0,), m=(0,)) is for 1 parts, and the model is cut into 2"),
            ("sample", "ValueError: split: 0 (Linear) does not take what comes before it, [2, 3]"),
        ):
            assert found[name][0].startswith(said if rank == 1 else f"RankLost: split: rank 1 has no parts: {said}")
            assert found[name][1] < 15
    assert ranks[0]["few"] == ranks[1]["few"]
    for rank in (0, 2):
        said, seconds = ranks[rank]["missing"]
        assert said.startswith(f"RankLost: rank {rank} of 3, cutting a model: another rank died, stalled beyond 1 s")
        assert seconds < 15
