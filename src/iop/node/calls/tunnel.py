"""One raw tunnel on the node: an HTTP request to a provider, its answer relayed as frames (TUN).

What becomes of the call is :mod:`iop.node.calls.call`'s; here is what goes into it and what its bytes become.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iop._fast.body import FRAMING_NONE, BodyDecoder
from iop._fast.relay import ProviderStream
from iop._fast.scan import FieldScanner
from iop._fast.sse import EventSplitter
from iop.errors import IopError, ProtocolError, ProviderConnectionLost, ProviderProtocolError, ProviderTruncated
from iop.execution.failure import ExecutionFailure
from iop.execution.gate import Slot
from iop.execution.usage import read_usage
from iop.net.http.head import ResponseHead
from iop.node.calls.call import CONNECTING, ProviderCall
from iop.node.calls.on_wire import on_wire
from iop.node.providers.provider import Provider
from iop.wire import codec
from iop.wire import messages as m

if TYPE_CHECKING:
    from iop.node.calls.call import CallOwner

__all__ = ["Tunnel"]

#: Where a provider says 404 for a target that it does not have, or for an endpoint (HEALTH-7).
SERVED_PATHS = frozenset(
    b"/" + path
    for path in (
        b"chat/completions", b"completions", b"responses", b"embeddings", b"messages", b"messages/count_tokens",
        b"audio/speech", b"audio/transcriptions", b"audio/translations", b"images/generations", b"images/edits",
        b"images/variations", b"rerank", b"score", b"classify", b"pooling", b"moderations", b"tokenize", b"detokenize",
    )
)  # fmt: skip

_UNSPECIFIED = m.EventDialect.UNSPECIFIED


class Tunnel(ProviderCall):
    """See the module."""

    __slots__ = ("_eof_seen", "_sse")

    kind = "tunnel"
    stream: ProviderStream
    _request: m.ProviderTunnelRequest

    def __init__(
        self, owner: CallOwner, request: m.ProviderTunnelRequest, provider: Provider, slot: Slot, request_head: bytes
    ) -> None:
        ProviderCall.__init__(self, owner, request, provider, slot)  # super() shows on the path of every request
        self._request_head = request_head
        self.stream = ProviderStream(self)
        if request.body:
            self._pieces.append(request.body)
        self._unsent_bytes = request.body_bytes - len(request.body)
        if request.body_follows:
            self._feeds = self.stream.feeds
        self._eof_seen = False
        self._sse = False

    # ---- the request -------------------------------------------------------------------------------------------------

    open = ProviderCall.start  # its head is there, and the body may follow

    def on_request_body(self, data: bytes, last: bool) -> None:
        """A chunk of the request body. One that does not fit the announced length breaks the wire contract."""
        self._unsent_bytes -= len(data)
        if self._unsent_bytes < 0 or last != (self._unsent_bytes == 0):
            raise ProtocolError("body_length", f"stream {self.stream.stream_id}")
        connection = self._connection
        if connection is not None:
            if connection.writer.pending_bytes == 0:
                self._since = self._owner.runtime.wheel.now  # it had taken all that there was, and waited for us
            if not connection.written:
                self._pieces.append(data)  # it may yet turn out dead, and then all of it goes to another one
            connection.writer.write(data)
        elif self.state is CONNECTING:
            self._pieces.append(data)  # bounded by the window: its credit returns when a provider takes it

    # ---- the answer --------------------------------------------------------------------------------------------------

    def response_head(self, head: ResponseHead) -> ProviderStream:
        self._answered(head, has_body=self._request.body_bytes > 0)
        if head.redirects:
            self._redirected(head)
            return self.stream
        if head.status == 404 and self._request.path in SERVED_PATHS:
            self._owner.health.missing(self.provider, self.target)
        stream = self.stream
        stream.head(head.status, head.end_to_end)
        splitter = fields = None
        if head.media_type == b"text/event-stream":
            self._sse = True
            splitter = EventSplitter(self._request.dialect)
        elif head.media_type == b"application/json":
            fields = FieldScanner(b"usage")
        stream.begin(BodyDecoder(head.framing, head.content_length), splitter, fields)
        if head.framing == FRAMING_NONE:
            self.on_body_end(0)
        return stream

    def body_eof(self) -> None:
        self._eof_seen = True
        self.stream.eof()

    def on_body_end(self, extra_bytes: int) -> None:
        """The answer is whole. Bytes behind it make the connection unfit for another call."""
        head, stream = self._head, self.stream
        assert head is not None
        self._let_go(sound=extra_bytes == 0, streamed=self._sse)
        if self._sse and head.status == 200 and not stream.finished and self._request.dialect is not _UNSPECIFIED:
            self._error = ProviderTruncated()  # of other APIs no event is known to be the last one
        self._report()

    def on_body_error(self, error: IopError | None) -> None:
        """The answer is malformed, or cut short (None)."""
        self._stop(ProviderConnectionLost() if error is None else ProviderProtocolError())

    def _ends_later(self) -> bool:
        return self._eof_seen

    def _progress_at(self) -> float:
        return self.stream.progress_at

    def _body_begun(self) -> bool:
        return self.stream.body_bytes > 0

    def _comes_whole(self) -> bool:
        return not self._request.streaming

    @property
    def dropped_bytes(self) -> int:
        return self.stream.dropped_bytes

    def _starved(self) -> bool:
        connection = self._connection
        return self._unsent_bytes > 0 and connection is not None and connection.writer.pending_bytes == 0

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _send_end(self) -> None:
        stream = self.stream
        raw = stream.usage()
        if not raw:
            stream.end()
            return
        u = read_usage(raw[0])
        if len(raw) > 1:
            u = u.updated(read_usage(raw[1]))
        stream.end((u.input_tokens, u.output_tokens, u.reasoning_tokens, u.cached_input_tokens))

    def _send_error(self, failure: ExecutionFailure) -> None:
        stream = self.stream
        stream.send_terminal(codec.tunnel_error(stream.stream_id, stream.next_seq, on_wire(failure)))
