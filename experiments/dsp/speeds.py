"""How many times as fast as one machine a ResNet-20 in parts is, over links of several speeds: Table 3 of the thesis.

A. Xu, PhD thesis, University of Pittsburgh, 2023, Section 1.5.1: with four parts DSP trains ResNet-164 2.7 times as
fast as one GPU, and FR 1.7 times. Those parts were GPUs of one machine. Here seconds are those of the law
(:mod:`thinwire.pipeline.law`), with what the parts of ``train.py`` take and with the bytes of their messages, which are
encoded. A schedule over a link is a line. DSP's least delays are those that hide the link, or come as close to that as
delays can.

    python experiments/dsp/speeds.py
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import train
from thinwire.config import complete
from thinwire.pipeline.plan import least, messages, seconds
from thinwire.studies.pipelined import schedule

LINKS = ((10_000.0, 0.0001), (1_000.0, 0.001), (100.0, 0.01))  # Mbit/s each way, seconds one way
THESIS = {"FR()": 1.7, "DSP": 2.7}  # with four parts; GPipe's 2.2 is of ResNet-101


def rows(parts: int) -> list[str]:
    """Schedules by name, those of ``train.py`` among them; ``DSP`` has the least delays."""
    trained = [name for name, _ in train.rows(parts, False) if "DNI" not in name and "=" not in name]
    return ["BPK()", "FR(barrier=True)", "GPipe(4)", "1F1B(4)", *trained, "DSP", "DSP, Int8"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, default=train.RESULTS / "cifar10.jsonl", help="lines of train.py")
    parser.add_argument("--into", type=Path, default=train.RESULTS / "speeds.jsonl")
    o = parser.parse_args()
    torch.set_num_threads(1)
    given = train.settings(["--into", str(o.costs)])
    one = {parts: train.study(given, "BPK()", parts, 0, "SGD", 0.02, 1) for parts in (1, 3, 4)}
    problem = train.problem(given, 0, one[1].augments())
    one = {parts: train.timed(given, each, problem) for parts, each in one.items()}
    alone = one[1].forward[0] + one[1].backward[0]
    for parts in (3, 4):
        study = one[parts]
        stages = study.stages(problem, 0)
        x, y, _ = next(study.draw_batches(problem, 0))
        sizes = {}
        for text in rows(parts):
            links = ", activations=Int8(), gradients=Int8()" if text.endswith("Int8") else ""
            method = schedule(f"BPK({links[2:]})" if text.startswith("DSP,") or text == "DSP" else text)
            if (kind := (bool(links), method.pieces)) not in sizes:
                with study.narrow():
                    sizes[kind] = messages(stages, method, x, y)
            for mbit, latency in LINKS:
                began = time.time()
                used = method
                if text.partition(",")[0] == "DSP":
                    found = least(study.forward, study.backward, sizes[kind], mbit, latency)
                    used = schedule(f"DSP({found.p}, {found.m}{links})")
                took = seconds(used, study.forward, study.backward, sizes[kind], mbit, latency)
                key = {"experiment": "dsp", "part": "speed", "row": text, "parts": parts, "mbit": mbit}
                line = {**key, "latency": latency, "schedule": repr(used), "batch": study.batch, "tick": took}
                line |= {"alone": alone, "faster": alone / took, "bytes": sum(map(sum, sizes[kind]))}
                train.record.replace(o.into, line | train.record.about(complete(used), began), key)
                print(f"{parts} parts, {mbit:g} Mbit/s, {used!r}: {took:.4f} s, {alone / took:.2f} x", flush=True)


if __name__ == "__main__":
    main()
