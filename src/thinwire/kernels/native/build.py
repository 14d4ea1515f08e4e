"""Compiles native.c beside itself: ``python -m thinwire.kernels.native.build``, and what installing does.

Needs a C compiler (``cc``, or what ``CC`` names) and nothing else. The library has a plain C interface and is
loaded with ctypes, so one file serves every version of Python.

Where the environment variable ``THINWIRE_SANITIZE`` is set, another file is compiled, and loaded, that stops the
process at the first wrong access to memory or undefined behaviour, for ``make sanitize``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
SANITIZED = bool(os.environ.get("THINWIRE_SANITIZE"))
LIBRARY = HERE / ("sanitized.so" if SANITIZED else "native.so")
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fvisibility=default"]
# One rounding an operation, whatever the processor could fuse. Vectors of 16 floats pass between static functions only.
FLAGS += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
if SANITIZED:  # the last -O counts
    FLAGS += ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def checksum() -> int:
    """Of the source: a library that was compiled of another one is not used."""
    return zlib.crc32(b"".join((HERE / name).read_bytes() for name in ("native.c", "loops.h")))


def build() -> Path:
    """The compiled library. ``OSError`` or ``subprocess.CalledProcessError`` where there is no compiler that can."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    with tempfile.TemporaryDirectory(dir=HERE) as folder:  # the same disk: what is there is replaced in one step
        made = Path(folder) / LIBRARY.name
        source = f"-DTW_SOURCE={checksum()}u"
        command = [*compiler, *FLAGS, source, "-o", str(made), str(HERE / "native.c"), "-lm"]
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
