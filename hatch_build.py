"""Compiles the hot modules with mypyc when a wheel is built.

The list is in pyproject.toml. Compiled or not, the modules behave the same; compiled they take a third of the time. The
source is in the wheel too, so a traceback reads as ever.

Without a C compiler the wheel is built of Python alone, and says so. EMBERQ_PURE=1 asks for that; EMBERQ_COMPILED=1
makes it an error. EMBERQ_OPTIMIZATION=0 compiles in a third of the time, for a build that is only tested. An editable
install is never compiled: what one edits is what one runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# A C file for each module, so that every core has one to compile. Where nothing is optimized, most of the work is to
# read Python's headers, and one file for all modules does that once.
_SETUP = """\
import os
from concurrent.futures import ThreadPoolExecutor

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    def build_extensions(self):
        compile_in_turn = self.compiler.compile

        def compile_at_once(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = pool.map(lambda source: compile_in_turn([source], **options), sources)
                return [path for paths in parts for path in paths]

        self.compiler.compile = compile_at_once
        super().build_extensions()


setup(
    name="emberq-compiled",
    packages=[],
    ext_modules=mypycify(
        {arguments!r}, opt_level={level!r}, debug_level="0", group_name="emberq", multi_file={is_in_parts!r}
    ),
    cmdclass={{"build_ext": ParallelBuild}},
    script_args=["build_ext", "--inplace", f"--parallel={{os.cpu_count()}}"],
)
"""

# The modules are one library, and no other may replace its functions: calls within it need no table of addresses, which
# takes a tenth of the time off a small packet.
_CFLAGS = "-fvisibility=hidden -fno-semantic-interposition -fno-plt" if sys.platform == "linux" else ""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Found by hatchling, by this file's name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is packed."""
        if version == "editable" or not self._is_wanted():
            return
        self._folder = Path(tempfile.mkdtemp(prefix="emberq-build-"))
        shutil.copytree(Path(self.root, "src"), self._folder, dirs_exist_ok=True)
        self._compile(self.config["modules"])
        for library in self._folder.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):
            if "build" not in library.relative_to(self._folder).parts:
                build_data["force_include"][str(library)] = str(library.relative_to(self._folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Leave nothing behind."""
        if folder := getattr(self, "_folder", None):
            shutil.rmtree(folder)

    def _is_wanted(self) -> bool:
        if os.environ.get("EMBERQ_PURE") == "1":
            return False
        compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
        headers = Path(sysconfig.get_path("include"), "Python.h")
        if shutil.which(compiler) and headers.exists():
            return True
        missing = f"{headers} is missing" if shutil.which(compiler) else f"there is no C compiler ({compiler})"
        if os.environ.get("EMBERQ_COMPILED") == "1":
            raise RuntimeError(f"emberq cannot be compiled: {missing}. On Debian: apt-get install gcc python3-dev")
        self.app.display_warning(f"emberq is built without its compiled core, which makes it slower: {missing}.")
        return False

    def _compile(self, modules: list[str]) -> None:
        setup = self._folder / "setup_compiled.py"
        level = os.environ.get("EMBERQ_OPTIMIZATION", "3")
        arguments = ["--ignore-missing-imports", *modules]
        setup.write_text(_SETUP.format(arguments=arguments, level=level, is_in_parts=level != "0"))
        done = subprocess.run(  # noqa: S603 - our own script
            [sys.executable, setup.name],
            cwd=self._folder,
            env={**os.environ, "CFLAGS": f"{os.environ.get('CFLAGS', '')} {_CFLAGS}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        setup.unlink()
        if done.returncode:
            raise RuntimeError(f"mypyc failed:\n{done.stdout}")
