"""What the repository promises about itself."""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import iop

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd"}
SOURCES = [path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in SUFFIXES and "pb" not in path.parts]


def test_the_oldest_protobuf_allowed_is_the_one_that_generated_the_code() -> None:
    stamp = re.search(
        r"^# Protobuf Python Version: ([0-9.]+)$", (ROOT / "src/iop/wire/pb/runtime_pb2.py").read_text(), re.MULTILINE
    )
    assert stamp is not None
    (requirement,) = [one for one in PROJECT["project"]["dependencies"] if one.startswith("protobuf")]
    assert requirement.startswith(f"protobuf>={stamp[1]},<"), (requirement, stamp[1])


def test_one_version() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", iop.__version__)
    assert f"## {iop.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_room_says_what_it_is_for() -> None:
    for room in sorted((ROOT / "src/iop").iterdir()):
        if room.is_dir() and not room.name.startswith("__"):
            text = (room / "__init__.py").read_text()
            assert text.lstrip().startswith('"""'), f"{room.name}/__init__.py has no text"


def test_every_kernel_has_a_typed_face() -> None:
    kernels = sorted((ROOT / "src/iop/_fast").glob("*.pyx"))
    assert [kernel.name for kernel in kernels if not kernel.with_suffix(".pyi").exists()] == []


def test_no_module_is_a_drawer_for_everything() -> None:
    words = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [str(path) for path in SOURCES if words & set(path.stem.split("_"))] == []


def test_long_files_give_a_reason_at_the_top() -> None:
    for path in SOURCES:
        lines = path.read_text().splitlines()
        reason = "The file is long because" in " ".join("\n".join(lines[:30]).replace("#", "").split())
        assert len(lines) <= 500 or reason, f"{path}: {len(lines)} lines"


def test_nothing_is_left_for_later_in_the_code() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [path for path in SOURCES if mark.search(path.read_text())]
    assert found == []


def test_what_the_readme_links_to_exists() -> None:
    for document in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} -> {target}"


#: Types of one data structure, which refer to each other: the pool's queues.
ONE_STRUCTURE = {f"iop.pool.{name}" for name in ("fair", "lane", "lease", "resource", "standings")}


def imports() -> dict[str, set[str]]:
    """By module, the modules of this project that it imports, those for types alone included."""
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCES
        if path.suffix == ".py"
    }
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                named |= {f"{node.module}.{one.name}" for one in node.names} | {node.module}
            elif isinstance(node, ast.Import):
                named |= {one.name for one in node.names}
        own = named & modules.keys()
        # ``from package import module`` needs the module, not all that the package's face names.
        found[name] = {one for one in own if not any(other.startswith(f"{one}.") for other in own)} - {name}
    return found


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_no_rooms_import_each_other_in_a_circle(depth: int) -> None:
    """Neither modules nor, at a smaller depth, the packages that they are in."""
    rooms: dict[str, set[str]] = {}
    for name, needed in imports().items():
        room = ".".join(name.split(".")[:depth])
        others = needed - ONE_STRUCTURE if name in ONE_STRUCTURE else needed
        rooms.setdefault(room, set()).update({".".join(other.split(".")[:depth]) for other in others} - {room})
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))
