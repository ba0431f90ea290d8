"""Those around the system: clients who ask, leave and read slowly, and providers who answer, stall, lie down and die.

What becomes of a request is drawn before it is sent, in its :class:`Plan`, and known to both: so a provider answers
with what only this request may get, and the client knows it when it sees it.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iop._fast.body import FRAMING_NONE, BodyDecoder, HeadFinder
from iop.edge.requests.normalized_run import EdgeRun, RunResult, RunSpec, submit_run
from iop.errors import IopError
from iop.net.http.head import parse_response
from iop.wire import messages as m
from tests.simulation.programs import MODELS, PROVIDERS

if TYPE_CHECKING:
    from tests.simulation.network import Transport
    from tests.simulation.programs import EdgeProgram
    from tests.simulation.world import World

__all__ = ["Client", "Plan", "RunClient", "Upstream"]

_NUMBER = re.compile(rb'"user": ?"c(\d+)"')
_CONTENT = re.compile(rb'"content":"(x*)"')
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_TARGET = re.compile(rb'"model": ?"([^"]*)"')

KINDS = ("json", "sse", "cut", "reset", "silent", "error", "gone", "stall")
_KIND_WEIGHTS = (50, 34, 3, 3, 1, 3, 4, 1)
_RUN_WEIGHTS = (35, 24, 16, 6, 1, 6, 6, 6)  # they are few: what may be sent again fails more often, and has text


@dataclass(slots=True)
class Plan:
    """One request, its answer, and how its client behaves. Times in seconds."""

    number: int
    model: str
    run: bool  # a normalized run, not a client's request
    stream: bool
    padding: int
    kind: str
    answer: bytes
    pieces: int
    wait_s: float
    gap_s: float
    leaves_s: float | None
    slow: bool
    close_s: float
    # what happened
    sent_at: float = 0.0
    served: int = 0
    direct: bool = False  # a run past the pool
    shown: bool = False  # its listener has heard more than the start of a run
    outcome: str = ""
    records: int = 0
    record: str = ""

    @classmethod
    def draw(cls, rng: random.Random, number: int, models: tuple[str, ...], *, run: bool = False) -> Plan:
        kind = rng.choices(KINDS, _RUN_WEIGHTS if run else _KIND_WEIGHTS)[0]
        stream = kind == "sse" or (kind in ("cut", "stall") and rng.random() < 0.5) or (run and kind != "error")
        big = rng.random() < 0.01
        size = rng.choice((0, 900, 900, 900) if run else (0, 0, 0, 900)) if not big else rng.choice((60_000, 140_000))
        if stream:
            events = [
                b'data: {"id":"c%d-%d","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
                % (number, i, b"x" * (size // 4))
                for i in range(rng.choice((1, 2, 3, 6)))
            ]
            answer = b"".join(events) + b"data: [DONE]\n\n"
        else:
            answer = b'{"id":"c%d","usage":{"prompt_tokens":3,"completion_tokens":2},"pad":"%b"}' % (
                number,
                b"x" * size,
            )
        return cls(
            number=number,
            model=rng.choice(models),
            run=run,
            stream=stream,
            padding=rng.choice((0, 0, 600)) if rng.random() > 0.01 else 70_000,
            kind=kind,
            answer=answer,
            pieces=rng.choice((1, 1, 2, 4)),
            wait_s=rng.choice((0.0, 0.01, 0.03, 0.08, 0.25)),
            gap_s=rng.choice((0.0, 0.005, 0.05)),
            leaves_s=rng.choice((0.0005, 0.003, 0.02, 0.1, 0.3, 1.0)) if rng.random() < 0.12 else None,
            slow=big and rng.random() < 0.5,
            close_s=rng.choice((0.05, 1.0, 2.5, 6.0)) if rng.random() < 0.2 else 0.0,
        )

    @property
    def replayable(self) -> bool:
        """Whether asking for a run twice does nothing twice."""
        return self.number % 4 != 0

    @property
    def times(self) -> int:
        """How often it may be with a provider: two re-admissions is what the configuration allows (API-8)."""
        return 1 if self.direct or (self.run and not self.replayable) else 3

    @property
    def text(self) -> bytes:
        """What a stream's events say."""
        return b"".join(_CONTENT.findall(self.answer))

    def request(self) -> bytes:
        pad = b"x" * self.padding
        body = b'{"model":"%b","user":"c%d","stream":%b,"messages":[{"role":"user","content":"%b"}]}' % (
            self.model.encode(),
            self.number,
            b"true" if self.stream else b"false",
            pad,
        )
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-request-id: c%d\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (self.number, len(body), body)
        )


class Client:
    """One connection of a client; asks one request at a time and keeps the connection while that goes well."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan: Plan | None = None
        self.transport: Transport | None = None
        self._finder = HeadFinder(65536)
        self._decoder: BodyDecoder | None = None
        self._status = 0
        self._keep = False
        self._body: list[bytes] = []
        self._leave: Any = None

    @property
    def idle(self) -> bool:
        return self.plan is None and self.transport is not None and not self.transport.is_closing()

    def ask(self, plan: Plan) -> None:
        self.plan = plan
        plan.sent_at = self.world.kernel.now
        self._decoder, self._status, self._body = None, 0, []
        self._finder.reset()
        if plan.leaves_s is not None:
            self._leave = self.world.outside.call_later(plan.leaves_s, self.leave)
        assert self.transport is not None
        self.transport.write(plan.request())

    def leave(self) -> None:
        """The client goes, in whatever state its request is."""
        plan, transport = self.plan, self.transport
        if plan is None or transport is None:
            return
        self.world.client_leaves(plan)
        self._over("left")
        if self.world.rng.random() < 0.5:
            transport.close()
        else:
            transport.abort()

    # ---- protocol

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        plan = self.plan
        if plan is None:
            if self.transport is not None and not self.transport.is_closing() and not self._idle_answer(data):
                self.world.violation(f"bytes that nobody asked for: {data[:60]!r}")
            return
        if plan.slow and self.transport is not None and self._status:
            self.world.seen["slow client"] += 1
            transport = self.transport
            transport.pause_reading()
            self.world.outside.call_later(0.2, transport.resume_reading)
        try:
            self._read(plan, data)
        except IopError as exc:
            self.world.violation(f"c{plan.number}: a malformed answer: {exc.message}")

    @staticmethod
    def _idle_answer(data: bytes) -> bool:
        """A server may say 408 before it closes an idle connection."""
        return data.startswith(b"HTTP/1.1 408 ")

    def _read(self, plan: Plan, data: bytes) -> None:
        offset = 0
        if self._decoder is None:
            block, offset = self._finder.feed(data, 0)
            if block is None:
                return
            head = parse_response(block, head_request=False)
            self._status, self._keep = head.status, head.keep_alive
            self._decoder = BodyDecoder(head.framing, head.content_length)
            if head.framing == FRAMING_NONE:
                self._complete(plan)
                return
        if offset < len(data) or offset == 0:
            pieces, used = self._decoder.feed(data[offset:] if offset else data)
            self._body += pieces
            offset += used
        if self._decoder.done:
            if offset != len(data):
                self.world.violation(f"c{plan.number}: more than one answer")
            self._complete(plan)

    def _complete(self, plan: Plan) -> None:
        body = b"".join(self._body)
        if self._status == 200:
            if body != plan.answer:
                self.world.violation(f"c{plan.number}: an answer that is not its own: {body[:80]!r}")
            if plan.kind not in ("json", "sse", "gone"):
                self.world.violation(f"c{plan.number}: {plan.kind} looks complete")
            self._over("complete")
        elif plan.kind == "error" and self._status == 500 and body == plan.answer:
            self._over("provider error")
        else:
            try:
                code = json.loads(body)["error"]["code"]
            except (ValueError, KeyError, TypeError):
                self.world.violation(f"c{plan.number}: {self._status} without an error object: {body[:80]!r}")
                code = "?"
            self._over(f"error {code}")
        if not self._keep and self.transport is not None:
            self.transport.close()

    def _over(self, outcome: str) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        if self._leave is not None:
            self._leave.cancel()
            self._leave = None
        self.world.answered(plan, outcome)

    def _cut(self, plan: Plan) -> None:
        """A part of the answer, and at most an error event behind it: nothing of another attempt (API-8)."""
        shown, _, _ = b"".join(self._body).partition(b'data: {"error"')
        if self._status == 200 and not plan.answer.startswith(shown):
            self.world.violation(f"c{plan.number}: what was shown goes on as another answer, {len(shown)} bytes")
        self._over("cut")

    def eof_received(self) -> None:
        if self.plan is not None:
            if self._decoder is not None and not self._decoder.done and self._decoder.eof():
                self.world.violation(f"c{self.plan.number}: a close that looks like the end")
            self._cut(self.plan)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.plan is not None:
            self._cut(self.plan)
        self.world.clients.pop(self, None)

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class RunClient:
    """Who started a normalized run, and hears of it (EXEC-1)."""

    writer = None

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.run: EdgeRun | None = None
        self._started = False
        self._text: list[bytes] = []

    def start(self, edge: EdgeProgram, provider_id: str) -> None:
        """Queued, or past the pool to ``provider_id``. In the edge's loop."""
        plan = self.plan
        plan.direct = bool(provider_id)
        spec = RunSpec(
            b'{"messages":[{"role":"user","content":"%b"}]}' % (b"x" * plan.padding),
            options=b'{"user":"c%d"}' % plan.number,
            model="" if provider_id else plan.model,
            node=PROVIDERS[provider_id]["node"] if provider_id else "",
            adapter=provider_id,
            target=f"{plan.model}@{provider_id}" if provider_id else "",
            timeout_s=5.0,
            replayable=plan.replayable,
        )
        try:
            self.run = submit_run(edge.edge.dispatcher, spec, self, "operator")
        except IopError as exc:
            self.world.answered(plan, f"run {exc.code}")
            return
        if not plan.outcome:
            self.world.runs[self.run.request_id] = plan
            if plan.leaves_s is not None:
                edge.loop.call_later(plan.leaves_s, self._leave)

    def _leave(self) -> None:
        if self.run is not None and not self.plan.outcome:
            self.world.say("cancel run", f"c{self.plan.number} {self.run.state}")
            self.run.cancel()

    def run_event(self, event: m.RunEvent) -> None:
        if self.plan.outcome:
            self.world.violation(f"c{self.plan.number}: an event behind the end of its run")
        if self._started is (event.kind == m.RunEventKind.START):
            self.world.violation(f"c{self.plan.number}: a run that starts twice, or not at first")
        self.plan.shown = self._started
        self._started = True
        if event.kind == m.RunEventKind.DELTA:
            self._text.append(event.text)

    def run_ended(self, result: RunResult) -> None:
        plan = self.plan
        if result.error is None:
            if b"".join(self._text) != plan.text:
                self.world.violation(f"c{plan.number}: a run's text that is not its own")
            if plan.kind not in ("json", "sse", "gone"):
                self.world.violation(f"c{plan.number}: {plan.kind} looks complete")
        self.world.answered(plan, f"run {result.error.code if result.error is not None else 'complete'}")


class Upstream:
    """A provider's side of one connection."""

    def __init__(self, world: World, provider_id: str) -> None:
        self.world = world
        self.provider_id = provider_id
        self.plan: Plan | None = None
        self.count = 0
        self._transport: Any = None
        self._data = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.world.upstreams[self] = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0 or self.plan is not None:
            return
        if self._data.startswith(b"GET "):
            del self._data[: end + 4]
            self._probed()
            return
        length = _LENGTH.search(self._data, 0, end + 2)
        assert length is not None
        if len(self._data) < end + 4 + int(length[1]):
            return
        body = bytes(self._data[end + 4 :])
        del self._data[:]
        number, target = _NUMBER.search(body), _TARGET.search(body)
        assert number is not None
        assert target is not None
        self.plan = plan = self.world.plans[int(number[1])]
        self.count += 1
        self.world.served(plan, self.provider_id, target[1].decode())
        self._transport.peer.linger_s = plan.close_s
        self._later(plan.wait_s, self._answer)

    def _probed(self) -> None:
        """Somebody asks how the engine is, and which models it has."""
        engine = self.world.engines[self.provider_id]
        self.world.seen[f"probe of an engine that is {engine}"] += 1
        if engine == "hung":
            return
        models = b",".join(b'{"id":"%b@%b"}' % (model.encode(), self.provider_id.encode()) for model in MODELS)
        body = b'{"object":"list","data":[%b]}' % models
        status = b"200 OK" if engine == "well" else b"503 No"
        self._transport.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    def _later(self, delay_s: float, step: Any) -> None:
        plan = self.plan

        def run() -> None:
            if self.plan is plan and self._transport is not None:
                step(plan)

        self.world.outside.call_later(delay_s, run)

    def _answer(self, plan: Plan) -> None:
        kind, transport = plan.kind, self._transport
        if self.world.engines[self.provider_id] == "hung":
            self.world.seen["engine hung"] += 1
            return
        if kind == "gone" and self.count > 1:
            self.world.seen["kept connection lost"] += 1
            transport.abort()
        elif kind == "reset":
            self.world.seen["provider reset"] += 1
            transport.peer.reset() if not transport.peer.closed else None
            transport.close()
        elif kind == "silent":
            self.world.seen["provider silent"] += 1
        else:
            kind_line = b"text/event-stream" if plan.stream else b"application/json"
            framing = b"transfer-encoding: chunked" if plan.stream else b"content-length: %d" % len(plan.answer)
            status = b"500 Oops" if kind == "error" else b"200 OK"
            transport.write(b"HTTP/1.1 %b\r\ncontent-type: %b\r\n%b\r\n\r\n" % (status, kind_line, framing))
            self._body(plan, 0)

    def _body(self, plan: Plan, index: int) -> None:
        answer, pieces = plan.answer, plan.pieces
        step = max(1, -(-len(answer) // pieces))
        piece = answer[index * step : (index + 1) * step]
        last = (index + 1) * step >= len(answer)
        if plan.kind in ("cut", "stall") and last:
            if plan.kind == "stall":
                self.world.seen["provider stall"] += 1
                return
            self.world.seen["provider cut"] += 1
            self._transport.close()
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if plan.stream else piece)
        if not last:
            self._later(plan.gap_s, lambda plan: self._body(plan, index + 1))
            return
        if plan.stream:
            self._transport.write(b"0\r\n\r\n")
        self.plan = None

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.plan = None
        self._transport = None
        self.world.upstreams.pop(self, None)

    def die(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if not transport.peer.closed:
                transport.peer.reset()
            transport.close()

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
