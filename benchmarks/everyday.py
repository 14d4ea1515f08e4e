"""Five everyday tasks with thinwire, Flower, NVFlare and pfl: lines that a user writes, seconds, and what comes out.

The programs are in ``everyday``: ``TASK_FRAMEWORK.py`` beside the modules of that framework's that they import. Lines
are those with code, of the program and of these modules; the model and the data, ``own.py``, are the same for all and
count for nobody. Each is run in an empty folder, with one thread. Seconds are from its start to its end: imports and
processes count. "resume": the program is killed, with all that it has started, when it says that half of the rounds are
done, and is started again; it has resumed where the second start says none of the first half, and is exact where the
digest of its model is that of a run which nobody killed. "deploy": a server and three clients are processes that
speak over TLS. Of thinwire and Flower each is an app, whose every file counts, on the SuperLink and the SuperNodes that
``examples/flower/federation.py`` starts; seconds are those from ``flwr run`` on. NVFlare's PocEnv starts its own.

    python benchmarks/everyday.py --into benchmarks/results/everyday.jsonl
    python benchmarks/everyday.py --only nvflare --python nvflare=/venvs/nvflare/bin/python

A framework is run by this Python unless ``--python`` names another. pfl and NVFlare ask for versions that others do not
take: give each an environment of its own (``pip install -c constraints.txt pfl``; ``pip install nvflare torch``). Both
need scikit-learn, which brings the data. Each line of the result is one task with one framework.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "everyday"
sys.path.insert(0, str(HERE.parents[1] / "experiments"))

import record  # noqa: E402

FRAMEWORKS = {"thinwire": "thinwire", "flower": "flwr", "nvflare": "nvflare", "pfl": "pfl"}
TASKS = ("compare", "bytes", "resume", "deploy", "method")
HALF = 10  # rounds of own.py's twenty
QUIET = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE),
    "PYTHONWARNINGS": "ignore",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def files(program: Path) -> list[Path]:
    """A program, and the modules beside it that it imports, but for ``own.py``; scripts that it names count too."""
    found = [program]
    for file in found:
        text = file.read_text()
        names = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
        names |= {name.removesuffix(".py") for name in re.findall(r'"(\w+\.py)"', text)}
        beside = [HERE / f"{name}.py" for name in sorted(filter(None, names)) if name != "own"]
        found += [path for path in beside if path.exists() and path not in found]
    return found


def lines(paths: list[Path]) -> int:
    """The lines with code that a user writes."""
    text = "\n".join(file.read_text() for file in paths).split("\n")
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text)


def run(python: str, program: Path, folder: Path, killed: bool = False) -> tuple[float, str]:
    """Seconds, and what was printed; ``killed`` when half of the rounds are done."""
    begun, said = time.monotonic(), []
    process = subprocess.Popen(
        [python, "-u", str(program)],
        cwd=folder,
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if killed and re.match(rf"\s*round {HALF}\b", line, re.IGNORECASE):
            os.killpg(process.pid, signal.SIGKILL)
    if process.wait() and not killed:
        sys.exit(f"{program.name} ended with {process.returncode}: {''.join(said)[-3000:]}")
    return time.monotonic() - begun, "".join(said)


def deploy(app: Path, folder: Path) -> float:
    """Seconds of an app on three SuperNodes, from its submission to its end."""
    sys.path.insert(0, str(HERE.parents[1] / "examples" / "flower"))
    from federation import Federation

    with Federation(folder / "here", 3, {**QUIET}, warm=app.name == "deploy_thinwire") as here:
        begun = time.monotonic()
        here.wait(here.submit({"out": str(folder / "out")}, app), folder / "out", 3000)
        return time.monotonic() - begun


def results(said: str) -> list[str]:
    """What ``own.show`` has printed: the method, its accuracy, the digest of the model."""
    return re.findall(r"^result: (.*)$", said, re.MULTILINE)


def measure(task: str, framework: str, python: str) -> dict[str, Any]:
    """One task with one framework, done."""
    program = HERE / f"{task}_{framework}.py"
    line: dict[str, Any] = {"benchmark": "everyday", "task": task, "framework": framework}
    line |= {"processor": record.processor(), "cores": os.cpu_count(), **record.code()}
    app = program.with_suffix("")
    if not program.exists() and not app.exists():
        return line | {"lines": None}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if app.exists():
            paths = sorted(path for path in app.rglob("*") if path.suffix in (".py", ".toml"))
            paths += [HERE / "flower_client.py"] if framework == "flower" else []
            line |= {"lines": lines(paths), "seconds": round(deploy(app, folder), 1)}
        else:
            seconds, said = run(python, program, folder)
            line |= {"lines": lines(files(program)), "seconds": round(seconds, 1), "results": results(said)}
        if task == "bytes":
            line["bytes"] = [int(word) for word in re.findall(r"^bytes: (\d+) (\d+)$", said, re.MULTILINE)[0]]
        if task == "resume":
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            run(python, program, folder, killed=True)
            seconds, again = run(python, program, folder)
            made = [int(number) for number in re.findall(r"^\s*round (\d+)", again, re.MULTILINE | re.IGNORECASE)]
            exact = results(again)[-1].split()[-1] == results(said)[-1].split()[-1]
            line |= {"resumed": bool(made) and min(made) >= HALF, "exact": exact, "seconds_again": round(seconds, 1)}
    version = f"import importlib.metadata as m; print(m.version({FRAMEWORKS[framework]!r}))"
    line["framework_version"] = subprocess.run([python, "-c", version], capture_output=True, text=True).stdout.strip()
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(FRAMEWORKS), choices=list(FRAMEWORKS))
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--python", action="append", default=[], help="FRAMEWORK=PROGRAM")
    parser.add_argument("--into", type=Path, help="a file of lines, in which each replaces its like")
    asked = parser.parse_args()
    pythons = dict.fromkeys(FRAMEWORKS, sys.executable) | dict(word.split("=", 1) for word in asked.python)
    for task in asked.tasks:
        for framework in asked.only:
            line = measure(task, framework, pythons[framework])
            print(json.dumps(line), flush=True)
            if asked.into:
                record.replace(asked.into, line, {name: line[name] for name in ("benchmark", "task", "framework")})


if __name__ == "__main__":
    main()
