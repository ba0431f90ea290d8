"""A scripted node: the real link and session in the test's loop, with a test in place of the node program.

async with ScriptedNode(stack.nodes, token="t1") as node:
    request = await node.request()          # a ProviderTunnelRequest
    node.refuse(request, m.ErrorCode.CAPACITY_EXCEEDED, slots_held=1)
"""

from __future__ import annotations

import asyncio
from typing import Any

from iop import __version__
from iop._fast.body import FRAMING_EOF, FRAMING_LENGTH, BodyDecoder
from iop._fast.relay import ProviderStream
from iop._fast.sse import EventSplitter
from iop.errors import IopError
from iop.net.link import Link
from iop.net.loop import Runtime
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import NodeSession, State

WAIT_S = 10.0


class _Nobody:
    def on_request_body(self, data: bytes, last: bool) -> None: ...
    def on_body_end(self, extra_bytes: int) -> None: ...
    def on_body_error(self, error: IopError | None) -> None: ...
    def pause_source(self) -> None: ...
    def resume_source(self) -> None: ...
    def on_broken(self, exc: Exception) -> None: ...


class ScriptedNode:
    """One connection to an edge, ready for work once entered."""

    def __init__(self, address: tuple[str, int], *, token: str) -> None:
        self._address = address
        self._token = token
        self._requests: asyncio.Queue[m.ProviderTunnelRequest] = asyncio.Queue()
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self.cancelled: list[int] = []
        self.streams: dict[int, ProviderStream] = {}

    async def __aenter__(self) -> ScriptedNode:
        loop = asyncio.get_running_loop()
        self._runtime = Runtime(loop)
        self._runtime.start()
        self.session = NodeSession(self._runtime.hub, self, loop.time())
        self.link = Link(self.session, self)
        await loop.create_connection(lambda: self.link, *self._address)
        async with asyncio.timeout(WAIT_S):
            await self._ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.link.abort("done")
        async with asyncio.timeout(WAIT_S):
            await self._lost.wait()
        self._runtime.close()

    async def request(self) -> m.ProviderTunnelRequest:
        async with asyncio.timeout(WAIT_S):
            return await self._requests.get()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def refuse(self, request: m.ProviderTunnelRequest, code: m.ErrorCode, **fields: Any) -> None:
        """The one terminal of a refused or failed call."""
        failure = m.ExecutionFailure(code, **{"close_confirmed": True, **fields})
        stream = self.streams[request.stream_id]
        stream.send_terminal(codec.tunnel_error(request.stream_id, stream.next_seq, failure))

    def answer(self, request: m.ProviderTunnelRequest, body: bytes) -> None:
        """A whole 200 answer."""
        stream = self.streams[request.stream_id]
        stream.head(200, b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
        stream.begin(BodyDecoder(FRAMING_LENGTH, len(body)))
        stream.feed(body)
        stream.end()

    def start_stream(self, request: m.ProviderTunnelRequest) -> None:
        """The head of an event stream; ``body`` then sends what is in it."""
        stream = self.streams[request.stream_id]
        stream.head(200, b"content-type: text/event-stream\r\n")
        stream.begin(BodyDecoder(FRAMING_EOF), EventSplitter(int(request.dialect)))

    def body(self, request: m.ProviderTunnelRequest, data: bytes) -> None:
        self.streams[request.stream_id].feed(data)

    def call_closed(self, provider_id: str, request: m.ProviderTunnelRequest) -> None:
        self.session.send(m.EdgeNodeEvent(call_closed=m.CallClosed(provider_id, request.stream_id)))

    # ---- link and session --------------------------------------------------------------------------------------------

    def link_made(self, link: Link) -> None:
        self.session.register(self._token, __version__, ["openai_compat"])

    def link_lost(self, link: Link, reason: str) -> None:
        self.session.close()
        self._lost.set()

    def ended(self, reason: str, detail: str) -> None:
        self.link.abort(reason)

    def received(self, message: m.Message) -> None:
        now = self._runtime.wheel.now
        if isinstance(message, m.RegisterResponse):
            assert message.accepted, message.message
            assert message.config is not None
            self.session.ready(m.NodeReadyRequest(message.config.node_id, message.config.revision, []), now)
        elif isinstance(message, m.NodeReadyResponse):
            assert self.session.state is State.READY
            self._ready.set()
        elif isinstance(message, m.ProviderTunnelRequest):
            stream = ProviderStream(_Nobody())
            self.session.mux.adopt(stream, message.stream_id, limits.STREAM_WINDOW_BYTES, message.window_bytes)
            self.streams[message.stream_id] = stream
            self._requests.put_nowait(message)
        elif isinstance(message, m.ConfigRefreshRequest):
            self.session.send(m.ConfigRefreshResponse(message.config.revision, True))
        elif isinstance(message, m.CancelRequest):
            self.cancelled.append(message.stream_id)
