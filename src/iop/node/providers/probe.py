"""One look at a provider, beside its runs: can it serve this target now? (LIVE-5, LIVE-7, HEALTH-5, HEALTH-7, HEALTH-8)

What is asked stands with each kind of provider (:mod:`iop.node.providers.questions`); a configured ``health.path``
takes its place. Every question has a connection of its own, takes no slot and waits behind nothing; all of them
together have one bound in time. Where the engine must not be asked often, its last answer counts while it rests
(TUN-5d).

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
from iop.execution.failure import HealthReason, ListFault, ProviderHealth
from iop.net.http.fetch import AnswerTooLarge
from iop.node.providers.engine_load import Engines
from iop.node.providers.provider import Provider
from iop.node.providers.questions import ABSENT, Said, names_in

__all__ = ["BOUND_S", "Finding", "Look", "look", "probe"]

log = logging.getLogger("iop.node.providers.probe")

BOUND_S = 3.0  # of a probe whose terminal waits for it, and of any whose provider has no setting (LIVE-5)
LATE_S = 1.0  # a probe that ends so long after its bound: the node's loop did not run, and silence proves nothing
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
    """One look at a provider for all of its targets (HEALTH-10). ``list_fault``: why its list was not compared with."""

    finding: Finding
    not_listed: Sequence[str] = ()
    not_an_api: bool = False
    list_fault: ListFault | None = None


_WELL = Finding(AVAILABLE)
_UNCLEAR = Finding(UNKNOWN)
_REFUSED = Finding(UNAVAILABLE, REFUSED)
_FAILING = Finding(UNAVAILABLE, FAILING)
_LOST = Finding(UNAVAILABLE, NOT_LISTED, target_only=True)

_Meaning = Mapping[Said, Finding]

#: What an answer means that decides, whatever is asked for.
_DECIDES: _Meaning = {Said.LISTED: _WELL, Said.UNLISTED: _WELL, Said.LOST: _LOST, Said.FAILING: _FAILING}

#: What an answer means, by why it is asked for; what is not in here leads to the next question.
_MEANS: Mapping[HealthReason | None, _Meaning] = {
    None: {**_DECIDES, Said.WELL: _WELL, Said.UNCLEAR: _UNCLEAR},
    REFUSED: {said: _FAILING if said is Said.FAILING else _WELL for said in Said},
    FAILING: {**_DECIDES, Said.WELL: _WELL},
    STALLED: {**_DECIDES, Said.WELL: _WELL},
    NOT_LISTED: _DECIDES,
}

#: The same at a look. It lowers for what keeps a provider lowered as failing, and for nothing else; otherwise what the
#: look lowers the next probe would restore. A target that is not listed is shown only.
_AT_A_LOOK: _Meaning = {**_MEANS[FAILING], Said.LOST: _WELL}

#: What it means that every question was answered and no answer decided: what has lowered it, if anything, is over.
_AT_THE_END: Mapping[HealthReason | None, Finding] = {
    None: _UNCLEAR, REFUSED: _WELL, FAILING: _WELL, STALLED: _WELL, NOT_LISTED: _WELL,
}  # fmt: skip


_Answer = tuple[int, bytes | None]  # the body is None if it was too large to read


async def probe(
    provider: Provider,
    target: str,
    engines: Engines,
    *,
    reason: HealthReason | None = None,
    bound_s: float | None = None,
) -> Finding:
    """The health of one provider for one target. Raises nothing, and takes no longer than the provider's
    ``health.timeout_ms``, or ``bound_s`` if that is less. ``reason``: why it is lowered at the edge."""
    limit_s = _limit_s(provider)
    if bound_s is not None:
        limit_s = min(limit_s, bound_s)
    clock = asyncio.get_running_loop().time
    due_at = clock() + limit_s
    answers: dict[bytes, _Answer] = {}
    try:
        async with asyncio.timeout_at(due_at):
            found = await _decide(provider, target, engines, _MEANS[reason], answers)
        return found or _AT_THE_END[reason]
    except TimeoutError:
        return _UNCLEAR if answers or clock() > due_at + LATE_S else _REFUSED
    except (ProviderUnreachable, ProviderConnectionLost):
        return _REFUSED
    except IopError:  # it answers, and what it says cannot be read
        return _UNCLEAR
    except Exception as exc:
        log.error("probe_broken", exc_info=exc)
    return _UNCLEAR


async def look(provider: Provider, targets: Sequence[str], engines: Engines) -> Look:
    """How a provider is, and which of ``targets`` it lists (HEALTH-10). Raises nothing.

    The health is asked as in a probe, and its list beside that: what is wrong with the list alone is noted, and lowers
    nothing. A server that breaks off or says nothing may be busy: its health is unknown.
    """
    base, adapter = provider.origin.base_path, provider.adapter
    answers: dict[bytes, _Answer] = {}
    try:
        async with asyncio.timeout(_limit_s(provider)):
            finding = await _decide(provider, targets[0], engines, _AT_A_LOOK, answers) or _WELL
    except ProviderUnreachable:
        return Look(_REFUSED)
    except (TimeoutError, IopError):
        return Look(_UNCLEAR)
    if finding.health is not AVAILABLE:
        return Look(finding)
    path = base + b"/models"
    try:
        async with asyncio.timeout(BOUND_S):
            status, body = answers.get(path) or await _ask(provider, path)
    except (TimeoutError, IopError):
        return Look(_WELL, list_fault=ListFault.FAILING)
    if status >= 500 and status not in ABSENT:
        return Look(_WELL, list_fault=ListFault.FAILING)
    if body is None:
        return Look(_WELL, list_fault=ListFault.TOO_LARGE if status == 200 else None)
    found = names_in(body) if status == 200 else None
    if found is None:
        nothing_there = status == 200 or status in ABSENT  # a page of something else, or no such path
        return Look(_WELL, not_an_api=nothing_there and not base.endswith(b"/v1"))
    names = set(map(adapter.same, found))
    provider.listing.heard(names)
    if adapter.any_name:
        return Look(_WELL)
    return Look(_WELL, [target for target in targets if adapter.same(target) not in names])


def _limit_s(provider: Provider) -> float:
    """For the health questions of one provider, all together."""
    return provider.config.health_timeout_ms / 1000 or BOUND_S


async def _decide(
    provider: Provider, target: str, engines: Engines, means: _Meaning, answers: dict[bytes, _Answer]
) -> Finding | None:
    """Asks what a provider's health is, up to an answer that decides; None if none does. ``answers`` takes each answer
    as it comes, by its path. Raises as ``Provider.ask`` does, and TimeoutError."""
    for path, read in provider.questions:
        try:
            if engines.rests(provider, path):
                answer: _Answer = await engines.status(provider), None
            else:
                answer = await _ask(provider, path)
        except ProviderUnreachable:
            provider.listing.forget()  # whatever is there next may be another server
            raise
        answers[path] = answer
        found = means.get(read(*answer, target, provider.listing))
        if found is not None:
            return found
    return None


async def _ask(provider: Provider, path: bytes) -> _Answer:
    try:
        return await provider.ask(b"GET", path, max_bytes=ANSWER_BYTES)
    except AnswerTooLarge as exc:
        return exc.provider_status, None
