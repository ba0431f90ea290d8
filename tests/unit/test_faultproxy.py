"""The fault proxy and the ledger, on which tests/chaos relies: a fault that does nothing would prove nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from tests.support.aio import async_test
from tests.support.faultproxy import FaultProxy, Weather
from tests.support.ledger import Ledger

BLOB = bytes(range(256)) * 40


class Echo(asyncio.Protocol):
    """Sends back what comes, and remembers in which pieces it came and how it ended."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[FaultProxy, list[Echo]]]:
    made: list[Echo] = []

    def make() -> Echo:
        made.append(Echo())
        return made[-1]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        async with FaultProxy(server.sockets[0].getsockname()) as proxy:
            yield proxy, made
    finally:
        server.close()
        await server.wait_closed()
        for echo in made:
            echo.transport.abort()
            await echo.ended


@asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*proxy.address)
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> float:
    """Seconds until it has come back, the same."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return loop.time() - began


@async_test()
async def test_good_weather_passes_everything_both_ways() -> None:
    async with echoing() as (proxy, _), connected(proxy) as link:
        await through(*link, BLOB)
        assert (proxy.connections, proxy.passed_bytes) == (1, 2 * len(BLOB))


@async_test()
async def test_slices_arrive_one_by_one_and_in_order() -> None:
    async with echoing() as (proxy, made), connected(proxy) as link:
        proxy.weather = Weather(slice_bytes=3)
        await through(*link, BLOB[:200])
        assert len(made[0].pieces) > 20
        assert b"".join(made[0].pieces) == BLOB[:200]


@pytest.mark.parametrize(
    ("weather", "least_s"),
    [
        (Weather(latency_s=0.1), 0.2),
        (Weather(up_delay_s=0.15), 0.15),
        (Weather(down_delay_s=0.15), 0.15),
        (Weather(bytes_per_s=50_000), 0.2),
    ],
)
@async_test()
async def test_weather_costs_its_time_and_no_byte(weather: Weather, least_s: float) -> None:
    async with echoing() as (proxy, _), connected(proxy) as link:
        proxy.weather = weather
        assert await through(*link, BLOB) >= least_s - 0.01
        proxy.weather = Weather()
        await through(*link, BLOB)


@async_test()
async def test_half_open_swallows_both_ways_and_closes_nothing_and_a_new_connection_works() -> None:
    async with echoing() as (proxy, made), connected(proxy) as (reader, writer):
        await through(reader, writer, b"before")
        proxy.half_open()
        writer.write(b"lost")
        made[0].transport.write(b"lost as well")
        async with connected(proxy) as fresh:
            await through(*fresh, BLOB)
        writer.write_eof()  # and nobody is told of the end
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        assert made[0].pieces == [b"before"]
        assert not made[0].ended.done()


@pytest.mark.parametrize(("how", "error"), [("cut", None), ("reset", ConnectionResetError)])
@async_test()
async def test_cut_and_reset_reach_both_ends(how: str, error: type[Exception] | None) -> None:
    async with echoing() as (proxy, made), connected(proxy) as (reader, writer):
        await through(reader, writer, b"before")
        getattr(proxy, how)()
        if error is None:
            assert await reader.read() == b""
            assert await made[0].ended is None
        else:
            with pytest.raises(error):
                await reader.read()
            assert isinstance(await made[0].ended, error)


@async_test()
async def test_refusing_resets_whoever_comes() -> None:
    async with echoing() as (proxy, made):
        proxy.refusing = True
        async with connected(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert made == []


def test_a_request_that_ends_twice_is_noticed() -> None:
    ledger = Ledger()
    ledger.enter(1, "complete")
    with pytest.raises(AssertionError, match="request 1 ended twice: complete, broken"):
        ledger.enter(1, "broken")
