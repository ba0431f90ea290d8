"""What cannot be sent again goes on a fresh connection, and nothing else does (TUN-5b, API-8).

The node is a bare socket. It reports that a kept connection was dead, so that the edge itself shows whether it could
send the request again.
"""

from __future__ import annotations

import gzip
from itertools import product
from typing import Any

import pytest

from iop.edge.requests.normalized_run import RunSpec, submit_run
from iop.edge.requests.retry import Limits
from iop.errors import RequestCancelled
from iop.wire import codec
from iop.wire import messages as m
from tests.integration.test_provider_health import CHAT, Scene, scene
from tests.integration.test_run_recovery import Hears, K, say
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post

RESPONSES = "/v1/responses"
HELD_BYTES = 1000
CODINGS = {"plain": None, "gzip": 9, "stored": 0}  # a stored body is larger in gzip than plain


def asked(coding: str, plain_bytes: int, side_effects: bool) -> bytes:
    """A request whose plain body has ``plain_bytes`` bytes."""
    path = RESPONSES if side_effects else CHAT
    more = {"input": "x", "store": True} if side_effects else {}
    body = chat("alone", text="", **more)
    body = chat("alone", text="x" * (plain_bytes - len(body)), **more)
    assert len(body) == plain_bytes
    level = CODINGS[coding]
    if level is None:
        return post(path, body)
    packed = gzip.compress(body, level)
    assert (len(packed) > HELD_BYTES) is (level == 0)
    return post(path, packed, {"Content-Encoding": "gzip"})


def end(at: Scene, request: m.ProviderTunnelRequest | m.RunRequest, failure: m.ExecutionFailure) -> None:
    if isinstance(request, m.RunRequest):
        say(at.one, request, m.RunEvent(K.ERROR, failure=failure))
    else:
        at.one.send(codec.tunnel_error(request.stream_id, 0, failure))


async def sent_again(at: Scene, first: m.ProviderTunnelRequest | m.RunRequest) -> bool:
    """Whether the edge sends the one request again behind the loss of a kept connection; it ends in any case."""
    live = at.edge.dispatcher.live
    (request,) = live
    end(
        at,
        first,
        m.ExecutionFailure(m.ErrorCode.PROVIDER_CONNECTION_LOST, connection_reused=True, close_confirmed=True),
    )
    await until(lambda: not live or request.attempts == 2)
    again = bool(live)
    if again:
        second: Any = await at.one.message()
        assert second.lease.attempt == 2
        request.stop(RequestCancelled())
        assert isinstance(await at.one.message(), m.CancelRequest)
        end(at, second, m.ExecutionFailure(m.ErrorCode.CANCELLED, close_confirmed=True))
        await until(lambda: not live)
    return again


@pytest.mark.req("TUN-5b", "API-8")
@pytest.mark.parametrize("attempts", [0, 1])
def test_a_request_goes_on_a_fresh_connection_exactly_if_it_cannot_be_sent_again(attempts: int) -> None:
    @async_test()
    async def body() -> None:
        async with scene() as at:
            at.edge.dispatcher.recovery = Limits(attempts, HELD_BYTES)
            for coding, size, side_effects in product(CODINGS, (HELD_BYTES - 10, HELD_BYTES + 10), (False, True)):
                client = await Client.connect(("127.0.0.1", at.edge.http_port))
                at.clients.append(client)
                client.send(asked(coding, size, side_effects))
                first = await at.request(at.one)
                case = (coding, size, side_effects)
                again = await sent_again(at, first)
                assert again is (attempts == 1 and size < HELD_BYTES and not side_effects), case
                assert first.fresh_connection is not again, case
                await client.answer()
                await client.close()

    body()


@pytest.mark.req("TUN-5b", "API-8")
@pytest.mark.parametrize("attempts", [0, 1])
def test_a_run_goes_on_a_fresh_connection_exactly_if_it_cannot_be_sent_again(attempts: int) -> None:
    @async_test()
    async def body() -> None:
        async with scene() as at:
            at.edge.dispatcher.recovery = Limits(attempts, HELD_BYTES)
            for size, replayable in product((HELD_BYTES, HELD_BYTES + 1), (False, True)):
                spec = RunSpec(b'{"prompt":"%b"}' % (b"x" * (size - 13)), model="alone", replayable=replayable)
                submit_run(at.edge.dispatcher, spec, Hears(), "operator")
                first = await at.one.message()
                assert isinstance(first, m.RunRequest)
                again = await sent_again(at, first)
                assert again is (attempts == 1 and size <= HELD_BYTES and replayable)
                assert first.fresh_connection is not again

    body()
