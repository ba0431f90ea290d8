"""Exactly one terminal, and what counts as activity (EXEC-1, EXEC-2, LIVE-2)."""

from __future__ import annotations

import itertools

import pytest

from iop.execution import Activity, RunEvent, RunEventKind, RunState, TerminalRule, Usage, activity_of
from iop.execution.events import TERMINAL_KINDS

K = RunEventKind


def run(*kinds: RunEventKind) -> tuple[list[RunEvent], TerminalRule]:
    """What is emitted for an adapter that says these kinds and then ends."""
    rule = TerminalRule()
    out = [event for kind in kinds if (event := rule.admit(RunEvent(kind, text=b"x"))) is not None]
    last = rule.close()
    return (out if last is None else [*out, last]), rule


@pytest.mark.req("EXEC-1")
def test_an_orderly_run_passes_unchanged() -> None:
    kinds = (K.START, K.REASONING_DELTA, K.DELTA, K.TOOL_CALL_DELTA, K.USAGE, K.COMPLETE)
    events, rule = run(*kinds)
    assert tuple(e.kind for e in events) == kinds
    assert (rule.state, rule.dropped) == (RunState.ENDED, 0)


@pytest.mark.req("EXEC-2")
@pytest.mark.parametrize("kinds", [(), (K.START,), (K.START, K.DELTA, K.USAGE)])
def test_an_adapter_that_just_ends_gets_an_error_and_never_complete(kinds: tuple[RunEventKind, ...]) -> None:
    events, _ = run(*kinds)
    assert events[-1].kind is K.ERROR
    assert events[-1].failure is not None
    assert events[-1].failure.code == "adapter_no_terminal"


@pytest.mark.req("EXEC-2")
@pytest.mark.parametrize("last", sorted(TERMINAL_KINDS))
def test_nothing_follows_a_terminal(last: RunEventKind) -> None:
    events, rule = run(K.START, last, K.DELTA, K.COMPLETE, K.ERROR)
    assert [e.kind for e in events] == [K.START, last]
    assert rule.dropped == 3
    assert rule.close() is None


@pytest.mark.req("EXEC-1", "EXEC-2")
def test_any_sequence_gives_exactly_one_terminal_at_the_end() -> None:
    for kinds in itertools.product(K, repeat=3):
        events, _ = run(*kinds)
        assert [e.terminal for e in events] == [False] * (len(events) - 1) + [True], kinds


@pytest.mark.req("EXEC-1")
@pytest.mark.parametrize("kinds", [(K.DELTA,), (K.COMPLETE,), (K.START, K.START), (K.USAGE,)])
def test_an_adapter_that_breaks_the_order_ends_in_an_internal_error(kinds: tuple[RunEventKind, ...]) -> None:
    events, _ = run(*kinds)
    assert events[-1].kind is K.ERROR
    assert events[-1].failure is not None
    assert events[-1].failure.code == "internal"


@pytest.mark.req("EXEC-7")
@pytest.mark.parametrize("kind", [K.ERROR, K.CANCELLED])
def test_a_run_may_fail_or_be_cancelled_before_it_started(kind: RunEventKind) -> None:
    assert [e.kind for e in run(kind)[0]] == [kind]


@pytest.mark.req("LIVE-2")
@pytest.mark.parametrize(
    ("event", "activity"),
    [
        (RunEvent(K.START), Activity.PROGRESS),
        (RunEvent(K.DELTA, text=b"a"), Activity.PROGRESS),
        (RunEvent(K.DELTA), Activity.NONE),
        (RunEvent(K.REASONING_DELTA), Activity.NONE),
        (RunEvent(K.TOOL_CALL_DELTA), Activity.NONE),
        (RunEvent(K.TOOL_CALL_DELTA, tool_name=b"f"), Activity.PROGRESS),
        (RunEvent(K.USAGE, usage=Usage(input_tokens=1)), Activity.PROGRESS),
        (RunEvent(K.COMPLETE, usage=Usage(input_tokens=1), text=b"x"), Activity.TERMINAL),
        (RunEvent(K.ERROR), Activity.TERMINAL),
        (RunEvent(K.CANCELLED), Activity.TERMINAL),
    ],
)
def test_activity(event: RunEvent, activity: Activity) -> None:
    assert activity_of(event) is activity
