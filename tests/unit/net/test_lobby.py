"""Who may wait at the node port, and who gives way (WIRE-10)."""

from __future__ import annotations

import random

import pytest

from iop.net.lobby import PER_ADDRESS, ROOM, SILENT_S, Lobby


class Hall:
    """A lobby whose guests are numbers."""

    def __init__(self, room: int = 4, per_address: int = 2) -> None:
        self.told: list[tuple[str, str]] = []
        self.lobby = Lobby(room, per_address, told=lambda *what: self.told.append(what))
        self.spoke: set[int] = set()
        self.dismissed: list[int] = []

    def enter(self, guest: int, address: str, now: float) -> bool:
        return self.lobby.enter(guest, address, now, lambda: guest in self.spoke, lambda: self.dismissed.append(guest))


@pytest.mark.req("WIRE-10")
def test_an_address_has_room_of_its_own_and_the_oldest_silent_one_gives_way_after_two_seconds() -> None:
    hall = Hall()
    assert hall.enter(1, "a", 0.0)
    assert hall.enter(2, "a", 1.0)
    assert not hall.enter(3, "a", SILENT_S - 0.01)
    assert hall.enter(4, "b", 1.5), "another address is not concerned"
    assert hall.enter(3, "a", SILENT_S)
    assert hall.dismissed == [1]
    assert not hall.enter(5, "a", SILENT_S)
    assert len(hall.lobby) == 3
    assert hall.told == [("address_full", "a"), ("silent", "a"), ("address_full", "a")]
    assert hall.lobby.refused == {"full": 0, "address_full": 2, "silent": 1}


@pytest.mark.req("WIRE-10")
def test_who_has_sent_a_byte_does_not_give_way() -> None:
    hall = Hall()
    hall.enter(1, "a", 0.0)
    hall.enter(2, "a", 0.0)
    hall.spoke = {1}
    assert hall.enter(3, "a", 9.0)
    assert hall.dismissed == [2]
    hall.spoke = {1, 3}
    assert not hall.enter(4, "a", 99.0)
    hall.lobby.leave(1)
    hall.lobby.leave(1)
    assert hall.enter(4, "a", 99.0)


@pytest.mark.req("WIRE-10")
def test_where_all_rooms_are_full_the_oldest_of_all_gives_way() -> None:
    hall = Hall()
    for guest, address in enumerate("aabb"):
        assert hall.enter(guest, address, float(guest))
    assert not hall.enter(9, "c", 1.0)
    assert hall.enter(9, "c", 4.0)
    assert hall.dismissed == [0]
    assert hall.enter(9, "c", 4.0), "who is in stays"
    assert hall.told == [("full", "c"), ("silent", "a")]
    assert len(hall.lobby) == 4


@pytest.mark.req("WIRE-10")
@pytest.mark.parametrize("seed", range(20))
def test_the_bounds_hold_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    hall = Hall(room=8, per_address=3)
    inside: dict[int, tuple[str, float]] = {}
    now = 0.0
    for guest in range(400):
        now += rng.random()
        address = rng.choice("abcde")
        before = len(hall.dismissed)
        of_address = sum(1 for where, _ in inside.values() if where == address)
        full = of_address >= 3 or len(inside) >= 8
        entered = hall.enter(guest, address, now)
        for gone in hall.dismissed[before:]:
            assert gone not in hall.spoke
            assert now - inside.pop(gone)[1] >= SILENT_S
        assert len(hall.dismissed) - before == int(entered and full)
        if entered:
            inside[guest] = (address, now)
        for other in rng.sample(sorted(inside), min(2, len(inside))):
            if rng.random() < 0.3:
                hall.spoke.add(other)
            elif rng.random() < 0.3:
                hall.lobby.leave(other)
                del inside[other]
        assert len(hall.lobby) == len(inside) <= 8
    for guest in list(inside):
        hall.lobby.leave(guest)
    assert (hall.lobby._guests, hall.lobby._counts, hall.lobby._silent, hall.lobby._silent_of) == ({}, {}, {}, {})


@pytest.mark.req("WIRE-10")
def test_the_bounds_are_those_of_the_contract() -> None:
    assert (ROOM, PER_ADDRESS, SILENT_S) == (1024, 256, 2.0)
