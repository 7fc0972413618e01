"""Builds the native library with CMake and packs it, bound to no Python and no TensorFlow.

Everything that is plain data (names, dependencies, extras) is in pyproject.toml; here is what
setuptools cannot say there: `tf_ops/` becomes `ringar/libringar.so` and its MPI links, the package
`ringar.launchers` lies in `launchers/`, and the wheel's tag is `py3-none-<platform>`, where the
platform is every Linux whose glibc has what the libraries need.

A build for another machine sets `_PYTHON_HOST_PLATFORM`, as a cross build of Python itself does:
`linux-aarch64` takes the toolchain file `tf_ops/cmake/aarch64-linux-gnu.cmake`.

On other systems than Linux, with `_PYTHON_HOST_PLATFORM=any`, and where there is no compiler for
the wheel that `pip install` builds, the wheel is `py3-none-any`: it has no library, and is for one
rank (`ringar/job/one_rank`).
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

try:
    from setuptools import Extension, find_packages, setup
    from setuptools.command.bdist_wheel import bdist_wheel
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError, PlatformError
except ModuleNotFoundError as error:  # new environments have an old one, or none
    raise SystemExit(
        f"ringar: expected setuptools 77 or later, received none ({error}); run: "
        "pip install 'setuptools>=77,<83' cmake ninja"
    ) from None

ROOT = Path(__file__).resolve().parent
# CMake's targets; `ringar` becomes ringar/libringar.so.
TARGETS = ("ringar", "ringar_tensorflow", "ringar_openmpi", "ringar_mpich")
# The oldest glibc that a wheel is meant for: that of TensorFlow's own wheels.
OLDEST_GLIBC = (2, 27)

NO_COMPILER = """no C++ compiler: {searched}.
ringar's native library is built from C++17 sources and needs one at build time only. Install it:
    Debian, Ubuntu:  apt-get install g++
    Fedora, RHEL:    dnf install gcc-c++
    conda:           conda install -c conda-forge gxx
or name the one you have in the environment variable CXX, then run the same command again."""


class CMakeExtension(Extension):
    """A library that CMake builds from `tf_ops`; setuptools itself compiles nothing."""

    def __init__(self, target: str) -> None:
        super().__init__(f"ringar.lib{target}", sources=[])
        self.target = target


def find_compiler() -> str:
    """Returns the C++ compiler's command: that of CXX, or the first of g++, c++, clang++.

    Raises:
        PlatformError: there is none; the message says what was looked for and what to install.
    """
    named = os.environ.get("CXX", "").strip()
    candidates = [named] if named else ["g++", "c++", "clang++"]
    for candidate in candidates:
        if shutil.which(shlex.split(candidate)[0]):
            return candidate
    if named:
        searched = f"CXX names {named!r}, which is not on PATH"
    else:
        searched = f"looked for {', '.join(candidates)} on PATH and found none"
    raise PlatformError(NO_COMPILER.format(searched=searched))


def has_library(command: Sequence[str]) -> bool:
    """Whether the command builds the native library.

    Who builds in place or installs a checkout as editable wants the library, and is told what it
    needs.
    """
    if not sysconfig.get_platform().startswith("linux"):
        return False
    if "bdist_wheel" not in command or os.environ.get("CXX"):
        return True
    try:
        find_compiler()
    except PlatformError as error:
        print(f"ringar: building a wheel for one rank, without the native library: {error}")
        return False
    return True


def find_tool(name: str) -> str:
    """Returns the path of `cmake` or `ninja`: this environment's own, else the one on PATH.

    Raises:
        PlatformError: neither is there (a build without isolation in a bare environment).
    """
    beside_python = os.pathsep.join(
        [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    )
    path = shutil.which(name, path=beside_python) or shutil.which(name)
    if path is None:
        raise PlatformError(
            f"no {name}: builds without build isolation expect it in the environment; "
            f"run: pip install {name}"
        )
    return path


def find_toolchain() -> Path | None:
    """Returns the CMake toolchain file of the machine that is built for, None if it is this one.

    Raises:
        PlatformError: there is none for that machine.
    """
    machine = sysconfig.get_platform().removeprefix("linux-")
    if machine == platform.machine():
        return None
    toolchain = ROOT / "tf_ops" / "cmake" / f"{machine}-linux-gnu.cmake"
    if not toolchain.exists():
        names = ", ".join(path.stem for path in toolchain.parent.glob("*-linux-gnu.cmake"))
        raise PlatformError(
            f"expected a platform with a toolchain file in {toolchain.parent} ({names}), received "
            f"{machine} from _PYTHON_HOST_PLATFORM"
        )
    return toolchain


class BuildLibrary(build_ext):
    """Builds `tf_ops/` in `build/native-<platform>`, incrementally, and copies the libraries."""

    def get_ext_filename(self, fullname: str) -> str:
        """Returns the library's plain name: it is loaded by ctypes, not imported by Python."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Configures, builds and copies; raises CompileError when a step fails."""
        assert isinstance(ext, CMakeExtension)
        build_dir = ROOT / "build" / f"native-{sysconfig.get_platform()}"
        self._configure(ROOT / "tf_ops", build_dir)
        self._run([find_tool("cmake"), "--build", str(build_dir), "--target", ext.target])
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        _replace(build_dir / library.name, library)

    def copy_extensions_to_source(self) -> None:
        """Copies the built library in-tree (editable installs), replacing rather than rewriting."""
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            _replace(built, ROOT / self.get_ext_filename(ext.name))

    def _configure(self, source: Path, build_dir: Path) -> None:
        arguments = {
            "CMAKE_BUILD_TYPE": "Release",
            # Build isolation puts ninja at a new path each time; the cached one would be gone.
            "CMAKE_MAKE_PROGRAM": find_tool("ninja"),
            **_compiler_arguments(),
        }
        build_dir.mkdir(parents=True, exist_ok=True)
        if not _cache_fits(build_dir / "CMakeCache.txt", source, arguments):
            shutil.rmtree(build_dir)
        command = [find_tool("cmake"), "-S", str(source), "-B", str(build_dir), "-G", "Ninja"]
        self._run(command + [f"-D{name}={value}" for name, value in arguments.items()])

    def _run(self, command: list[str]) -> None:
        self.announce(shlex.join(command), level=2)
        code = subprocess.run(command, check=False).returncode
        if code != 0:
            raise CompileError(
                f"building the native library failed, see the lines above: "
                f"{shlex.join(command)} exited with {code}"
            )


def _replace(built: Path, target: Path) -> None:
    """Puts a new library in place: a running job may have the old one mapped, never write to it."""
    fresh = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    shutil.copy2(built, fresh)
    os.replace(fresh, target)


def _compiler_arguments() -> dict[str, str]:
    """Returns the options that tell CMake its compiler."""
    toolchain = find_toolchain()
    if toolchain is not None:
        return {"CMAKE_TOOLCHAIN_FILE": str(toolchain)}
    compiler, *flags = shlex.split(find_compiler())
    arguments = {"CMAKE_CXX_COMPILER": shutil.which(compiler) or compiler}
    return {**arguments, "CMAKE_CXX_FLAGS": shlex.join(flags)} if flags else arguments


def _cache_fits(cache: Path, source: Path, arguments: dict[str, str]) -> bool:
    """Whether a CMake cache belongs to this source, generator and compiler (or there is none)."""
    if not cache.exists():
        return True
    lines = cache.read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and line[0] not in "#/")
    compiler = arguments.get("CMAKE_CXX_COMPILER")
    return (
        values.get("CMAKE_HOME_DIRECTORY:INTERNAL") == str(source)
        and values.get("CMAKE_GENERATOR:INTERNAL") == "Ninja"
        and compiler in (None, values.get("CMAKE_CXX_COMPILER:FILEPATH", compiler))
    )


def portable_platform(plain: str, libraries: Iterable[Path]) -> str:
    """Returns the platform that `libraries` run on, as PEP 600 names it: `manylinux_2_27_x86_64`.

    Libraries that need the libstdc++ of the machine that built them, or that are not built yet (in
    an editable installation), are for the `plain` platform, such as `linux_x86_64`.

    The versions of symbols that a library needs are words of its string table.
    """
    try:
        text = b"".join(library.read_bytes() for library in libraries)
    except FileNotFoundError:
        return plain
    if re.search(rb"\0(GLIBCXX|CXXABI)_[\d.]+(?=\0)", text):
        return plain
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)[\d.]*(?=\0)", text)
    major, minor = max([OLDEST_GLIBC, *((int(major), int(minor)) for major, minor in versions)])
    return plain.replace("linux_", f"manylinux_{major}_{minor}_", 1)


class PlatformWheel(bdist_wheel):
    """A wheel for a platform and any Python 3: the libraries have no Python in them."""

    def finalize_options(self) -> None:
        """Marks the wheel as holding machine code."""
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """Returns `py3-none-<platform>`."""
        libraries = map(Path, self.get_finalized_command("build_ext").get_outputs())
        return "py3", "none", portable_platform(super().get_tag()[2], libraries)


def packages() -> dict[str, str]:
    """Returns every package with its directory, relative to the root as setuptools wants it."""
    directories = {
        name: name.replace(".", "/") for name in find_packages(include=["ringar", "ringar.*"])
    }
    directories["ringar.launchers"] = "launchers"
    for name in find_packages("launchers"):
        directories[f"ringar.launchers.{name}"] = f"launchers/{name.replace('.', '/')}"
    return directories


if __name__ == "__main__":
    library: dict[str, Any] = {
        "ext_modules": [CMakeExtension(target) for target in TARGETS],
        "cmdclass": {"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
    }
    setup(
        packages=list(packages()),
        package_dir=packages(),
        zip_safe=False,
        **(library if has_library(sys.argv) else {}),
    )
