"""The node's capacity gate (EXEC-3)."""

from __future__ import annotations

import pytest

from iop.errors import InvalidTransition, UnknownProvider
from iop.execution import CapacityGate
from iop.execution.gate import TRANSITIONS, Slot, SlotState


def take(gate: CapacityGate, provider_id: str = "p", *, leased: bool = True) -> Slot:
    slot = gate.try_acquire(provider_id, leased=leased)
    assert slot is not None
    gate.validate()
    return slot


@pytest.mark.req("EXEC-3")
def test_the_limit_holds_and_a_full_gate_says_how_many_it_holds() -> None:
    gate = CapacityGate({"p": 2, "q": 1})
    first = take(gate)
    take(gate)
    assert gate.try_acquire("p") is None
    assert gate.report_full("p") == gate.held("p") == 2
    take(gate, "q")
    first.release()
    take(gate)


@pytest.mark.req("EXEC-3")
def test_an_unknown_provider_is_named_as_such() -> None:
    with pytest.raises(UnknownProvider):
        CapacityGate({"p": 1}).try_acquire("q")
    assert CapacityGate().held("q") == 0
    assert CapacityGate().report_full("q") == 0


@pytest.mark.req("EXEC-3", "EXEC-7")
def test_e8_a_slot_is_released_once() -> None:
    gate = CapacityGate({"p": 1})
    slot = take(gate)
    assert slot.release() is False
    other = take(gate)
    for _ in range(3):
        assert slot.release() is False
    assert gate.held("p") == 1
    assert gate.try_acquire("p") is None
    assert gate.released_twice == 3
    other.release()
    assert gate.held("p") == 0


@pytest.mark.req("POOL-12")
def test_a_call_that_outlives_its_terminal_owes_the_edge_its_end() -> None:
    gate = CapacityGate({"p": 1})
    slot = take(gate)
    slot.linger()
    assert gate.try_acquire("p") is None, "the slot is held until the call really ends (LIVE-9)"
    assert slot.release() is True
    assert slot.release() is False


@pytest.mark.req("POOL-12", "REG-3", "EXEC-7")
def test_a_new_session_reports_what_is_held_and_owes_the_end_of_each() -> None:
    gate = CapacityGate({"p": 3, "q": 1})
    slots = [take(gate), take(gate)]
    assert gate.carry_over() == {"p": 2}
    fresh = take(gate)
    assert [slot.release() for slot in slots] == [True, True]
    assert fresh.release() is False
    assert gate.carry_over() == {}


@pytest.mark.req("POOL-12", "POOL-14", "EXEC-3")
def test_a_direct_run_that_was_reported_as_held_owes_its_end_and_a_leased_one_does_not() -> None:
    gate = CapacityGate({"p": 2})
    leased, direct = take(gate), take(gate, leased=False)
    assert gate.report_full("p") == 2
    assert direct.release() is True
    assert leased.release() is False
    assert take(gate, leased=False).release() is False, "nobody was told of it"


@pytest.mark.req("EXEC-3")
def test_the_gate_outlives_refreshes() -> None:
    gate = CapacityGate({"p": 2, "q": 1})
    slots = [take(gate), take(gate)]
    kept = take(gate, "q")
    gate.configure({"p": 1})
    gate.validate()
    assert gate.held("p") == 2
    assert gate.try_acquire("p") is None
    slots[0].release()
    assert gate.try_acquire("p") is None, "one is held, one is allowed"
    slots[1].release()
    take(gate)
    with pytest.raises(UnknownProvider):
        gate.try_acquire("q")
    assert gate.held("q") == 1
    gate.configure({"p": 1, "q": 1})
    assert gate.try_acquire("q") is None, "a provider that comes back still holds its slot"
    kept.release()
    gate.configure({})
    gate.validate()
    assert gate.carry_over() == {"p": 1}


@pytest.mark.req("EXEC-3")
def test_a_free_slot_cannot_linger() -> None:
    slot = take(CapacityGate({"p": 1}))
    slot.release()
    with pytest.raises(InvalidTransition):
        slot.linger()
    assert {state for state, _ in TRANSITIONS} == {SlotState.HELD, SlotState.OWED}
