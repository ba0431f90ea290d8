"""Child processes of a load test: started together, measured from outside, always ended.

Every child reads its standard input only to learn that its starter is gone, so that none outlives a test that dies.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

__all__ = ["Child", "ChildFailed"]

ROOT = Path(__file__).parents[1]
WAIT_S = 20.0
END_S = 10.0
LINUX = sys.platform == "linux"

Line = dict[str, Any]


class ChildFailed(Exception):
    """A child ended, or did not say in time what was waited for; the text says which and what it said last."""


class Child:
    """One process that tells about itself in JSON lines on ``tells``. Request outcome lines are only counted."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        tells: Literal["stdout", "stderr"] = "stdout",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.outcomes: Counter[str] = Counter()
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._last = ""
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if tells == "stdout" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if tells == "stderr" else None,
            start_new_session=True,  # Ctrl-C is for the load test, which ends its children in their turn
        )
        self._stream = self.process.stdout if tells == "stdout" else self.process.stderr
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._stream is not None
        for raw in self._stream:
            self._last = raw.decode("utf-8", "replace").strip()
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if line.get("event") == "request":
                self.outcomes[line["outcome"]] += 1
            else:
                self._lines.put(line)
        self._lines.put(None)

    def line(self, wanted: Callable[[Line], bool] = lambda line: True, *, timeout_s: float = WAIT_S) -> Line:
        """The next line for which ``wanted`` holds; those before it are dropped. Raises ChildFailed."""
        deadline_at = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline_at - time.monotonic()))
            except queue.Empty:
                raise ChildFailed(f"{self.name}: nothing for {timeout_s:g} s; last line: {self._last}") from None
            if line is None:
                self._lines.put(None)
                raise ChildFailed(f"{self.name} ended with {self.process.wait()}; last line: {self._last}")
            if wanted(line):
                return line

    def listening(self, listener: str) -> tuple[str, int]:
        """Where a listener of an edge is."""
        line = self.line(lambda line: line.get("event") == "listening" and line.get("listener") == listener)
        host, _, port = line["address"].rpartition(":")
        return host, int(port)

    def cpu_s(self) -> float:
        """CPU time so far, of all threads that are alive."""
        if LINUX:
            tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
            return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        minutes, _, seconds = self._ps("time").rpartition(":")
        return float(seconds) + 60 * sum(60**i * int(part) for i, part in enumerate(reversed(minutes.split(":"))))

    def memory_bytes(self) -> int:
        """Memory that it costs: the proportional set size on Linux, elsewhere the resident one."""
        return self._memory("Pss:")

    def heap_bytes(self) -> int:
        """The part of it that is data: unlike the whole, it does not shrink when one more Python process comes and
        shares the libraries."""
        return self._memory("Pss_Anon:")

    def _memory(self, field: str) -> int:
        if LINUX:
            rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
            return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith(field))
        return int(self._ps("rss")) * 1024

    def _ps(self, field: str) -> str:
        line = ["ps", "-o", f"{field}=", "-p", str(self.process.pid)]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    def end(self) -> None:
        """Closes its standard input; SIGKILL if that does not end it in time. Frees the pipes. Idempotent."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(END_S)
        if self._stream is not None:
            self._stream.close()
