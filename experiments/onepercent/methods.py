"""The methods of ``curve.py``, and the settings at which each is tried.

``Auto`` is given a share of FedAvg's bytes and nothing else. A rival has three settings of about the bytes of
``Auto(0.01)``; all others are trained at bytes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from groups import Group, kernels, size

import thinwire as tw

BUDGETS = (0.001, 0.002, 0.004, 0.01, 0.02, 0.05, 0.1)  # of FedAvg's bytes
Make = Callable[[Group, tw.LocalSGD], tw.Algorithm | tw.Auto]


def fedavg(group: Group, local: tw.LocalSGD) -> tw.Algorithm:
    return tw.FedAvg(local)


def half(group: Group, local: tw.LocalSGD) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.Half(), down=tw.Half())


def auto(group: Group, local: tw.LocalSGD, share: float) -> tw.Auto:
    """Clients begin at the model that they are sent, as from half a percent on they do by default."""
    return tw.Auto(share, local) if share >= 0.005 else tw.Auto(share, local, detach=0.0)


def detached(group: Group, local: tw.LocalSGD, share: float) -> tw.Auto:
    """Clients begin where a half of what they still owe is done already, as below half a percent by default."""
    return tw.Auto(share, local, detach=0.5)


def stream(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    up, down = codecs(group, share)
    return tw.FedAvg(local, up=up, down=tw.EF21(down))


def per_client(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    up, down = codecs(group, share)
    return tw.FedAvg(local, up=up, down=tw.PerClient(down))


def codecs(group: Group, share: float, upwards: float = 0.2) -> tuple[tw.Link, tw.Link]:
    """For both directions, ``upwards`` of the bytes for the one."""
    whole = 8 * size(group) * share
    return tw.TransformCoding(round(upwards * whole)), tw.TransformCoding(round((1 - upwards) * whole))


def stc(group: Group, local: tw.LocalSGD, up: float, down: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.ErrorFeedback(tw.STC(up)), down=tw.EF21(tw.STC(down)))


def stc_per_client(group: Group, local: tw.LocalSGD, up: float, down: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.ErrorFeedback(tw.STC(up)), down=tw.PerClient(tw.STC(down)))


def fetchsgd(group: Group, local: tw.LocalSGD, cols: float, k: float) -> tw.Algorithm:
    """Columns and entries as shares of the model."""
    return tw.FetchSGD(max(16, round(cols * size(group))), max(8, round(k * size(group))), local=local)


def intrinsic(group: Group, local: tw.LocalSGD, share: float, **fields: Any) -> tw.Algorithm:
    """The dimension as a share of the model."""
    return tw.Intrinsic(max(16, round(share * size(group))), local=local, **fields)


def luar(group: Group, local: tw.LocalSGD, share: float, both: bool = False, **fields: Any) -> tw.Algorithm:
    """Recycles a share of the layers that can be."""
    return tw.LUAR(tw.FedAvg(local, **fields), recycle=max(1, round(share * kernels(group))), both=both)


def luar_coded(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    up, down = codecs(group, 0.0103)
    return luar(group, local, share, up=up, down=tw.PerClient(down))


def luar_even(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    """Half of the bytes upwards, with error feedback."""
    up, down = codecs(group, 0.0103, 0.5)
    return luar(group, local, share, up=tw.ErrorFeedback(up), down=tw.PerClient(down))


def lbgm(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.LBGM(threshold=threshold))


def lbgm_coded(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    """Looks back on coded updates."""
    up, down = codecs(group, 0.01)[0], tw.TransformCoding(round(4 * size(group) * 0.0163))
    return tw.FedAvg(local, up=tw.LBGM(up, threshold=threshold), down=tw.PerClient(down))


def lbgm_even(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    """Looks back on coded updates, half of the bytes upwards, with error feedback."""
    up, down = codecs(group, 0.0103, 0.5)
    return tw.FedAvg(local, up=tw.LBGM(tw.ErrorFeedback(up), threshold=threshold), down=tw.PerClient(down))


def flss(group: Group, local: tw.LocalSGD, rank: int) -> tw.Algorithm:
    return tw.FLSS(tw.FedAvg(local), rank=rank, start=2 * rank)


def fedpm(group: Group, local: tw.LocalSGD, reset: int) -> tw.Algorithm:
    return tw.FedPM(tw.LocalAdam(local.lr), reset=reset, down=tw.Entropy(tw.Dense()))


def decomfl(group: Group, local: tw.LocalSGD, scalars: int) -> tw.Algorithm:
    return tw.DeComFL(scalars // 20, 20, local=local)


def each(make: Callable[..., Any], *numbers: float) -> dict[str, Make]:
    """A setting a number, which is its name."""
    return {f"{number:g}": lambda group, local, n=number: make(group, local, n) for number in numbers}


@dataclass(frozen=True)
class Way:
    """A method at settings of its own bytes, for the picture, or at three of Auto's (``rival``).

    ``effort`` is its time in FedAvg's. ``rates`` are to choose from, as multiples of the set's middle one where
    ``relative``; without any it follows FedAvg.
    """

    settings: dict[str, Make]
    effort: float = 1.0
    rival: bool = False
    rates: tuple[float, ...] = ()
    relative: bool = False
    start: Literal["sent", "known"] = "known"

    def tried(self, group: Group) -> tuple[float, ...]:
        """The rates to choose from."""
        return tuple(round(rate * group.rates[1], 6) for rate in self.rates) if self.relative else self.rates


SHORTER: dict[str, Any] = {"rates": (0.1, 0.3, 1.0), "relative": True}  # where a step goes further than its update
METHODS: dict[str, Way] = {  # beside settings of rivals: percent of FedAvg's bytes, both ways, on Fashion-MNIST
    "FedAvg": Way({"": fedavg}, start="sent"),
    "FedAvg, 16 bits": Way({"": half}),
    "Auto": Way(each(auto, *BUDGETS), 1.4),
    "TransformCoding, stream": Way(each(stream, 0.01), 1.2),
    "TransformCoding, per client": Way(each(per_client, 0.01), 1.3),
    "STC both ways": Way(
        {  # a client that was away is sent all that it missed: half of the rounds take less than half of these bytes
            "0.02 and 0.01": partial(stc, up=0.02, down=0.01),  # 1.04
            "0.05 and 0.007": partial(stc, up=0.05, down=0.0068),  # 1.04
            "0.1 and 0.004": partial(stc, up=0.1, down=0.0044),  # 1.09
        },
        1.1,
        rival=True,
    ),
    "STC, per client": Way(
        {
            "0.05 and 0.11": partial(stc_per_client, up=0.05, down=0.112),  # 1.03
            "0.1 and 0.07": partial(stc_per_client, up=0.1, down=0.068),  # 1.06
            "0.15 and 0.03": partial(stc_per_client, up=0.15, down=0.03),  # 1.04
        },
        1.2,
        rival=True,
    ),
    "FetchSGD": Way(
        {
            "0.002 and 0.0008": partial(fetchsgd, cols=0.00206, k=0.00082),  # 0.98
            "0.003 and 0.0004": partial(fetchsgd, cols=0.00301, k=0.0004),  # 0.98
            "0.001 and 0.0013": partial(fetchsgd, cols=0.00103, k=0.00132),  # 0.98
        },
        1.1,
        rival=True,
        **SHORTER,
    ),
    "Intrinsic": Way(
        {
            "0.01": partial(intrinsic, share=0.0099),  # 0.98
            "0.01, momentum": partial(intrinsic, share=0.0099, opt=tw.Momentum(1.0, beta=0.6)),  # 0.98
            "0.02, 16 bits": partial(intrinsic, share=0.0198, up=tw.Half(), down=tw.Half()),  # 0.98
        },
        1.2,
        rival=True,
        **SHORTER,
    ),
    "LUAR, coded": Way(  # 0.98 each
        {**each(luar_coded, 0.5, 0.25), "0.25, even": partial(luar_even, share=0.25)}, 1.3, rival=True
    ),
    "LBGM, coded": Way(  # .83 to .99 by how much is recycled, an even split 0.98
        {**each(lbgm_coded, 0.2, 0.5), "0.2, even": partial(lbgm_even, threshold=0.2)}, 1.4, rival=True
    ),
    "LUAR": Way(each(luar, 0.5)),
    "LUAR, both": Way({"": partial(luar, share=0.5, both=True)}),
    "LBGM": Way(each(lbgm, 0.2), 1.1),
    "FLSS": Way(each(flss, 8), 1.1),
    "FedPM": Way(each(fedpm, 1), 2.0, rates=(0.03, 0.1, 0.3)),
    "DeComFL": Way(each(decomfl, 100), 2.5, rates=(0.0003, 0.001, 0.003)),
    "Auto, detached": Way(each(detached, 0.001, 0.002, 0.004, 0.01), 1.4),
}
RIVALS = [row for row, way in METHODS.items() if way.rival]
