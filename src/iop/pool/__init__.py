"""Admission: who owns a node, what its providers can take, who waits, who is next (REG, POOL).

:class:`Pool` is the one door. Behind it stand the registry (ownership, generations), resources (units of capacity),
lanes (choice and queues) and the queue (bounds, books, deadlines). Nothing in here awaits, reads a clock, touches a
socket, or knows a wire message: callers pass the time and carry out the actions they get back.
"""

from iop.pool.lease import (
    NO_ACTIONS,
    Action,
    Actions,
    Granted,
    Lease,
    Loss,
    Readiness,
    Refused,
    ReleaseCause,
    Revoked,
    Ticket,
)
from iop.pool.pool import Pool
from iop.pool.registry import (
    PROBE_TIMEOUT_S,
    READY_TIMEOUT_S,
    Claim,
    LossOutcome,
    OwnerAlive,
    OwnerProbe,
    ProbeVerdict,
    ReadyOutcome,
)
from iop.pool.snapshot import PoolSnapshot
from iop.pool.specs import Candidate, GroupSpec, ProviderSpec, QueueLimits
from iop.pool.stats import REFUSALS, Stats

__all__ = [
    "NO_ACTIONS",
    "PROBE_TIMEOUT_S",
    "READY_TIMEOUT_S",
    "REFUSALS",
    "Action",
    "Actions",
    "Candidate",
    "Claim",
    "Granted",
    "GroupSpec",
    "Lease",
    "Loss",
    "LossOutcome",
    "OwnerAlive",
    "OwnerProbe",
    "Pool",
    "PoolSnapshot",
    "ProbeVerdict",
    "ProviderSpec",
    "QueueLimits",
    "Readiness",
    "ReadyOutcome",
    "Refused",
    "ReleaseCause",
    "Revoked",
    "Stats",
    "Ticket",
]
