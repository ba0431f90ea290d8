"""What is told of a provider at an https base_url with which there is no TLS (TUN-7, API-5)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from iop.errors import IopError
from iop.net.http.client import Origin, ProviderPool
from iop.net.loop import Runtime
from iop.tls.contexts import served
from tests.support.aio import async_test
from tests.support.certificates import Certificates

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class Waiter:
    """A call that wants a connection and does not get one."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[IopError] = asyncio.get_running_loop().create_future()

    def connected(self, connection: object) -> None:
        raise AssertionError("there is no TLS")

    def connect_failed(self, error: IopError) -> None:
        self.failed.set_result(error)


def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the node gives up
    writer.close()


@pytest.mark.req("TUN-7", "API-5")
@pytest.mark.parametrize(
    ("handler", "told"),
    [
        (plain, "the provider does not answer in TLS; is its base_url to begin with http://?"),
        (silent, "the provider did not accept a TLS connection within connect_timeout_ms"),
    ],
)
@async_test()
async def test_a_provider_without_tls_is_told_as_that(handler: Handler, told: str) -> None:
    assert await refusal(handler) == told


@pytest.mark.req("TUN-7", "API-5")
@async_test()
async def test_a_provider_of_an_unknown_ca_is_told_as_that(tmp_path: Path) -> None:
    files = Certificates(tmp_path).edge()
    told = await refusal(silent, served(Path(files["cert"]), Path(files["key"])).context)
    assert "self-signed certificate in certificate chain" in told
    assert "SSL_CERT_FILE" in told


async def refusal(handler: Handler, tls: ssl.SSLContext | None = None) -> str:
    """What a call is told that asks for a connection to such a server."""
    runtime = Runtime(asyncio.get_running_loop())
    async with await asyncio.start_server(handler, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        origin = Origin.parse(f"https://127.0.0.1:{port}/v1")
        pool = ProviderPool(runtime, origin, connect_timeout_s=0.3, idle_s=1.0)
        call = Waiter()
        pool.connect(call)  # type: ignore[arg-type]
        error = await call.failed
        pool.close()
    assert error.code == "provider_unreachable"
    return error.message
