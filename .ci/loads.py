"""Whether the installed thinwire has compiled kernels of its own source, asked without torch: `python .ci/loads.py`."""

import ctypes
import importlib.util
import runpy
import sys
from pathlib import Path

found = importlib.util.find_spec("thinwire")
if found is None or found.origin is None:
    sys.exit("thinwire is not installed")
native = Path(found.origin).parent / "kernels/native"
build = runpy.run_path(str(native / "build.py"))
library = ctypes.CDLL(str(native / "native.so"))
library.tw_source.restype = ctypes.c_uint32
if library.tw_source() != build["checksum"]():
    sys.exit(f"{native / 'native.so'} was compiled of another source")
print(f"{native / 'native.so'} loads")
