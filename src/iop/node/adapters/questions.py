"""What a provider is asked to learn whether it can serve a target, and how its answers read (EXEC-4, LIVE-7).

A probe asks the questions of its provider's kind in order, until an answer decides. One that decides nothing leads to
the next question; so does the word that a server does not have this one, where that is normal for its kind. What cannot
be read is ``unknown``: ``unavailable`` needs a server that is gone, silent, failing, or that says itself that it lacks
the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from iop.execution.failure import ProviderHealth

__all__ = ["Question", "Reading", "alive", "listed", "models", "names_in", "well", "working"]

AVAILABLE, UNAVAILABLE, UNKNOWN = ProviderHealth

_ABSENT = frozenset({404, 405, 501})  # how servers say that they have no such endpoint

#: What (status, body, target) means; None decides nothing.
Reading = Callable[[int, bytes, str], ProviderHealth | None]


@dataclass(frozen=True, slots=True)
class Question:
    """One GET. ``path`` counts from the base URL without its ``/v1``, where servers have what is not OpenAI's; or, with
    ``on_base``, from the base URL itself."""

    path: bytes
    read: Reading
    on_base: bool = False


def well(good: ProviderHealth | None) -> Reading:
    """By the status alone; ``good`` is what a good one means."""

    def read(status: int, body: bytes, target: str) -> ProviderHealth | None:
        if 200 <= status <= 299:
            return good
        return UNAVAILABLE if status >= 500 and status not in _ABSENT else UNKNOWN

    return read


def alive(path: bytes) -> Question:
    """Whether the server is well; then there is more to ask."""
    return Question(path, well(None))


def working(path: bytes) -> Question:
    """Whether the server is well, which is all that there is to ask."""
    return Question(path, well(AVAILABLE))


class _Entry(msgspec.Struct):
    """Whatever else an entry has is skipped; what is no text is no name."""

    id: object = None
    name: object = None
    model: object = None


class _List(msgspec.Struct):
    data: list[_Entry] | None = None
    models: list[_Entry] | None = None


_DECODER = msgspec.json.Decoder(_List)


def names_in(body: bytes) -> set[str] | None:
    """The models that an answer lists, in OpenAI's form or in Ollama's; None if it is no list."""
    try:
        answer = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    entries = answer.data if answer.data is not None else answer.models
    if entries is None:
        return None
    return {name for entry in entries for name in (entry.id, entry.name, entry.model) if isinstance(name, str)}


def listed(
    path: bytes,
    *,
    absent: ProviderHealth | None = UNKNOWN,
    missing: ProviderHealth | None = UNAVAILABLE,
    same: Callable[[str], str] = str,
    on_base: bool = False,
) -> Question:
    """Whether the server lists exactly the target. ``absent``: what it means that there is no such list; ``missing``:
    that the target is not in it; ``same`` brings names that mean one model to one form."""

    def read(status: int, body: bytes, target: str) -> ProviderHealth | None:
        if status != 200:
            return absent if status in _ABSENT else UNAVAILABLE if status >= 500 else UNKNOWN
        names = names_in(body)
        if names is None:
            return UNKNOWN
        return AVAILABLE if same(target) in map(same, names) else missing

    return Question(path, read, on_base)


def models(absent: ProviderHealth | None) -> Question:
    """Whether the target is in OpenAI's list; ``absent`` is what it means that there is none."""
    return listed(b"/models", absent=absent, on_base=True)
