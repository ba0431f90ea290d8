"""Files to configuration objects, with every fault of a file in one answer (CONF-1)."""

from __future__ import annotations

import json
import os
import stat
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from iop.config.edge import AUTO, EdgeConfig
from iop.config.fields import Context, Fault, HostPort
from iop.config.node import NodeConfig
from iop.config.rules import ADMIN_LISTEN, TRANSPORT_LISTEN, edge_faults, node_faults
from iop.config.source import SOURCE_BYTES, Lines, read_tree
from iop.errors import ConfigError

__all__ = [
    "admin_address",
    "field_faults",
    "keys_path",
    "load_edge",
    "load_node",
    "node_port",
    "parse_edge",
    "parse_node",
    "render",
]

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def load_edge(path: str | Path, *, env: Mapping[str, str] = os.environ) -> EdgeConfig:
    """Reads an edge's file. Raises :class:`ConfigError` with all faults, each ``FILE:LINE: where: what to do``."""
    return parse_edge(_read(path), source=str(path), base=Path(path).parent, env=env)


def load_node(path: str | Path, *, env: Mapping[str, str] = os.environ) -> NodeConfig:
    """Reads a node's file; as :func:`load_edge`."""
    return parse_node(_read(path), source=str(path), base=Path(path).parent, env=env)


def admin_address(path: str | Path, *, env: Mapping[str, str] = os.environ) -> HostPort | None:
    """Where an edge with this file has its admin listener, None if it has none. Raises ConfigError."""
    tree = _glance(path, env)
    section = tree.get("admin", {})
    if section is None or (isinstance(section, dict) and "listen" in section and section["listen"] is None):
        return None
    address = section.get("listen", ADMIN_LISTEN) if isinstance(section, dict) else section
    try:
        return HostPort.parse(str(address))
    except ValueError as error:
        raise ConfigError([f"{path}: admin.listen: {error}"]) from None


def node_port(path: str | Path, *, env: Mapping[str, str] = os.environ) -> tuple[HostPort, Path | None, list[str]]:
    """Where an edge with this file lets nodes in, the certificates that it shows them (None: it has no TLS), and the
    ids of its nodes. Raises ConfigError."""
    tree = _glance(path, env)
    section = tree.get("transport")
    section = section if isinstance(section, dict) else {}
    try:
        listen = HostPort.parse(str(section.get("listen", TRANSPORT_LISTEN)))
    except ValueError as error:
        raise ConfigError([f"{path}: transport.listen: {error}"]) from None
    tls = section.get("tls")
    cert = tls.get("cert") if isinstance(tls, dict) else None
    nodes = tree.get("nodes")
    ids = [str(node.get("id")) for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    return listen, Path(path).parent / Path(cert).expanduser() if isinstance(cert, str) and cert else None, ids


def keys_path(path: str | Path, *, env: Mapping[str, str] = os.environ) -> Path | None:
    """The keys file of an edge with this file, None if it names none. Raises ConfigError."""
    section = _glance(path, env).get("http")
    name = section.get("keys_file") if isinstance(section, dict) else None
    if name is None:
        return None
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError([f"{path}: http.keys_file: write the path of a file"])
    return Path(path).parent / Path(name).expanduser()


def _glance(path: str | Path, env: Mapping[str, str]) -> dict[str, Any]:
    """An edge's file as it stands. Nothing is checked, so that neither a fault elsewhere nor a secret that only the
    edge is given stands in the way of a command."""
    tree, _, faults = read_tree(_read(path), env)
    if not isinstance(tree, dict):
        raise ConfigError([f"{path}: {fault.message}" for fault in faults] or [f"{path}: not the file of an edge"])
    return tree


def parse_edge(
    text: str | bytes, *, source: str = "edge.yaml", base: Path = Path(), env: Mapping[str, str] = os.environ
) -> EdgeConfig:
    """An edge's configuration from YAML text (JSON is YAML too); relative paths count from ``base``."""
    return _parse(EdgeConfig, text, Context(env, base), source=source, rules=edge_faults, twins=_twins)


def parse_node(
    text: str | bytes, *, source: str = "node.yaml", base: Path = Path(), env: Mapping[str, str] = os.environ
) -> NodeConfig:
    """A node's configuration from YAML text."""
    return _parse(NodeConfig, text, Context(env, base), source=source, rules=node_faults, twins=lambda _: ())


def _read(path: str | Path) -> bytes:
    try:
        # Not blocking: what is named may be a pipe that nobody writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError([f"{path}: not a file; name one, or write what it gives into one"])
            return stream.read(SOURCE_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot read it: {error.strerror}"]) from None


def _parse(
    model: type[ConfigT],
    text: str | bytes,
    context: Context,
    *,
    source: str,
    rules: Callable[[dict[str, Any]], Iterable[Fault]],
    twins: Callable[[ConfigT], Iterable[Fault]],
) -> ConfigT:
    tree, lines, faults = read_tree(text, context.env)
    if isinstance(tree, dict):
        tree = _with_sections(model, _spelled_out(tree))
        faults.extend(rules(tree))
        try:
            # JSON, because strict typing there still lets a list be a tuple and a string be a path.
            config = model.model_validate_json(json.dumps(tree, default=str), context=context)
        except ValidationError as error:
            told = {fault.path for fault in faults}  # such as an unset variable, which leaves an empty value
            faults.extend(fault for fault in field_faults(model, error) if fault.path not in told)
        else:
            faults.extend(twins(config))
            if not faults:
                return config
    elif not faults:
        faults.append(Fault((), "should be sections such as 'http:', not a list or a single value"))
    raise ConfigError(render(faults, lines, source))


_MAY_BE_AUTO = ("models", "providers", "candidates")


def _spelled_out(tree: dict[str, Any]) -> dict[str, Any]:
    """``auto`` as what it is short for: a provider entry of that kind named after its node, a model entry that fits
    every name, and no candidates."""
    if tree.get("models") == AUTO:
        tree["models"] = [{"id": "*"}]
    for node in _mappings(tree.get("nodes")):
        if node.get("providers") == AUTO:
            node["providers"] = [{"id": node.get("id"), "kind": AUTO}]
    for model in _mappings(tree.get("models")):
        if model.get("candidates") == AUTO:
            del model["candidates"]
    return tree


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _with_sections(model: type[BaseModel], tree: dict[str, Any]) -> dict[str, Any]:
    """A section that is absent, or named and left empty, is one of defaults: written out here, so that its relative
    paths count from the file's folder as well. ``admin: null`` disables that listener."""
    if "admin" in tree and tree["admin"] is None:
        tree["admin"] = {"listen": None}
    sections: dict[str, Any] = {
        name: {}
        for name, field in model.model_fields.items()
        if not field.is_required() and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    return sections | {key: value for key, value in tree.items() if value is not None}


def _twins(config: EdgeConfig) -> Iterable[Fault]:
    """Secrets that two entries share: then it would not be clear who came (REG-1, API-4)."""
    tokens: dict[bytes, str] = {}
    for index, node in enumerate(config.nodes):
        if node.token_hash in tokens:
            yield Fault(("nodes", index), f"has the same token as node {tokens[node.token_hash]!r}; give each its own")
        tokens.setdefault(node.token_hash, node.id)
    keys: set[bytes] = set()
    for index, key in enumerate(config.http.api_keys):
        if key.key_hash in keys:
            yield Fault(("http", "api_keys", index), "the same key as an earlier entry")
        keys.add(key.key_hash)


# ---- faults as text -------------------------------------------------------------------------------------------------


def field_faults(model: type[BaseModel], error: ValidationError) -> Iterable[Fault]:
    """What pydantic found, in our words."""
    # Neither input nor URL: the input may be a secret.
    items = error.errors(include_input=False, include_url=False)
    inner = {item["loc"][:end] for item in items for end in range(len(item["loc"]))}
    for item in items:
        path = item["loc"]
        match item["type"]:
            case "extra_forbidden":
                yield Fault(path, _unknown(model, path))
            case "missing":
                yield Fault(path, "required")
            case "too_short" if path in inner:
                pass  # not empty: what it has is at fault, and told
            case "too_short":
                yield Fault(path, "should not be empty")
            case "tuple_type":
                yield Fault(path, "should be a list" + (", or the word auto" if path[-1] in _MAY_BE_AUTO else ""))
            case "string_type":
                yield Fault(path, "should be text; put it in quotes")
            case _:
                yield Fault(path, item["msg"].replace("Input should", "should"))


def _unknown(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    owner = _model_at(model, path[:-1])
    known = sorted(owner.model_fields) if owner else []
    close = get_close_matches(str(path[-1]), known, 1)
    return f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; known here: {', '.join(known)}"


def _model_at(annotation: Any, path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model class that a path leads to, through optionals and tuples."""
    while typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is tuple:
        return _model_at(typing.get_args(annotation)[0], path[1:])
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return None
    if not path:
        return annotation
    field = annotation.model_fields.get(str(path[0]))
    return _model_at(field.annotation, path[1:]) if field else None


def render(faults: list[Fault], lines: Lines, source: str) -> list[str]:
    """One line per fault, in the order of the file, no line twice."""
    located = [(_line(fault.path, lines), fault) for fault in faults]
    located.sort(key=lambda item: item[0] or 0)
    texts = []
    for line, fault in located:
        where = f"{source}:{line}" if line else source
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.path).lstrip(".")
        texts.append(": ".join(filter(None, (where, path, fault.message))))
    return list(dict.fromkeys(texts))


def _line(path: tuple[str | int, ...], lines: Lines) -> int | None:
    for end in range(len(path), -1, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None
