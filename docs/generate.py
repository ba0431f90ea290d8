"""Writes docs/configuration.md, every setting with its type, bounds, default and meaning, and docs/states.md.

    python docs/generate.py          # `make docs`; a test compares what it would write with what is there

Types, bounds and defaults come from the models that validate the files, so they cannot be wrong. Meanings are the
comments of configs/edge.yaml and configs/node.yaml, and, for what these do not show line by line, the table below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iop.config.edge import EdgeConfig
from iop.config.node import NodeConfig
from iop.edge.requests import attempts
from iop.execution import gate, terminal
from iop.net.http import server
from iop.node.calls import call, watchdog
from iop.node.uplink import reconnect
from iop.pool import evidence, registry
from iop.wire import session

ROOT = Path(__file__).resolve().parents[1]

STATES = """\
# States

Written by `make docs` from the tables that the programs run by; do not edit. An event that a state does not list is a
fault of IOP: it raises InvalidTransition. [ARCHITECTURE.md](../ARCHITECTURE.md) says what each machine is for.
"""

#: The module of each machine, and its table.
MACHINES = {module.__name__: module.TRANSITIONS for module in (
    server, attempts, registry, evidence, session, call, watchdog, gate, terminal, reconnect,
)}  # fmt: skip

INTRODUCTION = """\
# Configuration

Written by `make docs` from the models that read the files; do not edit. `iop-edge check` and `iop-node check` report
every fault of a file at once, with a hint for a misspelt key. [configs/edge.yaml](../configs/edge.yaml) and
[configs/node.yaml](../configs/node.yaml) show the same settings as files. `${NAME}` is that environment variable,
`${NAME:-text}` falls back to the text, and `$${` stands for `${`. What is marked [restart] waits for the next start of
the edge; everything else of edge.yaml `iop-edge reload` takes over. A node reads its file when it starts.
"""

#: What the example files do not say on a line of its own.
MEANINGS = {
    "http.tls.cert": "PEM file with the certificate and those between it and its CA",
    "http.tls.key": "PEM file with its private key, without a passphrase",
    "http.allow_anonymous": "serve other machines without a key",
    "http.api_keys[].principal": "whose key it is: in logs, and the unit of queue.max_waiters_per_principal",
    "http.api_keys[].key_env": "variable that holds the key",
    "http.api_keys[].key_file": "file that holds it, one line",
    "http.api_keys[].key_sha256": "its SHA-256, 64 hex digits; one of the three is given",
    "http.api_keys[].requests_per_minute": "in any 60 seconds",
    "http.api_keys[].enabled": "false: it is refused as an unknown one is",
    "http.max_header_bytes": "one request's head",
    "http.header_timeout_sec": "from the first byte of a head to its last",
    "http.max_connections": "at a time; above it 503",
    "transport.max_frame_bytes": "of one frame from a node",
    "transport.allow_plaintext": "let nodes of other machines in without TLS [restart]",
    "transport.tls.cert": "PEM file: the edge's certificate and its CA",
    "transport.tls.key": "PEM file with its private key",
    "transport.tls.client_ca": "PEM file: nodes have to show a certificate of this CA",
    "edge.id": "its name in the status [restart]",
    "admin.listen": "null or `admin: null` disables it [restart]",
    "queue.timeout_ms": "how long a request waits for a slot",
    "queue.max_waiters_per_principal": "of one key's owner, over all models",
    "recovery.max_attempts": "further attempts of one request, over all causes; 0 = none",
    "recovery.max_body_bytes": "a larger body is not kept for another attempt",
    "security.trust_domain": "later versions",
    "security.ca": "later versions",
    "security.lease_signing_key_file": "later versions",
    "security.lease_ttl_sec": "later versions",
    "security.credentials": "later versions",
    "security.mode": "open; managed in later versions",
    "nodes[].id": "the node's name",
    "nodes[].token_env": "variable that holds the node's token",
    "nodes[].token_file": "file that holds it",
    "nodes[].token_sha256": "its SHA-256, 64 hex digits; one of the three is given",
    "nodes[].providers[].id": "the provider's name, unique over the whole edge",
    "nodes[].providers[].connect_timeout_ms": "for making a connection",
    "nodes[].providers[].health.path": "a path of the server to ask instead of what its kind is asked by itself",
    "nodes[].providers[].health.timeout_ms": (
        "for one look at the provider, all questions together; a stall is told after 3 s at the latest"
    ),
    "nodes[].providers[].enabled": "false: it gets no request",
    "models[].aliases": "more names for it",
    "models[].candidates[].node": "a node's id",
    "models[].candidates[].provider": "a provider of that node",
    "models[].candidates[].target": "the model's name there",
    "models[].candidates[].priority": "the lowest goes first",
    "node.tls": "none = without TLS; {} = with the system's CAs, by the host's name",
    "node.tls.ca": "PEM file: the CA of the edge",
    "node.tls.key": "PEM file with the private key of cert",
    "node.token_file": "file that holds the node's token",
}


def main() -> None:
    (ROOT / "docs/configuration.md").write_text(document(), encoding="utf-8")
    (ROOT / "docs/states.md").write_text(states(), encoding="utf-8")


def states() -> str:
    """The whole file of the machines."""
    diagrams = (
        f"\n## {table.name} (`{module}`)\n\n```mermaid\n{table.diagram()}\n```\n" for module, table in MACHINES.items()
    )
    return STATES + "".join(diagrams)


def document() -> str:
    """The whole file."""
    parts = [INTRODUCTION]
    for name, model in (("edge.yaml", EdgeConfig), ("node.yaml", NodeConfig)):
        schema = model.model_json_schema()
        said = dict(comments((ROOT / "configs" / name).read_text(encoding="utf-8")))
        parts.append(f"\n## {name}\n")
        for title, rows in sections(schema):
            parts.append(f"\n### {title}\n\n| setting | type | default | meaning |\n| --- | --- | --- | --- |\n")
            for path, kind, default in rows:
                meaning = (MEANINGS.get(path) or said.get(path) or "").replace("|", "\\|")
                parts.append(f"| `{path.removeprefix(title + '.')}` | {kind} | {default} | {meaning} |\n")
    return "".join(parts)


Row = tuple[str, str, str]


def sections(schema: dict[str, Any]) -> Iterator[tuple[str, list[Row]]]:
    """Each section with its settings, in the order of the models."""
    for name, field in schema["properties"].items():
        path = name + ("[]" if _items(schema, field) else "")
        rows = list(settings(schema, field, path))
        yield path, rows


def settings(schema: dict[str, Any], field: dict[str, Any], path: str) -> Iterator[Row]:
    """The settings below ``path``; of a list those of one entry."""
    inner = _object(schema, field) or _object(schema, _items(schema, field) or {})
    if inner is None:
        yield path, _kind(field), _default(field)
        return
    required = inner.get("required", [])
    for name, child in inner["properties"].items():
        below = f"{path}.{name}"
        item = _items(schema, child)
        if _object(schema, child) is not None:
            if child.get("default", "") is None or "anyOf" in child:
                yield below, "section", _default(child)
            yield from settings(schema, child, below)
        elif item is not None and _object(schema, item) is not None:
            yield below, "list", _default(child)
            yield from settings(schema, child, below + "[]")
        else:
            yield below, _kind(child), "**required**" if name in required else _default(child)


def _variants(field: dict[str, Any]) -> list[dict[str, Any]]:
    return [v for v in field.get("anyOf", [field]) if v.get("type") != "null"]


def _object(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any] | None:
    for variant in _variants(field):
        ref = variant.get("$ref")
        if ref is not None:
            found: dict[str, Any] = schema["$defs"][ref.rpartition("/")[2]]
            return found if "properties" in found else None
    return None


def _items(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any] | None:
    for variant in _variants(field):
        if variant.get("type") == "array":
            items: dict[str, Any] = variant.get("items", {})
            return items if _object(schema, items) is not None else None
    return None


def _kind(field: dict[str, Any]) -> str:
    kinds = []
    for v in _variants(field):
        low, high = v.get("minimum", v.get("ge")), v.get("maximum", v.get("le"))
        above = v.get("exclusiveMinimum", v.get("gt"))
        kind = {"integer": "integer", "number": "number", "boolean": "true, false", "array": "list"}.get(
            v.get("type", ""), "text"
        )
        if "enum" in v:
            kind = ", ".join(f"`{value}`" for value in v["enum"])
        elif low is not None or above is not None:
            kind += f" {low if low is not None else f'above {above}'}" + (f" to {high}" if high is not None else "")
        kinds.append(kind)
    return " or ".join(dict.fromkeys(kinds)) or "text"


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return "" if "$ref" in field else "**required**"
    value = field["default"]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "none" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


_LINE = re.compile(r"^(?P<indent> *)(?P<item>- )?(?P<key>[a-z_0-9]+):(?P<rest>.*?)(?:(?:^|\s)# ?(?P<comment>.*))?$")
_MORE = re.compile(r"^ {20,}# ?(?P<comment>.*)$")


def comments(text: str) -> Iterator[tuple[str, str]]:
    """By path, the comment that stands behind a setting; one may go on below it. Settings that are shown commented out
    count like others."""
    stack: list[tuple[int, str]] = []
    path, said = "", ""
    for line in text.splitlines():
        more = _MORE.match(line)
        if more is not None and path:
            said += " " + more["comment"]
            continue
        if path and said:
            yield path, said
        path, said = "", ""
        match = _LINE.match(re.sub(r"^( *)# (?=(- )?[a-z_0-9]+:| )", r"\1", line))
        if match is None:
            continue
        indent = len(match["indent"]) + len(match["item"] or "")
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if match["item"] and stack and not stack[-1][1].endswith("[]"):
            stack[-1] = (stack[-1][0], stack[-1][1] + "[]")
        stack.append((indent, match["key"]))
        path = ".".join(key for _, key in stack)
        said = (match["comment"] or "").strip()
    if path and said:
        yield path, said


if __name__ == "__main__":
    main()
