"""What a kind of provider is: how its engine differs from a plain OpenAI-compatible server (EXEC-4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from iop.node.providers.chat_form import CHAT, NormalForm
from iop.node.providers.questions import Question, models, working

__all__ = ["Adapter", "Capacity", "Engine", "Figures", "sums"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What an engine says that it is doing (POOL-13)."""

    running: int
    waiting: int | None = None


def sums(series: re.Pattern[bytes], running: bytes, waiting: bytes) -> Callable[[bytes], Figures | None]:
    """Read an engine's Prometheus metrics: the sums over all its cores. ``series`` finds names and values."""

    def read(metrics: bytes) -> Figures | None:
        found: dict[bytes, int] = {}
        for name, value in series.findall(metrics):
            try:
                found[name] = found.get(name, 0) + int(float(value))
            except ValueError:
                return None
        return Figures(found[running], found.get(waiting)) if running in found else None

    return read


@dataclass(frozen=True, slots=True)
class Capacity:
    """How to ask a server how many requests it works on at a time: a path that counts from the base URL without its
    ``/v1``, and how to read the answer; None if it does not say."""

    path: bytes
    read: Callable[[bytes], int | None]


@dataclass(frozen=True, slots=True)
class Engine:
    """How to ask an engine what it is doing: a path that counts from the base URL without its ``/v1``, and how to read
    the answer.

    ``read`` gives None for an answer that has no figure in it; it keeps nothing of what it reads. ``counts_requests``
    is False where what runs are models. ``rest_s``: from one question to the next, at least.
    """

    path: bytes
    read: Callable[[bytes], Figures | None]
    max_bytes: int = 1 << 20
    counts_requests: bool = True
    rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Adapter:
    """One kind of provider.

    ``methods``: what a tunnel may use (TUN-7). ``rest_after_stream``: whether a connection that ended a stream has to
    rest before it is used again (TUN-5). ``questions``: what a probe asks, when the configuration names no path; a
    server without a list of models is asked whether it is well. ``built_in``: the node itself serves this provider, on
    loopback. ``engine``: how to ask what its engine is doing, where it can be asked. ``api``: the paths of its own that
    a command may use, from the root of its server, with the method of each (EXEC-8). ``normal``: how it is asked for a
    normalized run, where it can be (EXEC-1). ``works_on``: whether it may go on with a request whose client has left
    before the first token (TUN-5d). ``capacity``: how to ask a server that was found how many requests suit it, where
    it says so. ``any_name``: it takes any model's name, whatever it lists. ``same`` brings names
    that mean one model to one form.
    """

    kind: str
    methods: frozenset[bytes] = frozenset({b"GET", b"POST"})
    rest_after_stream: bool = True
    questions: tuple[Question, ...] = (models(), working(b"/health"))
    built_in: bool = False
    engine: Engine | None = None
    api: Mapping[bytes, bytes] = field(default_factory=dict)
    normal: NormalForm | None = CHAT
    works_on: bool = False
    capacity: Capacity | None = None
    any_name: bool = False
    same: Callable[[str], str] = str
