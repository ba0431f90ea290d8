"""A real node between a scripted edge and a scripted provider, on a virtual clock: hours pass in milliseconds.

    with VirtualNode() as world:
        call = world.open()                 # a tunnel; run() opens a normalized run
        call.served.send(HEAD)              # what the provider says
        world.pass_s(300)
        assert call.failure.code ...        # what the edge was told

The node's agent, tunnels, runs, watchdog and probes are the real ones; loop and network are the simulation's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from iop.net.loop import Runtime
from iop.node.providers.allowance import Allowance
from iop.node.providers.registry import Backends
from iop.node.uplink.agent import Agent
from iop.observability.metrics import NodeMetrics
from iop.wire import codec, limits
from iop.wire import messages as m
from tests.simulation.kernel import Kernel, Loop
from tests.simulation.network import Network, Transport

PORT = 9001
BASE = f"http://127.0.0.1:{PORT}/v1"
ENDLESS = limits.Timing(heartbeat_interval_s=1e9, response_wait_s=1e9, write_stall_s=1e9)
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
LAST = b"0\r\n\r\n"
BODY = b'{"model":"t"}'
RUN_EVENT = 3  # of the payloads


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Served:
    """The provider's side of one connection."""

    def __init__(self, world: VirtualNode) -> None:
        self.world = world
        self.transport: Transport
        self.heard = b""
        self.gone = False
        self.asked_at = 0.0

    @property
    def path(self) -> bytes:
        return self.heard.split(b" ", 2)[1]

    def send(self, data: bytes) -> None:
        self.transport.write(data)
        self.world.pass_s(0.01)

    def answer(self, status: int, body: bytes = b"{}") -> None:
        self.transport.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        fresh = not self.heard
        self.heard += data
        if fresh:
            self.asked_at = self.world.kernel.now
            self.world.arrived(self)

    def eof_received(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Call:
    """One request as the edge sees it; ``served`` is what the provider has of it. ``terminals``: None is a good end."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.served: Served
        self.kinds: list[int] = []
        self.body = b""
        self.terminals: list[m.ExecutionFailure | None] = []
        self.ended_at = 0.0

    @property
    def failure(self) -> m.ExecutionFailure:
        (terminal,) = self.terminals
        assert terminal is not None, "it ended well"
        return terminal

    @property
    def code(self) -> str:
        """Of the failure, ``ok``, or nothing while it lasts."""
        if not self.terminals:
            return ""
        return "ok" if self.terminals == [None] else self.failure.code.name.lower()

    def frame(self, payload: int, kind: int, body: bytes, extra: Any, now: float) -> None:
        assert not self.terminals, "a frame behind the terminal"
        self.kinds.append(kind)
        self.body += body
        if payload == RUN_EVENT and kind >= m.RunEventKind.COMPLETE:
            self.terminals.append(extra.failure if extra is not None else None)
        elif payload != RUN_EVENT and kind >= m.TunnelFrameKind.END:
            self.terminals.append(extra)
        self.ended_at = now


class VirtualNode:
    """See the module. ``probe`` answers the node's questions (GET); without one they get no answer at all.
    ``probes`` are all that were asked, ``messages`` what came from the node and belongs to no stream."""

    def __init__(self, kind: str = "openai_compat", *, base_url: str = BASE, capacity: int = 8, **config: Any) -> None:
        self.kernel = Kernel()
        self.network = Network(self.kernel, random.Random(1), Counter(), {PORT: "provider"})
        self.network.weather = replace(self.network.weather, latency_s=0.0, split=0.0, delay=0.0)
        self.outside = Loop(self.kernel, "outside", self.network)
        self.loop = Loop(self.kernel, "node", self.network)
        self.runtime = Runtime(self.loop)
        self.runtime.start()
        self.metrics = NodeMetrics()
        self.backends = Backends(self.runtime, Allowance())
        self.agent = Agent(self.runtime, self.backends, self.metrics, "token", lambda: None, timing=ENDLESS)
        self.kind = kind
        self.probe: Callable[[Served], None] | None = None
        self.probes: list[Served] = []
        self.served: list[Served] = []
        self.messages: list[Any] = []
        self.calls: dict[int, Call] = {}
        self._data = b""
        provider = m.ProviderConfig("p", kind, base_url, capacity, 1000, 1000, enabled=True, **config)
        self._payload = m.NodeConfigPayload("n", 1, [provider])

    def __enter__(self) -> VirtualNode:
        self.listen()
        self.loop.call_soon(self.agent.link.connection_made, self)
        self.tell(m.RegisterResponse(True, config=self._payload, edge_version="1", protocol_version=1))
        self.pass_s(0.1)
        self.tell(m.NodeReadyResponse(True))
        self.pass_s(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()
        self.loop.call_soon(self.backends.close)
        self.pass_s(8.0)
        if kind is None:
            assert not self.agent.calls
            assert self.backends.gate.held("p") == 0
            assert self.backends.gate.released_twice == 0
            assert not self.loop.tasks
            assert all(len(call.terminals) <= 1 for call in self.calls.values())
        for loop in self.network.loops:
            loop.end()

    # ---- time and the network ----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.kernel.now

    def pass_s(self, seconds: float) -> None:
        self.kernel.run_until(self.kernel.now + seconds)

    def suspend(self, seconds: float) -> None:
        """The node is stopped for so long: no timer runs, and what comes meanwhile is read behind the late timers."""
        self.kernel.now += seconds

    def listen(self) -> None:
        self.network.listen(self.outside, lambda: Served(self), PORT)

    def refuse(self) -> None:
        """The provider's port is closed from now on."""
        self.network.listeners[PORT].close()

    def refresh(self, **config: Any) -> None:
        """The edge's file has changed."""
        (provider,) = self._payload.providers
        self._payload = m.NodeConfigPayload("n", self._payload.revision + 1, [replace(provider, **config)])
        self.tell(m.ConfigRefreshRequest(self._payload))

    def disconnect(self) -> None:
        """The edge is gone."""
        self.loop.call_soon(self.agent.link.connection_lost, None)

    def arrived(self, served: Served) -> None:
        if served.heard.startswith(b"GET "):
            self.probes.append(served)
            if self.probe is not None:
                self.probe(served)
        else:
            self.served.append(served)

    # ---- the edge ----------------------------------------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        self.loop.call_soon(self.agent.session.mux.feed, codec.encode(message))

    def raw(self, frame: bytes) -> None:
        self.loop.call_soon(self.agent.session.mux.feed, frame)

    def open(self, *, wait: bool = True, **fields: Any) -> Call:
        """Opens a tunnel; ``call.served`` is there once the provider has it (``wait=False``: see to it yourself)."""
        stream_id = len(self.calls) + 1
        given: dict[str, Any] = {
            "stream_id": stream_id, "run_id": f"r{stream_id}", "adapter": self.kind, "provider_id": "p", "target": "t",
            "window_bytes": 1 << 18, "deadline_ms": 0, "response_stall_timeout_ms": 0,
            "lease": m.LeaseBinding(stream_id), "method": b"POST", "path": b"/chat/completions",
            "header_block": b"", "body": BODY, "body_bytes": len(BODY), "dialect": m.EventDialect.CHAT,
            "streaming": True,
        }  # fmt: skip
        return self._open(m.ProviderTunnelRequest(**(given | fields)), wait)

    def run(self, *, wait: bool = True, **fields: Any) -> Call:
        """The same for a normalized run."""
        stream_id = len(self.calls) + 1
        prompt = b'{"prompt":"x"}'
        given: dict[str, Any] = {
            "stream_id": stream_id, "run_id": f"r{stream_id}", "adapter": self.kind, "provider_id": "p", "target": "t",
            "window_bytes": 1 << 18, "deadline_ms": 0, "response_stall_timeout_ms": 0,
            "lease": m.LeaseBinding(stream_id), "input": prompt, "input_bytes": len(prompt),
        }  # fmt: skip
        return self._open(m.RunRequest(**(given | fields)), wait)

    def _open(self, request: Any, wait: bool) -> Call:
        call = self.calls[request.stream_id] = Call(request.stream_id)
        before = len(self.served)
        self.tell(request)
        self.pass_s(0.01)
        if wait:
            (call.served,) = self.served[before:]
        return call

    def cancel(self, call: Call) -> None:
        self.tell(m.CancelRequest(call.stream_id, f"r{call.stream_id}", m.CancelReason.CLIENT_GONE))

    def ask(self, target: str = "t", *, number: int = 1, **more: Any) -> None:
        """CAPABILITIES."""
        self.tell(m.NodeCommandRequest(number, m.NodeCommand.CAPABILITIES, "p", self.kind, target, 10_000, **more))

    def heard(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def observations(self) -> list[m.HealthObservation]:
        events = [event.health_observation for event in self.heard(m.EdgeNodeEvent)]
        return [seen for seen in events if seen is not None]

    @property
    def closed_calls(self) -> list[m.CallClosed]:
        events = [event.call_closed for event in self.heard(m.EdgeNodeEvent)]
        return [closed for closed in events if closed is not None]

    def count(self, counter: Any) -> dict[Any, float]:
        return {labels: value for labels, value in counter.read() if value}

    def _read(self) -> None:
        """What the node has sent."""
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "big")
            message = codec.decode(self._data[4:end])
            self._data = self._data[end:]
            if not isinstance(message, codec.HotFrame):
                self.messages.append(message)
            elif "kind" in message.fields:
                f = message.fields
                self.calls[f["stream_id"]].frame(message.payload, f["kind"], f["body"], f.get("extra"), self.kernel.now)

    # a transport

    def write(self, data: bytes) -> None:
        self._data += data
        self._read()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def is_closing(self) -> bool:
        return False
