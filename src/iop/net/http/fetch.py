"""One small HTTP/1.1 exchange with a provider, beside the tunnels: a question to its engine, a probe (API-6, EXEC-8).

It has a connection of its own, so that it waits behind no request, and reads under the same rules as the tunnels do.
Bounds: the answer in bytes here, the time by the caller's ``asyncio.timeout``; a cancelled one closes its socket.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module

from iop._fast.body import FRAMING_NONE, BodyDecoder, HeadFinder
from iop.errors import (
    IopError,
    NodeExhausted,
    PayloadTooLarge,
    ProviderConnectionLost,
    ProviderProtocolError,
    ProviderUnreachable,
)
from iop.net.flow import is_exhausted
from iop.net.http.client import MAX_HEAD_BYTES, MAX_INTERIM, Origin
from iop.net.http.head import ResponseHead, parse_response

__all__ = ["AnswerTooLarge", "fetch"]

READ_BYTES = 65536


class AnswerTooLarge(ProviderProtocolError):
    """The body of an answer is above the caller's bound. ``provider_status`` is the answer's status, which came before
    the body; ``status`` stays what clients get."""

    def __init__(self, provider_status: int) -> None:
        super().__init__("the provider's answer is too large")
        self.provider_status = provider_status


async def fetch(
    origin: Origin,
    method: bytes,
    path: bytes,
    *,
    fields: bytes,
    body: bytes = b"",
    max_bytes: int,
    ssl: ssl_module.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Status and body of the answer. ``path`` is the whole target, ``fields`` the header lines, Host included.

    Raises ProviderUnreachable, ProviderConnectionLost, or ProviderProtocolError; AnswerTooLarge, which is one of the
    last kind, for a body above ``max_bytes``; NodeExhausted where it is this machine that can open no connection.
    """
    try:
        if origin.scheme == "unix":
            reader, writer = await asyncio.open_unix_connection(origin.unix_path)
        else:
            reader, writer = await asyncio.open_connection(origin.host, origin.port, ssl=ssl)
    except (OSError, ssl_module.SSLError) as exc:
        if is_exhausted(exc):
            raise NodeExhausted from None
        raise ProviderUnreachable from None
    try:
        length = b"content-length: %d\r\n" % len(body) if body else b""
        writer.write(b"%b %b HTTP/1.1\r\n%b%bconnection: close\r\n\r\n%b" % (method, path, fields, length, body))
        head, rest = await _head(reader)
        return head.status, await _body(reader, head, rest, max_bytes)
    except OSError:
        raise ProviderConnectionLost from None
    except (ProviderConnectionLost, ProviderProtocolError):
        raise
    except PayloadTooLarge:
        raise AnswerTooLarge(head.status) from None
    except IopError:  # of the head or the body, with what was wrong in it
        raise ProviderProtocolError from None
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    return await reader.read(READ_BYTES)


async def _head(reader: asyncio.StreamReader) -> tuple[ResponseHead, bytes]:
    """The final head and what came behind it."""
    finder = HeadFinder(MAX_HEAD_BYTES)
    data = b""
    for _ in range(MAX_INTERIM + 1):
        while True:
            block, used = finder.feed(data)
            data = data[used:]
            if block is not None:
                break
            data = await _read(reader)
            if not data:
                raise ProviderConnectionLost
        head = parse_response(block)
        if head.status >= 200:
            return head, data
    raise ProviderProtocolError


async def _body(reader: asyncio.StreamReader, head: ResponseHead, data: bytes, max_bytes: int) -> bytes:
    if head.framing == FRAMING_NONE:
        return b""
    decoder = BodyDecoder(head.framing, head.content_length, max_bytes)
    pieces: list[bytes] = []
    while True:
        if data:
            pieces += decoder.feed(data)[0]
        if decoder.done:
            return b"".join(pieces)
        data = await _read(reader)
        if not data:
            if decoder.eof():
                return b"".join(pieces)
            raise ProviderConnectionLost
