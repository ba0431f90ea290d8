"""Rules that span more than one field of a file (CONF-1, SEC-1, API-4, POOL-1, SUP-2).

They read the plain tree, not the models, and tolerate anything in it: a file with a bad field still gets all of these
faults in the same answer. A value of a wrong type is skipped here, since its own field reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from iop.config.fields import Fault, HostPort, number
from iop.kinds import KINDS

__all__ = ["edge_faults", "node_faults"]

Path = tuple[str | int, ...]
Tree = dict[str, Any]

BUILT_IN = frozenset(kind.name for kind in KINDS if kind.built_in)
AUTO_ID_CHARS = 40  # of the 64 that the ids of its servers may have
#: Defaults of settings that rules compare.
HTTP_LISTEN, TRANSPORT_LISTEN, ADMIN_LISTEN = "127.0.0.1:8080", "127.0.0.1:7443", "127.0.0.1:9090"
BODY_BYTES, BUFFERED_BODY_BYTES = 32 << 20, 512 << 20


def edge_faults(tree: Tree) -> Iterator[Fault]:
    """Every fault of an edge's file that is not one field's own."""
    yield from _later_edge(tree)
    yield from _listeners(tree)
    yield from _keys(tree)
    providers: dict[str, str] = {}
    yield from _nodes(tree, providers)
    yield from _models(tree, providers)
    http = _section(tree, "http")
    body = _int(http.get("max_body_bytes", BODY_BYTES))
    together = _int(http.get("max_buffered_body_bytes", BUFFERED_BODY_BYTES))
    if body is not None and together is not None and body > together:
        yield Fault(("http", "max_body_bytes"), "larger than http.max_buffered_body_bytes, so such a body never fits")


def node_faults(tree: Tree) -> Iterator[Fault]:
    """Every fault of a node's file that is not one field's own."""
    node = _section(tree, "node")
    if "node" in tree:
        yield from _one_of(node, ("node",), ("token_env", "token_file"))
    yield from _node_tls(_section(node, "tls"))
    if node.get("allow_workspaces"):
        yield Fault(("node", "allow_workspaces"), "this version has no workspaces; leave the list empty")
    reconnect = _section(tree, "reconnect")
    if _int(reconnect.get("max_attempts")) == 0 and number(reconnect.get("interval_sec", 10)) == 0:
        yield Fault(("reconnect", "interval_sec"), "unlimited attempts (max_attempts: 0) need an interval above 0")


def _node_tls(tls: Tree) -> Iterator[Fault]:
    if tls.get("ca") is not None and tls.get("ca_sha256") is not None:
        yield Fault(("node", "tls", "ca_sha256"), "ca is given already; keep one of the two")
    for one, other in (("cert", "key"), ("key", "cert")):
        if tls.get(one) is not None and tls.get(other) is None:
            yield Fault(("node", "tls", one), f"needs {other} beside it")


# ---- the edge, by theme ---------------------------------------------------------------------------------------------


def _later_edge(tree: Tree) -> Iterator[Fault]:
    """What the file format has and this version does not do."""
    security = _section(tree, "security")
    if security.get("mode") == "managed":
        yield Fault(("security", "mode"), "this version has no managed mode; use mode: open")
    elif any(value is not None for key, value in security.items() if key != "mode"):
        yield Fault(("security",), "only mode: open exists in this version; leave the other keys out")
    if tree.get("presets"):
        yield Fault(("presets",), "this version has no execution presets; leave the list empty")
    for path, node in _each(tree, (), "nodes"):
        if node.get("workspaces"):
            yield Fault((*path, "workspaces"), "this version has no workspaces; leave the list empty")


def _listeners(tree: Tree) -> Iterator[Fault]:
    http, transport = _section(tree, "http"), _section(tree, "transport")
    clients = _address(http.get("listen", HTTP_LISTEN))
    nodes = _address(transport.get("listen", TRANSPORT_LISTEN))
    keyless = not http.get("api_keys") and not http.get("keys_file")
    if clients and not clients.is_loopback and keyless and http.get("allow_anonymous") is not True:
        yield Fault(
            ("http", "listen"),
            f"{clients} is open to other machines without any key; add http.api_keys or http.keys_file, listen on "
            "127.0.0.1, or set http.allow_anonymous: true (API-4)",
        )
    if nodes and not nodes.is_loopback and not transport.get("tls") and transport.get("allow_plaintext") is not True:
        yield Fault(
            ("transport", "listen"),
            f"{nodes} would carry tokens and prompts unencrypted; set transport.tls, listen on 127.0.0.1, "
            "or set transport.allow_plaintext: true on a network that you trust (SEC-1)",
        )
    admin = _address(_section(tree, "admin").get("listen", ADMIN_LISTEN))
    taken: dict[HostPort, str] = {}
    for name, address in (("http", clients), ("transport", nodes), ("admin", admin)):
        if address and address.port:
            if address in taken:
                yield Fault((name, "listen"), f"{address} is {taken[address]}.listen already")
            taken.setdefault(address, name)


def _keys(tree: Tree) -> Iterator[Fault]:
    for path, key in _each(_section(tree, "http"), ("http",), "api_keys"):
        yield from _one_of(key, path, ("key_env", "key_file", "key_sha256"))


def _nodes(tree: Tree, providers: dict[str, str]) -> Iterator[Fault]:
    """Fills ``providers`` with the node of each provider id."""
    seen: set[str] = set()
    for path, node in _each(tree, (), "nodes"):
        node_id = node.get("id")
        yield from _one_of(node, path, ("token_env", "token_file", "token_sha256"))
        if isinstance(node_id, str):
            if node_id in seen:
                yield Fault((*path, "id"), f"{node_id!r} is used by an earlier node; ids are unique")
            seen.add(node_id)
        for at, provider in _each(node, path, "providers"):
            yield from _provider(provider, at)
            provider_id = provider.get("id")
            if isinstance(provider_id, str):
                if provider_id in providers:
                    owner = providers[provider_id]
                    yield Fault(
                        (*at, "id"),
                        f"{provider_id!r} is a provider of node {owner!r} already; ids are unique over the edge",
                    )
                elif isinstance(node_id, str):
                    providers[provider_id] = node_id


def _provider(provider: Tree, path: Path) -> Iterator[Fault]:
    kind, url = provider.get("kind"), provider.get("base_url")
    if kind == "ollama" and isinstance(url, str) and not url.rstrip("/").endswith("/v1"):
        yield Fault(
            (*path, "base_url"), "Ollama is reached by its OpenAI-compatible API: http://HOST:11434/v1, with the /v1"
        )
    elif kind in BUILT_IN and url is not None:
        yield Fault((*path, "base_url"), f"the {kind} provider is built into the node; leave base_url out")
    elif kind == "auto" and len(str(provider.get("id", ""))) > AUTO_ID_CHARS:
        yield Fault(
            (*path, "id"),
            f"with kind: auto at most {AUTO_ID_CHARS} characters, since ids of what is found begin with it",
        )
    elif kind == "auto" and url is not None:
        yield Fault((*path, "base_url"), "the node finds its servers by itself; leave base_url out, or name the kind")
    elif isinstance(kind, str) and kind not in BUILT_IN and kind != "auto" and url is None:
        yield Fault(
            (*path, "base_url"), "required: where the node reaches this server, such as http://127.0.0.1:8000/v1"
        )
    capacity, long_capacity = _int(provider.get("capacity", 1)), _int(provider.get("long_capacity"))
    if capacity is not None and long_capacity is not None and long_capacity > capacity:
        yield Fault((*path, "long_capacity"), f"larger than capacity ({capacity}), of which it is a part")


def _models(tree: Tree, providers: dict[str, str]) -> Iterator[Fault]:
    nodes = {node_id for _, node in _each(tree, (), "nodes") if isinstance(node_id := node.get("id"), str)}
    autos = {
        p.get("id") for _, node in _each(tree, (), "nodes") for _, p in _each(node, (), "providers")
        if p.get("kind") == "auto"
    }  # fmt: skip
    names: dict[str, str] = {}
    models = list(_each(tree, (), "models"))
    for path, model in models:
        model_id = model.get("id")
        if isinstance(model_id, str):
            if model_id in names:
                yield Fault((*path, "id"), f"{model_id!r} is a model already")
            names.setdefault(model_id, f"the id of model {model_id!r}")
    for path, model in models:
        aliases = model.get("aliases")
        for index, alias in enumerate(aliases if isinstance(aliases, list) else ()):
            if isinstance(alias, str):
                if alias in names:
                    yield Fault((*path, "aliases", index), f"{alias!r} is {names[alias]} already")
                names.setdefault(alias, f"an alias of model {str(model.get('id'))!r}")
        yield from _open_places(model, path)
        yield from _candidates(model, path, nodes, providers, autos)


def _open_places(model: Tree, path: Path) -> Iterator[Fault]:
    """What goes together with candidates that are found."""
    model_id, candidates = model.get("id"), model.get("candidates")
    if candidates == []:
        yield Fault((*path, "candidates"), "should not be empty; write auto for whoever lists the model")
    if isinstance(candidates, list) and candidates and model.get("target") is not None:
        yield Fault((*path, "target"), "belongs to candidates: auto; each candidate has its own target")
    if isinstance(model_id, str) and "*" in model_id:
        for key in ("aliases", "target", "candidates"):
            if model.get(key):
                yield Fault((*path, key), f"{model_id!r} stands for every model that it fits, as listed; leave it out")


def _candidates(
    model: Tree, path: Path, nodes: set[str], providers: dict[str, str], autos: set[Any]
) -> Iterator[Fault]:
    seen: set[tuple[str, str]] = set()
    for at, candidate in _each(model, path, "candidates"):
        node, provider, target = candidate.get("node"), candidate.get("provider"), candidate.get("target")
        if isinstance(node, str) and node not in nodes:
            yield Fault((*at, "node"), f"there is no node {node!r}{_known(nodes)}")
        if isinstance(provider, str):
            if provider in autos:
                yield Fault((*at, "provider"), f"{provider!r} stands for what is found; write candidates: auto")
            elif provider not in providers:
                yield Fault((*at, "provider"), f"there is no provider {provider!r}{_known(providers)}")
            elif isinstance(node, str) and node in nodes and providers[provider] != node:
                yield Fault((*at, "provider"), f"{provider!r} is a provider of node {providers[provider]!r}")
            if isinstance(target, str):
                if (provider, target) in seen:
                    yield Fault(at, "the same provider and target as an earlier candidate")
                seen.add((provider, target))


# ---- reading an untrusted tree --------------------------------------------------------------------------------------


def _section(tree: Any, key: str) -> Tree:
    value = tree.get(key) if isinstance(tree, dict) else None
    return value if isinstance(value, dict) else {}


def _each(parent: Tree, path: Path, key: str) -> Iterator[tuple[Path, Tree]]:
    """The mappings in the list ``parent[key]``, each with its path."""
    value = parent.get(key)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield (*path, key, index), item


def _one_of(section: Tree, path: Path, keys: tuple[str, ...]) -> Iterator[Fault]:
    given = [key for key in keys if section.get(key) is not None]
    choice = f"{', '.join(keys[:-1])} or {keys[-1]}"
    if not given:
        yield Fault(path, f"needs one of {choice}")
    for key in given[1:]:
        yield Fault((*path, key), f"{given[0]} is given already; keep one of {choice}")


def _known(names: Iterable[str]) -> str:
    known = sorted(names)[:8]
    return f"; known: {', '.join(known)}" if known else ""


def _address(value: Any) -> HostPort | None:
    try:
        return HostPort.parse(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _int(value: Any) -> int | None:
    value = number(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
