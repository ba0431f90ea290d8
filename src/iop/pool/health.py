"""What nodes say of their providers' health, and what follows from it: the overlay (HEALTH-1 … HEALTH-5).

The overlay lies over the configuration, which it never changes: a provider that it shows as unavailable is no candidate
until it is restored, and no longer than its node's connection lives.

::

                     fresh unavailable                                   the generation ended, or the
                 ┌──────────────────────► unavailable ──────────────────► provider is not configured any more
                 │                            │                        ▲
             available ◄──────────────────────┘                        │
                 │      a fresh available from CAPABILITIES, or what   │
                 │      lowered it is not configured any more          │
                 └─────────────────────────────────────────────────────┘  offline, and forgotten

Each observation carries a number that grows over its connection. Evidence of one provider counts in that order and
once: what is not newer than the newest heard of it is stale. Evidence counts if it fits what is configured, exactly, or
it is foreign; so nothing lowers a provider that CAPABILITIES could not be asked about.

Like everything here this is a synchronous machine: the driver brings the time, asks what :meth:`Overlay.due` names, and
carries out the changes. It holds at most one record per configured provider.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import NamedTuple

from iop.errors import InvalidTransition
from iop.execution.failure import CLASSIFICATION_OF, LivenessClassification, ProviderHealth, normalise_evidence

__all__ = [
    "FIRST_ASK_S",
    "JITTER",
    "LAST_ASK_S",
    "TRANSITIONS",
    "Change",
    "Event",
    "Evidence",
    "Identity",
    "Known",
    "Lowering",
    "Overlay",
    "OverlayState",
    "ProviderKey",
    "Result",
    "Source",
    "Verdict",
]

FIRST_ASK_S, LAST_ASK_S = 1.0, 30.0  # from the lowering, or from an answer, to the next question (HEALTH-4)
JITTER = 0.1  # of a wait is cut off at random, so that providers that fell together are not asked together

ProviderKey = tuple[str, str]  # node, provider


class OverlayState(StrEnum):
    """Of a provider in the overlay. ``offline``: it is not in it any more."""

    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    OFFLINE = "offline"


class Event(StrEnum):
    LOWERED = "lowered"
    RESTORED = "restored"
    ENDED = "ended"


TRANSITIONS: dict[tuple[OverlayState, Event], OverlayState] = {
    (OverlayState.AVAILABLE, Event.LOWERED): OverlayState.UNAVAILABLE,
    (OverlayState.AVAILABLE, Event.ENDED): OverlayState.OFFLINE,
    (OverlayState.UNAVAILABLE, Event.RESTORED): OverlayState.AVAILABLE,
    (OverlayState.UNAVAILABLE, Event.ENDED): OverlayState.OFFLINE,
}


class Source(StrEnum):
    """Who brought it: a stall's terminal, an answer to CAPABILITIES, a node by itself."""

    TERMINAL = "terminal"
    CAPABILITIES = "capabilities"
    OBSERVATION = "observation"


class Result(StrEnum):
    """What became of evidence. ``applied``: it lowered or restored. ``noop``: sound and new, and nothing to change.
    ``stale``: not newer than what was heard. ``foreign``: of another generation, or not what is configured or was
    asked. ``malformed``: no health that exists. ``ambiguous``: it names itself in part only, or has the number of
    another observation."""

    APPLIED = "applied"
    NOOP = "noop"
    STALE = "stale"
    FOREIGN = "foreign"
    MALFORMED = "malformed"
    AMBIGUOUS = "ambiguous"


class Identity(NamedTuple):
    """What an observation is about."""

    node_id: str
    generation: int
    provider_id: str
    adapter: str
    target: str


class Evidence(NamedTuple):
    """What came, in the wire's words. ``classification`` is None where the source has none (HEALTH-6)."""

    source: Source
    said: Identity
    health: str
    classification: str | None
    seq: int


class Known(NamedTuple):
    """What is configured of a provider. ``backend`` is compared only."""

    adapter: str
    backend: Hashable
    targets: frozenset[str]


class Lowering(NamedTuple):
    """Why a provider is unavailable, and since when, in the driver's time."""

    source: Source
    classification: LivenessClassification
    at: float


class Change(NamedTuple):
    """A provider's overlay changed. After ``offline`` it may be configured under another name only."""

    node_id: str
    generation: int
    provider_id: str
    before: OverlayState
    after: OverlayState


class Verdict(NamedTuple):
    """``health`` is what was said, or unknown if that is no evidence (LIVE-7)."""

    result: Result
    health: ProviderHealth
    change: Change | None = None


class _Record:
    """One provider of one generation."""

    __slots__ = ("asked", "backend", "backoff_s", "identity", "key", "lowering", "next_ask_at", "said", "seq", "state")

    def __init__(self, key: ProviderKey) -> None:
        self.key = key
        self.state = OverlayState.AVAILABLE
        self.seq = 0  # of the newest evidence, and what that said
        self.said: tuple[str, str, str] | None = None
        self.identity: Identity | None = None  # whose lowering it is; None while available
        self.backend: Hashable = None
        self.lowering: Lowering | None = None
        self.asked = False  # a question is under way
        self.backoff_s = FIRST_ASK_S
        self.next_ask_at = 0.0


class _Node:
    __slots__ = ("generation", "records")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.records: dict[str, _Record] = {}


class Overlay:
    """See the module. ``jitter`` draws from 0 to 1."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._known: Mapping[ProviderKey, Known] = {}
        self._nodes: dict[str, _Node] = {}
        self._lowered: dict[ProviderKey, _Record] = {}

    # ---- what there is -----------------------------------------------------------------------------------------------

    def configure(self, known: Mapping[ProviderKey, Known]) -> list[Change]:
        """Take over what is configured and enabled. A provider that was lowered by what is no longer configured has
        nothing to be asked about, and starts clean; the numbers heard of it still count."""
        self._known = known
        changes = []
        for node in self._nodes.values():
            for provider_id, record in list(node.records.items()):
                now = known.get(record.key)
                if now is None:
                    changes.append(self._move(record, Event.ENDED))
                    del node.records[provider_id]
                elif record.identity is not None and not (
                    record.identity.adapter == now.adapter
                    and record.identity.target in now.targets
                    and record.backend == now.backend
                ):
                    changes.append(self._move(record, Event.RESTORED))
        return [change for change in changes if change is not None]

    def begin(self, node_id: str, generation: int) -> None:
        """A node is ready under a new generation: it starts clean (HEALTH-3)."""
        self._nodes[node_id] = _Node(generation)

    def end(self, node_id: str, generation: int) -> list[Change]:
        """A generation is over, with all that was known under it. No-op unless it is the node's present one."""
        if not self.is_current(node_id, generation):
            return []
        moved = [self._move(record, Event.ENDED) for record in self._nodes.pop(node_id).records.values()]
        return [change for change in moved if change is not None]

    def is_current(self, node_id: str, generation: int) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.generation == generation

    def lowering(self, node_id: str, provider_id: str) -> Lowering | None:
        """Why a provider is unavailable; None if it is not."""
        record = self._lowered.get((node_id, provider_id))
        return record.lowering if record is not None else None

    @property
    def lowered(self) -> int:
        """Providers that are unavailable."""
        return len(self._lowered)

    # ---- evidence ----------------------------------------------------------------------------------------------------

    def heard(self, evidence: Evidence, now: float) -> Verdict:
        """Evidence that nobody asked for (HEALTH-1, HEALTH-2, HEALTH-6)."""
        source, said, health, classification, seq = evidence
        found, meaning, sound = _read(health, classification)
        record = self._record(said)
        if record is None:
            return Verdict(Result.FOREIGN, found)
        fault = _fault(record, said, found, sound, seq)
        if fault is not None:
            return Verdict(fault, found)
        if found is not ProviderHealth.UNAVAILABLE or record.state is not OverlayState.AVAILABLE:
            return Verdict(Result.NOOP, found)
        record.identity = said
        record.backend = self._known[record.key].backend
        record.lowering = Lowering(source, meaning, now)
        record.backoff_s = FIRST_ASK_S
        record.next_ask_at = now + self._spread(FIRST_ASK_S)
        return Verdict(Result.APPLIED, found, self._move(record, Event.LOWERED))

    def answered(self, asked: Identity, said: Identity | None, health: str, seq: int, now: float) -> Verdict:
        """The answer to what :meth:`due` named, None for none. It restores if it is a newer ``available`` of exactly
        what lowered the provider (HEALTH-5)."""
        found, _, sound = _read(health, None)
        record = self._asked(asked)
        if record is None:
            return Verdict(Result.FOREIGN, found)
        self._again(record, now)
        if said is None:
            return Verdict(Result.NOOP, ProviderHealth.UNKNOWN)
        if not (said.provider_id and said.adapter and said.target):
            return Verdict(Result.AMBIGUOUS, found)
        if said != asked:
            return Verdict(Result.FOREIGN, found)
        fault = _fault(record, said, found, sound, seq)
        if fault is not None:
            return Verdict(fault, found)
        if found is not ProviderHealth.AVAILABLE or record.identity != said:
            return Verdict(Result.NOOP, found)
        return Verdict(Result.APPLIED, found, self._move(record, Event.RESTORED))

    def _record(self, said: Identity) -> _Record | None:
        """The record of what evidence is about, if that is exactly what is configured; made if it is new."""
        node = self._nodes.get(said.node_id)
        known = self._known.get((said.node_id, said.provider_id))
        if node is None or node.generation != said.generation or known is None:
            return None
        if said.adapter != known.adapter or said.target not in known.targets:
            return None
        record = node.records.get(said.provider_id)
        if record is None:
            record = node.records[said.provider_id] = _Record((said.node_id, said.provider_id))
        return record

    def _asked(self, asked: Identity) -> _Record | None:
        """The record that a question was about, if it is still there."""
        node = self._nodes.get(asked.node_id)
        return node.records.get(asked.provider_id) if node is not None and node.generation == asked.generation else None

    # ---- questions (HEALTH-4) ----------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """When :meth:`due` has the next question; None while there is none to come."""
        return min((r.next_ask_at for r in self._lowered.values() if not r.asked), default=None)

    def due(self, now: float) -> list[Identity]:
        """What to ask CAPABILITIES about. Each question is under way from here on, one at a time per provider, until
        :meth:`answered` or :meth:`postponed`."""
        questions = []
        for record in self._lowered.values():
            if not record.asked and record.next_ask_at <= now:
                assert record.identity is not None
                record.asked = True
                questions.append(record.identity)
        return questions

    def postponed(self, asked: Identity, now: float) -> None:
        """A question could not be put: soon again."""
        record = self._asked(asked)
        if record is not None:
            record.asked = False
            record.next_ask_at = now + self._spread(FIRST_ASK_S)

    def _again(self, record: _Record, now: float) -> None:
        record.asked = False
        record.backoff_s = min(2 * record.backoff_s, LAST_ASK_S)
        record.next_ask_at = now + self._spread(record.backoff_s)

    def _spread(self, delay_s: float) -> float:
        return delay_s * (1 - JITTER * self._jitter())

    # ---- the machine -------------------------------------------------------------------------------------------------

    def _move(self, record: _Record, event: Event) -> Change | None:
        """The one place where a state changes. None if nobody saw a difference."""
        before = record.state
        after = TRANSITIONS.get((before, event))
        if after is None:
            raise InvalidTransition(f"health of {record.key}", before.value, event.value)
        node_id, provider_id = record.key
        generation = record.identity.generation if record.identity is not None else 0
        record.state = after
        if after is OverlayState.UNAVAILABLE:
            self._lowered[record.key] = record
        elif before is OverlayState.UNAVAILABLE:
            del self._lowered[record.key]
            record.identity = record.lowering = record.backend = None
        else:
            return None
        return Change(node_id, generation, provider_id, before, after)

    def validate(self) -> None:
        """Assert what must hold between any two calls. A full scan; tests call it after each step."""
        lowered = {}
        for node_id, node in self._nodes.items():
            assert node.generation > 0, node_id
            for provider_id, record in node.records.items():
                key = node_id, provider_id
                assert record.key == key in self._known, f"{key} is kept and not configured"
                assert record.state is not OverlayState.OFFLINE, f"{key} is kept and offline"
                assert (record.seq == 0) == (record.said is None), key
                assert FIRST_ASK_S <= record.backoff_s <= LAST_ASK_S, key
                down = record.state is OverlayState.UNAVAILABLE
                assert down == (record.identity is not None) == (record.lowering is not None), key
                if record.identity is not None:
                    known = self._known[key]
                    lowered[key] = record
                    assert record.identity[:3] == (node_id, node.generation, provider_id), (
                        "an overlay outlived its time"
                    )
                    assert record.identity.adapter == known.adapter, key
                    assert record.identity.target in known.targets, key
        assert lowered == self._lowered, "what is lowered is not what is to be asked about"


#: Strings and members of a StrEnum are the same keys.
_MEANS: Mapping[str, LivenessClassification] = CLASSIFICATION_OF  # type: ignore[assignment]


def _read(health: str, classification: str | None) -> tuple[ProviderHealth, LivenessClassification, bool]:
    """The pair that was said, and whether it is one (LIVE-7)."""
    if classification is None:
        classification = _MEANS.get(health, "")  # an observation has one class at most
    found, meaning = normalise_evidence(health, classification)
    return found, meaning, (found, meaning) == (health, classification)


def _fault(record: _Record, said: Identity, health: ProviderHealth, sound: bool, seq: int) -> Result | None:
    """Why this is no new evidence; None if it is, and then it is the newest."""
    if not sound:
        return Result.MALFORMED
    content = (said.adapter, said.target, health.value)
    if seq <= record.seq:
        same_number = seq == record.seq and seq > 0
        return Result.AMBIGUOUS if same_number and content != record.said else Result.STALE
    record.seq, record.said = seq, content
    return None
