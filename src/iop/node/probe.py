"""One look at a provider, beside its runs: can it serve this target now? (LIVE-5, LIVE-7, HEALTH-5, HEALTH-7, HEALTH-8)

What is asked stands with each kind of provider (:mod:`iop.node.adapters.questions`); a configured ``health.path`` takes
its place. Every question has a connection of its own, takes no slot and waits behind nothing; all of them together have
one bound in time.

How the answers read depends on why the target or its provider is lowered at the edge, if it is: what lowered it has to
be over, and nothing else. A server that takes connections and says nothing until the bound is ``unavailable``: that is
how a dead engine looks whose socket the system still holds open. One that answered a question and then falls silent at
the next may be busy; it is ``unknown``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from iop.errors import IopError, ProviderConnectionLost, ProviderUnreachable
from iop.execution.failure import HealthReason, ProviderHealth
from iop.node.adapters.questions import Said, names_in
from iop.node.provider import Provider

__all__ = ["BOUND_S", "Finding", "Look", "look", "probe"]

log = logging.getLogger("iop.node.probe")

BOUND_S = 3.0  # of a probe whose terminal waits for it, and of any whose provider has no setting (LIVE-5)
LATE_S = 1.0  # behind a bound: its own loop did not run, and the bound says nothing of the provider
ANSWER_BYTES = 1 << 20

AVAILABLE, UNAVAILABLE, UNKNOWN = ProviderHealth
REFUSED, FAILING, NOT_LISTED, STALLED = HealthReason


class Finding(NamedTuple):
    """What a probe found.

    ``reason`` comes with unavailable. ``target_only``: the provider is well, and the target alone is not there
    (HEALTH-7). ``busy`` and ``idle`` are of a stall's probe: the engine runs more than the node has calls open there,
    or nothing (LIVE-2b).
    """

    health: ProviderHealth
    reason: HealthReason | None = None
    target_only: bool = False
    busy: bool = False
    idle: bool = False


class Look(NamedTuple):
    """One look at a provider for all of its targets (HEALTH-10)."""

    finding: Finding
    not_listed: Sequence[str] = ()
    not_an_api: bool = False


_WELL = Finding(AVAILABLE)
_UNCLEAR = Finding(UNKNOWN)
_REFUSED = Finding(UNAVAILABLE, REFUSED)
_FAILING = Finding(UNAVAILABLE, FAILING)
_LOST = Finding(UNAVAILABLE, NOT_LISTED, target_only=True)

#: What an answer means, by why it is asked for; what is not in here leads to the next question.
_MEANS: Mapping[HealthReason | None, Mapping[Said, Finding]] = {
    None: {
        Said.WELL: _WELL, Said.LISTED: _WELL, Said.UNLISTED: _WELL, Said.LOST: _LOST, Said.FAILING: _FAILING,
        Said.UNCLEAR: _UNCLEAR,
    },
    REFUSED: {said: _FAILING if said is Said.FAILING else _WELL for said in Said},
    FAILING: {
        Said.WELL: _WELL, Said.LISTED: _WELL, Said.UNLISTED: _WELL, Said.LOST: _LOST, Said.FAILING: _FAILING,
    },
    STALLED: {
        Said.WELL: _WELL, Said.LISTED: _WELL, Said.UNLISTED: _WELL, Said.LOST: _LOST, Said.FAILING: _FAILING,
    },
    NOT_LISTED: {Said.LISTED: _WELL, Said.UNLISTED: _WELL, Said.LOST: _LOST, Said.FAILING: _FAILING},
}  # fmt: skip

#: What it means that every question was answered and no answer decided: what has lowered it, if anything, is over.
_AT_THE_END: Mapping[HealthReason | None, Finding] = {
    None: _UNCLEAR, REFUSED: _WELL, FAILING: _WELL, STALLED: _WELL, NOT_LISTED: _WELL,
}  # fmt: skip


async def probe(
    provider: Provider, target: str, *, reason: HealthReason | None = None, bound_s: float | None = None
) -> Finding:
    """The health of one provider for one target. Raises nothing, and takes no longer than the provider's
    ``health.timeout_ms``, or ``bound_s`` if that is less. ``reason``: why it is lowered at the edge."""
    limit_s = provider.config.health_timeout_ms / 1000 or BOUND_S
    if bound_s is not None:
        limit_s = min(limit_s, bound_s)
    clock = asyncio.get_running_loop().time
    due_at = clock() + limit_s
    answers = 0
    try:
        async with asyncio.timeout_at(due_at):
            for path, read in provider.questions:
                status, body = await provider.ask(b"GET", path, max_bytes=ANSWER_BYTES)
                answers += 1
                found = _MEANS[reason].get(read(status, body, target, provider.listing))
                if found is not None:
                    return found
        return _AT_THE_END[reason]
    except TimeoutError:
        return _UNCLEAR if answers or clock() > due_at + LATE_S else _REFUSED
    except ProviderUnreachable:
        provider.listing.forget()  # whatever is there next may be another server
        return _REFUSED
    except ProviderConnectionLost:
        return _REFUSED
    except IopError:  # it answers, and what it says cannot be read
        return _UNCLEAR
    except Exception as exc:
        log.error("probe_broken", exc_info=exc)
    return _UNCLEAR


async def look(provider: Provider, targets: Sequence[str]) -> Look:
    """Whether anything answers at a provider's address, and which of ``targets`` it lists (HEALTH-10). A server that
    takes the connection and is silent may be busy: that is unknown. Raises nothing."""
    base, adapter = provider.origin.base_path, provider.adapter
    try:
        async with asyncio.timeout(BOUND_S):
            status, body = await provider.ask(b"GET", base + b"/models", max_bytes=ANSWER_BYTES)
    except ProviderUnreachable:
        return Look(_REFUSED)
    except (TimeoutError, IopError):
        return Look(_UNCLEAR)
    if status >= 500:
        return Look(_FAILING)
    found = names_in(body) if status == 200 else None
    if found is None:
        nothing_there = status in (200, 404, 405)  # a page of something else, or no such path
        return Look(_WELL, not_an_api=nothing_there and not base.endswith(b"/v1"))
    names = set(map(adapter.same, found))
    provider.listing.heard(names)
    if adapter.any_name:
        return Look(_WELL)
    return Look(_WELL, [target for target in targets if adapter.same(target) not in names])
