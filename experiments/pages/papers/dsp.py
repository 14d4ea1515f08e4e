"""DSP, chapter 1 of the thesis: schedules against backpropagation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .. import pipelined
from ..verdict import Claim, compare

DSP = (
    "CIFAR-10, ResNet-164, batches of 128, 300 epochs",
    "10,000 pictures of CIFAR-10, ResNet-20, batches of 64, 15 epochs",
)
ONE_RATE = (
    DSP[0] + ", a rate of .01 for all rows",
    "4,000 pictures of CIFAR-10, a ResNet-8 of half the width, batches of 64, 40 epochs, a rate of .01 for all rows",
)
claim = partial(compare, "dsp")


def claims() -> Iterator[Claim]:
    plain = ("1 part", "BP")
    for parts, best in ((3, "DSP((1, 1, 0), (4, 2, 0))"), (4, "DSP((1, 1, 1, 0), (6, 4, 2, 0))")):
        where, others = f"{parts} parts", pipelined.thesis(parts)
        yield claim(DSP, f"{where}: FR is as good as backpropagation", (where, "FR()"), plain, 0.0)
        for row in (row for row in others if row.startswith("DSP")):
            gap = round(others[row] - pipelined.thesis(1)["BP"], 2)
            far = f"{abs(gap):g} points {'ahead of' if gap > 0 else 'behind'} backpropagation"
            yield claim(DSP, f"{where}: {row} is {far}", (where, row), plain, gap)
        yield claim(DSP, f"{where}: {best} is as good as FR", (where, best), (where, "FR()"), 0.0)
    plain, where = (f"{pipelined.ONE_RATE}1 part", "BP"), f"{pipelined.ONE_RATE}3 parts"
    for row in pipelined.thesis(3):
        what = f"one rate for all, 3 parts: {row} is not behind backpropagation"
        yield claim(ONE_RATE, what, (where, row), plain, 0.0)
    plain = ("1 part", "BP")
    text = "DNI does not converge"
    yield claim(DSP, text, plain, ("3 parts", "DNI()"), None, fails=True)
