"""The event bus: what happens to runs and nodes, told to whoever listens inside this process (OBS-3).

An event is an outline of closed shape: ids, names, counts and times, and no field that could hold a text of a client or
a provider, a URL or a secret (SEC-4). Each subscriber has a queue of its own with a bound; one that is slow loses the
oldest of its events, which is counted, and holds up neither the publisher nor the others. With no subscriber nothing is
made: whoever publishes asks :attr:`EventBus.watched` first, or is told of changes through ``on_watched``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from iop.errors import TooManySubscribers

__all__ = ["EVENTS", "Event", "EventBus", "NodeChanged", "ProviderChanged", "RunEnded", "RunStarted", "Subscription"]

MAX_SUBSCRIBERS = 32
QUEUE_EVENTS = 256

#: The names of all events: those of runs, and those of nodes, which are also log events.
EVENTS = (
    "run_started",
    "run_ended",
    "node_connected",
    "node_disconnected",
    "node_draining",
    "node_goodbye",
    "node_rejected",
    "node_superseded",
    "node_connection_closed",
    "node_config_applied",
    "node_config_refused",
    "node_removed",
    "provider_lowered",
    "provider_restored",
)


class RunStarted(msgspec.Struct, tag_field="event", tag="run_started", omit_defaults=True, gc=False):
    """A request was sent to a provider, for the ``attempt``-th time. ``model`` is the model group."""

    ts: float
    request_id: str
    api: str
    model: str
    node: str
    provider: str
    attempt: int
    stream: bool = False


class RunEnded(msgspec.Struct, tag_field="event", tag="run_ended", omit_defaults=True, gc=False):
    """A request is over: the outcome line of the log without whose it was. Times in milliseconds, body bytes as the
    client saw them."""

    ts: float
    request_id: str
    api: str
    outcome: str
    status: int
    duration_ms: float
    model: str = ""
    node: str = ""
    provider: str = ""
    stream: bool = False
    attempts: int = 0
    queue_ms: float = 0.0
    first_token_ms: float = 0.0
    bytes_out: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class NodeChanged(msgspec.Struct, omit_defaults=True, gc=False):
    """Something about a node; ``node`` is empty where it is not known yet, ``reason`` is one word of ours."""

    event: str
    ts: float
    node: str = ""
    reason: str = ""


class ProviderChanged(msgspec.Struct, omit_defaults=True, gc=False):
    """A provider, or one ``target`` of it, left the choice or is back in it (OBS-1c); ``reason`` is of HEALTH-8."""

    event: str
    ts: float
    node: str
    provider: str
    target: str = ""
    reason: str = ""


Event = RunStarted | RunEnded | NodeChanged | ProviderChanged


def name_of(event: Event) -> str:
    """Which of :data:`EVENTS` this is."""
    return event.event if isinstance(event, NodeChanged | ProviderChanged) else str(event.__struct_config__.tag)


class Subscription:
    """One subscriber's queue. ``wake`` is called when the first event has come to an empty queue; it must not raise,
    and :meth:`take` is to follow, at once or later. ``lost`` counts all events that fell out."""

    __slots__ = ("_bus", "_events", "_told", "_wake", "_wanted", "lost")

    def __init__(self, bus: EventBus, wake: Callable[[], None], wanted: frozenset[str], limit: int) -> None:
        self._bus = bus
        self._wake = wake
        self._wanted = wanted
        self._events: deque[Event] = deque(maxlen=limit)
        self._told = 0
        self.lost = 0

    def put(self, event: Event, name: str) -> None:
        """Called by the bus."""
        if self._wanted and name not in self._wanted:
            return
        events = self._events
        if len(events) == events.maxlen:
            self.lost += 1
            self._bus.lost += 1
        events.append(event)
        if len(events) == 1:
            self._wake()

    def take(self) -> tuple[int, list[Event]]:
        """How many events were lost since the last time, all older than these, and what is in the queue; it is empty
        then."""
        lost, self._told = self.lost - self._told, self.lost
        events = list(self._events)
        self._events.clear()
        return lost, events

    @property
    def waiting(self) -> int:
        """Events in the queue."""
        return len(self._events)

    def close(self) -> None:
        """Nothing more is queued or kept. Idempotent."""
        self._bus.unsubscribe(self)
        self._events.clear()


class EventBus:
    """See the module. ``on_watched`` hears True with the first subscriber and False when the last is gone."""

    def __init__(self, *, max_subscribers: int = MAX_SUBSCRIBERS, queue_events: int = QUEUE_EVENTS) -> None:
        self.watched = False
        self.lost = 0
        self.on_watched: Callable[[bool], None] = _nobody
        self._max_subscribers = max_subscribers
        self._queue_events = queue_events
        self._subscriptions: list[Subscription] = []

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, wake: Callable[[], None], wanted: frozenset[str] = frozenset()) -> Subscription:
        """A queue for the events named in ``wanted`` (of :data:`EVENTS`; none = all). Raises TooManySubscribers."""
        if len(self._subscriptions) >= self._max_subscribers:
            raise TooManySubscribers
        subscription = Subscription(self, wake, wanted, self._queue_events)
        self._subscriptions.append(subscription)
        self._notice()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Idempotent."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._notice()

    def publish(self, event: Event) -> None:
        """Into every queue that wants it. Never blocks."""
        name = name_of(event)
        for subscription in list(self._subscriptions):
            subscription.put(event, name)

    def _notice(self) -> None:
        watched = bool(self._subscriptions)
        if watched is not self.watched:
            self.watched = watched
            self.on_watched(watched)


def _nobody(watched: bool) -> None:
    """Nobody wants to know."""
