"""What ``thinwire look`` shows of small real runs: the figures of docs/analysis.md and the table of
docs/measured/leakage.md.

A job is commands of thinwire, the last of which looks. Its line has these commands, what the look found, and what made
it. The figures are copied to ``--figures``. Minutes on two cores, on the digits of scikit-learn but for ``by_layer``
(MNIST) and ``leakage_cifar10``.

    python experiments/analysis/look.py --figures docs/analysis
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from record import Line, code, found, hardware, replace

from thinwire.cli import app

INTO = Path(__file__).resolve().parent / "results"
THEORY = {  # methods that have theorems
    "lbgm": "FedAvg(up=LBGM(threshold=0.4))",
    "luar": "LUAR(FedAvg(), recycle=1, layers='tensors')",
    "flss": "FLSS(FedAvg(), rank=5, start=20, every=2)",
    "domo": "DOMO(opt=Momentum(0.1), local=LocalSGD(0.05, steps=5, momentum=0.6))",
    "intrinsic": "Intrinsic(200)",
}
JOBS: dict[str, list[str]] = {
    "gradients": [
        'run "FedAvg()" --data digits --clients 1 --rounds 60 --lr 0.1 --record gradients --out DIR',
        "look gradients DIR",
    ],
    "by_layer": [
        'run "FedAvg()" --data mnist --model mlp --clients 1 --rounds 60 --lr 0.01 --record gradients --out DIR',
        "look gradients DIR --momentum 0.9 --by-layer",
    ],
    "look_back": [
        'run "FedAvg(up=Layerwise(LBGM(threshold=0.4)))" --data digits --clients 10 --rounds 40 --lr 0.1 '
        "--record looks --out DIR",
        "look gradients DIR",
    ],
    "layers": [
        "run \"LUAR(FedAvg(), recycle=1, layers='tensors')\" --data digits --clients 10 --rounds 40 --lr 0.1 "
        "--record layers --out DIR",
        "look layers DIR",
    ],
    "subspace": [
        'run "FLSS(FedAvg(), rank=5, start=20, every=2)" --data digits --clients 10 --rounds 60 --lr 0.1 '
        "--record gradients --out DIR",
        "look subspace DIR",
    ],
    "dimension": ["look dimension --data digits --clients 10 --rounds 20 --lr 0.1 --out DIR"],
    "feedback": [
        'ddp-sim "DEF(64)" --data digits --workers 4 --steps 300 --evaluate-every 10 --lr 0.05 --out DIR',
        "look feedback DIR",
    ],
    "path": [
        'run "FedAvg()" --data digits --clients 20 --sample 4 --rounds 60 --lr 0.3 --split "Dirichlet(0.1)" '
        "--record models --evaluate-every 1 --out DIR",
        "look path DIR",
    ],
    "staleness": [
        'pipeline run "DSP((1, 0), (4, 0))" --data digits --parts 2 --cut 2 --lr 0.01 --steps 300 --evaluate-every 10 '
        "--record staleness --out DIR",
        "look staleness DIR",
    ],
    "leakage": [
        'look leakage "FedAvg()" "FedAvg(up=TopK(0.01))" "FedAvg(up=QSGD(16))" "FedAvg(up=SignSGD())" '
        '"Intrinsic(1024)" "Intrinsic(4096)" --data digits --lr 0.1 --out DIR'
    ],
    "leakage_privacy": [
        "look leakage \"FedAvg(weights='uniform')\" \"FedAvg(up=TopK(0.01), weights='uniform')\" "
        "\"Intrinsic(4096, weights='uniform')\" --data digits --lr 0.1 "
        '--privacy "Privacy(clip=0.1, noise=0.01)" --out DIR'
    ],
    "leakage_cifar10": [
        'look leakage "FedAvg()" "FedAvg(up=TopK(0.01))" "Intrinsic(256)" "Intrinsic(1024)" "Intrinsic(4096)" '
        "--data cifar10 --lr 0.1 --iterations 2000 --tries 2 --out DIR"
    ],
    "leakage_recycled": [
        'look leakage "FedAvg(up=LBGM(threshold=0.99))" --data digits --lr 0.1 --round 2 --distance cosine --out DIR'
    ],
    "leakage_recycled_privacy": [
        "look leakage \"FedAvg(up=LBGM(threshold=0.99), weights='uniform')\" --data digits --lr 0.1 --round 2 "
        '--distance cosine --privacy "Privacy(clip=0.1, noise=0.01)" --out DIR'
    ],
    **{
        f"theory_{name}": [
            f'run "{method}" --data digits --clients 10 --rounds 40 --lr 0.1 --record all --evaluate-every 1 --out DIR',
            "look theory DIR",
        ]
        for name, method in THEORY.items()
    },
    "theory_def": [
        'ddp-sim "DEF(16)" --data digits --workers 4 --steps 300 --evaluate-every 10 --lr 0.05 --momentum 0 --out DIR',
        "look theory DIR",
    ],
}
FIGURES = {
    "gradients": ("components", "overlap", "cosines"),
    "by_layer": ("by_layer",),
    "look_back": ("look_back",),
    "layers": ("layers",),
    "subspace": ("subspace",),
    "dimension": ("dimension",),
    "feedback": ("feedback",),
    "path": ("path", "shares"),
    "staleness": ("staleness",),
}


def ran(words: list[str], folder: Path) -> dict[str, Any]:
    """What a command's last line says."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        app([str(folder) if word == "DIR" else word for word in words] + ["--json"], standalone_mode=False)
    answer: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return answer


def job(name: str, into: Path, figures: Path | None, tiny: bool) -> Line:
    commands = [shlex.split(command) for command in JOBS[name]]
    if tiny:
        commands = [shortened(words) for words in commands]
    key = {"job": name, "shown": [shlex.join(["thinwire", *words]) for words in commands], "tiny": tiny}
    there = found(into, key)
    if there is not None:
        return there
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        for words in commands:
            answer = ran(words, out)
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            for path in map(Path, answer["files"]):
                if path.stem in FIGURES.get(name, () if name.startswith("theory") else (path.stem,)):
                    shutil.copyfile(path, figures / f"{name if path.stem == 'leakage' else path.stem}.png")
    answer.pop("files")
    answer = next(iter(answer["runs"].values())) if "runs" in answer else answer
    # Tens of thousands of numbers, which no page says.
    for much in ("heat_maps", "looks", "by_client", "by_layer", "progressions"):
        answer.pop(much, None)
    line = {**key, **answer, **code(), "seconds": round(time.time() - began, 1), "hardware": hardware()}
    replace(into, line, key)
    return line


def shortened(words: list[str]) -> list[str]:
    """The same at a size that says nothing."""
    small = {"--rounds": "3", "--steps": "20", "--iterations": "2"}
    words = [small.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    words = [word.replace("start=20", "start=5") for word in words]
    return [*words, "--iterations", "2", "--tries", "1"] if "leakage" in words else words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(JOBS), help="some of these, by name")
    parser.add_argument("--figures", type=Path, help="a folder for figures")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--tiny", action="store_true", help="a size that says nothing")
    o = parser.parse_args()
    for name in o.jobs.split(","):
        line = job(name, o.into / "look_digits.jsonl", o.figures, o.tiny)
        print(f"{name}: {line['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
