"""When to connect again, and when to give up: the node's one reconnect policy (SUP-1, SUP-2, SUP-3).

A pure machine: it is told what happened, it answers what to do. It knows no clock, socket or random source; the caller
draws the jitter.

::

                    ready
    connecting ───────────────► ready
      ▲    │ failed               │ failed
      │    ▼                      │
     retry waiting ◄──────────────┘
      └────┘

    any of them ── local shutdown, a fatal reason, attempts exhausted ──► stopped (exit code)

A connect that never became ready and a session that was lost are one kind of event, ``failed``; only a ready session
resets the count of attempts. An edge that is not to be trusted is a mistake in a file as long as no session has been
ready; later it is somebody else, or a wrong certificate for a while, at an address that was right, and tried again.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from iop.errors import InvalidArgument
from iop.machine import Transitions

__all__ = [
    "EXIT_CODES",
    "FIRST_DELAY_S",
    "JITTER",
    "MIN_DELAY_S",
    "TRANSITIONS",
    "Ended",
    "Exit",
    "ReconnectPolicy",
    "Retry",
    "State",
    "SupervisorPolicy",
]

#: A delay is this long times 1 ± the jitter, so that the nodes of a restarted edge do not come back in step.
JITTER = 0.25
#: The first delay behind a ready session, or behind the start; each further one is twice as long, up to the interval.
FIRST_DELAY_S = 1.0
#: Never a busy loop, whatever the interval (SUP-2).
MIN_DELAY_S = 0.1


class Ended(enum.StrEnum):
    """Why a connection, or the attempt to make one, ended."""

    # retryable
    CONNECT_FAILED = "connect_failed"
    CONNECTION_LOST = "connection_lost"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    READY_TIMEOUT = "ready_timeout"
    PROTOCOL_ERROR = "protocol_error"
    GOODBYE = "goodbye"
    DUPLICATE_CONNECTION = "duplicate_connection"
    CONFIG_BUILD_FAILED = "config_build_failed"
    CONFIG_REJECTED = "config_rejected"
    STALE_CONNECTION = "stale_connection"
    EDGE_SHUTTING_DOWN = "shutting_down"
    EDGE_CERTIFICATE_OUT_OF_TIME = "edge_certificate_out_of_time"  # a renewal, or a clock that is set, heals it
    # fatal
    BAD_CONFIG = "bad_config"
    UNKNOWN_TOKEN = "unknown_token"  # noqa: S105 - a reason, not a secret
    IDENTITY_MISMATCH = "identity_mismatch"
    PROTOCOL_MISMATCH = "protocol_mismatch"
    EDGE_UNTRUSTED = "edge_untrusted"  # at first; once a session was ready it is tried again
    # decided here
    LOCAL_SHUTDOWN = "local_shutdown"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"


#: What the process exits with; a reason that is not in here is retryable (SUP-3).
EXIT_CODES: dict[Ended, int] = {
    Ended.LOCAL_SHUTDOWN: 0,
    Ended.BAD_CONFIG: 2,
    Ended.UNKNOWN_TOKEN: 3,
    Ended.IDENTITY_MISMATCH: 3,
    Ended.PROTOCOL_MISMATCH: 3,
    Ended.EDGE_UNTRUSTED: 3,
    Ended.ATTEMPTS_EXHAUSTED: 4,
}


class State(enum.StrEnum):
    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    STOPPED = "stopped"


class _Event(enum.StrEnum):
    READY = "ready"
    FAILED = "failed"
    RETRY = "retry"
    STOP = "stop"


TRANSITIONS = Transitions(
    "supervisor",
    (State.CONNECTING,),
    {
        (State.CONNECTING, _Event.READY): State.READY,
        (State.CONNECTING, _Event.FAILED): State.WAITING,
        (State.CONNECTING, _Event.STOP): State.STOPPED,
        (State.READY, _Event.FAILED): State.WAITING,
        (State.READY, _Event.STOP): State.STOPPED,
        (State.WAITING, _Event.RETRY): State.CONNECTING,
        (State.WAITING, _Event.STOP): State.STOPPED,
    },
)


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """``reconnect`` of node.yaml. ``max_attempts`` 0 = until local shutdown, which needs a positive interval (SUP-2).

    Raises InvalidArgument for values that would mean nothing or a busy loop.
    """

    max_attempts: int = 10
    interval_s: float = 10.0

    def __post_init__(self) -> None:
        if self.max_attempts < 0:
            raise InvalidArgument("reconnect.max_attempts must be 0 (unlimited) or more")
        if not 0 <= self.interval_s < float("inf"):
            raise InvalidArgument("reconnect.interval_sec must be 0 or more")
        if self.max_attempts == 0 and self.interval_s == 0:
            raise InvalidArgument("unlimited attempts need a reconnect.interval_sec above 0")


@dataclass(frozen=True, slots=True)
class Retry:
    """Connect again after ``delay_s``. ``attempt`` counts the attempts failed since the last ready session (0: a ready
    session was lost), of ``max_attempts`` (0: unlimited)."""

    delay_s: float
    reason: Ended
    attempt: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Exit:
    """Stop the program with ``code``; ``reason`` says why, ``last`` what the last connection ended in."""

    code: int
    reason: Ended
    last: Ended | None = None


class SupervisorPolicy:
    """One node program's way through connections, from its start (``connecting``) to its exit."""

    __slots__ = ("_failures", "_story", "attempts", "policy", "state", "was_ready")

    def __init__(self, policy: ReconnectPolicy) -> None:
        self.policy = policy
        self.state = State.CONNECTING
        self.attempts = 0  # failed since the last ready session
        self._failures = 0  # the same, with the loss of that session
        self.was_ready = False  # some session
        self._story: deque[str] = deque(maxlen=8)

    def ready(self) -> None:
        """The session is ready: attempts count from zero again."""
        self._move(_Event.READY)
        self.attempts = self._failures = 0
        self.was_ready = True

    def ended(self, reason: Ended, jitter: float) -> Retry | Exit:
        """A connect failed or a session ended (SUP-1). ``jitter`` is a fresh random number in [0, 1)."""
        if reason in EXIT_CODES and not (reason is Ended.EDGE_UNTRUSTED and self.was_ready):
            self._move(_Event.STOP)
            return Exit(EXIT_CODES[reason], reason, reason)
        if self.state is State.CONNECTING:
            self.attempts += 1
        limit = self.policy.max_attempts
        if limit and self.attempts >= limit:
            self._move(_Event.STOP)
            return Exit(EXIT_CODES[Ended.ATTEMPTS_EXHAUSTED], Ended.ATTEMPTS_EXHAUSTED, reason)
        self._move(_Event.FAILED)
        spread = 1.0 - JITTER + 2.0 * JITTER * min(max(jitter, 0.0), 1.0)
        delay_s = min(self.policy.interval_s, FIRST_DELAY_S * 2 ** min(self._failures, 30))
        self._failures += 1
        return Retry(max(MIN_DELAY_S, delay_s * spread), reason, self.attempts, limit)

    def retry(self) -> None:
        """The delay is over and the next connect begins."""
        self._move(_Event.RETRY)

    def shutdown(self) -> Exit:
        """Local shutdown, from any state but stopped."""
        self._move(_Event.STOP)
        return Exit(EXIT_CODES[Ended.LOCAL_SHUTDOWN], Ended.LOCAL_SHUTDOWN)

    def _move(self, event: _Event) -> None:
        self.state = TRANSITIONS.after(self.state, event, "of this node", tuple(self._story))
        self._story.append(event)
