"""The commands of an edge on its node: CAPABILITIES, TRANSPORT_STATUS, OLLAMA_API, and no others (EXEC-8).

Each is one task with a deadline and gets one answer, be it done, failed, late or cancelled. None takes a slot, none
uses a tunnel's connection, so a node that is full answers as fast as an idle one. They live no longer than the session
that brought them (EXEC-7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from iop.errors import (
    CapacityExceeded,
    DeadlineExceeded,
    Forbidden,
    InternalError,
    InvalidArgument,
    IopError,
    NodeDraining,
    ProtocolError,
    RequestCancelled,
    UnknownProvider,
    UnsupportedCommand,
)
from iop.execution.failure import HealthReason
from iop.net.loop import Runtime
from iop.node.providers.health import Health
from iop.node.providers.provider import Provider
from iop.wire import limits
from iop.wire import messages as m

if TYPE_CHECKING:
    from iop.node.providers.registry import Backends

__all__ = ["Commands"]

log = logging.getLogger("iop.node.commands.runner")

MAX_RUNNING = 64
DEFAULT_S, MAX_S = 5.0, 30.0


class Commands:
    """The commands that run for one session. ``answer`` sends; ``stop`` cancels them all and takes no more, ``close``
    ends them without a word."""

    def __init__(
        self, runtime: Runtime, backends: Backends, health: Health, answer: Callable[[m.NodeCommandResponse], None]
    ) -> None:
        self._runtime = runtime
        self._backends = backends
        self._health = health
        self._answer = answer
        self._running: dict[int, asyncio.Task[m.NodeCommandResponse]] = {}
        self._stopping = False

    @property
    def running(self) -> int:
        return len(self._running)

    def received(self, request: m.NodeCommandRequest) -> None:
        """Starts a command, or cancels one: an id that is not running is none of ours any more."""
        present = self._running.get(request.command_id)
        if request.cancel:
            if present is not None:
                present.cancel()
            return
        if present is not None:
            raise ProtocolError("bad_message", "node_command_request.command_id runs already")
        if self._stopping:
            self._answer(_failed(request, NodeDraining()))
            return
        if len(self._running) >= MAX_RUNNING:
            self._answer(_failed(request, CapacityExceeded(f"{MAX_RUNNING} commands run on this node already")))
            return
        task = self._runtime.loop.create_task(self._run(request))
        self._running[request.command_id] = task
        task.add_done_callback(lambda task: self._ended(request, task))

    def stop(self) -> None:
        """The node leaves (SUP-4): each command is answered as cancelled, and later ones as ``node_draining``."""
        self._stopping = True
        for task in self._running.values():
            task.cancel()

    def close(self) -> None:
        """The session is over."""
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()

    def _ended(self, request: m.NodeCommandRequest, task: asyncio.Task[m.NodeCommandResponse]) -> None:
        if self._running.pop(request.command_id, None) is None:
            return  # the session is over
        # Cancelled is told here: a task that is cancelled before its first step runs nothing of its own.
        cancelled = RequestCancelled("the command was cancelled")
        answer = _failed(request, cancelled) if task.cancelled() else task.result()
        answer.session_id = request.session_id
        self._answer(answer)

    async def _run(self, request: m.NodeCommandRequest) -> m.NodeCommandResponse:
        limit_s = min(request.timeout_ms / 1000 or DEFAULT_S, MAX_S)
        try:
            carry_out = self._COMMANDS.get(request.command)
            if carry_out is None:
                raise UnsupportedCommand
            async with asyncio.timeout(limit_s):
                return await carry_out(self, request)
        except TimeoutError:
            return _failed(request, DeadlineExceeded(f"the command took longer than {limit_s:g} s"))
        except IopError as exc:
            return _failed(request, exc)
        except Exception as exc:
            log.error("command_broken", extra={"fields": {"command": request.command.name.lower()}}, exc_info=exc)
            return _failed(request, InternalError())

    # ---- what there is -----------------------------------------------------------------------------------------------

    async def _capabilities(self, request: m.NodeCommandRequest) -> m.NodeCommandResponse:
        """Can this provider serve this target (HEALTH-5)? With targets: how is it, and which of them does it list
        (HEALTH-10)?"""
        provider = self._provider(request)
        if not request.target:
            raise InvalidArgument("the capabilities are those of one target")
        answer = m.NodeCommandResponse(
            request.command_id, provider_id=request.provider_id, adapter=request.adapter, target=request.target
        )
        if request.targets:
            seen = await self._health.look(provider, request.targets)  # shown, and no evidence: it has no number
            health = seen.finding.health
            answer.not_listed, answer.not_an_api = list(seen.not_listed), seen.not_an_api
            if seen.list_fault is not None:
                answer.list_fault = m.ListFault[seen.list_fault.name]
        else:
            health, answer.health_observation_seq = await self._health.observe(
                provider, request.target, _REASONS.get(request.reason)
            )
        answer.provider_health = m.ProviderHealth[health.name]
        return answer

    async def _transport_status(self, request: m.NodeCommandRequest) -> m.NodeCommandResponse:
        """Slots, connections and what the engines say, of one provider or of all (POOL-13)."""
        providers = [self._provider(request)] if request.provider_id else list(self._backends.providers.values())
        async with asyncio.TaskGroup() as group:
            asked = [(provider, group.create_task(self._backends.engines.ask(provider))) for provider in providers]
        gate = self._backends.gate
        transports = []
        for provider, task in asked:
            engine, reading = provider.adapter.engine, task.result()
            figures = reading.figures if reading is not None else None
            transports.append(
                m.ProviderTransport(
                    provider.config.id,
                    gate.held(provider.config.id),
                    provider.config.max_concurrency,
                    len(provider.pool.connections),
                    engine is not None,
                    min(figures.running, _UINT32_MAX) if figures is not None else None,
                    min(figures.waiting, _UINT32_MAX) if figures is not None and figures.waiting is not None else None,
                    engine is not None and engine.counts_requests,
                )
            )
        return m.NodeCommandResponse(request.command_id, provider_id=request.provider_id, transports=transports)

    async def _ollama(self, request: m.NodeCommandRequest) -> m.NodeCommandResponse:
        """One question to the provider's own API, if its adapter lists the path."""
        provider = self._provider(request)
        method = provider.adapter.api.get(request.argument)
        if method is None:
            raise Forbidden("commands may ask " + _listed(provider) + "; what generates goes through the pool")
        if request.body and method == b"GET":
            raise InvalidArgument("this path takes no body")
        status, body = await provider.ask(
            method, provider.beside(request.argument), request.body, max_bytes=limits.MAX_COMMAND_RESULT_BYTES
        )
        return m.NodeCommandResponse(
            request.command_id, provider_id=request.provider_id, adapter=request.adapter, result=body, status=status
        )

    def _provider(self, request: m.NodeCommandRequest) -> Provider:
        provider = self._backends.providers.get(request.provider_id)
        if provider is None or (request.adapter and request.adapter != provider.config.kind):
            raise UnknownProvider
        return provider

    _COMMANDS: Mapping[m.NodeCommand, Callable[[Commands, m.NodeCommandRequest], Awaitable[m.NodeCommandResponse]]] = {
        m.NodeCommand.CAPABILITIES: _capabilities,
        m.NodeCommand.TRANSPORT_STATUS: _transport_status,
        m.NodeCommand.OLLAMA_API: _ollama,
    }


_UINT32_MAX = (1 << 32) - 1
_REASONS = {m.HealthReason[reason.name]: reason for reason in HealthReason}


def _listed(provider: Provider) -> str:
    return ", ".join(sorted(path.decode() for path in provider.adapter.api)) or "nothing of this kind of provider"


def _failed(request: m.NodeCommandRequest, error: IopError) -> m.NodeCommandResponse:
    return m.NodeCommandResponse(
        request.command_id,
        m.ErrorCode[error.code.upper()],
        provider_id=request.provider_id,
        adapter=request.adapter,
        target=request.target,
        message=error.message.encode()[: limits.MAX_MESSAGE_BYTES],
        session_id=request.session_id,
    )
