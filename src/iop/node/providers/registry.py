"""The providers of this node and the gate in front of them: what outlives connections and refreshes (EXEC-3, CONF-2).

Of a configuration everything is taken over that this node may and can have; what it may not or cannot have is rejected,
provider by provider. Everything that is new or has changed is built first; only then do the old ones make room, in one
step. A provider that goes keeps its running calls, which end on their own connections and on the slots that they hold;
one of which only the capacity changed stays as it is, kept connections included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from iop.execution.gate import CapacityGate
from iop.net.loop import Runtime
from iop.node.providers.allowance import Allowance, ProviderRejected
from iop.node.providers.engine_load import Engines
from iop.node.providers.kinds import ADAPTERS
from iop.node.providers.kinds.echo import EchoServer
from iop.node.providers.lingering import Lingering
from iop.node.providers.provider import Provider
from iop.wire import limits
from iop.wire import messages as m

__all__ = ["Backends"]

SWEEP_S = 1.0


class Backends:
    """See the module. ``revision`` is that of the configuration in force; the edge's numbers begin again when it
    restarts, so they are never compared here."""

    def __init__(self, runtime: Runtime, allowance: Allowance) -> None:
        self.runtime = runtime
        self.allowance = allowance
        self.gate = CapacityGate()
        self.providers: dict[str, Provider] = {}
        self.revision = 0
        #: Hears the end of slots that an edge counts (:meth:`call_closed`): set by the connection that reported them.
        self.owed_to: Callable[[str, int], None] | None = None
        self.engines = Engines(runtime, self.open_calls)
        self.lingering = Lingering(runtime, self.engines, self.call_closed)
        self._echo: dict[str, EchoServer] = {}
        self._sweeping = False
        self._turn = asyncio.Lock()

    async def apply(self, payload: m.NodeConfigPayload) -> list[m.Rejected]:
        """Take over a configuration, all of it that this node may and can have (REG-3, CONF-2).

        Returns:
            The providers that it does not have, and why; it serves all others.
        """
        async with self._turn:
            return await self._apply(payload)

    async def _apply(self, payload: m.NodeConfigPayload) -> list[m.Rejected]:
        wanted = {p.id: p for p in payload.providers if p.enabled}
        fresh: dict[str, Provider] = {}
        built: list[Provider] = []
        started: dict[str, EchoServer] = {}
        rejected: list[m.Rejected] = []
        try:
            for provider_id, config in list(wanted.items()):
                present = self.providers.get(provider_id)
                if present is not None and _same_backend(present.config, config):
                    fresh[provider_id] = present
                    continue
                base_url = config.base_url
                try:
                    if _built_in(config):
                        server = self._echo.get(provider_id)
                        if server is None:
                            started[provider_id] = server = EchoServer(self.runtime)
                            await server.start()
                        base_url = server.base_url
                    fresh[provider_id] = provider = Provider(self.runtime, config, self.allowance, base_url)
                    built.append(provider)
                except ProviderRejected as exc:
                    rejected.append(m.Rejected(provider_id, exc.reason, exc.message[: limits.MAX_NAME_CHARS]))
                    del wanted[provider_id]
                except OSError:
                    started.pop(provider_id).close()
                    rejected.append(m.Rejected(provider_id, "cannot_listen", "the built-in provider cannot listen"))
                    del wanted[provider_id]
        except BaseException:  # cancelled, too: what was built serves nobody
            for provider in built:
                provider.close()
            for server in started.values():
                server.close()
            raise
        before, self.providers = self.providers, fresh
        self._echo.update(started)
        self.gate.configure({p.id: p.max_concurrency for p in wanted.values()})
        self.engines.forget(frozenset(wanted))
        self.revision = payload.revision
        for provider_id, provider in before.items():
            if fresh.get(provider_id) is provider:
                provider.config = wanted[provider_id]
            else:
                provider.retire()
        self._sweep()
        return rejected

    def _sweep(self) -> None:
        """Ends built-in servers that are not configured any more, once their last call is over."""
        if self._sweeping:
            return
        unused = [i for i in self._echo if i not in self.providers or not _built_in(self.providers[i].config)]
        for provider_id in [i for i in unused if not self.gate.held(i)]:
            unused.remove(provider_id)
            self._echo.pop(provider_id).close()
        if unused:
            self._sweeping = True
            self.runtime.wheel.arm(SWEEP_S, self._sweep_again)

    def _sweep_again(self) -> None:
        self._sweeping = False
        self._sweep()

    def open_calls(self, provider: Provider) -> int:
        """Slots whose calls have not ended on the node's side (TUN-5d, LIVE-2b). Only those at this provider's server
        count: before a refresh its id may have had another one, whose calls go on."""
        return self.gate.held_at(provider.config.id, provider.origin) - self.lingering.count(provider)

    def call_closed(self, provider_id: str, stream_id: int) -> None:
        """A slot whose end an edge is owed is free (POOL-12). The connection on which it counts now hears of it: after
        a reconnect that is not the one on which its call was opened. Without one nobody counts it."""
        if self.owed_to is not None:
            self.owed_to(provider_id, stream_id)

    def close(self) -> None:
        self.lingering.close()
        self.engines.close()
        for provider in self.providers.values():
            provider.close()
        for server in self._echo.values():
            server.close()


def _built_in(config: m.ProviderConfig) -> bool:
    adapter = ADAPTERS.get(config.kind)
    return adapter is not None and adapter.built_in


def _same_backend(present: m.ProviderConfig, wanted: m.ProviderConfig) -> bool:
    """All but the capacity, which is the gate's alone."""
    return replace(present, max_concurrency=wanted.max_concurrency) == wanted
