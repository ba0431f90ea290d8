"""Keeps a node connected (SUP-1 … SUP-5): dials, waits, asks the policy, dials again. Decides nothing itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from iop.net.loop import Runtime
from iop.node.providers.registry import Backends
from iop.node.uplink.agent import Agent
from iop.node.uplink.reconnect import Ended, Exit, Retry, State, SupervisorPolicy
from iop.node.uplink.trust import Distrusted, Trust
from iop.observability.metrics import NodeMetrics
from iop.store.runs import RunStore
from iop.wire import limits

__all__ = ["Supervisor"]

log = logging.getLogger("iop.node.uplink.supervisor")

CONNECT_TIMEOUT_S = 10.0
POLL_S = 0.05
#: An attempt that failed at an edge that was reached.
_SAID = {Ended.EDGE_UNTRUSTED: "edge_untrusted", Ended.DUPLICATE_CONNECTION: "duplicate_connection"}
LEAVE_S = 2.0  # for terminals and the goodbye to be taken by the edge


class Supervisor:
    """``run`` returns the exit code; ``stop`` ends it in order, ``stop`` again ends it at once."""

    def __init__(
        self,
        runtime: Runtime,
        backends: Backends,
        metrics: NodeMetrics,
        policy: SupervisorPolicy,
        *,
        host: str,
        port: int,
        token: Callable[[], str],
        drain_s: float,
        trust: Trust | None = None,
        timing: limits.Timing = limits.TIMING,
        runs: RunStore | None = None,
    ) -> None:
        self.agent: Agent | None = None
        self._runtime = runtime
        self._backends = backends
        self._metrics = metrics
        self._policy = policy
        self._host = host
        self._port = port
        self._edge = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"  # for logs
        self._token = token
        self._drain_s = drain_s
        self._trust = trust or Trust()
        self._timing = timing
        self._runs = runs
        self._bytes_in = self._bytes_out = 0  # of links that have ended
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Drain and leave; a second call leaves at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    @property
    def connected(self) -> bool:
        return self._policy.state is State.READY

    def link_bytes(self) -> dict[tuple[str, ...], int]:
        """What went over the links with the edge, the present one included."""
        mux = self.agent.session.mux if self.agent is not None else None
        return {
            ("in",): self._bytes_in + (mux.bytes_in if mux is not None else 0),
            ("out",): self._bytes_out + (mux.bytes_handed if mux is not None else 0),
        }

    async def run(self) -> int:
        while True:
            ended, detail = await self._session()
            if self._stop.is_set():
                return self._policy.shutdown().code
            verdict = self._policy.ended(ended, random.random())  # noqa: S311 - jitter
            if isinstance(verdict, Exit):
                self._say_exit(verdict, detail)
                return verdict.code
            self._say_retry(verdict, detail)
            try:
                await asyncio.wait_for(self._stop.wait(), verdict.delay_s)
                return self._policy.shutdown().code
            except TimeoutError:
                self._policy.retry()

    async def _session(self) -> tuple[Ended, str]:
        """One connection, from dialling to its end."""
        agent = Agent(
            self._runtime,
            self._backends,
            self._metrics,
            self._token(),
            self._on_ready,
            timing=self._timing,
            runs=self._runs,
            trust=self._trust,
        )
        dial = self._trust.connect(self._runtime.loop, agent.link, self._host, self._port)
        stopped = asyncio.ensure_future(self._stop.wait())
        dialling = asyncio.ensure_future(asyncio.wait_for(dial, CONNECT_TIMEOUT_S))
        try:
            await asyncio.wait({dialling, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not dialling.done():
                dialling.cancel()
                await asyncio.wait({dialling})
                agent.link.abort("stopped")
                return Ended.CONNECT_FAILED, "stopped while connecting"
            try:
                dialling.result()
            except Distrusted as exc:
                self._metrics.connects["failed"].value += 1
                return exc.ended, str(exc)
            except (OSError, TimeoutError) as exc:
                self._metrics.connects["failed"].value += 1
                return Ended.CONNECT_FAILED, _why(exc)
            self.agent = agent
            waits: set[asyncio.Future[Any]] = {agent.done, stopped}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not agent.done.done():
                await self._drain(agent)
                self._backends.close()  # nothing uses a provider any more, and the edge has heard how everything ended
                agent.leave()
                # An edge that reads nothing must not keep us: what it does not take within that time is dropped.
                await self._until(agent.done.done, LEAVE_S)
                agent.link.abort("shutdown")
            return await agent.done
        finally:
            self.agent = None
            self._bytes_in += agent.session.mux.bytes_in
            self._bytes_out += agent.session.mux.bytes_handed
            stopped.cancel()

    async def _drain(self, agent: Agent) -> None:
        """Let running calls finish within the drain time, then cancel what is left, commands included, and wait for its
        end (SUP-4, SUP-5)."""
        agent.drain(self._drain_s)
        log.info("draining", extra={"fields": {"calls": len(agent.calls)}})

        def idle() -> bool:
            return not agent.calls or agent.done.done()

        await self._until(idle, self._drain_s)
        agent.give_up()
        await self._until(lambda: agent.idle or agent.done.done(), LEAVE_S)  # so that the edge hears of their end

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Waits for the condition, at most so long; a second signal ends the wait."""
        deadline_at = self._runtime.loop.time() + timeout_s
        while not condition() and self._runtime.loop.time() < deadline_at:
            try:
                await asyncio.wait_for(self._hurry.wait(), POLL_S)
                return
            except TimeoutError:
                continue

    def _on_ready(self) -> None:
        self._policy.ready()
        self._metrics.connects["ready"].value += 1
        log.info("edge_connected", extra={"fields": {"edge": self._edge}})

    def _say_retry(self, verdict: Retry, detail: str) -> None:
        limit = str(verdict.max_attempts) if verdict.max_attempts else "unlimited"
        fields = {
            "reason": verdict.reason.value,
            "detail": detail,
            "edge": self._edge,
            "attempt": f"{verdict.attempt} of {limit}",
            "next_in_s": round(verdict.delay_s, 1),
        }
        event = _SAID.get(verdict.reason, "edge_unreachable") if verdict.attempt else "edge_lost"
        log.warning(event, extra={"fields": fields})

    def _say_exit(self, verdict: Exit, detail: str) -> None:
        self._metrics.connects["rejected"].value += verdict.code == 3
        log.error("giving_up", extra={"fields": {"reason": verdict.reason.value, "detail": detail}})


def _why(exc: BaseException) -> str:
    """What a failed connect says to a person."""
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused; is the edge running, with this transport.listen?"
    if isinstance(exc, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:g} s"
    return getattr(exc, "strerror", None) or type(exc).__name__
