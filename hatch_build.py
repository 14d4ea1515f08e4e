"""Compiles the kernels when the package is built or installed, and names the platform that the wheel is then for.

The environment variable ``THINWIRE_PURE`` decides what is built:

- unset: compiled kernels, and where they cannot be compiled a pure wheel with a warning,
- ``0``: compiled kernels or an error, for wheels that are released as compiled ones,
- ``1``: a pure wheel, whose references in torch run everywhere and give the same bits.
"""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/thinwire/kernels/native"
PURE = "THINWIRE_PURE"


class CompiledKernels(BuildHookInterface):
    """A library with a plain C interface: one wheel a platform, for every version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        wanted = os.environ.get(PURE, "")
        if wanted not in ("", "0", "1"):
            raise ValueError(
                f"{PURE}={wanted}: 1 builds without compiled kernels, 0 fails where they cannot be compiled"
            )
        library = Path(self.root, NATIVE, "native.so")
        if wanted == "1":
            if version == "editable":
                library.unlink(missing_ok=True)  # what lies in the tree is what would be loaded
            return
        build = runpy.run_path(str(Path(self.root, NATIVE, "build.py")))
        try:
            build["build"]()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stdout", None) or error
            if wanted == "0":
                raise RuntimeError(f"thinwire's kernels were not compiled: {said}") from error
            library.unlink(missing_ok=True)  # of an earlier source, perhaps
            self.app.display_warning(f"thinwire's kernels were not compiled, torch will do their work: {said}")
            return
        build_data["artifacts"].append(f"/{library.relative_to(self.root)}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{build['platform']()}"
