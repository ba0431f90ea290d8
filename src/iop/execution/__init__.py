"""What executing a request means, whoever hosts it: events, usage, failures, the terminal rule, the gate (EXEC).

Plain values and small machines shared by edge and node. Nothing in here knows a wire message, an adapter, a socket or
a clock.
"""

from iop.execution.events import Activity, RunEvent, RunEventKind, activity_of
from iop.execution.failure import (
    ExecutionFailure,
    LivenessClassification,
    ProviderHealth,
    capacity_exceeded,
    failure_of,
    normalise_evidence,
    stalled,
)
from iop.execution.gate import CapacityGate, Slot
from iop.execution.terminal import RunState, TerminalRule
from iop.execution.usage import POSSIBLE_TOKENS, Usage, possible, read_usage

__all__ = [
    "POSSIBLE_TOKENS",
    "Activity",
    "CapacityGate",
    "ExecutionFailure",
    "LivenessClassification",
    "ProviderHealth",
    "RunEvent",
    "RunEventKind",
    "RunState",
    "Slot",
    "TerminalRule",
    "Usage",
    "activity_of",
    "capacity_exceeded",
    "failure_of",
    "normalise_evidence",
    "possible",
    "read_usage",
    "stalled",
]
