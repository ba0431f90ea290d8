"""An edge in the test's own loop, with a node that is configured and not there: for what it answers by itself.

async with edge(cors_origins=["*"]) as (one, address):
    answer = await get(address, "/v1/models", "Origin: http://a")
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from iop.config.load import parse_edge
from iop.edge.app import Edge
from iop.net.loop import Runtime
from iop.observability.logs import Sink
from tests.support.aio import until
from tests.support.http import Address, Answer, Client, chat, post

LOCAL = "127.0.0.1:0"


class Kept(Sink):
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.dropped = 0

    def outcome(self, record: Any) -> None:
        self.records.append(record)


@asynccontextmanager
async def edge(**http: Any) -> AsyncIterator[tuple[Edge, Address]]:
    """``http`` is that section of the file. The model is ``org/big model``, alias ``small``."""
    config = {
        "http": {"listen": LOCAL, **http},
        "transport": {"listen": LOCAL},
        "admin": {"listen": LOCAL},
        "nodes": [{"id": "n", "token_sha256": "0" * 64, "providers": [{"id": "p", "kind": "echo"}]}],
        "models": [
            {"id": "org/big model", "aliases": ["small"], "candidates": [{"node": "n", "provider": "p", "target": "t"}]}
        ],
    }
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    one = Edge(parse_edge(json.dumps(config), source="test"), runtime, Kept())
    await one.start()
    try:
        yield one, ("127.0.0.1", one.http_port)
    finally:
        one.close()
        one.http.close()
        await until(lambda: not one.http.connections)
        runtime.close()


async def ask(address: Address, *lines: str, path: str = "/v1/chat/completions") -> Answer:
    """The answer to a chat request with these header lines, on a connection of its own."""
    client = await Client.connect(address)
    client.send(post(path, chat("small"), dict(line.split(": ", 1) for line in lines)))
    answer = await client.answer()
    await client.close()
    return answer


async def get(address: Address, path: str, *lines: str, method: str = "GET") -> Answer:
    """The answer to a request without a body."""
    client = await Client.connect(address)
    client.send("\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode("latin-1"))
    answer = await client.answer()
    await client.close()
    return answer
