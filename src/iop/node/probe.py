"""One look at a provider, beside its runs: can it serve this target now? (LIVE-5, LIVE-7, HEALTH-5)

What is asked stands with each kind of provider (:mod:`iop.node.adapters.questions`); a configured ``health.path`` takes
its place. Every question has a connection of its own, takes no slot and waits behind nothing; all of them together have
one bound in time.

A server that takes connections and says nothing until the bound is ``unavailable``: that is how a dead engine looks
whose socket the system still holds open. One that answered a question and then falls silent at the next may be busy; it
is ``unknown``.
"""

from __future__ import annotations

import asyncio
import logging

from iop.errors import IopError, ProviderConnectionLost, ProviderUnreachable
from iop.execution.failure import ProviderHealth
from iop.node.provider import Provider

__all__ = ["BOUND_S", "probe"]

log = logging.getLogger("iop.node.probe")

BOUND_S = 3.0  # LIVE-5
ANSWER_BYTES = 1 << 20


async def probe(provider: Provider, target: str) -> ProviderHealth:
    """The health of one provider for one target. Raises nothing, and takes no longer than the bound."""
    answers = 0
    try:
        async with asyncio.timeout(provider.config.health_timeout_ms / 1000 or BOUND_S):
            for path, read in provider.questions:
                status, body = await provider.ask(b"GET", path, max_bytes=ANSWER_BYTES)
                answers += 1
                health = read(status, body, target)
                if health is not None:
                    return health
    except TimeoutError:
        return ProviderHealth.UNKNOWN if answers else ProviderHealth.UNAVAILABLE
    except (ProviderUnreachable, ProviderConnectionLost):
        return ProviderHealth.UNAVAILABLE
    except IopError:  # it answers, and what it says cannot be read
        return ProviderHealth.UNKNOWN
    except Exception as exc:
        log.error("probe_broken", exc_info=exc)
    return ProviderHealth.UNKNOWN
