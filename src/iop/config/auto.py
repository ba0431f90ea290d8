"""``providers: auto`` and ``models: auto``: a file whose open places are filled in with what nodes have found.

An edge runs the filled-in configuration, which looks as if somebody had written it all down; so nothing else in the
edge knows of this. What is written down wins over what is found, and an earlier entry over a later one.

What nodes say is not trusted to be fit for a configuration: whatever it is, what does not fit is left out, alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from iop.config.edge import AUTO, Candidate, EdgeConfig, ModelEntry, NodeEntry, ProviderEntry
from iop.config.fields import is_ident, is_model_name
from iop.kinds import KINDS
from iop.patterns import fits

__all__ = ["FOUND_KINDS", "Asks", "Found", "Server", "asked_anew", "asks", "fill_in", "matches"]

MAX_MODELS = 10_000  # that are exposed without being written down
MAX_CAPACITY = 100_000
#: Of servers that can be found.
FOUND_KINDS = frozenset(kind.name for kind in KINDS if not kind.built_in)


class Server(NamedTuple):
    """A model server that a node found on its loopback."""

    name: str
    kind: str
    port: int
    capacity: int
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What one node reported: servers, and by provider id the models that its engine lists."""

    servers: tuple[Server, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Asks(NamedTuple):
    """What a node is to look for."""

    detect_servers: bool = False
    list_models: bool = False


def asks(file: EdgeConfig) -> dict[str, Asks]:
    """By node, what this file leaves open."""
    models = any(not entry.candidates for entry in file.models)
    return {node.id: Asks(any(p.kind == AUTO for p in node.providers), models) for node in file.nodes}


def asked_anew(before: EdgeConfig, after: EdgeConfig) -> list[str]:
    """What nodes are to look for, or no longer, in words of the file: it changes what they are told, whatever they
    have found."""
    was, now = asks(before), asks(after)
    same = {node_id: (was[node_id], now[node_id]) for node_id in now if node_id in was}
    servers = [f"nodes[{i}].providers (auto)" for i, (old, new) in same.items() if old[0] is not new[0]]
    return servers + ["models (auto)"] * any(old[1] is not new[1] for old, new in same.values())


def fill_in(file: EdgeConfig, found: Mapping[str, Found]) -> EdgeConfig:
    """The configuration to run: ``file`` with its open places filled in. The same object if it has none. Raises
    nothing, whatever is in ``found``."""
    if not any(any(ask) for ask in asks(file).values()):
        return file
    taken = {p.id for node in file.nodes for p in node.providers if p.kind != AUTO}
    listed: dict[tuple[str, str], tuple[str, ...]] = {}  # by node and provider, in the order of the file
    nodes = []
    for node in file.nodes:
        seen = found.get(node.id, Found())
        providers = []
        for entry, lists in _providers(node, seen.servers, taken):
            providers.append(entry)
            if entry.enabled:
                names = seen.models.get(entry.id, lists)
                listed[node.id, entry.id] = tuple(filter(is_model_name, names))
        nodes.append(node.model_copy(update={"providers": tuple(providers)}))
    models = tuple(_models(file.models, listed))
    return file.model_copy(update={"nodes": tuple(nodes), "models": models})


def _providers(
    node: NodeEntry, servers: Sequence[Server], taken: set[str]
) -> Iterator[tuple[ProviderEntry, tuple[str, ...]]]:
    """A node's providers with the models that they are known to list; each server that was found once."""
    known = {_local_port(p.base_url) for p in node.providers}
    for entry in node.providers:
        if entry.kind != AUTO:
            yield entry, ()
            continue
        for server in servers:
            provider_id = f"{entry.id}-{server.name}"
            if server.kind not in FOUND_KINDS or not 0 < server.port < 65536 or not is_ident(provider_id):
                continue
            if server.port in known or provider_id in taken:
                continue
            known.add(server.port)
            taken.add(provider_id)
            update = {"id": provider_id, "kind": server.kind, "base_url": f"http://127.0.0.1:{server.port}/v1"}
            if "capacity" not in entry.model_fields_set:
                least = max(1, entry.long_capacity or 0)
                update["capacity"] = min(max(server.capacity, least), MAX_CAPACITY)  # type: ignore[assignment]
            yield entry.model_copy(update=update), server.models


def _local_port(url: str | None) -> int | None:
    """The port of a URL on this machine, else None."""
    if url is None:
        return None
    parts = urlsplit(url)
    return parts.port if parts.hostname in ("127.0.0.1", "localhost", "::1") else None


def _models(entries: Sequence[ModelEntry], listed: Mapping[tuple[str, str], tuple[str, ...]]) -> Iterator[ModelEntry]:
    taken = {name for entry in entries if "*" not in entry.id for name in (entry.id, *entry.aliases)}
    offers: dict[str, list[tuple[str, str]]] = {}  # who lists it, in the order of the first ones
    for key, names in listed.items():
        for name in dict.fromkeys(names):
            offers.setdefault(name, []).append(key)
    left = MAX_MODELS
    for entry in entries:
        if entry.candidates:
            yield entry
        elif "*" not in entry.id:
            pattern = entry.target or entry.id
            yield entry.model_copy(update={"candidates": tuple(_candidates(listed, pattern))})
        else:
            for name, who in offers.items():
                if left and name not in taken and matches(name, entry.id):
                    left -= 1
                    taken.add(name)
                    # The very name: a star in it is no pattern.
                    found = tuple(Candidate(node=n, provider=p, target=name) for n, p in who)
                    yield entry.model_copy(update={"id": name, "candidates": found})


def _candidates(listed: Mapping[tuple[str, str], tuple[str, ...]], pattern: str) -> Iterator[Candidate]:
    """Of each provider the first model that it lists and the pattern fits."""
    for (node_id, provider_id), names in listed.items():
        fitting = [name for name in names if matches(name, pattern)]
        # The very name goes before one that fits the pattern, and that before one of another letter case.
        target = min(fitting, key=lambda name: (name != pattern, not fits(name, pattern)), default=None)
        if target is not None:
            yield Candidate(node=node_id, provider=provider_id, target=target)


def matches(name: str, pattern: str) -> bool:
    """Whether the pattern, in which ``*`` is any text, fits the whole name, whatever its letter case: engines list
    ``Qwen/Qwen3-32B`` and owners write ``qwen*``. What keys may use is compared exactly (API-11), not by this."""
    return fits(name.casefold(), pattern.casefold())
