"""What a hostile or broken node may send to a real edge: a typed close, counted and logged, and nobody else notices."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from iop._fast import frame
from iop.wire import codec
from iop.wire import messages as m
from iop.wire.pb import runtime_pb2 as pb
from tests.support.aio import async_test, until
from tests.support.http import chat, post
from tests.support.provider import chat_answer
from tests.support.rawlink import RawLink
from tests.support.stack import Scene, Stack, rss_bytes

pytestmark = pytest.mark.req("WIRE-2", "WIRE-9")

TOKEN = "t1"  # of n2, which no program plays
REGISTER = codec.encode(m.RegisterRequest(TOKEN, "0", 1))
READY = codec.encode(m.NodeReadyRequest("n2", 1))
BEAT = frame.encode_heartbeat(1)


def framed(envelope: bytes) -> bytes:
    return len(envelope).to_bytes(4, "big") + envelope


async def errors(scene: Scene) -> dict[str, int]:
    """iop_edge_protocol_errors_total by reason."""
    text = await scene.metrics()
    found = re.findall(r'^iop_edge_protocol_errors_total\{reason="(\w+)"\} ([0-9.]+)$', text, re.MULTILINE)
    return {reason: int(float(count)) for reason, count in found}


@asynccontextmanager
async def unharmed(stack: Stack, reason: str, count: int = 1) -> AsyncIterator[Scene]:
    """The body makes the edge close a connection for ``reason``; the node n1 and a request through it are as before."""
    async with stack.scene() as scene:
        scene.provider.answer = lambda call: call.respond(chat_answer("hi"))
        before, lines = await errors(scene), len(stack.edge.lines)
        yield scene
        after = await errors(scene)
        changed = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
        assert changed == {reason: count}
        await until(lambda: len(closings(stack, lines)) >= count)
        assert [line["reason"] for line in closings(stack, lines)] == [reason] * count
        lost = [x for x in stack.edge.lines[lines:] if x.get("event") == "node_disconnected" and x.get("node") == "n1"]
        assert not lost
        status = await scene.status()
        assert {node["id"]: node["connected"] for node in status["nodes"]} == {"n1": True, "n2": False}
        client = await scene.send(post("/v1/chat/completions", chat("m")))
        assert (await client.answer()).status == 200


def closings(stack: Stack, after: int) -> list[dict[str, str]]:
    return [x for x in stack.edge.lines[after:] if x.get("event") == "node_connection_closed"]


FIRST_BYTES: dict[str, tuple[bytes, str]] = {
    "length 0": (b"\0\0\0\0", "frame_length"),
    "length 0xFFFFFFFF": (b"\xff\xff\xff\xff", "frame_length"),
    "cap + 1": ((16385).to_bytes(4, "big"), "frame_length"),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame_length"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "frame_length"),
    "an empty envelope": (framed(b"\xa2\x06\x01x"), "empty_payload"),
    "an unknown payload": (framed(b"\xf2\x07\x00"), "empty_payload"),
    "not protobuf": (framed(b"\xff" * 100), "malformed"),
    "bad utf-8": (framed(b"\x52\x06\x0a\x04ab\xff\xfe"), "malformed"),
    "depth 200": (framed(b"\xa3\x06" * 200 + b"\xa4\x06" * 200), "malformed"),
    "no token": (framed(pb.Envelope(register_request=pb.RegisterRequest()).SerializeToString()), "bad_message"),
    "only outlined": (
        framed(pb.Envelope(workspace_open_request=pb.WorkspaceOpenRequest()).SerializeToString()),
        "unsupported_payload",
    ),
    "1 MiB of unknown fields": (framed(REGISTER[4:] + b"\xa2\x06\x80\x80\x40" + bytes(1 << 20)), "frame_length"),
    "a heartbeat first": (BEAT, "wrong_state"),
    "a tunnel frame first": (frame.encode_tunnel_frame(1, 0, 2, b"x"), "wrong_state"),
    "a run event first": (frame.encode_run_event(1, 0, 2, b"x"), "wrong_state"),
    "ready first": (READY, "wrong_state"),
    "the other role's answer": (codec.encode(m.RegisterResponse(False)), "wrong_state"),
    "the other role's cancel": (codec.encode(m.CancelRequest(1, "r", m.CancelReason.OPERATOR)), "wrong_state"),
}


@pytest.mark.parametrize("step", [0, 1], ids=["whole", "byte-by-byte"])
@pytest.mark.parametrize("case", FIRST_BYTES)
def test_e1_e3_e4_first_bytes(stack: Stack, case: str, step: int) -> None:
    data, reason = FIRST_BYTES[case]

    @async_test()
    async def body() -> None:
        async with unharmed(stack, reason):
            link = await RawLink.connect(stack.nodes)
            if step:
                await link.drip(data[:1000])  # the fault is noticed long before
            else:
                link.send(data)
            assert await link.closed() == b"", "an answer to nonsense"
            await link.close()

    body()


AFTER_REGISTERING: dict[str, tuple[bytes, str]] = {
    "a second registration": (REGISTER, "wrong_state"),
    "a body before ready": (frame.encode_tunnel_frame(1, 0, 2, b"x"), "wrong_state"),
    "credit before ready": (frame.encode_credit(1, 1), "wrong_state"),
    "an event before ready": (codec.encode(m.EdgeNodeEvent(draining=m.Draining(1))), "wrong_state"),
    "a million empty submessages": (framed(b"\x62\x80\x89\x7a" + b"\x1a\x00" * 1_000_000), "control_frame_too_large"),
    "beyond max_frame_bytes": ((4 * 2**20 + 1).to_bytes(4, "big"), "frame_length"),
}


def found(name: str) -> bytes:
    """A report of one server, as no codec of ours would write it."""
    server = pb.DetectedServer(name=name, kind="vllm", port=8000, capacity=1)
    event = pb.EdgeNodeEvent(inventory=pb.Inventory(servers=[server]))
    return framed(pb.Envelope(edge_node_event=event).SerializeToString())


WHEN_READY: dict[str, tuple[bytes, str]] = {
    "a second registration": (REGISTER, "wrong_state"),
    "an opening to the edge": (
        codec.encode(m.ProviderTunnelRequest(1, "r", "a", "p", "t", 1, 1, 1, m.LeaseBinding(), b"GET", b"/")),
        "wrong_state",
    ),
    "a request body to the edge": (frame.encode_tunnel_body(1, b"x", True), "wrong_role"),
    "a stream that the edge never opened": (frame.encode_tunnel_frame(9, 0, 2, b"x"), "unknown_stream"),
    "stream 0": (frame.encode_tunnel_frame(0, 0, 2, b"x"), "unknown_stream"),
    "credit for no stream": (frame.encode_credit(9, 1), "unknown_stream"),
    **{
        f"a server called {name[:9]!r}": (found(name), "bad_message")
        for name in ("", "../x", "a b\n", "vLLM", "n" * 33)
    },
    "an event of no kind": (
        framed(pb.Envelope(edge_node_event=pb.EdgeNodeEvent()).SerializeToString()),
        "bad_message",
    ),
}


@pytest.mark.parametrize("case", AFTER_REGISTERING)
def test_e3_e4_between_registration_and_ready(stack: Stack, case: str) -> None:
    data, reason = AFTER_REGISTERING[case]

    @async_test()
    async def body() -> None:
        async with unharmed(stack, reason):
            link = await RawLink.connect(stack.nodes)
            assert (await link.register(TOKEN)).accepted
            link.send(data)
            await link.closed()
            await link.close()

    body()


@pytest.mark.parametrize("case", WHEN_READY)
def test_e3_e4_when_ready(stack: Stack, case: str) -> None:
    data, reason = WHEN_READY[case]

    @async_test()
    async def body() -> None:
        async with unharmed(stack, reason):
            link = await RawLink.connect(stack.nodes)
            await link.ready(TOKEN)
            link.send(data)
            await link.closed()
            await link.close()

    body()


@pytest.mark.req("WIRE-2", "TUN-1")
@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (frame.encode_tunnel_frame(1, 0, 2, b"body before head"), "wrong_state"),
        (frame.encode_tunnel_frame(1, 1, 1, status=200), "sequence"),
        (frame.encode_tunnel_frame(1, 0, 1, status=200) + frame.encode_tunnel_frame(1, 1, 9), "unknown_kind"),
        (frame.encode_tunnel_frame(1, 0, 1, status=200) + frame.encode_tunnel_frame(1, 1, 2, bytes(65537)),
         "data_frame_too_large"),
        (frame.encode_credit(1, 0xFFFFFFFF), "credit_overflow"),
    ],
)  # fmt: skip
def test_e4_a_broken_answer_ends_the_request_with_a_typed_error(stack: Stack, frames: bytes, reason: str) -> None:
    @async_test()
    async def body() -> None:
        async with unharmed(stack, reason) as scene:
            link = await RawLink.connect(stack.nodes)
            await link.ready(TOKEN)
            client = await scene.send(post("/v1/chat/completions", chat("scripted")))
            opening = await link.message()
            assert isinstance(opening, m.ProviderTunnelRequest)
            assert opening.stream_id == 1
            link.send(frames)
            await link.closed()
            answer = await client.answer()
            assert answer.status == 502
            assert answer.json["error"]["code"] == "node_disconnected"
            await scene.in_use(0)
            await link.close()

    body()


@pytest.mark.req("WIRE-9", "REG-1")
def test_e1_promised_frames_that_never_come_cost_no_memory(stack: Stack) -> None:
    """300 connections that announce the largest frame and send one byte of it; a live edge holds what came."""

    @async_test()
    async def body() -> None:
        async with stack.scene() as scene:
            before = rss_bytes(stack.edge)
            links = [await RawLink.connect(stack.nodes) for _ in range(300)]
            for link in links:
                link.send((16384).to_bytes(4, "big") + b"x")
            client = await scene.send(post("/v1/chat/completions", chat("m")))
            call = await scene.provider.call()
            call.respond(chat_answer("hi"))
            assert (await client.answer()).status == 200
            assert rss_bytes(stack.edge) - before < 300 * 65536
            for link in links:
                await link.close()

    body()


@pytest.mark.req("WIRE-2")
def test_a_peer_that_resets_is_no_protocol_error(stack: Stack) -> None:
    @async_test()
    async def body() -> None:
        async with stack.scene() as scene:
            before = await errors(scene)
            for prefix in (b"", b"\0\0", REGISTER, REGISTER[:9]):
                link = await RawLink.connect(stack.nodes)
                link.send(prefix)
                await link.close()
            assert await errors(scene) == before

    body()
