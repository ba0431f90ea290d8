"""What nodes have found beside them, and the configuration that follows (``providers: auto``, ``models: auto``).

A report is kept until the node sends another one: a node that is offline keeps its providers and models (REG-6). What
changes is worked out in a thread, for all nodes that reported meanwhile together, and at most once a second.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Mapping

from iop.config.auto import FOUND_KINDS, Asks, Found, Server, asks, fill_in, matches
from iop.config.edge import EdgeConfig
from iop.config.fields import is_model_name
from iop.edge.settings.reload import Prepared, Reloaded
from iop.errors import IopError
from iop.net.loop import Runtime
from iop.wire import messages as m

__all__ = ["Discovery"]

log = logging.getLogger("iop.edge.settings.discovery")

PAUSE_S = 1.0
TOLD = 100  # names in one log line


class Discovery:
    """See the module. ``prepare`` works the configuration out of ``found``, in a thread; ``take`` takes it over."""

    def __init__(self, runtime: Runtime, prepare: Callable[[], Prepared], take: Callable[[Prepared], Reloaded]) -> None:
        self._runtime = runtime
        self._prepare = prepare
        self._take = take
        #: By node; replaced and never changed, since a thread may be reading it.
        self.found: Mapping[str, Found] = {}
        self._asks: dict[str, Asks] = {}
        self._newer: set[str] = set()  # nodes of which it was told that they find what this edge does not know
        self._patterns: list[str] = []
        self._seen: Mapping[str, Found] = self.found  # by the work that is under way
        self._armed = False
        self._working = False
        self._closed = False

    def configure(self, file: EdgeConfig) -> None:
        """From here on this file's open places count."""
        self._asks = asks(file)
        self._patterns = [entry.id for entry in file.models if not entry.candidates and "*" in entry.id]
        self.found = {node_id: found for node_id, found in self.found.items() if node_id in self._asks}
        self._newer &= self._asks.keys()

    def fill_in(self, file: EdgeConfig) -> EdgeConfig:
        """The configuration to run. For threads as well. A report that cannot be worked in is left out, and named:
        one node must not keep the edge from what its file and the others say."""
        found = self.found
        try:
            return fill_in(file, found)
        except Exception as exc:
            log.error("discovery_broken", exc_info=exc)
        fit: dict[str, Found] = {}
        for node_id, report in found.items():
            try:
                fill_in(file, {**fit, node_id: report})
            except Exception:
                log.error("report_left_out", extra={"fields": {"node": node_id}})
            else:
                fit[node_id] = report
        return fill_in(file, fit)

    def reported(self, node_id: str, inventory: m.Inventory) -> None:
        """A ready node's report; one that it was not asked for changes nothing."""
        ask = self._asks.get(node_id, Asks())
        servers = [s for s in inventory.servers if s.kind in FOUND_KINDS]
        if ask.detect_servers and len(servers) < len(inventory.servers) and node_id not in self._newer:
            self._newer.add(node_id)
            kinds = sorted({s.kind for s in inventory.servers} - FOUND_KINDS)
            fields = {"node": node_id, "kinds": [kind[:40] for kind in kinds]}
            log.warning("kinds_unknown", extra={"fields": fields})
        found = Found(
            tuple(
                Server(s.name, s.kind, s.port, s.capacity, _names(s.models)) for s in servers
            ) if ask.detect_servers else (),
            {p.provider_id: _names(p.models) for p in inventory.providers} if ask.list_models else {},
        )  # fmt: skip
        if any(ask) and found != self.found.get(node_id):
            self.found = {**self.found, node_id: found}
            self._arm(0.0)

    def may_come(self, model: str) -> bool:
        """Whether a node that has not reported yet could be the one that lists this model."""
        if not any(matches(model, pattern) for pattern in self._patterns):
            return False
        return any(ask.list_models and node_id not in self.found for node_id, ask in self._asks.items())

    def close(self) -> None:
        """Nothing is taken over from here on."""
        self._closed = True

    def _arm(self, delay_s: float) -> None:
        if not self._armed and not self._working:
            self._armed = True
            self._runtime.wheel.arm(delay_s, self._work)

    def _work(self) -> None:
        self._armed = False
        if self._closed:
            return
        self._working = True
        self._seen = self.found
        self._runtime.loop.run_in_executor(None, self._prepare).add_done_callback(self._worked)

    def _worked(self, work: Future[Prepared]) -> None:
        self._working = False
        if self._closed or work.cancelled():
            return
        try:
            taken = self._take(work.result())
        except IopError as exc:
            log.error("found_refused", extra={"fields": {"detail": exc.message[:1000]}})
        except Exception as exc:
            log.error("discovery_broken", exc_info=exc)
        else:
            if taken.change.changed:
                fields = {"revision": taken.revision, "changed": list(taken.change.changed[:TOLD])}
                log.info("found", extra={"fields": fields})
        if self.found is not self._seen:
            self._arm(PAUSE_S)


def _names(models: list[bytes]) -> tuple[str, ...]:
    """Those that a configuration could have; a node's word is checked like a file's."""
    texts = (name.decode("utf-8", "replace") for name in models)
    return tuple(filter(is_model_name, texts))
