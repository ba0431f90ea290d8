"""The edge's side of node commands: who waits for which answer, and for how long (EXEC-8).

One :class:`Commands` belongs to one node connection and ends with it. Each command ends exactly once, with the node's
answer or with a typed error: the node's own code, ``deadline_exceeded``, ``cancelled``, or ``node_disconnected``. Its
number is bounded. An answer that nobody waits for any more is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iop.errors import (
    CapacityExceeded,
    DeadlineExceeded,
    IopError,
    NodeDisconnected,
    RequestCancelled,
    from_code,
)
from iop.wire import messages as m

__all__ = ["MAX_OUTSTANDING", "Commands", "Done"]

MAX_OUTSTANDING = 32
MAX_TIMEOUT_S = 30.0

_JUDGED = m.NodeCommand.CAPABILITIES  # its answer is evidence, and its caller judges all of it (HEALTH-5)

#: Hears how a command ended; must not raise.
Done = Callable[[m.NodeCommandResponse | IopError], None]


@dataclass(slots=True)
class _Waiting:
    done: Done
    due_at: float
    expected: m.NodeCommandRequest


class Commands:
    """See the module. ``send`` puts a message on the node's link and raises ConnectionResetError when it is closed."""

    def __init__(self, send: Callable[[m.NodeCommandRequest], None]) -> None:
        self._send = send
        self._waiting: dict[int, _Waiting] = {}
        self._last_id = 0
        self._closed = False

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def start(
        self,
        command: m.NodeCommand,
        done: Done,
        now: float,
        *,
        timeout_s: float,
        provider_id: str = "",
        adapter: str = "",
        target: str = "",
        argument: bytes = b"",
        body: bytes = b"",
        reason: m.HealthReason = m.HealthReason.UNSPECIFIED,
        targets: Sequence[str] = (),
        session_id: bytes = b"",
    ) -> int:
        """Send a command and return its id; ``done`` hears its end, later and once. ``session_id`` comes back with the
        answer and means nothing (EXEC-6).

        Raises NodeDisconnected, or CapacityExceeded when :data:`MAX_OUTSTANDING` wait for this node already.
        """
        if self._closed:
            raise NodeDisconnected
        if len(self._waiting) >= MAX_OUTSTANDING:
            raise CapacityExceeded(f"{MAX_OUTSTANDING} commands wait for this node already")
        timeout_s = min(timeout_s, MAX_TIMEOUT_S)
        command_id = self._last_id + 1
        request = m.NodeCommandRequest(
            command_id, command, provider_id, adapter, target, int(timeout_s * 1000), argument=argument, body=body,
            reason=reason, targets=list(targets), session_id=session_id,
        )  # fmt: skip
        try:
            self._send(request)
        except ConnectionResetError:
            raise NodeDisconnected from None
        self._last_id = command_id
        self._waiting[command_id] = _Waiting(done, now + timeout_s, request)
        return command_id

    def cancel(self, command_id: int) -> None:
        """Ends a command with ``cancelled`` and tells the node. No-op for one that has ended."""
        self._give_up(command_id, RequestCancelled("the command was cancelled"))

    def answered(self, response: m.NodeCommandResponse) -> None:
        """The node's answer."""
        waiting = self._waiting.pop(response.command_id, None)
        if waiting is None:
            return
        if response.code is not m.ErrorCode.UNSPECIFIED:
            # Its words are the node's: the code alone is ours to repeat.
            waiting.done(from_code(response.code.name.lower()))
        elif response.provider_id != waiting.expected.provider_id and waiting.expected.command is not _JUDGED:
            waiting.done(from_code("internal", "the node answered for another provider"))
        else:
            waiting.done(response)

    def tick(self, now: float) -> None:
        """Brings the time: what is overdue ends, and the node is told to stop it."""
        for command_id in [i for i, waiting in self._waiting.items() if now >= waiting.due_at]:
            self._give_up(command_id, DeadlineExceeded("the node did not answer the command in time"))

    def close(self) -> None:
        """The connection is gone: all that wait hear it. Idempotent."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.done(NodeDisconnected("the node's connection was lost before it answered"))

    def _give_up(self, command_id: int, error: IopError) -> None:
        waiting = self._waiting.pop(command_id, None)
        if waiting is None:
            return
        with contextlib.suppress(ConnectionResetError):  # the loss of the connection ends it at the node, too
            self._send(m.NodeCommandRequest(command_id, waiting.expected.command, cancel=True))
        waiting.done(error)
