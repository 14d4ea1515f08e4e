"""What C reads is held until it has returned, whoever else is at work: the law of every kernel, and eight threads."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from processes import called
from thinwire.kernels import (
    adaptive,
    fastfood,
    gaps,
    hadamard,
    levels,
    native,
    outer,
    quantize,
    rans,
    rounding,
    select,
    signs,
    sketch,
)
from thinwire.kernels.magnitude import BRIEF, magnitude
from thinwire.local import Local, LocalSGD
from thinwire.train.compiled import chain, train_chains
from thinwire.train.slot import Slot

THREADS, AGAIN = 8, 3
N = 5_000


def normal(n: int = N) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n))


def few(n: int = 300) -> Tensor:
    return (normal(n) * 2).int()


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 20), nn.Linear(20, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 4))


def trained(make: Callable[[], nn.Module] = linear) -> Tensor:
    """Two clients of a model that is trained in C, on pictures, whose examples are looked up in a table."""
    g = torch.Generator().manual_seed(2)
    pictures = torch.randint(256, (40, 3, 4, 4), generator=g, dtype=torch.uint8)
    task = tw.Supervised(pictures, torch.randint(4, (40,), generator=g), mean=(0.1, 0.2, 0.3), std=(1, 2, 3))
    slot = Slot(make(), "cpu")
    known, x = chain(slot.module, slot.layout), tw.Params(slot.layout, normal(slot.layout.size) / 10)
    assert known is not None
    requests = [Local(x, LocalSGD(0.1, batch=8, momentum=0.5), anchor=x, shift=x)] * 2
    return torch.cat([t.x.flat for t in train_chains(known, [task] * 2, requests, [tw.Key(0, 1, 0), tw.Key(0, 1, 1)])])


def adaptive_rows() -> torch.Tensor | None:
    writer = adaptive.Writer(2, 1_000)
    writer.put_rows([few(60).view(3, 20), few(80).view(2, 40)], torch.tensor([0, 1, 1, 0, 1], dtype=torch.uint8))
    return writer.bytes()


KERNELS: dict[str, Callable[[], Any]] = {
    "top_k": lambda: select.top_k(normal(), 100),
    "largest": lambda: select.largest(normal(), 100),
    "above": lambda: select.above(normal(), 1.0),
    "pack_signs": lambda: signs.pack_signs(normal()),
    "unpack_signs": lambda: signs.unpack_signs(torch.arange(99, dtype=torch.uint8), 792, 0.5),
    "partial_sums": lambda: signs.partial_sums(normal()),
    "quantize": lambda: quantize.quantize(normal(), 3.0, 7, 4, 5),
    "dequantize": lambda: quantize.dequantize(torch.full((N // 2,), 0x3D, dtype=torch.uint8), N, 3.0, 7, 4),
    "count_sketch": lambda: sketch.count_sketch(normal(), 5, 300, 1),
    "estimate": lambda: sketch.estimate(normal(1_500).view(5, 300), N, 1),
    "hadamard": lambda: hadamard.hadamard_(normal(4_096)),
    "fastfood": lambda: fastfood.fastfood(normal(50), N, 1),
    "fastfood_transpose": lambda: fastfood.fastfood_transpose(normal(), 50, 1),
    "best_gaps": lambda: gaps.best(torch.arange(0, N, 7), N),
    "gaps": lambda: gaps.decode(*gaps.encode(torch.arange(0, N, 7), N, 2), N, 2),
    "bits": lambda: gaps.decode_bits(gaps.encode_bits(torch.arange(0, N, 7), N), N),
    "rans": lambda: rans.decode(rans.encode(few(N).to(torch.uint8)), N),
    "adaptive": lambda: adaptive.unpack(adaptive.pack(few(), 1_000), 300),
    "adaptive_rows": adaptive_rows,
    "round_rows": lambda: rounding.round_rows(normal(3 * 70).view(3, 70), normal(3), 0.6, 1 << 20),
    "levels": lambda: levels.unpack(levels.pack(few().to(torch.int8), 1_000, 20), 300, 20),
    "magnitude": lambda: (magnitude(normal()), magnitude(normal(BRIEF + 1))),
    "outer_sum": lambda: outer.outer_sum(normal(3 * 40).view(3, 40), normal(3 * 60).view(3, 60)),
    "chains": trained,
    "convolutions": lambda: trained(convolutional),
    "joined": lambda: native.join([b"a", bytes(5 << 20), b"b"]),
}
ONCE = {"tw_use", "tw_source", "tw_keep_memory"}  # which take no array
compiled = pytest.mark.skipif(native._load() is None, reason="the kernels are not compiled here")


def bits(found: Any) -> bytes:
    if isinstance(found, Tensor):
        return found.contiguous().numpy().tobytes()
    return found if isinstance(found, bytes) else repr(found).encode()


def at_once(name: str) -> int:
    """A kernel's first call in this process, by eight threads that wait for each other: how many differ from one's."""
    start, found = threading.Barrier(THREADS), list[bytes]()

    def work() -> None:
        torch.set_num_threads(1)
        start.wait()
        found.append(bits(KERNELS[name]()))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = bits(KERNELS[name]())
    return sum(other != alone for other in found) + THREADS - len(found)


def fresh(names: list[str]) -> None:
    """Each of these kernels in ``AGAIN`` processes of its own, in each of which nothing has been called before."""
    sys.setswitchinterval(1e-5)
    for name in names:
        for _ in range(AGAIN):
            child = os.fork()
            if not child:
                try:
                    os._exit(at_once(name))
                finally:
                    os._exit(99)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(f"{name} {code}")


@pytest.mark.slow
@compiled
def test_every_kernel_that_eight_threads_call_first_gives_the_bits_of_one_thread() -> None:
    done = called(fresh, sorted(KERNELS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} 0" for name in sorted(KERNELS) for _ in range(AGAIN)], done.stderr


LOCAL = LocalSGD(0.1, batch=8)
RUNS: dict[str, tuple[tw.Algorithm, dict[str, Any]]] = {  # where threads come to the kernel at the same time
    "a projection": (tw.FedAvg(up=tw.Projection(500), local=LOCAL), {"plan": "together", "workers": 2}),
    "a subspace": (tw.Intrinsic(100, local=LOCAL), {"plan": "each", "workers": 8}),
}


def model(name: str, rounds: int, folder: Path | None = None, **options: Any) -> bytes:
    g = torch.Generator().manual_seed(0)
    tasks = [(torch.randn(16, 64, generator=g), torch.randint(3, (16,), generator=g)) for _ in range(8)]
    module = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 3))
    for x in module.parameters():
        x.data = normal(x.numel()).view(x.shape) / 8
    method, asked = RUNS[name]
    module = nn.Sequential(*(layer for layer in module if asked["plan"] == "each" or type(layer) is not nn.BatchNorm1d))
    result = tw.simulate(method, module, tasks, rounds, out=folder, checkpoint_every=1, **{**asked, **options})
    return result.params.flat.numpy().tobytes()


def forked(work: Callable[[], bool]) -> bool:
    """What a function says in a process in which nothing has been called before."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def runs(folder: str, name: str) -> None:
    """Whole runs, each in a process of its own: by several workers and by one, at once and resumed."""
    sys.setswitchinterval(1e-5)
    one = Path(folder) / "one"
    assert forked(lambda: bool(one.write_bytes(model(name, 2, workers=1))))
    for i in range(2):
        out = Path(folder) / f"run-{i}"
        print(forked(lambda: model(name, 2) == one.read_bytes()))
        assert forked(lambda out=out: bool(model(name, 1, out)))
        print(forked(lambda out=out: model(name, 2, out, resume=True) == one.read_bytes()))


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_run_by_several_workers_and_one_that_is_resumed_have_the_bits_of_one_worker(
    name: str, tmp_path: Path
) -> None:
    done = called(runs, str(tmp_path), name)
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 4), done.stderr


class Seen(ctypes.CDLL):
    """The library, which notes what is called."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib, self.names = lib, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.lib, name)


@compiled
def test_the_threads_call_every_function_in_c_that_takes_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(native._load())
    monkeypatch.setattr(native, "_load", lambda: seen)
    for kernel in KERNELS.values():
        kernel()
    assert seen.names - ONCE == set(native.SIGNATURES) - ONCE


@compiled
@pytest.mark.parametrize("name", sorted(set(native.SIGNATURES) - ONCE))
def test_an_address_is_refused_wherever_c_takes_an_array(name: str) -> None:
    function, kinds = getattr(native._load(), name), native.SIGNATURES[name][1]
    whole = [None if kind is native.POINTER else 0 for kind in kinds]  # of nothing: never called, since one is refused
    held = np.zeros(4, np.float32)
    for place, kind in enumerate(kinds):
        if kind is native.POINTER:
            for address in (held.ctypes.data, ctypes.c_void_p(held.ctypes.data), 0):
                with pytest.raises(ctypes.ArgumentError, match="the array itself, and not its address"):
                    function(*whole[:place], address, *whole[place + 1 :])


@compiled
def test_what_has_gaps_or_lies_elsewhere_is_refused() -> None:
    lib = native._load()
    for x in (torch.zeros(8)[::2], np.zeros(8, np.float32)[::2]):
        with pytest.raises(ctypes.ArgumentError, match="without gaps"):
            lib.tw_hadamard(x, 4, 1)
    with pytest.raises(ctypes.ArgumentError, match="on the CPU"):
        lib.tw_hadamard(torch.zeros(4, device="meta"), 4, 1)


@compiled
def test_a_structure_holds_what_its_addresses_are_of() -> None:
    class Pair(native.Struct):
        _fields_ = (("first", ctypes.c_void_p), ("second", ctypes.c_void_p), ("size", ctypes.c_int64))

    x, one = torch.arange(3.0), Pair(size=3)
    one.point(first=x, second=None)
    lying, owners = x.data_ptr(), sys.getrefcount(x)
    both = native.row([one, one])
    del one
    assert (both[0].first, both[0].second, both[1].size) == (lying, None, 3)
    assert sys.getrefcount(x) == owners  # the array's are those that the structure's were
    del both
    assert sys.getrefcount(x) < owners


WHERE = Path(tw.__file__).parent
TELLS = r"\.ctypes\b|\bdata_ptr\(|\baddressof\(|\bfrom_address\(|__array_interface__|\bPyBytes_AsString\b"
# Addresses that say what is the same memory.
COMPARED = {"ddp/vector.py", "ddp/given.py", "pipeline/plan.py", "train/muon.py"}
COMPARED |= {"train/given.py", "train/slot.py", "train/adapter.py", "task.py"}


def test_only_one_place_says_where_an_array_lies() -> None:
    told = {
        f"{path.relative_to(WHERE)}": re.findall(TELLS, path.read_text())
        for path in WHERE.rglob("*.py")
        if re.search(TELLS, path.read_text())
    }
    assert told.pop("kernels/native/__init__.py") == ["data_ptr(", ".ctypes"]
    assert set(told) == COMPARED
    for name in COMPARED:
        assert "ctypes" not in (WHERE / name).read_text()
