"""Health at the edge: what nodes report lowers providers, and CAPABILITIES brings them back (HEALTH-1 … HEALTH-10).

:class:`iop.pool.overlay.Overlay` decides; here its questions are put on the nodes' links, its changes are told to the
pool, and all evidence is counted. One timer serves all providers. A node may say what it likes as often as it likes:
what changes nothing costs two look-ups and a counter, and few of its lines reach the log.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from iop.edge.nodes.commands import Commands
from iop.errors import IopError, NodeDisconnected
from iop.execution.failure import HealthReason, ListFault
from iop.net.wheel import Timer, Wheel
from iop.observability.events import EventBus, ProviderChanged
from iop.observability.metrics import EdgeMetrics
from iop.pool.evidence import (
    Change,
    Evidence,
    Identity,
    Known,
    Look,
    Lowering,
    OverlayState,
    ProviderKey,
    Question,
    Source,
    Verdict,
)
from iop.pool.lease import Actions, Lease
from iop.pool.overlay import Overlay
from iop.pool.pool import Pool
from iop.wire import limits
from iop.wire import messages as m

__all__ = ["Health"]

log = logging.getLogger("iop.edge.nodes.health")

ANSWER_S = 15.0  # for a node's probe, which has a shorter clock of its own
ASKED_AT_ONCE = 16  # questions under way on one link: others have commands too
QUIET_S = 1.0  # between two log lines of observations that changed nothing


class Health:
    """See the module. ``commands`` finds those of a node's ready connection by its generation, or None."""

    def __init__(
        self,
        wheel: Wheel,
        pool: Pool,
        metrics: EdgeMetrics,
        perform: Callable[[Actions], None],
        *,
        commands: Callable[[str, int], Commands | None],
        jitter: Callable[[], float] = random.random,
        events: EventBus | None = None,
    ) -> None:
        self.overlay = Overlay(jitter)
        self._wheel = wheel
        self._pool = pool
        self._metrics = metrics
        self._perform = perform
        self._commands = commands
        self._events = events or EventBus()
        self._timer: Timer | None = None
        self._quiet_until = 0.0
        self._unsaid = 0

    # ---- what there is -----------------------------------------------------------------------------------------------

    def configure(self, known: Mapping[ProviderKey, Known]) -> None:
        """The providers that are configured and enabled. The pool has to have heard of the change before."""
        for change in self.overlay.configure(known):
            self._changed(change)
        self._watch()

    def ready(self, node_id: str, generation: int) -> None:
        """The node is ready for dispatch: everything starts clean, and is looked at."""
        self.overlay.begin(node_id, generation)
        self._watch()

    def lost(self, node_id: str, generation: int) -> None:
        """The generation is over, and the pool has forgotten its overlay by itself."""
        for change in self.overlay.end(node_id, generation):
            self._count(change)
        self._watch()

    def show(self, node_id: str, row: dict[str, Any]) -> None:
        """Adds to a provider's row of ``/admin/status``: since when it is unavailable, what said so and why, or None;
        the same for each of its targets that is; and what the look at it found (HEALTH-10). What was not looked at, or
        is no API, is not shown as available."""
        provider_id = row["id"]
        lowerings, look = self.overlay.lowerings(node_id, provider_id), self.overlay.looked(node_id, provider_id)
        own = lowerings.get(None)
        unclear = self.overlay.unseen(node_id, provider_id) or (look is not None and look.not_an_api)
        if row["health"] == "available" and unclear:
            row["health"] = "unknown"
        row["lowered"] = self._shown(own) if own is not None else None
        row["lowered_targets"] = {target: self._shown(low) for target, low in lowerings.items() if target is not None}
        row["note"] = _note(look)

    def show_candidate(self, row: dict[str, Any]) -> None:
        """Adds to a candidate's row whether the look at its provider found its target in the list."""
        look = self.overlay.looked(row["node"], row["provider"])
        row["note"] = "not listed" if look is not None and row["target"] in look.not_listed else None

    def _shown(self, lowering: Lowering) -> dict[str, Any]:
        since = time.time() - (self._wheel.now - lowering.at)
        return {
            "since": round(since, 1),
            "source": lowering.source.value,
            "classification": lowering.classification.value,
            "reason": lowering.reason.value,
        }

    # ---- evidence ----------------------------------------------------------------------------------------------------

    def stall_reported(self, lease: Lease, failure: m.ExecutionFailure) -> m.ProviderHealth | None:
        """A stall's terminal, which came while ``lease`` was not yet returned: call it before that is.

        Lowers the provider if this is news of a dead one, which refuses or moves waiters before it returns. The answer
        is what recovery calls a confirmed handoff: the health that was said, which grants no replay by itself. None for
        what is no stall, or of a generation that is not the node's present one.
        """
        if failure.code is not m.ErrorCode.RESPONSE_STALLED:
            return None
        current = self.overlay.is_current(lease.node_id, lease.generation)
        said = Identity(lease.node_id, lease.generation, lease.provider_id, lease.adapter, lease.target)
        words = _word(failure.provider_health), _word(failure.liveness_classification)
        evidence = Evidence(Source.TERMINAL, said, *words, failure.health_observation_seq)
        verdict = self.overlay.heard(evidence, self._wheel.now)
        self._take(Source.TERMINAL, verdict)
        return m.ProviderHealth[verdict.health.name] if current else None

    def observed(self, node_id: str, generation: int, seen: m.HealthObservation) -> None:
        """A node says by itself how a provider is, or one of its targets (HEALTH-6, HEALTH-7)."""
        said = Identity(node_id, generation, seen.provider_id, seen.adapter, seen.target)
        word, seq = _word(seen.provider_health), seen.health_observation_seq
        target_only = seen.scope is m.HealthScope.TARGET
        evidence = Evidence(Source.OBSERVATION, said, word, None, seq, _REASONS.get(seen.reason), target_only)
        self._take(Source.OBSERVATION, self.overlay.heard(evidence, self._wheel.now))

    # ---- questions (HEALTH-4, HEALTH-5, HEALTH-10) -------------------------------------------------------------------

    def _watch(self) -> None:
        """Sees to it that the next question is put in time."""
        next_at, timer = self.overlay.next_at, self._timer
        if timer is not None:
            if timer.at == next_at:
                return
            timer.cancel()
        self._timer = self._wheel.arm(next_at - self._wheel.now, self._due) if next_at is not None else None

    def _due(self) -> None:
        self._timer = None
        for question in self.overlay.due(self._wheel.now):
            self._ask(question)
        self._watch()

    def _ask(self, question: Question) -> None:
        now, asked, reason = self._wheel.now, question.asked, question.reason
        commands = self._commands(asked.node_id, asked.generation)
        if commands is None or commands.outstanding >= ASKED_AT_ONCE:
            self.overlay.postponed(question, now)
            return
        try:
            commands.start(
                m.NodeCommand.CAPABILITIES,
                lambda answer: self._answered(question, answer),  # of this connection, and no other
                now,
                timeout_s=ANSWER_S,
                provider_id=asked.provider_id,
                adapter=asked.adapter,
                target=asked.target,
                reason=m.HealthReason[reason.name] if reason is not None else m.HealthReason.UNSPECIFIED,
                targets=question.targets[: limits.MAX_LISTED_MODELS],
            )
        except IopError:
            self.overlay.postponed(question, now)

    def _answered(self, question: Question, answer: m.NodeCommandResponse | IopError) -> None:
        now, asked = self._wheel.now, question.asked
        if isinstance(answer, NodeDisconnected):
            self.overlay.postponed(question, now)  # the end of its generation is about to be told
            return
        if question.targets:
            found = None
            if not isinstance(answer, IopError) and answer.provider_health is m.ProviderHealth.AVAILABLE:
                fault = _LIST_FAULTS.get(answer.list_fault)
                found = Look(frozenset(answer.not_listed), answer.not_an_api, fault)
            self.overlay.seen(question, found, now)
            self._watch()
            return
        if isinstance(answer, IopError):
            verdict = self.overlay.answered(question, None, "unknown", 0, now)
        else:
            said = Identity(asked.node_id, asked.generation, answer.provider_id, answer.adapter, answer.target)
            health, seq = _word(answer.provider_health), answer.health_observation_seq
            verdict = self.overlay.answered(question, said, health, seq, now)
        self._take(Source.CAPABILITIES, verdict)
        self._watch()

    # ---- what follows ------------------------------------------------------------------------------------------------

    def _take(self, source: Source, verdict: Verdict) -> None:
        """Counts and tells what became of evidence, and carries it out."""
        result, health, change = verdict
        self._metrics.health_evidence[source.value, health.value, result.value].value += 1
        if change is None and source is Source.OBSERVATION and self._wheel.now < self._quiet_until:
            self._unsaid += 1
        else:
            self._tell(source, verdict)
        if change is not None:
            self._changed(change)
            self._watch()

    def _tell(self, source: Source, verdict: Verdict) -> None:
        """Closed words only: no id of anything (OBS-2)."""
        result, health, change = verdict
        fields: dict[str, Any] = {"source": source.value, "health": health.value, "result": result.value}
        if change is not None:
            fields |= {"from": change.before.value, "to": change.after.value}
        elif source is Source.OBSERVATION:
            self._quiet_until = self._wheel.now + QUIET_S
            if self._unsaid:
                fields["unsaid"] = self._unsaid
                self._unsaid = 0
        lowered = change is not None and change.after is OverlayState.UNAVAILABLE
        level = logging.WARNING if lowered else logging.INFO
        log.log(level, "edge_provider_health_observation", extra={"fields": fields})

    def _changed(self, change: Change) -> None:
        self._count(change)
        node_id, generation, provider_id, target, _, after = change
        if self._pool.units_of(node_id, provider_id) is not None:  # else it is gone from the configuration, too
            unavailable, now = after is OverlayState.UNAVAILABLE, self._wheel.now
            self._perform(self._pool.set_overlay(node_id, generation, provider_id, unavailable, now, target=target))
            self._announce(change)

    def _announce(self, change: Change) -> None:
        """Name what left the choice, or is back in it, in the log and on the bus (OBS-1c)."""
        lowered = change.after is OverlayState.UNAVAILABLE
        event = "provider_lowered" if lowered else "provider_restored"
        fields = {"node": change.node_id, "provider": change.provider_id}
        if change.target is not None:
            fields["target"] = change.target
        lowering = self.overlay.lowerings(change.node_id, change.provider_id).get(change.target)
        if lowered and lowering is not None:
            fields["reason"] = lowering.reason.value
        log.log(logging.WARNING if lowered else logging.INFO, event, extra={"fields": fields})
        if self._events.watched:
            self._events.publish(ProviderChanged(event, time.time(), **fields))

    def _count(self, change: Change) -> None:
        self._metrics.health_transitions[change.before.value, change.after.value].value += 1


_REASONS = {m.HealthReason[reason.name]: reason for reason in HealthReason}
_LIST_FAULTS = {m.ListFault[fault.name]: fault for fault in ListFault}
_LIST_NOTES = {
    ListFault.FAILING: "no list of models: it answers with 5xx or not at all",
    ListFault.TOO_LARGE: "the list of models is too large to compare with",
}


def _note(look: Look | None) -> str | None:
    """What a look found, for people."""
    if look is None:
        return None
    if look.not_an_api:
        return "not an API: /v1 missing?"
    if look.list_fault is not None:
        return _LIST_NOTES[look.list_fault]
    return "not listed: " + ", ".join(sorted(look.not_listed)) if look.not_listed else None


def _word(value: m.ProviderHealth | m.LivenessClassification) -> str:
    return value.name.lower()
