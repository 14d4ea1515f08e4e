"""Compiles the kernels when the package is built or installed; where that fails, the package does without them."""

from __future__ import annotations

import runpy
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/thinwire/kernels/native"


class CompiledKernels(BuildHookInterface):
    """A library with a plain C interface: one wheel a platform, for every version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        try:
            built = runpy.run_path(str(Path(self.root, NATIVE, "build.py")))["build"]()
        except (OSError, subprocess.CalledProcessError) as error:
            Path(self.root, NATIVE, "native.so").unlink(missing_ok=True)  # of an earlier source, perhaps
            said = getattr(error, "stdout", None) or error
            self.app.display_warning(f"thinwire's kernels were not compiled, torch will do their work: {said}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{Path(built).relative_to(self.root)}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
