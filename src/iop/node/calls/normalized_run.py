"""One normalized run on the node: an adapter's request to its provider, the answer as ordered events (EXEC-1, EXEC-2).

What becomes of the call is :mod:`iop.node.calls.call`'s; here its input is gathered, and the answer read. Events leave
under credit; when it is used up, reading from the provider stops (WIRE-5). The terminal is sent when the call is over,
so that the slot is free by then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iop._fast.body import FRAMING_NONE, BodyDecoder
from iop._fast.runs import RunSource
from iop.errors import (
    AdapterNoTerminal,
    CredentialRejected,
    InvalidArgument,
    IopError,
    ProtocolError,
    ProviderConnectionLost,
    ProviderProtocolError,
    RequestCancelled,
)
from iop.execution.events import Activity, RunEvent, RunEventKind, activity_of
from iop.execution.failure import ExecutionFailure
from iop.execution.gate import Slot
from iop.execution.terminal import TerminalRule
from iop.net.http.events import EventReader
from iop.net.http.head import ResponseHead
from iop.node.calls.call import BODY, CLOSING, DONE, ProviderCall
from iop.node.calls.on_wire import event_on_wire, on_wire
from iop.node.providers.provider import Provider
from iop.wire import codec
from iop.wire import messages as m

if TYPE_CHECKING:
    from iop.node.calls.call import CallOwner

__all__ = ["NormalizedRun"]

MAX_INPUT_BYTES = 32 << 20
MAX_ANSWER_BYTES = 4 << 20  # of an answer that is no event stream
PROGRESS_BYTES = 4096  # so much more of an event that is not whole is progress (LIVE-2)
_PLAIN = frozenset({RunEventKind.DELTA, RunEventKind.REASONING_DELTA})


class NormalizedRun(ProviderCall):
    """See the module."""

    __slots__ = (
        "_answer",
        "_answer_bytes",
        "_begun",
        "_complete",
        "_decoder",
        "_dropped_bytes",
        "_events",
        "_input",
        "_open_steps",
        "_progressed_at",
        "_reader",
        "_rule",
    )

    kind = "run"
    stream: RunSource
    _request: m.RunRequest

    def __init__(self, owner: CallOwner, request: m.RunRequest, provider: Provider, slot: Slot) -> None:
        super().__init__(owner, request, provider, slot)
        form = provider.adapter.normal
        self.stream = RunSource(self)
        self._input = [request.input] if request.input else []
        self._unsent_bytes = request.input_bytes - len(request.input)
        self._rule = TerminalRule()
        self._reader = form.reader() if form is not None else None
        self._decoder: BodyDecoder | None = None
        self._events: EventReader | None = None  # None: the answer is one JSON document
        self._answer: list[bytes] = []
        self._answer_bytes = 0
        self._complete: RunEvent | None = None
        self._begun = False  # something of the answer's body has come
        self._progressed_at = 0.0
        self._dropped_bytes = 0
        self._open_steps = 0  # how much of an event is here that is not whole

    # ---- the request -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The stream is in the link's table: asks the provider, or waits for the rest of the input."""
        request = self._request
        here, announced = len(request.input), request.input_bytes
        if announced > MAX_INPUT_BYTES:
            self._stop(InvalidArgument(f"the input of a run has at most {MAX_INPUT_BYTES} bytes"))
        elif not (here == 0 < announced if request.input_follows else here == announced):
            self._stop(InvalidArgument("the input is not as long as announced"))
        elif not request.input_follows:
            self._ask()

    def on_request_body(self, data: bytes, last: bool) -> None:
        """A piece of the input. One that does not fit the announced length breaks the wire contract."""
        self._unsent_bytes -= len(data)
        if self._unsent_bytes < 0 or last != (self._unsent_bytes == 0):
            raise ProtocolError("body_length", f"stream {self.stream.stream_id}")
        if self.state in (CLOSING, DONE):
            return
        self._input.append(data)
        if last:
            self._ask()

    def _ask(self) -> None:
        given, self._input = b"".join(self._input), []
        try:
            self._request_head, body = self.provider.run_call(self._request, given)
        except IopError as exc:
            self._stop(exc)
            return
        self._pieces = [body]
        self.start()

    # ---- the answer --------------------------------------------------------------------------------------------------

    def response_head(self, head: ResponseHead) -> NormalizedRun:
        self._answered(head, has_body=True)
        self._decoder = BodyDecoder(head.framing, head.content_length)
        self._progressed_at = self._owner.now
        if head.redirects:
            self._redirected(head)
            return self
        if head.status != 200:
            if head.status == 404:
                self._owner.health.missing(self.provider, self.target)
            self._stop(_refusal(head.status))
            return self
        if head.media_type == b"text/event-stream":
            self._events = EventReader()
        self._emit(RunEvent(RunEventKind.START))
        if head.framing == FRAMING_NONE:
            self._whole(0)
        return self

    def feed(self, data: bytes) -> None:
        """Bytes of the answer's body."""
        decoder = self._decoder
        if self.state is not BODY or decoder is None:
            self._dropped_bytes += len(data)
            return
        try:
            pieces, used = decoder.feed(data)
            for piece in pieces:
                self._read(piece)
            if self.state is BODY and decoder.done:
                self._whole(len(data) - used)
        except ProviderProtocolError as exc:
            self._stop(exc)
        except IopError:
            self._stop(ProviderProtocolError())
        except Exception as exc:
            self.on_broken(exc)
        if self.state is not BODY:
            return
        paused = self.stream.paused
        if not self.stream.ready and not paused:
            self.pause_source()

    def _read(self, piece: bytes) -> None:
        reader = self._reader
        assert reader is not None
        self._begun = True
        if self._events is None:
            self._progressed_at = self._owner.now
            self._answer.append(piece)
            self._answer_bytes += len(piece)
            if self._answer_bytes > MAX_ANSWER_BYTES:
                raise ProviderProtocolError(f"the provider's answer is longer than {MAX_ANSWER_BYTES} bytes")
            return
        for data in self._events.feed(piece):
            for event in reader.read(data):
                self._emit(event)
        steps = self._events.open_bytes // PROGRESS_BYTES
        if steps > self._open_steps:
            self._progressed_at = self._owner.now
        self._open_steps = steps

    def _whole(self, extra_bytes: int) -> None:
        """The body is complete. Bytes behind it make the connection unfit for another call."""
        reader = self._reader
        assert reader is not None
        for data in [b"".join(self._answer)] if self._events is None else self._events.end():
            for event in reader.read(data):
                self._emit(event)
        for event in reader.end():
            self._emit(event)
        if self.state is not BODY:
            return
        if self._complete is None:
            self._error = AdapterNoTerminal()
        self._let_go(sound=extra_bytes == 0, streamed=self._events is not None)
        self._report()

    def _emit(self, event: RunEvent) -> None:
        """One event of the adapter's, by the terminal rule: what follows a terminal is dropped (EXEC-2)."""
        if self.state is not BODY:
            return
        admitted = self._rule.admit(event)
        if admitted is None:
            return
        if activity_of(admitted) is not Activity.NONE:
            self._progressed_at = self._owner.now
        if admitted.failure is not None:
            self._stop(admitted.failure.error())
        elif admitted.kind is RunEventKind.COMPLETE:
            self._complete = admitted
        elif admitted.kind in _PLAIN and not self._request.session_id:
            self.stream.text(m.RunEventKind[admitted.kind.name], admitted.text)
        else:
            self._send(event_on_wire(admitted, self._request.session_id))

    def body_eof(self) -> None:
        decoder = self._decoder
        if self.state is BODY and decoder is not None:
            if not decoder.eof():
                self._stop(ProviderConnectionLost())
                return
            try:
                self._whole(0)
            except ProviderProtocolError as exc:
                self._stop(exc)

    def _ends_later(self) -> bool:
        return False

    def _progress_at(self) -> float:
        return self._progressed_at

    def _body_begun(self) -> bool:
        return self._begun

    @property
    def dropped_bytes(self) -> int:
        return self._dropped_bytes

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _failure(self, error: IopError, *, close_confirmed: bool) -> ExecutionFailure:
        """With what the provider answered, if that was a refusal: the edge decides by it as for tunnels (API-8)."""
        failure, head = super()._failure(error, close_confirmed=close_confirmed), self._head
        if head is None or head.status < 400 or failure.code == RequestCancelled.code:
            return failure
        return replace(failure, provider_status=head.status, retry_after=head.get(b"retry-after") or b"")

    def _send_end(self) -> None:
        assert self._complete is not None
        self._send(event_on_wire(self._complete, self._request.session_id))

    def _send_error(self, failure: ExecutionFailure) -> None:
        kind = m.RunEventKind.CANCELLED if failure.code == RequestCancelled.code else m.RunEventKind.ERROR
        self._send(m.RunEvent(kind, failure=on_wire(failure), session_id=self._request.session_id))

    def _send(self, event: m.RunEvent) -> None:
        stream = self.stream
        stream.event(event.kind, codec.run_event(stream.stream_id, stream.next_seq, event))


def _refusal(status: int) -> IopError:
    """What an answer with another status than 200 means to a run; its text stays on the node (SEC-4)."""
    if status in (401, 403):
        return CredentialRejected(f"the provider answered with status {status}: check its credential on the node")
    if status in (429, 503):
        return ProviderProtocolError(f"the provider has no room now: it answered with status {status}")
    if 400 <= status < 500:
        return InvalidArgument(f"the provider refused the run with status {status}")
    return ProviderProtocolError(f"the provider answered with status {status}")
