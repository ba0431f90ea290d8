"""A client's bytes from the socket to the lease, as one target: head finder, parser and policy, body decoder, scanner.

    head bytes ─HeadFinder→ head ─parse_request→ framing ─BodyDecoder→ pieces ─Intake (JSON, form, inflated)→ model

The invariant is that of all targets: a documented error or a result, and the same one for any cut. A body that is
accepted is spliced, and what comes out has to be read as the same request with the other model.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator

from iop._fast.body import FRAMING_NONE, BodyDecoder, HeadFinder
from iop.edge.api.body import Intake, form_of
from iop.edge.api.headers import to_provider
from iop.edge.api.routes import endpoints
from iop.errors import IopError
from iop.net.http.head import RequestHead, parse_request
from tests.fuzz import corpus

__all__ = ["SEEDS", "TOKENS", "requests"]

MAX_REQUESTS = 4
MAX_BODY_BYTES = 2048
STATUSES = frozenset({400, 404, 413, 414, 415, 417, 431, 501, 505})
TARGET = 'tärget"--'

_HEAD = b"POST %b HTTP/1.1\r\nHost: a\r\n%b\r\n"
_FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: x\r\n\r\n\0\r\n--\r\n--a\n\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b"--b\r\ncontent-disposition:form-data;name=stream\r\n\r\ntrue\r\n--b--\r\n"
)
_CHAT, _AUDIO = b"/v1/chat/completions", b"/v1/audio/transcriptions"
_KIND = b"Content-Type: multipart/form-data; boundary=b\r\n"
_JSON = corpus.REQUESTS[1]


def _sized(path: bytes, body: bytes, lines: bytes = b"") -> bytes:
    return _HEAD % (path, b"%bContent-Length: %d\r\n" % (lines, len(body))) + body


def _chunked(path: bytes, body: bytes, lines: bytes = b"") -> bytes:
    pieces = b"".join(b"%x;e\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    return _HEAD % (path, b"%bTransfer-Encoding: chunked\r\n" % lines) + pieces + b"0\r\nX: y\r\n\r\n"


SEEDS = [
    *(_sized(_CHAT + b"?a=b", body) for body in corpus.REQUESTS[:4]),
    _chunked(_CHAT, _JSON),
    _chunked(b"/v1/messages", corpus.REQUESTS[0], b"anthropic-version: 1\r\n") + _sized(_CHAT, _JSON),
    _sized(_AUDIO, _FORM, _KIND),
    _chunked(_AUDIO, _FORM, _KIND) + _sized(_AUDIO, _FORM, _KIND),
    _sized(_AUDIO, gzip.compress(_FORM, mtime=0), _KIND + b"Content-Encoding: gzip\r\n"),
    _sized(_CHAT, gzip.compress(_JSON, mtime=0), b"Content-Encoding: gzip\r\n"),
    b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    *corpus.HEADS,
]
TOKENS = [
    *(*corpus.CHUNKED_TOKENS, *corpus.HEAD_TOKENS, *corpus.REQUEST_TOKENS),
    *(b"--b", b"\r\n--b\r\n", b"--b--", b"\n--b", b"name=", b"; filename=", b"Content-Disposition: form-data; "),
    *(
        b"Content-Length: ",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(_KIND, b"boundary=", b"Host: a\r\n", b"HTTP/1.0", b"HTTP/1.1", b"/v1/", b"?", b"#", b"%2e"),
]


def requests(parts: list[bytes]) -> object:
    """The story of a connection that is sent these parts: what each request on it came to."""
    finder = HeadFinder(1024)
    story: list[object] = []
    waiting = _Bytes(parts)
    while len(story) < MAX_REQUESTS:
        try:
            head = _head(finder, waiting)
            if head is None:
                story.append(("unfinished", finder.pending_bytes))
                break
        except IopError as error:
            story.append(_documented(error))  # and the connection closes
            break
        try:
            story.append((head.method, head.path, head.framing, _request(head, waiting)))
        except IopError as error:
            story.append(_documented(error))
            break
    return story


class _Bytes:
    """What has come, as pieces, and how far it is read."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = [part for part in reversed(parts) if part]

    def __iter__(self) -> Iterator[bytes]:
        while self._parts:
            yield self._parts.pop()

    def put_back(self, data: bytes) -> None:
        if data:
            self._parts.append(data)


def _documented(error: IopError) -> object:
    assert error.status in STATUSES, (error.status, error.code)
    assert error.message
    return error.status, error.code, error.message, getattr(error, "param", None)


def _head(finder: HeadFinder, waiting: _Bytes) -> RequestHead | None:
    for part in waiting:
        block, used = finder.feed(part)
        if block is not None:
            waiting.put_back(part[used:])
            return parse_request(block)
    return None


def _request(head: RequestHead, waiting: _Bytes) -> object:
    endpoint = endpoints().get(head.path)
    form = form_of(head) if endpoint is not None and endpoint.name == "other" else None
    intake = Intake(head, MAX_BODY_BYTES, form)
    fault: IopError | None = None
    pieces: list[bytes] = []
    if head.framing != FRAMING_NONE:
        decoder = BodyDecoder(head.framing, head.content_length, MAX_BODY_BYTES)
        while not decoder.done:
            part = next(iter(waiting), None)
            if part is None:
                return "unfinished", decoder.body_bytes if fault is None else None
            got, used = decoder.feed(part)
            for piece in got:
                pieces.append(piece)
                if fault is None:
                    try:
                        _feed(intake, piece)
                    except IopError as error:
                        fault = error  # the rest is decoded and dropped
            waiting.put_back(part[used:])
    try:
        if fault is not None:
            raise fault
        intake.finish()
        sent, total = intake.body_for(TARGET)
    except IopError as error:
        told = _documented(error)
        # zlib notices a fault later than the scanner or earlier, by how much it is given at a time.
        return told if head.get(b"content-encoding") is None else "refused"
    body = b"".join(sent)
    assert total == len(body)
    again = Intake(
        parse_request(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"), 2 * MAX_BODY_BYTES, form_of(head) if form else None
    )
    _feed(again, body)
    again.finish()
    assert (again.model, again.streaming) == (TARGET, intake.streaming)
    return (
        intake.model,
        intake.streaming,
        intake.estimated_tokens,
        body,
        to_provider(head, form=intake.form is not None, streaming=True),
    )


def _feed(intake: Intake, piece: bytes) -> None:
    if intake.feed(piece):
        while intake.step():
            pass
