"""The event bus as its subscribers see it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import iop.edge
from iop.errors import TooManySubscribers
from iop.observability.events import EVENTS, EventBus, NodeChanged, RunEnded, RunStarted, name_of
from iop.observability.logs import RequestOutcome


def node_event(number: int, event: str = "node_connected") -> NodeChanged:
    return NodeChanged(event, float(number), f"n{number}")


@pytest.mark.req("OBS-3")
def test_every_subscriber_gets_every_event_in_order() -> None:
    bus = EventBus()
    woken: list[str] = []
    first = bus.subscribe(lambda: woken.append("first"))
    second = bus.subscribe(lambda: woken.append("second"))
    for number in range(5):
        bus.publish(node_event(number))
    assert woken == ["first", "second"]  # once each, until they take
    for subscription in (first, second):
        lost, events = subscription.take()
        assert (lost, [event.ts for event in events]) == (0, [0, 1, 2, 3, 4])
    bus.publish(node_event(5))
    assert woken == ["first", "second", "first", "second"]


@pytest.mark.req("OBS-3")
def test_a_slow_subscriber_loses_its_oldest_events_and_nobody_else_any() -> None:
    bus = EventBus(queue_events=3)
    slow, quick = bus.subscribe(lambda: None), bus.subscribe(lambda: None)
    seen = []
    for number in range(10):
        bus.publish(node_event(number))
        seen += [event.ts for event in quick.take()[1]]
    assert seen == list(range(10))
    lost, events = slow.take()
    assert (lost, [event.ts for event in events]) == (7, [7, 8, 9])
    assert (slow.lost, quick.lost, bus.lost) == (7, 0, 7)
    assert slow.take() == (0, [])  # a loss is told once


def test_a_subscriber_gets_what_it_asked_for_only() -> None:
    bus = EventBus()
    subscription = bus.subscribe(lambda: None, frozenset({"node_draining"}))
    bus.publish(node_event(1))
    bus.publish(node_event(2, "node_draining"))
    assert [name_of(event) for event in subscription.take()[1]] == ["node_draining"]


@pytest.mark.req("OBS-3")
def test_the_number_of_subscribers_is_bounded_and_a_place_comes_back() -> None:
    bus = EventBus(max_subscribers=2)
    told: list[bool] = []
    bus.on_watched = told.append
    first, second = bus.subscribe(lambda: None), bus.subscribe(lambda: None)
    with pytest.raises(TooManySubscribers):
        bus.subscribe(lambda: None)
    first.close()
    first.close()
    third = bus.subscribe(lambda: None)
    assert bus.subscribers == 2
    assert (told, bus.watched) == ([True], True)
    second.close()
    third.close()
    assert (told, bus.watched, bus.subscribers) == ([True, False], False, 0)
    bus.publish(node_event(1))
    assert third.take() == (0, [])


@pytest.mark.req("OBS-3", "SEC-4")
def test_an_outline_has_no_field_for_a_text() -> None:
    """What a run's events may hold is the outcome line's fields without the client's own words."""
    assert set(RunEnded.__struct_fields__) == set(RequestOutcome.__struct_fields__) - {
        "client_request_id",
        "principal",
        "bytes_in",
    }
    assert set(RunStarted.__struct_fields__) <= {*RunEnded.__struct_fields__, "attempt"}
    assert set(NodeChanged.__struct_fields__) == {"event", "ts", "node", "reason"}


def test_what_is_logged_about_a_node_is_an_event() -> None:
    edge = Path(iop.edge.__file__).parent
    logged = {name for path in edge.rglob("*.py") for name in re.findall(r'_log\([^"]*"(node_\w+)"', path.read_text())}
    assert logged == {name for name in EVENTS if name.startswith("node_")}


def test_an_event_is_one_object_with_its_name() -> None:
    started = RunStarted(1.5, "r", "chat", "m", "n1", "p", 1)
    assert msgspec.json.decode(msgspec.json.encode(started))["event"] == name_of(started) == "run_started"
    assert msgspec.json.decode(msgspec.json.encode(node_event(1)))["event"] == "node_connected"
    assert {"run_started", "run_ended", "node_connected"} <= set(EVENTS)
