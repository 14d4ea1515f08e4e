"""Compiles the files in C beside it, as installing does: ``python -m thinwire.kernels.native.build``.

Needs a C compiler (``cc``, or what ``CC`` names) and nothing else. The library has a plain C interface and is
loaded with ctypes, so one file serves every version of Python.

Where the environment variable ``THINWIRE_SANITIZE`` is set, another file is compiled, and loaded, that stops the
process at the first wrong access to memory or undefined behaviour, for ``make sanitize``. Its name does not end in
``.so``: whoever looks for modules of Python in this folder, as ``make docs`` does, would load it and be stopped.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from platform import machine, system

HERE = Path(__file__).resolve().parent
SANITIZED = bool(os.environ.get("THINWIRE_SANITIZE"))
LIBRARY = HERE / ("native.sanitized" if SANITIZED else "native.so")
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fvisibility=default"]
# One rounding an operation, whatever the processor could fuse. Vectors of 16 floats pass between static functions only.
FLAGS += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
if SANITIZED:  # the last -O counts
    FLAGS += ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def checksum() -> int:
    """Of the source: a library that was compiled of another one is not used."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(HERE.glob("*.[ch]"))))


def platform() -> str:
    """The platform that the library is compiled for, as the name of a wheel has it: ``linux_x86_64``."""
    if system() == "Darwin":
        release, architectures = _mac()
        name = "universal2" if len(architectures) > 1 else architectures[0]
        return f"macosx_{release.replace('.', '_')}_{name}"
    return re.sub(r"[-.]", "_", sysconfig.get_platform())


def _mac() -> tuple[str, list[str]]:
    """The oldest release of macOS, and the architectures. ``ARCHFLAGS`` names them, as for extension modules."""
    named = re.findall(r"-arch\s+(\S+)", os.environ.get("ARCHFLAGS", ""))
    architectures = list(dict.fromkeys(named)) or [machine()]
    asked = os.environ.get("MACOSX_DEPLOYMENT_TARGET") or sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET") or "11.0"
    major, minor = ([int(part) for part in str(asked).split(".")] + [0])[:2]
    if architectures == ["arm64"] and major < 11:  # the first release for these processors
        major, minor = 11, 0
    if major >= 11:  # installers know no wheels for 11.3
        minor = 0
    return f"{major}.{minor}", architectures


def _target() -> list[str]:
    """The compiler's options for :func:`platform`; elsewhere than on macOS it makes what this machine runs."""
    if system() == "Darwin":
        release, architectures = _mac()
        return [f"-mmacosx-version-min={release}", *(word for name in architectures for word in ("-arch", name))]
    return []


def build() -> Path:
    """The compiled library. ``OSError`` or ``subprocess.CalledProcessError`` where there is no compiler that can."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    with tempfile.TemporaryDirectory(dir=HERE) as folder:  # the same disk: what is there is replaced in one step
        made = Path(folder) / LIBRARY.name
        source = f"-DTW_SOURCE={checksum()}u"
        files = [str(path) for path in sorted(HERE.glob("*.c"))]
        command = [*compiler, *FLAGS, *_target(), source, "-o", str(made), *files, "-lm"]
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        made.replace(LIBRARY)
    return LIBRARY


if __name__ == "__main__":
    try:
        print(build())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{shlex.join(error.cmd)}\n{error.stdout}")
    except OSError as error:
        sys.exit(f"no C compiler: {error}; install one, or name it in CC")
