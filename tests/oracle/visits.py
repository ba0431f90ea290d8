"""Clients of generated exchanges: how they ask, and how they read."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.answers import Answer, draw, size
from tests.support.faultyprovider import APIS, PATHS, STREAMED

MAX_REQUEST_BYTES = 300_000
KINDS = ("application/json", "application/json", "application/json; charset=utf-8", None,
         "application/x-www-form-urlencoded", "text/plain")  # fmt: skip


@dataclass(frozen=True)
class Exchange:
    """One request and what its provider answers. ``request`` is what the client sends, ``plain`` its JSON."""

    api: str
    stream: bool
    plain: dict[str, Any] = field(repr=False)
    fields: list[tuple[str, str]]
    chunked: bool
    answer: Answer


@dataclass(frozen=True)
class Visit:
    """One client connection. ``secure_provider`` is behind TLS; ``slow`` reads through a small window."""

    seed: int
    stand: int
    secure_provider: bool
    http10: bool
    keep: bool
    pipelined: bool
    slow: bool
    exchanges: list[Exchange]


def visit(seed: int, stands: int) -> Visit:
    """The visit of this number, at one of so many stands."""
    rng = random.Random(seed)
    stand = rng.randrange(stands)
    http10 = rng.random() < 0.2
    keep = rng.random() < 0.6
    count = rng.choice((1, 2, 3)) if keep else 1
    exchanges = [_exchange(rng, http10=http10) for _ in range(count)]
    return Visit(
        seed,
        stand,
        secure_provider=rng.random() < 0.3,
        http10=http10,
        keep=keep,
        pipelined=keep and rng.random() < 0.3,
        slow=rng.random() < 0.25,
        exchanges=exchanges,
    )


def _exchange(rng: random.Random, *, http10: bool) -> Exchange:
    api = rng.choice(APIS)
    stream = api in STREAMED and rng.random() < 0.6
    plain: dict[str, Any] = {"model": "", "text": "y" * size(rng, MAX_REQUEST_BYTES)}
    if stream:
        plain["stream"] = True

    fields = []
    kind = rng.choice(KINDS)
    if kind is not None:
        fields.append(("Content-Type", kind))
    encoded = rng.random() < 0.1
    if encoded:
        fields.append(("Content-Encoding", "gzip"))
    takes_gzip = rng.random() < 0.3
    if takes_gzip:
        fields.append(("Accept-Encoding", "gzip"))
    answer = draw(rng, api, stream=stream, may_encode=takes_gzip and not stream)
    return Exchange(api, stream, plain, fields, chunked=not http10 and rng.random() < 0.3, answer=answer)


def request_bytes(exchange: Exchange, case: str, model: str, *, http10: bool, keep: bool) -> bytes:
    """The request as the client of IOP writes it."""
    body = json.dumps({**exchange.plain, "model": model}).encode()
    if ("Content-Encoding", "gzip") in exchange.fields:
        body = gzip.compress(body, 1)
    lines = [f"POST {PATHS[exchange.api]} HTTP/1.{0 if http10 else 1}", "Host: 127.0.0.1", f"x-case: {case}"]
    lines += [f"{name}: {value}" for name, value in exchange.fields]
    if keep and http10:
        lines.append("Connection: keep-alive")
    elif not keep and not http10:
        lines.append("Connection: close")
    if exchange.chunked:
        lines.append("Transfer-Encoding: chunked")
        half = len(body) // 2 or 1
        parts = [body[:half], body[half:]]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def direct_bytes(exchange: Exchange, case: str, provider: str, model: str) -> bytes:
    """The same question as a client of the provider itself would put it."""
    body = json.dumps({**exchange.plain, "model": model}).encode()
    path = f"/{provider}{PATHS[exchange.api]}"
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"x-case: {case}", "Content-Type: application/json"]
    lines += ["Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
