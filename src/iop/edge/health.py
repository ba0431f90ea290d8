"""Health at the edge: what nodes report lowers providers, and CAPABILITIES brings them back (HEALTH-1 … HEALTH-6).

:class:`iop.pool.health.Overlay` decides; here its questions are put on the nodes' links, its changes are told to the
pool, and all evidence is counted. One timer serves all providers. A node may say what it likes as often as it likes:
what changes nothing costs two look-ups and a counter, and few of its lines reach the log.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from iop.edge.commands import Commands
from iop.errors import IopError, NodeDisconnected
from iop.net.wheel import Timer, Wheel
from iop.observability.metrics import EdgeMetrics
from iop.pool.health import Change, Evidence, Identity, Known, Overlay, OverlayState, ProviderKey, Source, Verdict
from iop.pool.lease import Actions, Lease
from iop.pool.pool import Pool
from iop.wire import messages as m

__all__ = ["Health"]

log = logging.getLogger("iop.edge.health")

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
    ) -> None:
        self.overlay = Overlay(jitter)
        self._wheel = wheel
        self._pool = pool
        self._metrics = metrics
        self._perform = perform
        self._commands = commands
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
        """The node is ready for dispatch: everything starts clean."""
        self.overlay.begin(node_id, generation)

    def lost(self, node_id: str, generation: int) -> None:
        """The generation is over, and the pool has forgotten its overlay by itself."""
        for change in self.overlay.end(node_id, generation):
            self._count(change)
        self._watch()

    def status(self, node_id: str, provider_id: str) -> dict[str, Any]:
        """A provider's part of ``/admin/status``: since when it is unavailable, and what said so; None if it is not."""
        lowering = self.overlay.lowering(node_id, provider_id)
        if lowering is None:
            return {"lowered": None}
        since = time.time() - (self._wheel.now - lowering.at)
        return {
            "lowered": {
                "since": round(since, 1),
                "source": lowering.source.value,
                "classification": lowering.classification.value,
            }
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
        """A node says by itself how a provider is (HEALTH-6)."""
        said = Identity(node_id, generation, seen.provider_id, seen.adapter, seen.target)
        word, seq = _word(seen.provider_health), seen.health_observation_seq
        evidence = Evidence(Source.OBSERVATION, said, word, None, seq)
        self._take(Source.OBSERVATION, self.overlay.heard(evidence, self._wheel.now))

    # ---- questions (HEALTH-4, HEALTH-5) ------------------------------------------------------------------------------

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
        for asked in self.overlay.due(self._wheel.now):
            self._ask(asked)
        self._watch()

    def _ask(self, asked: Identity) -> None:
        now = self._wheel.now
        commands = self._commands(asked.node_id, asked.generation)
        if commands is None or commands.outstanding >= ASKED_AT_ONCE:
            self.overlay.postponed(asked, now)
            return
        try:
            commands.start(
                m.NodeCommand.CAPABILITIES,
                lambda answer: self._answered(asked, answer),  # of this connection, and no other
                now,
                timeout_s=ANSWER_S,
                provider_id=asked.provider_id,
                adapter=asked.adapter,
                target=asked.target,
            )
        except IopError:
            self.overlay.postponed(asked, now)

    def _answered(self, asked: Identity, answer: m.NodeCommandResponse | IopError) -> None:
        now = self._wheel.now
        if isinstance(answer, NodeDisconnected):
            self.overlay.postponed(asked, now)  # the end of its generation is about to be told
            return
        if isinstance(answer, IopError):
            verdict = self.overlay.answered(asked, None, "unknown", 0, now)
        else:
            said = Identity(asked.node_id, asked.generation, answer.provider_id, answer.adapter, answer.target)
            health, seq = _word(answer.provider_health), answer.health_observation_seq
            verdict = self.overlay.answered(asked, said, health, seq, now)
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
        node_id, generation, provider_id, _, after = change
        if self._pool.units_of(node_id, provider_id) is not None:  # else it is gone from the configuration, too
            unavailable = after is OverlayState.UNAVAILABLE
            self._perform(self._pool.set_overlay(node_id, generation, provider_id, unavailable, self._wheel.now))

    def _count(self, change: Change) -> None:
        self._metrics.health_transitions[change.before.value, change.after.value].value += 1


def _word(value: m.ProviderHealth | m.LivenessClassification) -> str:
    return value.name.lower()
