"""What the engines behind the providers say that they are doing, beside what the pool has leased out (POOL-13).

Every ready node is asked every few seconds, one question at a time and never while one is open; a node none of whose
adapters can ask its engine is asked once. Figures are dropped with the connection that they came over, and when they
have become old. Nothing is decided by them: they are for people, and their drift is a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from iop.edge.nodes.commands import Commands
from iop.errors import IopError
from iop.wire import messages as m

__all__ = ["EngineFigures", "EnginePoll", "drift", "engine_fields", "running"]

POLL_S = 5.0
ANSWER_S = 4.0
OLD_S = 3 * POLL_S


@dataclass(slots=True)
class EngineFigures:
    """One provider's last figures. ``leased`` is what the pool had given out when they came; ``comparable``: what runs
    are requests, so that the two should agree."""

    running: int
    waiting: int | None
    leased: int
    comparable: bool
    at: float


class EnginePoll:
    """The poll of one node connection. ``leased`` tells the pool's figure for a provider of the node, or None. ``turn``
    is a number that differs between nodes: so those that came together drift apart."""

    def __init__(self, commands: Commands, leased: Callable[[str], int | None], *, turn: int = 0) -> None:
        self.figures: dict[str, EngineFigures] = {}
        self._commands = commands
        self._leased = leased
        self._period_s = POLL_S * (0.8 + 0.4 * (turn * 0.618034 % 1))
        self._next_at = 0.0
        self._open = False
        self._mute = False
        self._now = 0.0

    def refresh(self) -> None:
        """The node's configuration changed: ask again, also one that had nothing to tell."""
        self._mute = False
        self._next_at = 0.0

    def tick(self, now: float) -> None:
        """Asks when it is time. Call it while the node is ready."""
        self._now = now
        for provider_id in [p for p, figures in self.figures.items() if now - figures.at > OLD_S]:
            del self.figures[provider_id]
        if self._open or self._mute or now < self._next_at:
            return
        self._next_at = now + self._period_s
        try:
            self._commands.start(m.NodeCommand.TRANSPORT_STATUS, self._answered, now, timeout_s=ANSWER_S)
        except IopError:
            return  # as busy as it may be, or about to be reported lost: the next round asks again
        self._open = True

    def close(self) -> None:
        """The connection is gone, and with it what was known."""
        self._mute = True
        self.figures.clear()

    def _answered(self, answer: m.NodeCommandResponse | IopError) -> None:
        self._open = False
        if isinstance(answer, IopError):
            # Older nodes know no command: asking again would change nothing.
            self._mute = self._mute or answer.code == "unsupported_command"
            return
        self._mute = self._mute or not any(transport.engine_tells for transport in answer.transports)
        for transport in answer.transports:
            at_work, leased = transport.engine_running, self._leased(transport.provider_id)
            if at_work is None or leased is None:
                self.figures.pop(transport.provider_id, None)
                continue
            self.figures[transport.provider_id] = EngineFigures(
                at_work, transport.engine_waiting, leased, transport.engine_counts_requests, self._now
            )


# ---- what is shown ---------------------------------------------------------------------------------------------------


def engine_fields(figures: EngineFigures | None) -> dict[str, Any]:
    """A provider's part of ``/admin/status``."""
    if figures is None:
        return {"engine_running": None, "engine_waiting": None}
    return {"engine_running": figures.running, "engine_waiting": figures.waiting}


def running(engines: Mapping[str, EngineFigures]) -> dict[tuple[str, ...], int]:
    """By provider, the requests that engines report to be working on."""
    return {(provider_id,): figures.running for provider_id, figures in engines.items() if figures.comparable}


def drift(engines: Mapping[str, EngineFigures]) -> dict[tuple[str, ...], int]:
    """By side: what engines run beyond their leases (somebody else uses them, or a call outlived its lease), and leases
    beyond what engines run (they wait inside the engine, or the call has ended unnoticed)."""
    apart = [figures.running - figures.leased for figures in engines.values() if figures.comparable]
    return {("engine",): sum(d for d in apart if d > 0), ("lease",): -sum(d for d in apart if d < 0)}
