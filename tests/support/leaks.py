"""File descriptors and child processes of this process, before and after."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.caretaker import all_absent

#: Where this system lists the open descriptors of the process that asks.
_FDS = Path("/proc/self/fd") if sys.platform == "linux" else Path("/dev/fd")


@dataclass(frozen=True)
class Leftovers:
    """A snapshot to compare with."""

    fds: frozenset[int]
    children: frozenset[int]

    @classmethod
    def now(cls) -> Leftovers:
        with all_absent():
            return cls(open_fds(), child_pids())

    def assert_nothing_new(self) -> None:
        """Raises :class:`AssertionError` that names each new descriptor and child."""
        with all_absent():
            fds = sorted(open_fds() - self.fds)
        assert not fds, f"file descriptors left open: {', '.join(f'{fd} -> {_target(fd)}' for fd in fds)}"
        children = sorted(child_pids() - self.children)
        assert not children, f"child processes left behind: {children}"


def open_fds() -> frozenset[int]:
    """Descriptors open now, without the one that the listing itself uses."""
    return frozenset(fd for fd in map(int, os.listdir(_FDS)) if _is_open(fd))


def child_pids() -> frozenset[int]:
    """Processes whose parent is this one."""
    me = str(os.getpid())
    if sys.platform == "linux":
        found: set[int] = set()
        for task in Path("/proc/self/task").iterdir():
            try:
                found.update(map(int, (task / "children").read_text().split()))
            except FileNotFoundError:
                continue  # that thread has just ended
        return frozenset(found)
    lines = subprocess.run(["ps", "-axo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in lines.splitlines()]
    return frozenset(int(pid) for pid, parent, command in rows if parent == me and not command.endswith("ps"))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _target(fd: int) -> str:
    try:
        return os.readlink(_FDS / str(fd))
    except OSError:
        return "?"
