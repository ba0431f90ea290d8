"""Every metric of both programs, declared in one place (OBS-1).

Counting is adding to a plain integer: ``metrics.requests["chat", "ok"].value += 1``, where the cell may be looked up
once and kept. State that exists anyway (leases, queue, relay counters kept in C) is not counted a second time: its
owner is read at scrape time through :meth:`Gauge.watch`. prometheus_client is only the exposition, imported at the
first scrape.

Label values are closed sets; ``reason`` labels, whose values other rooms define, are bounded in number instead. The
values of ``model``, ``node``, ``provider`` and ``principal`` are ids of the configuration, "" where there is none, and
never what a client sent (OBS-1c); what is no longer configured is dropped with :meth:`Metrics.forget`.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import iop
from iop import errors

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = [
    "APIS",
    "OUTCOMES",
    "Cell",
    "Counter",
    "EdgeMetrics",
    "Gauge",
    "Histogram",
    "HistogramCell",
    "Metrics",
    "NodeMetrics",
    "Observed",
    "WatchedCounter",
]

#: Values of the ``api`` label.
APIS = ("chat", "completions", "responses", "embeddings", "messages", "count_tokens", "models", "runs", "other")


#: Values of the ``provider_health`` label (LIVE-7).
HEALTH = ("available", "unavailable", "unknown")

#: Values of the ``decision`` label (API-8).
DECISIONS = (
    "eligible", "committed", "cancelled", "side_effects", "no_snapshot", "budget", "deadline", "not_retryable",
    "no_candidate",
)  # fmt: skip


def _codes(cls: type[errors.IopError]) -> Iterator[str]:
    yield cls.code
    for sub in cls.__subclasses__():
        yield from _codes(sub)


#: Values of the ``outcome`` label: ``ok``, ``provider_error`` (an error answer of the provider's own, relayed as it is)
#: or the code of an error of ours.
OUTCOMES = ("ok", "provider_error", *sorted(set(_codes(errors.IopError))))

#: Seconds. From a cached first token to a long generation.
LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

REASONS_MAX = 64
_OPEN: tuple[str, ...] = ()  # a label whose values other rooms define: the first REASONS_MAX, then 'other'


class _Ids(tuple[str, ...]):
    """Marks a label whose values are ids of the configuration."""

    __slots__ = ()


IDS = _Ids()
SERIES_MAX = 50_000  # of a metric with ids, so that a mistake cannot fill the memory

Labels = tuple[str, ...]
Observed = int | float | Mapping[Labels, int | float]


class Cell:
    """One time series of a counter: add to ``value``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0


class HistogramCell:
    """One time series of a histogram."""

    __slots__ = ("_bounds", "buckets", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.buckets[bisect_left(self._bounds, value)] += 1
        self.total += value


class _Family:
    """Name, help text and labels of one metric."""

    kind = ""

    def __init__(self, name: str, text: str, labels: Mapping[str, Iterable[str]]) -> None:
        self.name = name
        self.text = text
        self.labels: Labels = tuple(labels)
        self._allowed = tuple(frozenset(values) for values in labels.values())
        ids = any(values is IDS for values in labels.values())
        self._most = SERIES_MAX if ids else REASONS_MAX

    def checked(self, values: str | Labels, known: Mapping[Labels, object]) -> Labels:
        """The label values of a series; raises :class:`ValueError` outside the closed sets."""
        values = (values,) if isinstance(values, str) else values
        if len(values) != len(self._allowed):
            raise ValueError(f"{self.name} has the labels {self.labels}")
        if any(allowed and value not in allowed for value, allowed in zip(values, self._allowed, strict=True)):
            raise ValueError(f"{self.name}: {values} is outside the closed set of its labels")
        if len(known) >= self._most and values not in known and not all(self._allowed):
            return self.lumped(values)
        return values

    def lumped(self, values: Labels) -> Labels:
        """The labels of the series that these are counted in once there are too many."""
        return tuple(v if allowed else "other" for v, allowed in zip(values, self._allowed, strict=True))


class Counter(_Family, dict[str | Labels, Cell]):
    """Integers that only grow, one :class:`Cell` per combination of labels, made when it is first asked for:
    ``counter["chat", "ok"]``, ``counter["in"]``, ``counter[()]`` without labels.

    A dict itself, so that finding a cell that exists runs no Python code: requests do it several times each.
    """

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Mapping[str, Iterable[str]]) -> None:
        super().__init__(name, text, labels)
        self.cells: dict[Labels, Cell] = {} if labels else {(): Cell()}

    def __missing__(self, values: str | Labels) -> Cell:
        key = (values,) if isinstance(values, str) else values
        series = self.checked(key, self.cells)
        cell = self.cells.setdefault(series, Cell())
        if series == key:  # what was lumped into 'other' is not kept: those names have no bound
            self[values] = cell
        return cell

    def add(self, amount: float = 1) -> None:
        """Add to a counter that has no labels."""
        self.cells[()].value += amount

    def read(self) -> Iterator[tuple[Labels, int | float]]:
        for labels, cell in list(self.cells.items()):
            yield labels, cell.value


class Histogram(_Family, dict[str | Labels, HistogramCell]):
    """Distribution over fixed buckets, with its cells as :class:`Counter` has them."""

    kind = "histogram"

    def __init__(
        self, name: str, text: str, labels: Mapping[str, Iterable[str]], bounds: tuple[float, ...] = LATENCY_BUCKETS
    ) -> None:
        super().__init__(name, text, labels)
        self.bounds = bounds
        self.cells: dict[Labels, HistogramCell] = {} if labels else {(): HistogramCell(bounds)}

    def __missing__(self, values: str | Labels) -> HistogramCell:
        key = (values,) if isinstance(values, str) else values
        series = self.checked(key, self.cells)
        cell = self.cells.setdefault(series, HistogramCell(self.bounds))
        if series == key:
            self[values] = cell
        return cell

    def observe(self, value: float) -> None:
        """Observe into a histogram that has no labels."""
        self.cells[()].observe(value)

    def read(self) -> Iterator[tuple[Labels, list[tuple[str, float]], float]]:
        """Per series: labels, cumulative buckets as prometheus_client wants them, and the sum."""
        for labels, cell in list(self.cells.items()):
            running, buckets = 0, []
            for bound, count in zip((*self.bounds, float("inf")), cell.buckets, strict=True):
                running += count
                buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(running)))
            yield labels, buckets, cell.total


class Gauge(_Family):
    """A value that is read from its owner at scrape time; absent until someone watches it."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: Mapping[str, Iterable[str]]) -> None:
        super().__init__(name, text, labels)
        self.source: Callable[[], Observed] | None = None

    def watch(self, source: Callable[[], Observed]) -> None:
        """``source`` answers with a number, or with one per combination of labels."""
        self.source = source

    def read(self) -> Iterator[tuple[Labels, int | float]]:
        if self.source is not None:
            seen = self.source()
            for labels, value in seen.items() if isinstance(seen, Mapping) else [((), seen)]:
                yield self.checked(labels, {}), value


class WatchedCounter(Gauge):
    """A counter that its owner keeps (in C, in a machine) and that is read at scrape time."""

    kind = "counter"


FamilyT = TypeVar("FamilyT", Counter, Histogram, Gauge, WatchedCounter)


class Metrics:
    """The metrics of one program. Attributes of the subclasses are the metrics; :meth:`render` is a scrape."""

    prefix = ""

    def __init__(self) -> None:
        self._families: dict[str, Counter | Histogram | Gauge] = {}
        self._registry: CollectorRegistry | None = None
        self.build = self._gauge("build_info", "Always 1.", version=(iop.__version__,), python=_OPEN)
        self.build.watch(lambda: {(iop.__version__, platform.python_version()): 1})

    @property
    def families(self) -> tuple[Counter | Histogram | Gauge, ...]:
        """All metrics, in the order of their declaration."""
        return tuple(self._families.values())

    def forget(self, **known: Container[str]) -> None:
        """Drop the series of ids that are not configured any more; ``known`` has the ids that are, by label.

        The series that stands for all that found no room stays: it has counts of ids that are configured.
        """
        for family in self._families.values():
            if not isinstance(family, Counter | Histogram):
                continue
            at = [(i, known[label]) for i, label in enumerate(family.labels) if label in known]
            for labels in [
                labels
                for labels in family.cells
                if any(labels[i] and labels[i] not in ids for i, ids in at) and labels != family.lumped(labels)
            ]:
                del family.cells[labels]
                family.pop(labels if len(labels) > 1 else labels[0], None)

    def render(self) -> tuple[bytes, str]:
        """The body and the content type of ``/metrics``."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
            ProcessCollector(registry=self._registry)  # CPU, memory and file descriptors of this process
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """The custom collector of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for family in self._families.values():
            out: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
            if isinstance(family, Histogram):
                out = HistogramMetricFamily(family.name, family.text, labels=family.labels)
                for labels, buckets, total in family.read():
                    out.add_metric(labels, buckets, total)
            else:
                make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
                out = make(family.name, family.text, labels=family.labels)
                for labels, value in family.read():
                    out.add_metric(labels, value)
            yield out

    # ---- declaring ---------------------------------------------------------------------------------------------------

    def _counter(self, name: str, text: str, /, **labels: Iterable[str]) -> Counter:
        return self._declare(Counter(f"{self.prefix}{name}_total", text, labels))

    def _watched(self, name: str, text: str, /, **labels: Iterable[str]) -> WatchedCounter:
        return self._declare(WatchedCounter(f"{self.prefix}{name}_total", text, labels))

    def _gauge(self, name: str, text: str, /, **labels: Iterable[str]) -> Gauge:
        return self._declare(Gauge(self.prefix + name, text, labels))

    def _histogram(self, name: str, text: str, /, **labels: Iterable[str]) -> Histogram:
        return self._declare(Histogram(self.prefix + name, text, labels))

    def _declare(self, family: FamilyT) -> FamilyT:
        if family.name in self._families:
            raise ValueError(f"{family.name} is declared twice")
        self._families[family.name] = family
        return family


TOKEN_KINDS = ("input", "output", "reasoning", "cached_input")
DIRECTIONS = ("in", "out")
LISTENERS = ("http", "nodes")


class EdgeMetrics(Metrics):
    """The table of the edge."""

    prefix = "iop_edge_"

    def __init__(self) -> None:
        super().__init__()
        self.requests = self._counter(
            "requests", "Requests ended.",
            api=APIS, outcome=OUTCOMES, model=IDS, node=IDS, provider=IDS, principal=IDS,
        )  # fmt: skip
        self.in_flight = self._gauge("requests_in_flight", "Requests accepted and not ended.")
        self.duration = self._histogram(
            "request_duration_seconds", "From acceptance to the last byte.", api=APIS, model=IDS
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds",
            "From acceptance to the first semantic event of a stream.",
            api=APIS,
            model=IDS,
        )
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "From admission to the lease, 0 when granted at once.", model=IDS
        )
        self.waiting = self._gauge("queue_depth", "Requests that wait for a slot.", model=IDS)
        self.leases = self._gauge("leases_in_use", "Provider slots held by requests.", node=IDS, provider=IDS)
        self.capacity = self._gauge("capacity", "Provider slots of connected nodes.", node=IDS, provider=IDS)
        self.provider_up = self._gauge(
            "provider_up", "1 while a provider can be chosen: connected, enabled, not lowered, not drained.",
            node=IDS, provider=IDS,
        )  # fmt: skip
        self.ignored_returns = self._watched("lease_returns_ignored", "Second returns of a lease.")
        self.readmissions = self._counter("readmissions", "Requests put back to their old place.", cause=_OPEN)
        self.tokens = self._counter(
            "tokens", "Tokens that providers reported.",
            kind=TOKEN_KINDS, model=IDS, node=IDS, provider=IDS, principal=IDS,
        )  # fmt: skip
        self.tokens_dropped = self._counter("tokens_dropped", "Token counts that cannot be, dropped.")
        self.keys = self._gauge("keys", "Good keys of clients.")
        self.keys_refused = self._gauge("keys_last_reload_refused", "1 if the keys file is refused as it is.")
        self.key_refusals = self._counter(
            "key_refusals",
            "Requests refused for their key.",
            reason=("unknown_key", "rate", "tokens", "concurrency", "model"),
        )
        self.client_connections = self._gauge("client_connections", "Open client connections.")
        self.client_accepted = self._watched("client_connections_accepted", "Client connections accepted.")
        self.recovery_eligibility = self._counter(
            "liveness_recovery_eligibility", "Attempts that failed, by whether they led to another one.",
            api=APIS, path=("tunnel", "run"), decision=DECISIONS,
        )  # fmt: skip
        self.recovery_results = self._counter(
            "liveness_recovery_results", "What became of requests that were sent again.",
            api=APIS, result=("recovered", "failed", "cancelled"),
        )  # fmt: skip
        self.client_bytes = self._watched("client_bytes", "Bytes exchanged with clients.", direction=DIRECTIONS)
        self.buffered_bytes = self._gauge("buffered_body_bytes", "Request bodies held in memory.")
        self.nodes = self._gauge("nodes_connected", "Nodes that are ready for dispatch.")
        self.nodes_configured = self._gauge("nodes_configured", "Nodes of the configuration.")
        self.nodes_out_of_date = self._gauge(
            "nodes_out_of_date", "Ready nodes that have not applied what the file says."
        )
        self.config_revision = self._gauge("config_revision", "Number of the configuration, from the start.")
        self.config_applied_at = self._gauge(
            "config_last_reload_timestamp_seconds", "When the file was last taken over."
        )
        self.config_refused = self._gauge("config_last_reload_refused", "1 if the last reload was refused.")
        self.config_reloads = self._counter(
            "config_reloads", "Readings of the file, by result.", result=("applied", "unchanged", "refused")
        )
        self.config_refreshes = self._counter(
            "config_refreshes",
            "Configurations sent to ready nodes, and their answers.",
            result=("sent", "applied", "refused", "overdue", "stale"),
        )
        self.node_rejections = self._counter("node_rejections", "Registrations refused.", reason=_OPEN)
        self.node_refusals = self._watched(
            "node_connections_refused",
            "Connections of nodes that were ended before they registered, for want of room.",
            reason=("full", "address_full", "silent"),
        )
        self.node_sessions = self._counter("node_sessions_ended", "Sessions of ready nodes that ended.", reason=_OPEN)
        self.link_bytes = self._watched("link_bytes", "Bytes exchanged with nodes.", direction=DIRECTIONS)
        self.frames = self._watched("link_frames", "Frames exchanged with nodes.", direction=DIRECTIONS)
        self.late_frames = self._watched("late_frames", "Frames for streams that had ended, dropped.")
        self.protocol_errors = self._counter("protocol_errors", "Connections closed for a broken rule.", reason=_OPEN)
        self.handshakes_failed = self._watched(
            "tls_handshakes_failed",
            "TLS handshakes that failed.",
            listener=LISTENERS,
            reason=("plaintext", "timeout", "closed", "certificate", "protocol", "no_room"),
        )
        self.certificate_expiry = self._gauge(
            "tls_certificate_expiry_timestamp_seconds", "When the certificate shown expires.", listener=LISTENERS
        )
        self.log_lines_dropped = self._watched("log_lines_dropped", "Log lines dropped because nobody read them.")
        self.engine_running = self._gauge(
            "engine_requests_running", "Requests at work, as the engines report them.", provider=IDS
        )
        self.engine_drift = self._gauge(
            "engine_drift", "Requests that engines and leases are apart, summed over engines.", side=("engine", "lease")
        )
        self.health_evidence = self._counter(
            "provider_health_evidence",
            "What nodes said of their providers' health, and what became of it.",
            source=("terminal", "capabilities", "observation"),
            health=("available", "unavailable", "unknown"),
            result=("applied", "noop", "stale", "foreign", "malformed", "ambiguous"),
        )
        self.health_transitions = self._counter(
            "provider_health_transitions",
            "Providers taken out of the choice, and brought back.",
            **{"from": ("available", "unavailable"), "to": ("available", "unavailable", "offline")},
        )
        self.event_subscribers = self._gauge("event_subscribers", "Listeners of the event bus.")
        self.events_lost = self._watched("events_lost", "Events that listeners were too slow for.")


class NodeMetrics(Metrics):
    """The table of the node."""

    prefix = "iop_node_"

    def __init__(self) -> None:
        super().__init__()
        self.tunnels = self._counter("tunnels", "Tunnel requests ended.", outcome=OUTCOMES, provider=IDS)
        self.runs = self._counter("runs", "Normalized runs ended.", outcome=OUTCOMES, provider=IDS)
        self.slots = self._gauge("slots_in_use", "Provider slots held by calls of this node.", provider=IDS)
        self.capacity = self._gauge("capacity", "Provider slots of this node.", provider=IDS)
        self.capacity_refusals = self._counter("capacity_refusals", "Requests over a provider's capacity.")
        self.provider_connections = self._gauge("provider_connections", "Open connections to providers.")
        self.stalls = self._counter(
            "response_stalls", "Calls that ended for want of progress.",
            kind=("run", "tunnel"), provider_health=HEALTH, close=("confirmed", "unconfirmed"),
        )  # fmt: skip
        self.stall_seconds = self._histogram("response_stall_duration_seconds", "The silence that ended in a stall.")
        self.late_bytes = self._counter(
            "late_response_bytes", "Bytes that came behind the end of their call.", kind=("run", "tunnel")
        )
        self.probes = self._counter(
            "provider_probes", "Probes of providers, by who asked and what they found.",
            cause=("stall", "command", "failure"), provider_health=HEALTH,
        )  # fmt: skip
        self.lingering = self._gauge("slots_lingering", "Slots of calls that are closed and go on in their engine.")
        self.lingered = self._watched(
            "slots_lingered", "Slots that came back because their engine was done, or after two minutes.",
            result=("ended", "expired"),
        )  # fmt: skip
        self.ready = self._gauge("edge_connected", "1 while the session with the edge is ready.")
        self.store_rows = self._watched("store_rows", "Rows of the run store.", result=("written", "dropped"))
        self.connects = self._counter(
            "edge_connects", "Attempts to reach the edge, by result.", result=("ready", "failed", "rejected")
        )
        self.link_bytes = self._watched("link_bytes", "Bytes exchanged with the edge.", direction=DIRECTIONS)
        self.protocol_errors = self._counter("protocol_errors", "Connections closed for a broken rule.", reason=_OPEN)
        self.log_lines_dropped = self._watched("log_lines_dropped", "Log lines dropped because nobody read them.")
