"""What a provider is asked to learn whether it can serve a target, and how its answers read (EXEC-4, LIVE-7).

A probe asks the questions of its provider's kind in order, until an answer decides. What an answer says is read here;
what follows from it depends on why the probe is made, and stands in :mod:`iop.node.providers.probe`. That a server
does not list the target is evidence only if this server listed it before: some answer to names that they do not list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

__all__ = [
    "ABSENT",
    "Listing",
    "Question",
    "Reading",
    "Said",
    "alive",
    "listed",
    "models",
    "names_in",
    "well",
    "working",
]

MOST_NAMES = 20_000  # that are remembered of one server


class Said(StrEnum):
    """What one answer says of its server and of the target.

    ``well``: it can serve it, as far as this kind of server tells. ``alive``: the server is well, and there is more to
    ask. ``listed``, ``lost`` (listed before, and not any more), ``unlisted`` (never seen in a list). ``failing``: an
    error of the server's own. ``absent``: it has no such endpoint. ``unclear``: it answers, and what it says cannot be
    read.
    """

    WELL = "well"
    ALIVE = "alive"
    LISTED = "listed"
    LOST = "lost"
    UNLISTED = "unlisted"
    FAILING = "failing"
    ABSENT = "absent"
    UNCLEAR = "unclear"


class Listing:
    """The models that one server has listed so far. A server that was gone is taken for another one when it is back."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: set[str] = set()

    def heard(self, names: set[str]) -> None:
        """One list of the server's."""
        if len(self._names) + len(names) <= MOST_NAMES or names <= self._names:
            self._names |= names

    def had(self, name: str) -> bool:
        return name in self._names

    def forget(self) -> None:
        """The server is gone."""
        self._names.clear()


ABSENT = frozenset({404, 405, 501})  # how servers say that they have no such endpoint

#: What (status, body, target) say, with what the server has listed so far. The body is None if it is too large to read.
Reading = Callable[[int, bytes | None, str, Listing], Said]


@dataclass(frozen=True, slots=True)
class Question:
    """One GET. ``path`` counts from the base URL without its ``/v1``, where servers have what is not OpenAI's; or, with
    ``on_base``, from the base URL itself."""

    path: bytes
    read: Reading
    on_base: bool = False


def well(good: Said) -> Reading:
    """By the status alone; ``good`` is what a good one says."""

    def read(status: int, body: bytes | None, target: str, listing: Listing) -> Said:
        if 200 <= status <= 299:
            return good
        return _refusal(status)

    return read


def _refusal(status: int) -> Said:
    """What a status says that is no good one."""
    if status in ABSENT:
        return Said.ABSENT
    return Said.FAILING if status >= 500 else Said.UNCLEAR


def alive(path: bytes) -> Question:
    """Whether the server is well; then there is more to ask. A server that lacks the endpoint is not of this kind."""
    good = well(Said.ALIVE)

    def read(status: int, body: bytes | None, target: str, listing: Listing) -> Said:
        said = good(status, body, target, listing)
        return Said.UNCLEAR if said is Said.ABSENT else said

    return Question(path, read)


def working(path: bytes) -> Question:
    """Whether the server is well, which is all that there is to ask."""
    return Question(path, well(Said.WELL))


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
    whole: bool = True,
    same: Callable[[str], str] = str,
    on_base: bool = False,
) -> Question:
    """Whether the server lists exactly the target. ``whole``: the list has every model that the server has; ``same``
    brings names that mean one model to one form."""

    def read(status: int, body: bytes | None, target: str, listing: Listing) -> Said:
        if status != 200:
            return _refusal(status)
        if body is None:  # the status is good; what is in the list is not known
            return Said.UNLISTED if whole else Said.ALIVE
        found = names_in(body)
        if found is None:
            return Said.UNCLEAR
        names, name = set(map(same, found)), same(target)
        listing.heard(names)
        if name in names:
            return Said.LISTED
        if not whole:
            return Said.ALIVE
        return Said.LOST if listing.had(name) else Said.UNLISTED

    return Question(path, read, on_base)


def models() -> Question:
    """Whether the target is in OpenAI's list."""
    return listed(b"/models", on_base=True)
