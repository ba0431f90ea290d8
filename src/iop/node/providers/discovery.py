"""What there is beside this node: which models its providers list, and model servers that it was not told of.

Looked at when the node's configuration asks for it (``providers: auto``, ``models: auto`` in the edge's file), again
every half minute, and reported when it has changed. An engine that does not answer keeps what it listed before: a
restart of it must not take its models from the clients. Questions have connections of their own and a bound each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec

from iop.errors import IopError
from iop.kinds import OTHER, SERVERS
from iop.net.http.client import Origin
from iop.net.http.fetch import fetch
from iop.net.loop import Runtime
from iop.net.wheel import Timer
from iop.node.providers.allowance import ProviderRejected
from iop.node.providers.kinds import ADAPTERS
from iop.node.providers.registry import Backends
from iop.wire import limits
from iop.wire import messages as m

__all__ = ["Inventory"]

log = logging.getLogger("iop.node.providers.discovery")

LOOK_S = 30.0
ANSWER_S = 3.0
ANSWER_BYTES = 1 << 20
AT_ONCE = 16
MOST_BYTES = 512 * 1024  # of names in one report, which is one control frame

_BY_PORT = {server.port: server for server in SERVERS}
#: By what a server calls the owner of its models: surer than a port, on which anything may listen.
_BY_OWNER = {server.owner: server for server in SERVERS if server.owner}
_OURS = "iop"  # another edge is no model server


class _Model(msgspec.Struct):
    id: str
    owned_by: object = ""


class _Models(msgspec.Struct):
    data: list[object]  # rows, each looked at for itself: an odd one does not hide the others


_MODELS = msgspec.json.Decoder(_Models)


class Inventory:
    """See the module. ``send`` reports. It lives as long as one connection."""

    def __init__(self, runtime: Runtime, backends: Backends, send: Callable[[m.Inventory], None]) -> None:
        self._runtime = runtime
        self._backends = backends
        self._send = send
        self._detect = self._list = False
        self._sent = m.Inventory()
        self._listed: dict[str, list[bytes]] = {}  # by provider, what it listed last
        self._servers: dict[int, m.DetectedServer] = {}  # by port, as it answered last
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._unreadable: set[str] = set()  # whose list was no list when it answered last
        self._again = False
        self._closed = False

    def configure(self, payload: m.NodeConfigPayload) -> None:
        """A configuration is in force: what it asks for is looked at now."""
        self._detect, self._list = payload.detect_servers, payload.list_models
        self._look()

    def close(self) -> None:
        """The connection is over."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or not (self._detect or self._list):
            return
        if self._task is not None:
            self._again = True
            return
        self._task = self._runtime.loop.create_task(self._ask_all())
        self._task.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._closed or task.cancelled():
            return
        if (fault := task.exception()) is not None:
            log.error("inventory_broken", exc_info=fault)
        found = _bounded(
            [m.ProviderModels(i, names) for i, names in sorted(self._listed.items())] if self._list else [],
            [replace(self._servers[port]) for port in sorted(self._servers)] if self._detect else [],
        )
        if found != self._sent:
            self._sent = found
            self._send(found)
        if self._again:
            self._again = False
            self._look()
        else:
            self._timer = self._runtime.wheel.arm(LOOK_S, self._look)

    async def _ask_all(self) -> None:
        providers = dict(self._backends.providers)
        self._listed = {i: names for i, names in self._listed.items() if i in providers}
        async with asyncio.TaskGroup() as group:
            if self._list:
                for provider_id in providers:
                    group.create_task(self._ask_provider(provider_id))
            if self._detect:
                for port in self._backends.allowance.detect_ports:
                    group.create_task(self._ask_port(port))

    async def _ask_provider(self, provider_id: str) -> None:
        provider = self._backends.providers.get(provider_id)
        if provider is None:
            return
        try:
            async with self._at_once, asyncio.timeout(ANSWER_S):
                path = provider.origin.base_path + b"/models"
                status, body = await provider.ask(b"GET", path, max_bytes=ANSWER_BYTES)
        except (TimeoutError, IopError):
            return
        models = self._read(provider_id, status, body, logging.WARNING)
        if models is not None and self._backends.providers.get(provider_id) is provider:
            self._listed[provider_id] = _names(models)

    async def _ask_port(self, port: int) -> None:
        origin = Origin.parse(f"http://127.0.0.1:{port}/v1")
        try:
            self._backends.allowance.check_origin(origin)
            async with self._at_once, asyncio.timeout(ANSWER_S):
                status, body = await _get(origin, b"/v1/models")
                models = self._read(f"127.0.0.1:{port}", status, body, logging.INFO)  # it may be no model server
                if not models or any(model.owned_by == _OURS for model in models):
                    return
                owners = {model.owned_by for model in models if isinstance(model.owned_by, str)}
                server = next((_BY_OWNER[o] for o in owners if o in _BY_OWNER), _BY_PORT.get(port, OTHER))
                capacity = await _capacity(server.kind, origin)
        except (TimeoutError, IopError, ProviderRejected):
            return
        slug = server.slug if server.port == port else f"{server.slug}-{port}"
        self._servers[port] = m.DetectedServer(slug, server.kind, port, capacity or server.capacity, _names(models))

    def _read(self, server: str, status: int, body: bytes, level: int) -> list[_Model] | None:
        """What a server that was asked lists; a list that nobody can read is told once."""
        models = _read_models(body) if status == 200 else None
        if status != 200 or models is not None:
            self._unreadable.discard(server)
        elif server not in self._unreadable:
            self._unreadable.add(server)
            log.log(level, "models_unreadable", extra={"fields": {"server": server, "bytes": len(body)}})
        return models


def _bounded(providers: list[m.ProviderModels], servers: list[m.DetectedServer]) -> m.Inventory:
    """What fits into one message: the names that are beyond it are left out, the last ones first."""
    left = MOST_BYTES
    entries: list[m.DetectedServer | m.ProviderModels] = [*servers, *providers]
    for entry in entries:
        fit = []
        for name in entry.models:
            left -= len(name) + 8
            if left < 0:
                break
            fit.append(name)
        entry.models = fit
    return m.Inventory(providers, servers)


async def _get(origin: Origin, path: bytes) -> tuple[int, bytes]:
    return await fetch(origin, b"GET", path, fields=origin.host_line, max_bytes=ANSWER_BYTES)


async def _capacity(kind: str, origin: Origin) -> int | None:
    """How many requests a server works on at a time, if its kind tells."""
    asked = ADAPTERS[kind].capacity
    if asked is None:
        return None
    status, body = await _get(origin, asked.path)
    return asked.read(body) if status == 200 else None


def _read_models(body: bytes) -> list[_Model] | None:
    """The rows of ``/v1/models`` that are some, or None if it is something else."""
    try:
        rows = _MODELS.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = []
    for row in rows:
        with contextlib.suppress(msgspec.ValidationError):
            found.append(msgspec.convert(row, _Model))
    return found


def _names(models: list[_Model]) -> list[bytes]:
    """Names that a configuration could have as well; others are left out."""
    names = [model.id.encode("utf-8", "replace") for model in models if model.id.isprintable()]
    fit = (name for name in names if 0 < len(name) <= limits.MAX_NAME_CHARS and name == name.strip())
    return list(dict.fromkeys(fit))[: limits.MAX_LISTED_MODELS]
