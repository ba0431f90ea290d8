"""Answers of generated providers: what they say, and how they send it."""

from __future__ import annotations

import gzip
import json
import math
import random
from dataclasses import dataclass, field

from tests.support.faultyprovider import STREAMED, said, whole
from tests.support.provider import Headers

MAX_BYTES = 5_000_000
PAUSES_S = (0.02, 0.15, 0.3)  # the keepalive interval is between the first two
TYPES = (b"application/json", b"application/json; charset=utf-8")
STREAM_TYPES = (b"text/event-stream", b"text/event-stream; charset=utf-8", b"text/event-stream;charset=UTF-8")
STATUSES = (200, 200, 200, 200, 201, 400, 404, 422, 500)


@dataclass(frozen=True)
class Answer:
    """One answer. ``pieces`` are pauses in seconds and body bytes, in order; ``framing`` is ``length``, ``chunked`` or
    ``close``. ``close`` ends the connection behind it. ``events``: it is an event stream."""

    status: int
    headers: Headers
    framing: str
    head_after_s: float
    pieces: list[float | bytes]
    close: bool
    interim: bytes = b""
    trailer: bytes = b""
    events: bool = False
    body: bytes = field(repr=False, default=b"")


def size(rng: random.Random, most: int) -> int:
    """Log-uniform from 1 to ``most``."""
    return int(math.exp(rng.uniform(0, math.log(most))))


def draw(rng: random.Random, api: str, *, stream: bool, may_encode: bool) -> Answer:
    """An answer to a request of this API, whole or streamed."""
    events = stream and rng.random() < 0.9
    status = 200 if events else rng.choice(STATUSES)
    headers: Headers = [(b"Content-Type", rng.choice(STREAM_TYPES if events else TYPES))]
    for number in range(rng.choice((0, 0, 1, 3))):
        headers.append((b"X-Extra", b"value %d" % number))
    if events:
        body = _stream(rng, api, size(rng, MAX_BYTES))
    elif status >= 400:
        body = json.dumps({"error": {"message": "wrong " + "x" * size(rng, 5000), "type": "t", "code": None}}).encode()
    else:
        body = _whole(rng, api, size(rng, MAX_BYTES))
    if may_encode and not events and rng.random() < 0.5:
        body = gzip.compress(body, 1)
        headers.append((b"Content-Encoding", b"gzip"))
    framing = rng.choice(("length", "chunked", "chunked", "close"))
    return Answer(
        status,
        headers,
        framing,
        _pause(rng, 0.2),
        _pieces(rng, body),
        close=framing == "close" or rng.random() < 0.2,
        interim=b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" if rng.random() < 0.05 else b"",
        trailer=b"X-Trailer: t\r\n" if framing == "chunked" and rng.random() < 0.1 else b"",
        events=events,
        body=body,
    )


def _pause(rng: random.Random, likely: float) -> float:
    return rng.choice(PAUSES_S) if rng.random() < likely else 0.0


def _pieces(rng: random.Random, body: bytes) -> list[float | bytes]:
    """The body cut anywhere, with a pause behind the head and between pieces now and then."""
    cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice((0, 0, 1, 2, 5, 20))))
    pieces: list[float | bytes] = []
    if behind_head := _pause(rng, 0.25):
        pieces.append(behind_head)
    left = 2
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        if end > start:
            pieces.append(body[start:end])
        if left and end < len(body) and (between := _pause(rng, 0.1)):
            pieces.append(between)
            left -= 1
    return pieces


# ---- whole answers ---------------------------------------------------------------------------------------------------


def _text(rng: random.Random, length: int) -> str:
    word = rng.choice(("x", "word ", "ä€😀", '"\\\n', "data: [DONE]\n\n", ": keep\n"))
    return (word * (length // len(word) + 1))[:length]


def _whole(rng: random.Random, api: str, length: int) -> bytes:
    value = json.loads(whole(api, _text(rng, length // 3)))
    return json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 2))).encode()


# ---- streams ---------------------------------------------------------------------------------------------------------


def _stream(rng: random.Random, api: str, length: int) -> bytes:
    """A whole stream of about this size, in one of the many ways to write it."""
    assert api in STREAMED
    choices = rng.choice((1, 1, 1, 2, 3)) if api in ("chat", "completions") else 1
    deltas = [_delta(api, _text(rng, size(rng, 3000)), rng.randrange(choices)) for _ in range(6)]
    frame = said(api, "x")
    ending = frame.events[frame.preamble + 3 :]
    middle: list[bytes] = []
    total = 0
    while total < length:
        middle.append(rng.choice(deltas))
        total += len(middle[-1])
    if choices > 1:
        last = [_indexed(ending[0], index) for index in range(choices)]
        rng.shuffle(last)
        ending = [*last, *ending[1:]]
    if api in ("chat", "completions") and rng.random() < 0.2:
        ending = ending[:-1]  # without [DONE]
    style = _Style(rng)
    text = style.bom + b"".join(style.written(event) for event in [*frame.events[: frame.preamble], *middle, *ending])
    left_out = rng.choice((0, 0, 0, 1, 2)) * len(style.end)  # of the last event: its blank line, the end of its line
    return text[: len(text) - left_out]


def _delta(api: str, text: str, index: int) -> bytes:
    frame = said(api, text)
    return _indexed(frame.events[frame.preamble], index) if index else frame.events[frame.preamble]


def _indexed(event: bytes, index: int) -> bytes:
    return event.replace(b'"index": 0', b'"index": %d' % index, 1)


class _Style:
    """How one server writes its events: line ends, ids, comments, spaces, several data lines."""

    def __init__(self, rng: random.Random) -> None:
        self.end = rng.choice((b"\n", b"\n", b"\r\n", b"\r"))
        self.bom = b"\xef\xbb\xbf" if rng.random() < 0.05 else b""
        self._rng = rng
        self._ids = rng.random() < 0.3
        self._comments = rng.random() < 0.2
        self._retry = rng.random() < 0.1
        self._space = b" " if rng.random() < 0.8 else b""
        self._lines = rng.random() < 0.1
        self._count = 0
        self._memo: dict[bytes, bytes] = {}

    def written(self, event: bytes) -> bytes:
        self._count += 1
        text = self._memo.get(event)
        if text is None:
            text = self._memo[event] = self._body(event)
        before = b""
        if self._comments and self._count % 5 == 1:
            before += b": still here" + self.end * (1 + self._count % 2)
        if self._retry and self._count == 2:
            before += b"retry: 3000" + self.end
        if self._ids and self._count % 3 != 0:
            before += b"id: %d" % self._count + self.end
        return before + text + self.end

    def _body(self, event: bytes) -> bytes:
        """All lines but the blank one."""
        lines = []
        for line in event.strip(b"\n").split(b"\n"):
            name, _, value = line.partition(b": ")
            values = [value]
            if self._lines and value.startswith(b"{"):
                values = json.dumps(json.loads(value), indent=1).encode().split(b"\n")
            lines += [name + b":" + self._space + part + self.end for part in values]
        return b"".join(lines)
