"""The wheel: for any Python, complete, in need of little; and what a build without g++ says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import setup
from tests.bare_machine import without_compilers
from tests.plugin.jobs import ROOT

pytestmark = [pytest.mark.job, pytest.mark.deadline(300)]

VERSION = re.search(r'__version__ = "(.*)"', (ROOT / "ringar/version.py").read_text())[1]  # type: ignore[index]
# What a fresh clone holds; copied, so that the build neither finds nor leaves anything in the tree.
SOURCES = [
    *["setup.py", "pyproject.toml", "MANIFEST.in", "Makefile", "README.md", "LICENSE"],
    *["ringar", "launchers", "tf_ops"],
]
# The engine, what TensorFlow opens, and the link for each of MPI's binary interfaces.
LIBRARIES = [f"ringar/libringar{link}.so" for link in ("", "_tensorflow", "_openmpi", "_mpich")]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.tmp", "*.pyc")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def python(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    settings: dict = {"capture_output": True, "text": True, "timeout": 110, "check": False}
    return subprocess.run([sys.executable, *map(str, arguments)], **(settings | options))


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of this tree's wheel and of the source archive that it was built from."""
    command = ["make", "-C", str(ROOT), "wheel", f"VENV={sys.prefix}", f"PYTHON={sys.executable}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob(f"ringar-{VERSION}-*_{os.uname().machine}.whl")
    return wheel


def test_wheel_is_bound_to_the_platform_alone(wheel: Path) -> None:
    platform = rf"manylinux_2_27_{os.uname().machine}"
    assert wheel.name == f"ringar-{VERSION}-py3-none-{platform}.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"ringar-{VERSION}.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: false" in metadata
    assert "Tag: py3-none-" in metadata


@pytest.mark.parametrize(
    ("symbols", "platform"),
    [
        ("GLIBC_2.2.5 GLIBC_2.18", "manylinux_2_27_x86_64"),
        ("GLIBC_2.34 GLIBC_2.4", "manylinux_2_34_x86_64"),
        ("GLIBC_2.17 GLIBCXX_3.4.30", "linux_x86_64"),
    ],
)
def test_a_wheel_is_named_after_what_its_libraries_need(
    tmp_path: Path, symbols: str, platform: str
) -> None:
    for name, versions in {"one": symbols, "other": "GLIBC_2.2.5"}.items():
        (tmp_path / name).write_bytes(b"\0".join([b"", *versions.encode().split(), b""]))
    libraries = [tmp_path / "one", tmp_path / "other"]
    assert setup.portable_platform("linux_x86_64", libraries) == platform
    assert setup.portable_platform("linux_x86_64", [tmp_path / "unbuilt"]) == "linux_x86_64"


def test_wheel_holds_every_module_and_the_libraries(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "ringar").rglob("*.py")}
    modules |= {
        f"ringar/launchers/{p.relative_to(ROOT / 'launchers')}"
        for p in (ROOT / "launchers").rglob("*.py")
    }
    assert modules <= names, modules - names
    assert {"ringar/__init__.pyi", "ringar/cupy/__init__.pyi", "ringar/py.typed"} <= names
    assert {name for name in names if name.endswith(".so")} == set(LIBRARIES)
    assert not [name for name in names if name.startswith(("tests", "tf_ops", "launchers"))]


def test_wheel_needs_only_small_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"ringar-{VERSION}.dist-info/METADATA").decode()
    requirements = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert sorted(requirements) == ["cloudpickle", "lazy_loader", "ml_dtypes", "numpy", "wrapt"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_libraries_need_neither_tensorflow_nor_mpi_nor_python(
    wheel: Path, tmp_path: Path, name: str
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path, LIBRARIES)
    library = str(tmp_path / name)
    source = f"import ctypes; lib = ctypes.CDLL({library!r}, mode={os.RTLD_NOW})\n"
    source += "print(open('/proc/self/maps').read())"
    result = python("-I", "-c", source)
    assert result.returncode == 0, result.stderr
    assert Path(library).name in result.stdout
    assert not re.search(r"libmpi|libtensorflow|libcuda|libnccl", result.stdout)


def test_library_says_its_version(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract(LIBRARIES[0], tmp_path)
    source = f"import ctypes; version = ctypes.CDLL({library!r}).ringar_version\n"
    source += "version.restype = ctypes.c_char_p; print(version().decode())"
    assert python("-I", "-c", source).stdout.strip() == VERSION


def test_source_archive_holds_what_a_build_needs(built: Path) -> None:
    archive = built / f"ringar-{VERSION}.tar.gz"
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    native = "*.cc *.h *.inc *.txt *.cmake *.map"
    for folder, kinds in {"tf_ops": native, "launchers": "*.py"}.items():
        files = {str(p.relative_to(ROOT)) for k in kinds.split() for p in (ROOT / folder).rglob(k)}
        assert files
        assert files <= names, files - names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_a_wheel_that_was_built_without_a_compiler_is_for_one_rank(
    checkout: Path, tmp_path: Path
) -> None:
    build = ["pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    result = python("-m", *build, env=without_compilers(tmp_path / "bin"), cwd=checkout)
    assert result.returncode == 0, result.stderr
    notice = "without the native library: no C++ compiler: looked for g++"
    assert notice in result.stdout + result.stderr
    (pure,) = tmp_path.glob("*-py3-none-any.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(pure) as archive:
        archive.extractall(site)
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    script = ["-c", "import numpy, ringar; ringar.init(); print(ringar.allreduce(numpy.ones(2)))"]
    settings: dict[str, object] = {
        "env": {**os.environ, "PYTHONPATH": str(site)},
        "cwd": tmp_path,
    }
    process = python(*script, **settings)
    assert process.stdout == "[1. 1.]\n", process.stderr
    (warning,) = process.stderr.splitlines()
    assert re.search("this rank trains alone, without .* py3-none-any.* install g", warning)
    ranks = ["-m", "ringar.launchers", "-np", "2", sys.executable]
    job = python(*ranks, *script, **settings)
    assert job.returncode != 0
    assert "expected ringar's native library for a job of several ranks" in job.stderr


def test_a_build_in_place_without_a_compiler_says_what_to_install(
    checkout: Path, tmp_path: Path
) -> None:
    command = ["setup.py", "build_ext", "--inplace"]  # as make does
    result = python(*command, env=without_compilers(tmp_path / "bin"), cwd=checkout)
    assert result.returncode != 0
    output = result.stdout + result.stderr
    assert "no C++ compiler: looked for g++, c++, clang++ on PATH and found none" in output
    assert "apt-get install g++" in output
    assert "Traceback" not in output


def test_a_compiler_that_is_named_but_absent_is_named_in_the_error(
    checkout: Path, tmp_path: Path
) -> None:
    result = python(
        "setup.py", "build_ext", env={**os.environ, "CXX": "g++-nowhere -m64"}, cwd=checkout
    )
    assert result.returncode != 0
    assert "CXX names 'g++-nowhere -m64', which is not on PATH" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_an_error_in_the_sources_ends_the_build(checkout: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkout, broken)
    (broken / "tf_ops" / "engine" / "a.cc").write_text("int main( {\n")  # built first
    result = python("setup.py", "build_ext", "--inplace", cwd=broken)
    assert result.returncode != 0
    assert "building the native library failed" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (broken / "ringar" / "libringar.so").exists()


def test_an_old_setuptools_is_named_in_the_error(checkout: Path, tmp_path: Path) -> None:
    old = tmp_path / "setuptools" / "__init__.py"
    old.parent.mkdir()
    old.write_text("Extension = find_packages = setup = None\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = python("setup.py", "build_ext", "--inplace", env=environment, cwd=checkout)
    assert result.returncode == 1
    assert "expected setuptools 77 or later" in result.stderr
    assert "pip install 'setuptools>=77,<83' cmake ninja" in result.stderr
    assert result.stderr.count("\n") == 1


def test_importing_ringar_and_its_launchers_imports_no_tensorflow() -> None:
    source = (
        "import sys, ringar, ringar.launchers.command_line.cli; print('tensorflow' in sys.modules)"
    )
    result = python("-c", source, cwd=ROOT)
    assert result.stdout.strip() == "False", result.stderr


def test_the_makefile_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c "
        '"import sys; sys.version_info = (3, 9, 0); exec(sys.argv[1])" "$2"\n'
    )
    old.chmod(0o755)
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    result = subprocess.run(
        [make, "-C", str(ROOT), f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", "demo"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "expected Python >= 3.10, received 3.9" in result.stderr
