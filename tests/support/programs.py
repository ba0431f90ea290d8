"""Real ``iop-edge`` and ``iop-node`` processes for integration tests.

    with edge_program(tmp_path, config) as edge:
        edge.address("http")            # host and port that the listener really has
        edge.wait_line(lambda line: line.get("event") == "node_connected")

Listeners are configured with port 0 and tell their address in a ``listening`` log line; readiness is a log line as
well. So nothing sleeps and no port is fixed. Every process is ended by its own pid.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 20.0
STOP_S = 10.0

Line = dict[str, Any]


class Program:
    """One process whose stderr is read as it comes. Lines that are not JSON appear as ``{"text": line}``.

    ``take`` sees each line first, in another thread; one for which it returns true is not kept (for very long runs).
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        take: Callable[[Line], bool] | None = None,
    ) -> None:
        self.arguments = arguments
        self._take = take
        self._changed = threading.Condition()
        self._lines: list[Line] = []
        self._ended = False
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        self._output: list[bytes] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_lines, args=(self.process.stderr,), daemon=True),
            threading.Thread(target=self._read_output, args=(self.process.stdout,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lines(self) -> list[Line]:
        """The lines on stderr so far."""
        with self._changed:
            return list(self._lines)

    @property
    def output(self) -> str:
        """Stdout so far; whole once the process has ended."""
        return b"".join(self._output).decode("utf-8", "replace")

    def wait_line(self, wanted: Callable[[Line], bool], *, timeout_s: float = WAIT_S, after: int = 0) -> Line:
        """The first line from position ``after`` on for which ``wanted`` is true, waiting for it if need be.

        Raises :class:`AssertionError` with everything on stderr if it does not come or the process ends first.
        """
        deadline = time.monotonic() + timeout_s
        position = after
        with self._changed:
            while True:
                while position < len(self._lines):
                    line = self._lines[position]
                    position += 1
                    if wanted(line):
                        return line
                if self._ended:
                    raise AssertionError(f"{self.arguments} ended first; {self._story()}")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise AssertionError(f"{self.arguments}: no such line within {timeout_s} s; {self._story()}")

    def wait_event(self, event: str, *, timeout_s: float = WAIT_S, after: int = 0, **fields: Any) -> Line:
        """:meth:`wait_line` for an event with these fields."""

        def wanted(line: Line) -> bool:
            return line.get("event") == event and all(line.get(key) == value for key, value in fields.items())

        return self.wait_line(wanted, timeout_s=timeout_s, after=after)

    def address(self, listener: str, *, timeout_s: float = WAIT_S) -> tuple[str, int]:
        """Where a listener (``http``, ``nodes``, ``admin``) really listens."""
        line = self.wait_event("listening", listener=listener, timeout_s=timeout_s)
        host, _, port = str(line["address"]).rpartition(":")
        return host.strip("[]"), int(port)

    def wait(self, *, timeout_s: float = WAIT_S) -> int:
        """The exit code, once the process has ended and its output is read."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Fine on a process that has ended."""
        self.process.kill()
        self.wait()

    def close(self) -> int:
        """SIGTERM, SIGKILL if that is not obeyed within its time; returns the exit code and frees the pipes."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_lines(self, stream: Any) -> None:
        for raw in stream:
            text = raw.decode("utf-8", "replace").rstrip("\n")
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            line = value if isinstance(value, dict) else {"text": text}
            if self._take is not None and self._take(line):
                continue
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_output(self, stream: Any) -> None:
        while data := os.read(stream.fileno(), 65536):
            self._output.append(data)

    def _story(self) -> str:
        return "stderr was:\n" + "\n".join(json.dumps(line) for line in self._lines[-60:])


def command(program: str, *arguments: str) -> list[str]:
    """The command line of ``iop-edge`` or ``iop-node`` under the interpreter that runs the tests."""
    return [sys.executable, "-m", {"iop-edge": "iop.cli.edge", "iop-node": "iop.cli.node"}[program], *arguments]


@contextmanager
def edge_program(folder: Path, config: Mapping[str, Any], *, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """An edge with ``config`` written to ``folder/edge.yaml``, stopped at the end."""
    with _serving("iop-edge", folder / "edge.yaml", config, env) as program:
        yield program


@contextmanager
def node_program(folder: Path, config: Mapping[str, Any], *, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """A node with ``config`` written to ``folder/node.yaml``, stopped at the end."""
    with _serving("iop-node", folder / "node.yaml", config, env) as program:
        yield program


@contextmanager
def _serving(program: str, file: Path, config: Mapping[str, Any], env: Mapping[str, str] | None) -> Iterator[Program]:
    file.write_text(json.dumps(config))  # which is YAML
    with Program(command(program, "serve", "-c", str(file), "--log-format", "json"), env=env) as running:
        yield running


def edge_config(**sections: Any) -> dict[str, Any]:
    """A configuration whose listeners take whatever port is free; ``sections`` are laid over it."""
    config: dict[str, Any] = {
        "http": {"listen": "127.0.0.1:0"},
        "transport": {"listen": "127.0.0.1:0"},
        "admin": {"listen": "127.0.0.1:0"},
    }
    for name, value in sections.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) and name in config else value
    return config


def node_config(edge: tuple[str, int], **sections: Any) -> dict[str, Any]:
    """A node that dials ``edge`` and takes its token from IOP_NODE_TOKEN."""
    config: dict[str, Any] = {
        "node": {"edge": f"{edge[0]}:{edge[1]}", "token_env": "IOP_NODE_TOKEN"},
        "reconnect": {"max_attempts": 0, "interval_sec": 0.1},
    }
    for name, value in sections.items():
        config[name] = {**config.get(name, {}), **value}
    return config
