"""Connections that have not said who they are: how many there may be, and which one gives way (WIRE-10)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["PER_ADDRESS", "REFUSALS", "ROOM", "SILENT_S", "Lobby"]

ROOM = 1024
PER_ADDRESS = 256
SILENT_S = 2.0

#: Why a connection ended here, as metrics and logs have it: there was no room, none for its address, or it had said
#: nothing and gave way to another one.
REFUSALS = ("full", "address_full", "silent")


@dataclass(slots=True)
class _Guest:
    key: Hashable
    address: str
    since: float
    heard: Callable[[], bool]
    dismiss: Callable[[], None]


class Lobby:
    """A machine: a guest enters with the time and a callback, by which it is dismissed if it has to give way.

    Where the room of an address, or of all, is full, the first guest that has been silent for :data:`SILENT_S` without
    a byte gives way; without such a guest nobody comes in. Enter and leave cost O(1) over time.

    Args:
        room: How many guests there may be.
        per_address: How many of one address.
        told: Hears the reason of each refusal, one of :data:`REFUSALS`, and the address.
    """

    def __init__(
        self,
        room: int = ROOM,
        per_address: int = PER_ADDRESS,
        *,
        told: Callable[[str, str], None] = lambda reason, address: None,
    ) -> None:
        self._told = told
        self._room = room
        self._per_address = per_address
        self._guests: dict[Hashable, _Guest] = {}
        self._counts: dict[str, int] = {}
        # Those that were not heard yet when last looked at, in the order in which they came.
        self._silent: dict[Hashable, _Guest] = {}
        self._silent_of: dict[str, dict[Hashable, _Guest]] = {}
        self.refused = dict.fromkeys(REFUSALS, 0)

    def __len__(self) -> int:
        return len(self._guests)

    def enter(
        self, key: Hashable, address: str, now: float, heard: Callable[[], bool], dismiss: Callable[[], None]
    ) -> bool:
        """Whether the connection may stay. ``heard`` tells whether a byte came; ``dismiss`` ends it. A key that is in
        already stays, with the new callbacks."""
        known = self._guests.get(key)
        if known is not None:
            known.heard, known.dismiss = heard, dismiss
            return True
        full = self._counts.get(address, 0) >= self._per_address
        if full or len(self._guests) >= self._room:
            oldest = self._oldest(self._silent_of.get(address, {}) if full else self._silent, now)
            if oldest is None:
                self._refuse("address_full" if full else "full", address)
                return False
            self.leave(oldest.key)
            self._refuse("silent", oldest.address)
            oldest.dismiss()
        guest = _Guest(key, address, now, heard, dismiss)
        self._guests[key] = self._silent[key] = guest
        self._silent_of.setdefault(address, {})[key] = guest
        self._counts[address] = self._counts.get(address, 0) + 1
        return True

    def leave(self, key: Hashable) -> None:
        """The connection ended, or said who it is. No-op for one that is not in."""
        guest = self._guests.pop(key, None)
        if guest is None:
            return
        self._spoke(guest)
        left = self._counts[guest.address] - 1
        if left:
            self._counts[guest.address] = left
        else:
            del self._counts[guest.address]

    def _refuse(self, reason: str, address: str) -> None:
        self.refused[reason] += 1
        self._told(reason, address)

    def _oldest(self, silent: dict[Hashable, _Guest], now: float) -> _Guest | None:
        while silent:
            guest = next(iter(silent.values()))
            if not guest.heard():
                return guest if now - guest.since >= SILENT_S else None
            self._spoke(guest)
        return None

    def _spoke(self, guest: _Guest) -> None:
        self._silent.pop(guest.key, None)
        of_address = self._silent_of.get(guest.address)
        if of_address is not None:
            of_address.pop(guest.key, None)
            if not of_address:
                del self._silent_of[guest.address]
