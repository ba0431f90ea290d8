"""What of a provider's configuration a request needs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProviderSettings"]


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """What travels with a request to its provider (LIVE-1), and what its kind implies."""

    response_stall_timeout_ms: int
    first_response_timeout_ms: int | None
    stores_responses: bool
