"""The configuration of one node connection: what it was sent, what it said to that, what it is to have (REG-3, CONF-2).

    up to date ──the file changed──► under way ──answer to what was sent last──► up to date | refused
                                       ▲   └── meanwhile the file changed ──┐
                                       └────── the newest is sent ◄─────────┘

One is under way at a time; what came meanwhile is sent when the node has answered, the newest alone. Only an answer to
the revision that was sent last counts, and it is compared for equality: revisions grow within one run of the edge and
begin again with the next, so a higher number means nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from iop.wire import messages as m

if TYPE_CHECKING:
    from iop.observability.metrics import EdgeMetrics
    from iop.wire.session import EdgeSession

__all__ = ["ConfigState"]

REFRESH_S = 60.0  # for a node's answer to a configuration


class Configurations(Protocol):
    """What all nodes are to have, and what they did not take last."""

    payloads: Mapping[str, m.NodeConfigPayload]
    refusals: dict[str, dict[str, Any]]
    metrics: EdgeMetrics

    @property
    def now(self) -> float: ...


class ConfigState:
    """See the module. ``sent`` and ``applied`` are revisions, 0 for none; ``node_id`` is set once it is known, and
    ``log`` writes a line about the connection."""

    __slots__ = ("_due_at", "_log", "_server", "_session", "applied", "node_id", "rejected", "sent")

    def __init__(self, server: Configurations, session: EdgeSession, log: Callable[..., None]) -> None:
        self._server = server
        self._session = session
        self._log = log
        self._due_at: float | None = None
        self.node_id = ""
        self.sent = 0
        self.applied = 0
        self.rejected: dict[str, m.Rejected] = {}  # of what was applied, by provider id

    @property
    def wanted(self) -> int | None:
        """The revision that the node is to have; None once it is not configured any more."""
        payload = self._server.payloads.get(self.node_id)
        return payload.revision if payload is not None else None

    @property
    def under_way(self) -> bool:
        """Whether the node has yet to answer."""
        return self._due_at is not None

    @property
    def up_to_date(self) -> bool:
        return self.wanted in (None, self.applied)

    def send(self) -> bool:
        """Sends the newest configuration unless the node has it or has yet to answer an older one. True if it was
        sent."""
        payload = self._server.payloads.get(self.node_id)
        if payload is None or self._due_at is not None or payload.revision == self.applied:
            return False
        self.sent = payload.revision
        self._due_at = self._server.now + REFRESH_S
        self._count("sent")
        try:
            self._session.send(m.ConfigRefreshRequest(payload))
        except ConnectionResetError:
            return False  # the link is lost, which is about to be told
        return True

    def answered(self, response: m.ConfigRefreshResponse) -> bool:
        """The node's answer. True if it is the last word: False for an answer to something older, and when something
        newer was sent because of it."""
        if response.revision != self.sent:
            self._count("stale")
            return False
        self._due_at = None
        if response.applied:
            self.applied = response.revision
            self.reject(response.rejected)
            self._server.refusals.pop(self.node_id, None)
            self._count("applied")
            self._log(logging.INFO, "node_config_applied", revision=response.revision)
        else:
            self._count("refused")
            self.refused(response.code, response.ref)
        if self.wanted in (None, response.revision):
            return True
        self.send()
        return False

    def reject(self, rejected: list[m.Rejected]) -> None:
        """Write down the providers that the node does not take, while it serves the others."""
        before, self.rejected = self.rejected, {one.provider_id: one for one in rejected}
        for one in rejected:
            if before.get(one.provider_id) != one:
                said = {"provider": one.provider_id, "reason": one.code, "detail": one.detail}
                self._log(logging.WARNING, "provider_rejected", **said)

    def overdue(self, now: float) -> bool:
        """Whether the node lives and has not answered in time, told once; its answer still counts when it comes."""
        if self._due_at is None or now < self._due_at:
            return False
        self._due_at = None
        self._count("overdue")
        self.refused("timeout", "")
        return True

    def refused(self, code: str, ref: str) -> None:
        """Writes down what the node does not take."""
        refusal: dict[str, Any] = {"revision": self.sent, "code": code, "ref": ref}
        self._server.refusals[self.node_id] = refusal
        self._log(logging.WARNING, "node_config_refused", **refusal)

    def _count(self, result: str) -> None:
        self._server.metrics.config_refreshes[result].value += 1
