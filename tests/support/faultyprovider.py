"""A provider that goes wrong at a chosen place of its answer, for every API, streamed or whole.

    python -m tests.support.faultyprovider --fault stall --index 3 --port 9001

serves POST requests for ever, each with this fault. In a test, ``Answer(call, ...)`` is one answer and ``play`` spoils
it. A *place* says how far the answer gets: :data:`STREAM_PLACES` and :data:`WHOLE_PLACES` are those with names. The
events of a stream are the preamble of its API, three of text, the one that ends it and, where the API has that,
``[DONE]``; ``--index`` counts them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.provider import DONE, JSON_HEADERS, SSE_HEADERS, Call, Headers, ScriptedProvider, chat_event, event

BEAT_S = 0.1  # between the bytes, or comments, of a provider that keeps itself alive with them
APIS = ("chat", "completions", "responses", "messages", "embeddings")
STREAMED = APIS[:4]
PATHS = {
    "chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses",
    "messages": "/v1/messages", "embeddings": "/v1/embeddings",
}  # fmt: skip

# ---- what is said ----------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """A whole stream: ``preamble`` is how many events come before the first with content, ``ending`` the index of the
    one that says that all is said."""

    events: list[bytes]
    preamble: int
    ending: int


def said(api: str, text: str) -> Said:
    """An ordinary stream of this API, whose content is ``text`` three times."""
    if api == "chat":
        texts = [chat_event({"content": text}) for _ in range(3)]
        return Said([chat_event({"role": "assistant", "content": ""}), *texts, chat_event({}, "stop"), DONE], 1, 4)
    if api == "completions":
        return Said([_text(""), *(_text(text) for _ in range(3)), _text("", "stop"), DONE], 1, 4)
    if api == "responses":
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
        deltas = [_typed("response.output_text.delta", item_id="msg_1", delta=text) for _ in range(3)]
        response = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
        usage = {"input_tokens": 3, "output_tokens": 3, "total_tokens": 6}
        done = _typed("response.completed", response={**response, "status": "completed", "usage": usage})
        opening = [_typed("response.created", response=response), _typed("response.output_item.added", item=item)]
        return Said([*opening, *deltas, done], 2, 5)
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 3}}
    deltas = [_typed("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for _ in range(3)]
    stop = _typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})
    opening = [
        _typed("message_start", message=message),
        _typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    ]
    return Said([*opening, *deltas, _typed("content_block_stop", index=0), stop, _typed("message_stop")], 2, 7)


def _text(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return event({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "real-m", "choices": [choice]})


def _typed(kind: str, **members: Any) -> bytes:
    return event({"type": kind, **members}, kind)


def whole(api: str, text: str) -> bytes:
    """An ordinary whole answer of this API."""
    content = text * 3
    if api == "chat":
        body: dict[str, Any] = {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop",
            "message": {"role": "assistant", "content": content}}]}  # fmt: skip
    elif api == "completions":
        body = {"object": "text_completion", "choices": [{"index": 0, "finish_reason": "stop", "text": content}]}
    elif api == "responses":
        part = {"type": "output_text", "text": content}
        body = {"object": "response", "status": "completed", "output": [{"type": "message", "content": [part]}]}
    elif api == "messages":
        body = {"type": "message", "stop_reason": "end_turn", "content": [{"type": "text", "text": content}]}
    else:
        body = {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25], "of": content}],
        }
    return json.dumps({"id": "answer-1", "model": "real-m", **body}).encode()


def error_event(api: str, *, blames_client: bool) -> bytes:
    """An error inside a stream, as the API has it: one of the server's own, or one that blames the request."""
    kind, code, text = ("invalid_request_error", 400, "too long") if blames_client else ("server_error", 500, "cuda")
    if api == "responses":
        return _typed("error", code=kind, message=text, param=None)
    if api == "messages":
        return _typed("error", error={"type": kind if blames_client else "api_error", "message": text})
    return event({"error": {"message": text, "type": kind, "code": code}})


BUSY = b'{"error": {"message": "busy", "type": "server_error", "code": "overloaded"}}'

# ---- places ----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """How far an answer gets: ``head`` is 0 (nothing), 1 (a part of it) or 2; ``events`` come whole behind it, of a
    whole answer that is its bytes; ``inside`` a part of the next one, too."""

    head: int
    events: int = 0
    inside: bool = False


STREAM_PLACES: dict[str, Callable[[Said], Place]] = {
    "before the head": lambda s: Place(0),
    "inside the head": lambda s: Place(1),
    "behind the head": lambda s: Place(2),
    "behind the preamble": lambda s: Place(2, s.preamble),
    "inside the first event with content": lambda s: Place(2, s.preamble, inside=True),
    "behind it": lambda s: Place(2, s.preamble + 1),
    "inside the second": lambda s: Place(2, s.preamble + 1, inside=True),
    "before the event that ends the stream": lambda s: Place(2, s.ending),
    "before [DONE]": lambda s: Place(2, s.ending + 1),
    "behind all events": lambda s: Place(2, len(s.events)),
}
WHOLE_PLACES: dict[str, Callable[[bytes], Place]] = {
    "before the head": lambda b: Place(0),
    "inside the head": lambda b: Place(1),
    "behind the head": lambda b: Place(2),
    "inside the body": lambda b: Place(2, len(b) // 2),
    "before the last byte": lambda b: Place(2, len(b) - 1),
    "behind the last byte": lambda b: Place(2, len(b)),
}


def place_of(name: str, api: str, *, stream: bool) -> Place:
    """The place of this name in an answer of this API."""
    return STREAM_PLACES[name](said(api, "x")) if stream else WHOLE_PLACES[name](whole(api, "x"))


# ---- one answer ------------------------------------------------------------------------------------------------------


class Answer:
    """One answer to ``call`` up to ``place``. ``text`` is one character, the same that the place was made for.
    ``over`` is set once the framing of what was sent says that it is complete."""

    def __init__(self, call: Call, api: str, place: Place, *, stream: bool, text: str = "x") -> None:
        self.call = call
        self.api = api
        self.place = place
        self.stream = stream
        self.over = False
        self.sent = b""  # of the body
        self.script = said(api, text)
        self.events = self.script.events if stream else [whole(api, text)]
        self.body = b"".join(self.events)
        self.headers: Headers = [*(SSE_HEADERS if stream else JSON_HEADERS), (b"Connection", b"close")]
        self.framing = b"Transfer-Encoding: chunked\r\n" if stream else b"Content-Length: %d\r\n" % len(self.body)

    @property
    def shown(self) -> bytes:
        """The body up to the place."""
        if not self.stream:
            return self.body[: self.place.events]
        part = b""
        if self.place.inside:
            following = self.events[self.place.events]
            part = following[: len(following) // 2]
        return b"".join(self.events[: self.place.events]) + part

    def begin(self) -> None:
        """What comes before the place."""
        if self.place.head == 1:
            self.call.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
        elif self.place.head == 2:
            self.call.start(200, self.headers, framing=self.framing)
            self.say(self.shown)

    def say(self, data: bytes) -> None:
        """Body bytes."""
        self.sent += data
        if data and b"chunked" in self.framing:
            self.call.event(data)
        elif data:
            self.call.send(data)

    def end(self) -> None:
        """The end of a chunked body."""
        self.over = True
        self.call.end_stream()

    def respond(self, body: bytes, status: int, headers: Headers) -> None:
        self.over = True
        self.sent = body
        self.call.respond(body, status, [*headers, (b"Connection", b"close")])

    def keep_saying(self, data: bytes) -> None:
        """``data`` again and again, until the node has had enough."""
        if not self.call.gone.is_set() and not self.call.connection.transport.is_closing():
            self.say(data) if self.place.head == 2 else self.call.send(data)
            asyncio.get_running_loop().call_later(BEAT_S, self.keep_saying, data)

    def good(self) -> None:
        """All of it."""
        self.place = Place(2, len(self.events) if self.stream else len(self.body))
        self.begin()
        if self.stream:
            self.end()
        self.over = True


# ---- faults ----------------------------------------------------------------------------------------------------------


def _reset(a: Answer) -> None:
    a.begin()
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, a.call.reset)  # uvloop writes what is queued between two rounds


def _cut(a: Answer) -> None:
    a.begin()
    a.call.close()


def _half_close(a: Answer) -> None:
    a.begin()
    a.call.connection.transport.write_eof()


def _malformed_chunk(a: Answer) -> None:
    a.framing = b"Transfer-Encoding: chunked\r\n"
    a.begin()
    a.call.send(b"zz\r\nwhatever")


def _clean_end(a: Answer) -> None:
    a.framing = b"Transfer-Encoding: chunked\r\n"
    a.begin()
    a.end()


def _late_error(a: Answer, *, blames_client: bool) -> None:
    a.begin()
    a.say(error_event(a.api, blames_client=blames_client))
    a.end()


def _comments(a: Answer) -> None:
    a.begin()
    a.keep_saying(COMMENT)


def _flood(a: Answer) -> None:
    a.begin()
    a.say(FLOOD)


def _drip(a: Answer) -> None:
    a.begin()
    a.keep_saying(b"x")


def _length_too_short(a: Answer) -> None:
    a.framing = b"Content-Length: %d\r\n" % len(a.shown)
    a.call.start(200, a.headers, framing=a.framing)
    a.over = True
    a.say(a.body)


def _length_too_long(a: Answer) -> None:
    a.framing = b"Content-Length: %d\r\n" % (len(a.body) + 10)
    a.begin()
    a.call.close()


def _status(status: int) -> Callable[[Answer], None]:
    return lambda a: a.respond(BUSY, status, [*JSON_HEADERS, (b"Retry-After", b"%d" % RETRY_AFTER_S)])


def _gzip_lie(body: bytes) -> Callable[[Answer], None]:
    def play(a: Answer) -> None:
        a.respond(body or a.body, 200, [*a.headers[:1], (b"Content-Encoding", b"gzip")])

    return play


def _redirect(a: Answer) -> None:
    a.over = True
    a.call.start(307, [(b"Location", b"http://elsewhere.invalid/v1/")], framing=b"Content-Length: 0\r\n")


def _unread(a: Answer) -> None:
    """The body stays in the socket, and the connection open: the next request is read behind it, as a part of it."""
    a.over, a.sent = True, BUSY
    a.call.respond(BUSY, 500, [*JSON_HEADERS, (b"Retry-After", b"%d" % RETRY_AFTER_S)])
    a.call.connection.unread = a.call.body


def _other_kind(a: Answer) -> None:
    other = Answer(a.call, a.api if a.api in STREAMED else "chat", a.place, stream=not a.stream)
    other.good()
    a.over, a.sent = True, other.sent


def _raw(data: bytes) -> Callable[[Answer], None]:
    return lambda a: a.call.send(data)


RETRY_AFTER_S = 1
COMMENT = b": still here\n\n"
FLOOD = COMMENT * 1200  # more than the edge holds of a preamble
GARBAGE = bytes(range(256)) * 2
_LONG = b"HTTP/1.1 200 OK\r\nx: %b\r\n" % (b"y" * 70_000)
_LINE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

#: Each spoils an answer. Those in :data:`SLOW` go on until somebody's clock ends them.
FAULTS: dict[str, Callable[[Answer], None]] = {
    "stall": Answer.begin,
    "stall of an engine at work": Answer.begin,
    "cut": _cut,
    "reset": _reset,
    "half-close": _half_close,
    "malformed chunk": _malformed_chunk,
    "clean end": _clean_end,
    "error event": lambda a: _late_error(a, blames_client=False),
    "error event that blames the request": lambda a: _late_error(a, blames_client=True),
    "comments without end": _comments,
    "flood of comments": _flood,
    "a byte now and then": _drip,
    "length too short": _length_too_short,
    "length too long": _length_too_long,
    "429 with Retry-After": _status(429),
    "502 with Retry-After": _status(502),
    "503 with Retry-After": _status(503),
    "500": _status(500),
    "error without reading the body": _unread,
    "redirect": _redirect,
    "400": _status(400),
    "gzip that is plain": _gzip_lie(b""),
    "gzip that is garbage": _gzip_lie(GARBAGE),
    "stream for whole, whole for stream": _other_kind,
    "no HTTP": _raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "head with garbage": _raw(_LINE + b"no colon here\r\n\r\n{}"),
    "head without end": _raw(_LONG),
    "head with two lengths": _raw(_LINE + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "head with length and chunks": _raw(_LINE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"),
    "status outside HTTP": _raw(b"HTTP/1.1 999 What\r\nContent-Length: 2\r\n\r\n{}"),
}
AT_WORK = "stall of an engine at work"  # which goes on when its caller has left
SLOW = frozenset({"stall", AT_WORK, "comments without end", "flood of comments", "a byte now and then"})


def status_of(fault: str) -> int:
    """The status that an answer with this fault has."""
    return 500 if fault == "error without reading the body" else int(fault[:3]) if fault[:3].isdigit() else 200


def play(fault: str, answer: Answer) -> None:
    """Answers with this fault."""
    FAULTS[fault](answer)


def api_of(call: Call) -> str:
    """By the end of its path; chat for a path that is none of the known ones."""
    found = [api for api, path in PATHS.items() if call.path.endswith(path.removeprefix("/v1").encode())]
    return max(found, key=lambda api: len(PATHS[api]), default="chat")


# ---- by hand ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.faultyprovider",
        description="Listens on loopback and answers every POST of the OpenAI and Anthropic APIs with one fault. Put "
        "http://127.0.0.1:PORT/v1 into a provider's base_url and see what its clients get.",
        epilog="faults: " + ", ".join(FAULTS) + ". places of a stream: " + ", ".join(STREAM_PLACES)
        + ". places of a whole answer: " + ", ".join(WHOLE_PLACES) + ".",
    )  # fmt: skip
    parser.add_argument("--fault", choices=FAULTS, required=True, metavar="FAULT", help="what goes wrong")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--at", metavar="PLACE", default="behind the head", help="how far the answer gets, by name")
    where.add_argument("--index", type=int, metavar="N", help="or the number of whole events (bytes) before the fault")
    parser.add_argument("--inside", action="store_true", help="with --index: a part of the next event, too")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 takes a free one")
    chosen = parser.parse_args(arguments)
    if chosen.index is None and chosen.at not in STREAM_PLACES and chosen.at not in WHOLE_PLACES:
        parser.error(f"there is no place {chosen.at!r}; --help lists them")
    asyncio.run(_serve(chosen))


async def _serve(chosen: argparse.Namespace) -> None:
    def answer(call: Call) -> None:
        if call.method != b"POST":
            call.respond(b"{}", 200 if call.target == b"/health" else 404)
            return
        api = api_of(call)
        stream = bool(call.json.get("stream")) and api in STREAMED
        if chosen.index is not None:
            most = len(said(api, "x").events) if stream else len(whole(api, "x"))
            place = Place(2, min(chosen.index, most), inside=chosen.inside and stream and chosen.index < most)
        else:
            places = STREAM_PLACES if stream else WHOLE_PLACES
            place = place_of(chosen.at if chosen.at in places else "behind the head", api, stream=stream)
        play(chosen.fault, Answer(call, api, place, stream=stream))

    with socket.create_server(("127.0.0.1", chosen.port), backlog=128) as sock:
        sock.setblocking(False)
        async with ScriptedProvider(sock) as provider:
            provider.answer = answer
            print(
                f"http://127.0.0.1:{sock.getsockname()[1]}/v1 fails with: {chosen.fault}", file=sys.stderr, flush=True
            )
            await asyncio.Event().wait()


if __name__ == "__main__":
    main()
