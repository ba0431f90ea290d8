"""What nodes say of their providers' health, and what follows from it: the overlay (HEALTH-1 … HEALTH-10).

The overlay lies over the configuration, which it never changes: what it shows as unavailable, a provider or one target
of a provider, is no candidate until it is restored, and no longer than its node's connection lives. Provider and target
are lowered and restored each for itself, by the evidence about it::

                     fresh unavailable                                   the generation ended, or the
                 ┌──────────────────────► unavailable ──────────────────► provider is not configured any more
                 │                            │                        ▲
             available ◄──────────────────────┘                        │
                 │      a fresh available from CAPABILITIES, or what   │
                 │      lowered it is not configured any more          │
                 └─────────────────────────────────────────────────────┘  offline, and forgotten

Each observation carries a number that grows over its connection. Evidence of one provider counts in that order and
once: what is not newer than the newest heard of it is stale. Evidence counts if it fits what is configured, exactly, or
it is foreign; so nothing is lowered that CAPABILITIES could not be asked about.

Each provider of a node that has become ready, or that a configuration brings, is looked at once (HEALTH-10). What a
look finds is shown, and lowers nothing: a node reports a dead provider by itself.

Like everything here this is a synchronous machine: the driver brings the time, asks what :meth:`Overlay.due` names, and
carries out the changes. It holds at most one record per configured provider, and in it one lowering per target.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from iop.execution.failure import HealthReason, ProviderHealth
from iop.pool.evidence import (
    TRANSITIONS,
    Change,
    Event,
    Evidence,
    Identity,
    Known,
    Look,
    Lowering,
    OverlayState,
    ProviderKey,
    Question,
    Result,
    Source,
    Verdict,
    read_evidence,
)

__all__ = ["FIRST_ASK_S", "JITTER", "LAST_ASK_S", "Overlay"]

FIRST_ASK_S, LAST_ASK_S = 1.0, 15.0  # from the lowering, or from an answer, to the next question (HEALTH-4)
JITTER = 0.1  # of a wait is cut off at random, so that providers that fell together are not asked together


class _Asking:
    """What is to be asked about, and when. ``asked``: a question is under way."""

    __slots__ = ("asked", "backoff_s", "next_ask_at", "question")

    def __init__(self, question: Question, next_ask_at: float) -> None:
        self.question = question
        self.asked = False
        self.backoff_s = FIRST_ASK_S
        self.next_ask_at = next_ask_at


class _Lowered(_Asking):
    """A provider or a target that is unavailable; ``backend`` is the one that it was lowered with."""

    __slots__ = ("backend", "lowering")

    def __init__(self, question: Question, next_ask_at: float, lowering: Lowering, backend: Hashable) -> None:
        super().__init__(question, next_ask_at)
        self.lowering = lowering
        self.backend = backend


class _Record:
    """One provider of one generation. ``lowered`` is by target, None for the provider itself."""

    __slots__ = ("known", "look", "looked", "lowered", "said", "seq")

    def __init__(self, known: Known) -> None:
        self.known = known
        self.seq = 0  # of the newest evidence, and what that said
        self.said: tuple[str, str, str] | None = None
        self.lowered: dict[str | None, _Lowered] = {}
        self.look: _Asking | None = None  # to come
        self.looked: Look | None = None  # done


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
        self._asking: dict[tuple[str, str, str | None, bool], _Asking] = {}  # the last one: it is a look
        self._lowered = 0

    # ---- what there is -----------------------------------------------------------------------------------------------

    def configure(self, known: Mapping[ProviderKey, Known]) -> list[Change]:
        """Take over what is configured and enabled. What was lowered by what is no longer configured has nothing to be
        asked about, and starts clean; the numbers heard of it still count. What is new or has changed is looked at."""
        self._known = known
        changes: list[Change] = []
        for node_id, node in self._nodes.items():
            for provider_id, record in list(node.records.items()):
                now = known.get((node_id, provider_id))
                if now is None:
                    changes += self._forget(node, node_id, provider_id)
                    continue
                for scope, lowered in list(record.lowered.items()):
                    asked = lowered.question.asked
                    if (
                        asked.adapter != now.adapter
                        or asked.target not in now.targets
                        or lowered.backend != now.backend
                    ):
                        changes.append(self._move(node_id, node.generation, provider_id, scope, Event.RESTORED))
                before, record.known = record.known, now
                if now[:2] != before[:2]:
                    record.looked = None  # it was of another one
                gained = not now.targets <= before.targets
                if now != before and (gained or record.looked is None or record.look is not None):
                    self._look(node, node_id, provider_id)
        for (node_id, provider_id), now in known.items():
            ready = self._nodes.get(node_id)
            if ready is not None and provider_id not in ready.records:
                self._begin(ready, node_id, provider_id, now)
        return changes

    def begin(self, node_id: str, generation: int) -> None:
        """A node is ready under a new generation: it starts clean (HEALTH-3), and its providers are looked at."""
        self._drop(node_id)
        node = self._nodes[node_id] = _Node(generation)
        for (owner_id, provider_id), known in self._known.items():
            if owner_id == node_id:
                self._begin(node, node_id, provider_id, known)

    def end(self, node_id: str, generation: int) -> list[Change]:
        """A generation is over, with all that was known under it. No-op unless it is the node's present one."""
        return self._drop(node_id) if self.is_current(node_id, generation) else []

    def _drop(self, node_id: str) -> list[Change]:
        node = self._nodes.get(node_id)
        if node is None:
            return []
        changes = [change for provider_id in list(node.records) for change in self._forget(node, node_id, provider_id)]
        del self._nodes[node_id]
        return changes

    def _begin(self, node: _Node, node_id: str, provider_id: str, known: Known) -> None:
        node.records[provider_id] = _Record(known)
        self._look(node, node_id, provider_id)

    def _look(self, node: _Node, node_id: str, provider_id: str) -> None:
        """The provider is to be looked at, as soon as may be."""
        record = node.records[provider_id]
        targets = tuple(sorted(record.known.targets))
        if not targets:  # nobody is sent there
            record.look, record.looked = None, Look()
            self._asking.pop((node_id, provider_id, None, True), None)
            return
        asked = Identity(node_id, node.generation, provider_id, record.known.adapter, targets[0])
        record.look = self._asking[node_id, provider_id, None, True] = _Asking(Question(asked, targets=targets), 0.0)

    def _forget(self, node: _Node, node_id: str, provider_id: str) -> list[Change]:
        """A provider is not configured any more, or its generation is over."""
        record = node.records[provider_id]
        changes = [
            self._move(node_id, node.generation, provider_id, scope, Event.ENDED) for scope in list(record.lowered)
        ]
        self._asking.pop((node_id, provider_id, None, True), None)
        del node.records[provider_id]
        return changes

    def is_current(self, node_id: str, generation: int) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.generation == generation

    def lowerings(self, node_id: str, provider_id: str) -> Mapping[str | None, Lowering]:
        """Why a provider is unavailable, under None, and each of its targets that is."""
        record = self._find(node_id, provider_id)
        return {scope: lowered.lowering for scope, lowered in record.lowered.items()} if record is not None else {}

    def lowering(self, node_id: str, provider_id: str) -> Lowering | None:
        """Why a provider is unavailable; None if it is not."""
        return self.lowerings(node_id, provider_id).get(None)

    def looked(self, node_id: str, provider_id: str) -> Look | None:
        """What the look at a provider found; None as long as it was not looked at."""
        record = self._find(node_id, provider_id)
        return record.looked if record is not None else None

    def unseen(self, node_id: str, provider_id: str) -> bool:
        """Whether a provider that is there has yet to be looked at."""
        record = self._find(node_id, provider_id)
        return record is not None and record.looked is None

    def _find(self, node_id: str, provider_id: str) -> _Record | None:
        node = self._nodes.get(node_id)
        return node.records.get(provider_id) if node is not None else None

    @property
    def lowered(self) -> int:
        """Providers and targets that are unavailable."""
        return self._lowered

    # ---- evidence ----------------------------------------------------------------------------------------------------

    def heard(self, evidence: Evidence, now: float) -> Verdict:
        """Evidence that nobody asked for (HEALTH-1, HEALTH-2, HEALTH-6, HEALTH-7). A stall lowers the provider."""
        source, said, health, classification, seq, reason, target_only = evidence
        found, meaning, sound = read_evidence(health, classification)
        record = self._record(said)
        if record is None:
            return Verdict(Result.FOREIGN, found)
        fault = _fault(record, said, found, sound, seq)
        if fault is not None:
            return Verdict(fault, found)
        stall = source is Source.TERMINAL
        scope = said.target if target_only and not stall else None
        if found is not ProviderHealth.UNAVAILABLE or scope in record.lowered:
            return Verdict(Result.NOOP, found)
        why = HealthReason.STALLED if stall else reason or HealthReason.FAILING
        lowered = _Lowered(
            Question(said, scope, why), now + self._spread(FIRST_ASK_S), Lowering(source, meaning, why, now),
            record.known.backend,
        )  # fmt: skip
        return Verdict(Result.APPLIED, found, self._lower(record, scope, lowered))

    def answered(self, question: Question, said: Identity | None, health: str, seq: int, now: float) -> Verdict:
        """The answer to what :meth:`due` named, None for none. It restores if it is a newer ``available`` of exactly
        what lowered the provider or the target (HEALTH-5)."""
        found, _, sound = read_evidence(health, None)
        asked, scope = question.asked, question.scope
        record = self._asked(asked)
        if record is None:
            return Verdict(Result.FOREIGN, found)
        self._again(question, now)
        if said is None:
            return Verdict(Result.NOOP, ProviderHealth.UNKNOWN)
        if not (said.provider_id and said.adapter and said.target):
            return Verdict(Result.AMBIGUOUS, found)
        if said != asked:
            return Verdict(Result.FOREIGN, found)
        fault = _fault(record, said, found, sound, seq)
        if fault is not None:
            return Verdict(fault, found)
        lowered = record.lowered.get(scope)
        if found is not ProviderHealth.AVAILABLE or lowered is None or lowered.question != question:
            return Verdict(Result.NOOP, found)
        change = self._move(asked.node_id, asked.generation, asked.provider_id, scope, Event.RESTORED)
        if scope is None:  # it may be another server, with other models
            if record.look is None:
                self._look(self._nodes[asked.node_id], asked.node_id, asked.provider_id)
            elif not record.look.asked:
                record.look.next_ask_at = now
        return Verdict(Result.APPLIED, found, change)

    def seen(self, question: Question, look: Look | None, now: float) -> None:
        """What the look found that :meth:`due` named; None: nothing. Unless all is well it comes again, so that what is
        shown does not outlive its cause."""
        asked = question.asked
        record = self._asked(asked)
        if record is None or record.look is None or not record.look.asked or record.look.question != question:
            return
        if look is not None:
            record.looked = look
        if look != Look():
            self._again(question, now)
            return
        record.look = None
        del self._asking[asked.node_id, asked.provider_id, None, True]

    def _record(self, said: Identity) -> _Record | None:
        """The record of what evidence is about, if that is exactly what is configured."""
        node = self._nodes.get(said.node_id)
        if node is None or node.generation != said.generation:
            return None
        record = node.records.get(said.provider_id)
        if record is None or said.adapter != record.known.adapter or said.target not in record.known.targets:
            return None
        return record

    def _asked(self, asked: Identity) -> _Record | None:
        """The record that a question was about, if it is still there."""
        node = self._nodes.get(asked.node_id)
        return node.records.get(asked.provider_id) if node is not None and node.generation == asked.generation else None

    # ---- questions (HEALTH-4, HEALTH-10) -----------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """When :meth:`due` has the next question; None while there is none to come."""
        return min((a.next_ask_at for a in self._asking.values() if not a.asked), default=None)

    def due(self, now: float) -> list[Question]:
        """What to ask CAPABILITIES about, what is lowered first. Each question is under way from here on, until
        :meth:`answered`, :meth:`postponed` or, of a look, :meth:`seen`."""
        asking = [a for a in self._asking.values() if not a.asked and a.next_ask_at <= now]
        asking.sort(key=lambda a: bool(a.question.targets))
        for one in asking:
            one.asked = True
        return [one.question for one in asking]

    def postponed(self, question: Question, now: float) -> None:
        """A question could not be put: soon again."""
        asking = self._under_way(question)
        if asking is not None:
            asking.asked = False
            asking.next_ask_at = now + self._spread(FIRST_ASK_S)

    def _again(self, question: Question, now: float) -> None:
        asking = self._under_way(question)
        if asking is not None:
            asking.asked = False
            asking.backoff_s = min(2 * asking.backoff_s, LAST_ASK_S)
            asking.next_ask_at = now + self._spread(asking.backoff_s)

    def _under_way(self, question: Question) -> _Asking | None:
        """The account of a question that was put, if it has not become another one since."""
        asked = question.asked
        asking = self._asking.get((asked.node_id, asked.provider_id, question.scope, bool(question.targets)))
        return asking if asking is not None and asking.question == question else None

    def _spread(self, delay_s: float) -> float:
        return delay_s * (1 - JITTER * self._jitter())

    # ---- the machine -------------------------------------------------------------------------------------------------

    def _lower(self, record: _Record, scope: str | None, lowered: _Lowered) -> Change:
        asked = lowered.question.asked
        record.lowered[scope] = self._asking[asked.node_id, asked.provider_id, scope, False] = lowered
        self._lowered += 1
        after = TRANSITIONS[OverlayState.AVAILABLE, Event.LOWERED]
        return Change(asked.node_id, asked.generation, asked.provider_id, scope, OverlayState.AVAILABLE, after)

    def _move(self, node_id: str, generation: int, provider_id: str, scope: str | None, event: Event) -> Change:
        """The one place where what is lowered stops being so."""
        before = OverlayState.UNAVAILABLE
        after = TRANSITIONS.after(before, event, f"of {provider_id}")
        del self._nodes[node_id].records[provider_id].lowered[scope]
        del self._asking[node_id, provider_id, scope, False]
        self._lowered -= 1
        return Change(node_id, generation, provider_id, scope, before, after)

    def validate(self) -> None:
        """Assert what must hold between any two calls. A full scan; tests call it after each step."""
        asking: dict[tuple[str, str, str | None, bool], _Asking] = {}
        for node_id, node in self._nodes.items():
            assert node.generation > 0, node_id
            configured = {provider_id for owner_id, provider_id in self._known if owner_id == node_id}
            assert set(node.records) == configured, f"{node_id} has records of other providers than are configured"
            for provider_id, record in node.records.items():
                key = node_id, provider_id
                known = self._known[key]
                assert record.known == known, key
                assert (record.seq == 0) == (record.said is None), key
                assert record.look is not None or record.looked is not None, f"{key} is not looked at"
                if record.look is not None:
                    asking[*key, None, True] = record.look
                for scope, lowered in record.lowered.items():
                    asking[*key, scope, False] = lowered
                    asked = lowered.question.asked
                    assert asked[:3] == (node_id, node.generation, provider_id), "an overlay outlived its time"
                    assert asked.adapter == known.adapter, key
                    assert asked.target in known.targets, key
                    assert scope in (None, asked.target), key
        assert asking == self._asking, "what is lowered or not seen is not what is to be asked about"
        assert self._lowered == sum(not look for *_, look in asking)
        for one in asking.values():
            assert FIRST_ASK_S <= one.backoff_s <= LAST_ASK_S


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
