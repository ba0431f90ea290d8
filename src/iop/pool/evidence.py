"""What is said of the health of providers, what becomes of it, and what is asked: the overlay's words (HEALTH).

:mod:`iop.pool.overlay` is what they are for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import NamedTuple

from iop.execution.failure import (
    CLASSIFICATION_OF,
    HealthReason,
    ListFault,
    LivenessClassification,
    ProviderHealth,
    normalise_evidence,
)
from iop.machine import Transitions

__all__ = [
    "TRANSITIONS",
    "Change",
    "Event",
    "Evidence",
    "Identity",
    "Known",
    "Look",
    "Lowering",
    "OverlayState",
    "ProviderKey",
    "Question",
    "Result",
    "Source",
    "Verdict",
    "read_evidence",
]

ProviderKey = tuple[str, str]  # node, provider


class OverlayState(StrEnum):
    """Of a provider or a target in the overlay. ``offline``: it is not in it any more."""

    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    OFFLINE = "offline"


class Event(StrEnum):
    LOWERED = "lowered"
    RESTORED = "restored"
    ENDED = "ended"


TRANSITIONS = Transitions(
    "health",
    (OverlayState.AVAILABLE,),
    {
        (OverlayState.AVAILABLE, Event.LOWERED): OverlayState.UNAVAILABLE,
        (OverlayState.AVAILABLE, Event.ENDED): OverlayState.OFFLINE,
        (OverlayState.UNAVAILABLE, Event.RESTORED): OverlayState.AVAILABLE,
        (OverlayState.UNAVAILABLE, Event.ENDED): OverlayState.OFFLINE,
    },
)


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
    """What came, in the wire's words. ``classification`` is None where the source has none (HEALTH-6). ``target_only``:
    the observation is about the target and not its provider (HEALTH-7); ``reason`` is why, or None."""

    source: Source
    said: Identity
    health: str
    classification: str | None
    seq: int
    reason: HealthReason | None = None
    target_only: bool = False


class Known(NamedTuple):
    """What is configured of a provider. ``backend`` is compared only."""

    adapter: str
    backend: Hashable
    targets: frozenset[str]


class Lowering(NamedTuple):
    """Why a provider or a target is unavailable, and since when, in the driver's time."""

    source: Source
    classification: LivenessClassification
    reason: HealthReason
    at: float


class Look(NamedTuple):
    """What a look at a provider found (HEALTH-10). ``not_listed``: targets that its server does not list.
    ``not_an_api``: its base URL leads to no API. ``list_fault``: why the server's list was not compared with."""

    not_listed: frozenset[str] = frozenset()
    not_an_api: bool = False
    list_fault: ListFault | None = None


class Question(NamedTuple):
    """To be put as CAPABILITIES. ``scope`` is the target where that alone is lowered, else None; ``reason`` why it is.
    ``targets``: nothing is lowered, and this is the look at the provider, for all of these."""

    asked: Identity
    scope: str | None = None
    reason: HealthReason | None = None
    targets: tuple[str, ...] = ()


class Change(NamedTuple):
    """The overlay of a provider, or of one ``target`` of it, changed. After ``offline`` it may be configured under
    another name only."""

    node_id: str
    generation: int
    provider_id: str
    target: str | None
    before: OverlayState
    after: OverlayState


class Verdict(NamedTuple):
    """``health`` is what was said, or unknown if that is no evidence (LIVE-7)."""

    result: Result
    health: ProviderHealth
    change: Change | None = None


#: Strings and members of a StrEnum are the same keys.
_MEANS: Mapping[str, LivenessClassification] = CLASSIFICATION_OF  # type: ignore[assignment]


def read_evidence(health: str, classification: str | None) -> tuple[ProviderHealth, LivenessClassification, bool]:
    """The pair that was said, and whether it is one (LIVE-7)."""
    if classification is None:
        classification = _MEANS.get(health, "")  # an observation has one class at most
    found, meaning = normalise_evidence(health, classification)
    return found, meaning, (found, meaning) == (health, classification)
