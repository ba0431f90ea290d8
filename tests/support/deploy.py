"""What the tests of deploy/ look up in the programs: options of commands, and configurations as a deployment has them.

Nothing here needs systemd, Docker or Helm; :func:`tool` finds their linters where there are any.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

from iop.config.edge import EdgeConfig
from iop.config.load import parse_edge, parse_node
from iop.config.node import NodeConfig
from tests.support.certificates import Certificates
from tests.support.programs import command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PREFIX = "/opt/iop/bin/"  # where docs/deploy.md and the images have the programs
PROGRAMS = frozenset(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])

_NAMED = r"^[^#\n]*(?:_file|cert|ca): ([\w.-]+)(?=[},\s])"

#: Where a deployment may keep what is secret.
SECRET_PATH = re.compile(r"/run/secrets/[\w./-]+")


def tool(name: str) -> str:
    """The path of a linter, of this environment or of the system; "" if there is none."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") or ""


@cache
def options(program: str, name: str) -> frozenset[str]:
    """The options that a command of a program takes. Raises CalledProcessError if there is no such command."""
    ran = subprocess.run(command(program, name, "--help"), capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", ran.stdout))


def config_file_of(program: str, arguments: list[str]) -> str:
    """The file that a command line reads, after a look whether the program takes every option of it."""
    assert program in PROGRAMS
    name, *rest = arguments
    unknown = {word for word in rest if word.startswith("-")} - options(program, name)
    assert not unknown, f"{program} {name} does not know {unknown}"
    return rest[rest.index("-c") + 1]


def secret_paths(text: str) -> set[str]:
    """The files of secrets that a configuration names."""
    return set(SECRET_PATH.findall(text))


def with_secrets_in(folder: Path, text: str) -> str:
    """The configuration with its files of secrets in ``folder``, which holds one secret for each of their names, the
    same for the same name. Names that are relative count from the folder of the file, so give that as ``base``."""
    for name in {Path(path).name for path in secret_paths(text)} | set(re.findall(_NAMED, text, re.MULTILINE)):
        if not name.endswith(".pem"):
            (folder / name).write_text(f"secret-of-{name}\n")
        elif not (folder / name).exists():
            Certificates(folder).edge()
    return SECRET_PATH.sub(lambda found: str(folder / Path(found[0]).name), text)


def edge_of(text: str, folder: Path) -> EdgeConfig:
    """As `iop-edge check` reads it, with secrets in ``folder``. Raises ConfigError."""
    return parse_edge(with_secrets_in(folder, text), base=folder, env={})


def node_of(text: str, folder: Path) -> NodeConfig:
    """As `iop-node check` reads it."""
    return parse_node(with_secrets_in(folder, text), base=folder, env={"IOP_NODE_TOKEN": "t"})
