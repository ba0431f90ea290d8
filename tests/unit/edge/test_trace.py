"""The ring of the decision trace is bounded, and its pages tell a request in order (OBS-7)."""

from __future__ import annotations

from typing import Any

import pytest

from iop.edge.requests.trace import KEPT, KEPT_NOTED, KEPT_NOTES, MAX_NOTES, Note, Record, Row, Trace, page
from iop.observability.logs import RequestOutcome
from iop.pool.lease import Lease, ReleaseCause

LEASE = Lease(7, "n1", "p", "vllm", "t", 3, False, "r")


def row(request_id: str, *notes: Note, client_id: str = "", came: int = 64, **more: Any) -> Row:
    outcome = RequestOutcome(1000.5, request_id, "chat", "ok", 200, 500.0, client_id, provider="p", node="n1",
                             **{"attempts": 1, **more})  # fmt: skip
    return (outcome, 10.0, 10.1, came, LEASE, ReleaseCause.TERMINAL, 3600.0, 60.0, None, None,
            list(notes) or None)  # fmt: skip


def keep(trace: Trace, one: Row) -> None:
    (trace.straight if one[-1] is None else trace.noted)(one)


@pytest.mark.req("OBS-7")
def test_the_last_ones_are_kept() -> None:
    trace = Trace()
    for number in range(KEPT + 5):
        keep(trace, row(f"r{number}"))
    assert len(trace) == KEPT
    assert trace.find("r4") is None
    assert trace.find("r5") is not None
    assert trace.find(f"r{KEPT + 4}") is not None


@pytest.mark.req("OBS-7")
def test_those_out_of_the_ordinary_are_bounded_by_themselves() -> None:
    trace = Trace()
    note: Note = (10.0, "waiting", {})
    for number in range(KEPT_NOTED + 1):
        keep(trace, row(f"w{number}", note))
        keep(trace, row(f"s{number}"))
    assert (trace.find("w0"), trace.find("s0") is None) == (None, False)
    for number in range(2 * KEPT):
        keep(trace, row(f"t{number}"))
    assert trace.find("w1") is not None
    most = KEPT_NOTES // MAX_NOTES
    for number in range(2 * most):
        keep(trace, row(f"m{number}", *[note] * MAX_NOTES))
    assert len(trace) == KEPT + most
    for number in range(KEPT_NOTED):
        keep(trace, row(f"x{number}", note))
    assert len(trace) == KEPT + KEPT_NOTED


@pytest.mark.req("OBS-7")
def test_a_trace_that_was_cleared_begins_anew() -> None:
    trace = Trace()
    keep(trace, row("plain"))
    for number in range(KEPT_NOTES // MAX_NOTES):
        keep(trace, row(f"noted{number}", *[(11.0, "waiting", {})] * MAX_NOTES))
    trace.clear()
    assert len(trace) == 0
    for number in range(KEPT_NOTES // MAX_NOTES):
        keep(trace, row(f"again{number}", *[(11.0, "waiting", {})] * MAX_NOTES))
    assert trace.find("noted0") is None
    assert trace.find("again0") is not None, "notes of before do not count"


@pytest.mark.req("OBS-7")
def test_a_request_is_found_by_its_clients_id_the_latest_first() -> None:
    trace = Trace()
    for number, notes in enumerate(((), ((10.0, "waiting", {}),), ())):
        keep(trace, row(f"r{number}", *notes, client_id="mine"))
    keep(trace, row("r9"))
    found = trace.find_of_client("mine")
    assert found is not None
    assert found.outcome.request_id == "r1"  # all of one instant: those with notes count as later
    assert (trace.find("mine"), trace.find_of_client("nobody"), trace.find_of_client("")) == (None, None, None)


@pytest.mark.req("OBS-7")
def test_a_clients_id_does_not_hide_the_request_that_has_it_from_the_edge() -> None:
    trace = Trace()
    keep(trace, row("r1"))
    keep(trace, row("r2", client_id="r1"))
    found = trace.find("r1")
    assert found is not None
    assert found.outcome.request_id == "r1"


@pytest.mark.req("OBS-7")
def test_an_answer_that_came_in_the_millisecond_of_its_request_was_committed_too() -> None:
    trace = Trace()
    keep(trace, row("r", first_token_ms=0.0))
    found = trace.find("r")
    assert found is not None
    assert [step["what"] for step in page(found)["events"]] == ["sent", "committed", "ended"]


@pytest.mark.req("OBS-7")
def test_what_came_first_stands_first_within_one_instant() -> None:
    """The loop's time stands still while it works, and the outcome's times are cut off."""
    failed, again = "failed", "recovery"
    notes: list[Note] = [(10.1, "waiting", {}), (10.1, failed, {"attempt": 1}), (10.1, again, {}),
                         (10.1, failed, {"attempt": 2}), (10.1, again, {})]  # fmt: skip
    told = page_of(row("r", *notes, came=0, attempts=2))
    assert told == ["waiting", "failed", "recovery", "sent", "failed", "recovery", "ended"]
    told = page_of(row("r", *notes[:3], attempts=2, first_token_ms=99.9))
    assert told == ["waiting", "failed", "recovery", "sent", "committed", "ended"]
    told = page_of(row("r", notes[0], (10.1, failed, {"attempt": 1}), first_token_ms=99.9))
    assert told == ["waiting", "sent", "committed", "failed", "ended"]
    told = page_of(row("r", (10.1, "cancelling", {}), (10.1, failed, {"attempt": 1}), first_token_ms=99.9))
    assert told == ["sent", "committed", "cancelling", "failed", "ended"]


def page_of(one: Row) -> list[str]:
    return [step["what"] for step in page(Record(*one))["events"]]


@pytest.mark.req("OBS-7")
def test_a_page_tells_it_in_order() -> None:
    trace = Trace()
    keep(trace, row("r", (10.05, "waiting", {}), (10.3, "cancelling", {"reason": "deadline"}), first_token_ms=200.0))
    record = trace.find("r")
    assert record is not None
    told = page(record)
    assert [(step["at_ms"], step["what"]) for step in told["events"]] == [
        (50.0, "waiting"), (100.0, "sent"), (200.0, "committed"), (300.0, "cancelling"), (500.0, "ended"),
    ]  # fmt: skip
    _, sent, committed, cancelling, ended = told["events"]
    assert (sent["lease"], sent["node"], sent["provider"], sent["target"], sent["generation"]) == (7, "n1", "p", "t", 3)
    assert (committed["body_bytes"], cancelling["reason"], ended["released"]) == (64, "deadline", "terminal")
    assert (told["accepted_at"], told["total_ms"]) == (1000.0, 500.0)
