"""The wheel: built from the sources alone, put into a fresh environment, and run from there.

Building it needs what the environment of the tests has (setuptools, Cython), a C compiler and no network. That the
requirements which pyproject.toml names are enough can only be seen where pip reaches an index; IOP_TEST_INDEX=1 says
that it does.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import iop

ROOT = Path(__file__).parents[2]
MADE_OF = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-index", "--no-deps")


def run(*arguments: str | Path, **environment: str) -> str:
    """Stdout of a command that has to succeed, started outside the repository and with nothing of it on the path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "IOP_"))}
    done = subprocess.run(
        [str(argument) for argument in arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT.anchor,
        env={**clean, **environment},
        timeout=600,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def lacking() -> list[str]:
    """What this machine lacks for building a wheel."""
    found = []
    for name, least in (("setuptools", 77), ("cython", 3)):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "0"
        if int(version.partition(".")[0]) < least:
            found.append(f"{name}>={least} in this environment (make installs it, over the network)")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        found.append(f"the C compiler {compiler}")
    return found


def sources(folder: Path) -> Path:
    """A copy of what a wheel is made of, without anything that a build has left behind."""
    folder.mkdir()
    for name in MADE_OF:
        shutil.copy(ROOT / name, folder)
    left_behind = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=left_behind)
    return folder


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("iop-*.whl")
    return wheel


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """A fresh environment that sees ``packages``, folders of installed ones, behind its own; returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "dependencies.pth").write_text("".join(f"{path}\n" for path in packages))
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := lacking():
        pytest.skip(f"cannot build a wheel here without {' and '.join(missing)}")
    folder = tmp_path_factory.mktemp("wheel")
    source = sources(folder / "source")
    run(*PIP, "wheel", "--no-build-isolation", *OFFLINE, "--wheel-dir", folder / "dist", source)
    return wheel_in(folder / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs. What they depend on comes from the environment of the tests; a path in a .pth file
    does not bring in the .pth files there, so its own iop, which is this repository, is not seen."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    python = environment(tmp_path_factory.mktemp("fresh") / "venv", sorted(paths))
    run(*PIP, "--python", python, "install", *OFFLINE, "--ignore-installed", wheel)
    return python.parent


def test_it_holds_the_package_whole_and_nothing_else(wheel: Path) -> None:
    there = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = [path for path in (ROOT / "src/iop").rglob("*") if "__pycache__" not in path.parts]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    kept = {path for path in package if path.suffix in {".py", ".pyi", ".pxd"} or path.name == "py.typed"}
    built = {path.with_name(path.stem + suffix) for path in package if path.suffix == ".pyx"}
    assert there == {str(path.relative_to(ROOT / "src")) for path in kept | built}
    notes = {name.partition(".dist-info/")[2] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" in name}
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= notes


@pytest.mark.parametrize("program", ["iop-edge", "iop-node"])
def test_the_programs_tell_their_version(installed: Path, program: str) -> None:
    assert run(installed / program, "--version") == f"{program} {iop.__version__}\n"


def test_one_question_goes_the_whole_way(installed: Path) -> None:
    where = run(installed / "python", "-c", "import iop, iop._fast.mux as mux; print(iop.__file__, mux.__file__)")
    assert all(Path(path).is_relative_to(installed.parent) for path in where.split())
    assert run(installed / "iop-edge", "demo", "--echo", "--once", "good day") == "echo: good day\n"


@pytest.mark.skipif(
    os.environ.get("IOP_TEST_INDEX") != "1",
    reason="needs a network for build dependencies and those of the wheel: set IOP_TEST_INDEX=1 where pip reaches one",
)
def test_what_pyproject_names_is_enough(tmp_path: Path) -> None:
    """As anybody's `pip wheel .` and `pip install` do it: nothing of the tests' environment is seen. The kernels, which
    the tests above build, are left out."""
    run(*PIP, "wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", sources(tmp_path / "source"), IOP_KERNELS="0")
    python = environment(tmp_path / "venv", ())
    run(*PIP, "--python", python, "install", wheel_in(tmp_path / "dist"))
    assert run(python.with_name("iop-node"), "--version") == f"iop-node {iop.__version__}\n"
    imported = (f"import {name}" for name in ("uvloop", "httptools", "iop.wire.pb.runtime_pb2", "iop.config.load"))
    run(python, "-c", "; ".join(imported))
