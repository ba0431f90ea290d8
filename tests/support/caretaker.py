"""Stands in for a scripted provider between two tests: a node that asks how it is gets an answer (HEALTH-5, HEALTH-6).

A node may ask a second after a call was lost, when the test that lost it is over. Nobody at the port would then be
heard as a provider that is down, and the next test would find it out of the choice.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["Caretaker", "all_absent"]

PACE_S = 0.02
ANSWER = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


_AT_WORK: set[Caretaker] = set()


@contextmanager
def all_absent() -> Iterator[None]:
    """Nobody is being answered meanwhile, so no descriptor of a caretaker's is open."""
    with ExitStack() as held:
        for caretaker in _AT_WORK:
            held.enter_context(caretaker.absent)
        yield


class Caretaker:
    """Serves ``sock`` while nobody holds ``absent``. ``close`` ends it."""

    def __init__(self, sock: socket.socket) -> None:
        self.absent = threading.Lock()
        self._sock = sock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="caretaker", daemon=True)
        self._thread.start()
        _AT_WORK.add(self)

    def close(self) -> None:
        _AT_WORK.discard(self)
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PACE_S):
            with self.absent:
                while select.select([self._sock], [], [], 0)[0]:
                    self._answer()

    def _answer(self) -> None:
        try:
            caller, _ = self._sock.accept()
        except OSError:
            return  # gone again
        with caller:
            caller.settimeout(1.0)
            try:
                if caller.recv(65536).startswith(b"GET "):
                    caller.sendall(ANSWER)
            except OSError:
                return
