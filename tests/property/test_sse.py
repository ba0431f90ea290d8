"""The event splitter against a WHATWG parser and json.loads: the same flags, counts and usage, for any cut (TUN-10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop._fast.sse import CHAT, MESSAGES, OTHER, RESPONSES, EventSplitter
from tests.support import oracles

cuts = st.lists(st.integers(0, 1 << 16), max_size=12)
text = st.sampled_from(
    ["", "x", "[DONE]", 'say "choices": [', "a\\b\n", "\u20ac\ud83d\ude00", "role", "content", "{", "}"]
)
scalar = st.none() | st.booleans() | st.integers(-5, 500) | text | st.just(float("nan"))
value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
usage = (
    st.dictionaries(st.sampled_from(["prompt_tokens", "total_tokens", "usage"]), value, max_size=3) | st.none() | scalar
)
blame = st.sampled_from([400, 404, 500, 4000, "429", "invalid_request_error", "server_error", "BadRequestError", None])
error = scalar | st.fixed_dictionaries({}, optional={"code": blame, "type": blame, "message": text, "x": value})
delta = value | st.fixed_dictionaries(
    {}, optional={"role": text, "content": value, "tool_calls": value, "type": text, "text": text}
)
choice = value | st.fixed_dictionaries(
    {}, optional={"index": scalar, "delta": delta, "finish_reason": scalar | value, "text": scalar, "x": value}
)
kinds = {
    RESPONSES: [
        "response.created",
        "response.in_progress",
        "response.queued",
        "response.output_text.delta",
        "keepalive",
        "error",
        "delta",
        "response.output_item.added",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.output_text.done",
        "",
    ],
    MESSAGES: [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
        "other",
        "",
    ],
    CHAT: ["error", ""],
    OTHER: ["x"],
}
typed = st.fixed_dictionaries({}, optional={"type": text, "code": blame, "error": error, "usage": usage, "x": value})
chat = st.fixed_dictionaries(
    {},
    optional={"id": text, "choices": value | st.lists(choice, max_size=3), "usage": usage, "error": error, "x": value},
)
item = value | st.fixed_dictionaries({"type": st.sampled_from(["function_call", "custom_tool_call", "message"])})
block = value | st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use"])}, optional={"text": text, "input": value}
)
members = {
    RESPONSES: st.fixed_dictionaries({}, optional={
        "delta": value, "item": item, "code": blame, "error": error, "x": value,
        "response": value | st.fixed_dictionaries({}, optional={"usage": usage, "error": error, "output": value}),
    }),
    MESSAGES: st.fixed_dictionaries({}, optional={
        "delta": delta, "content_block": block, "usage": usage, "error": error, "index": scalar,
        "message": value | st.fixed_dictionaries({}, optional={"usage": usage, "content": value}),
    }),
    CHAT: chat,
    OTHER: typed,
}  # fmt: skip
end_of_line = st.sampled_from([b"\n", b"\r\n", b"\r"])
odd_line = st.sampled_from(
    [b": ping", b":", b"id: 7", b"retry: 5", b"data", b"event", b"Data: x", b"datax: y", b"\xef\xbb\xbf"]
)


@st.composite
def event(draw: st.DrawFn, dialect: int) -> bytes:
    """One event with the line ends, comments and member order of some server."""
    root: dict[str, Any] = draw(members[dialect])
    kind = draw(st.sampled_from(kinds[dialect]))
    where = draw(st.sampled_from(["data", "event", "both", "none"]))
    if where in ("data", "both"):
        root = {**root, "type": kind} if draw(st.booleans()) else {"type": kind, **root}
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]))
    # Lone surrogates as escapes only: a usage that is not UTF-8 is none at all, which has a test of its own.
    data = json.dumps(root, ensure_ascii=draw(st.booleans()), separators=separators).encode("utf-8", "replace")
    if draw(st.integers(0, 5)) == 0:
        data = draw(
            st.sampled_from(
                [b"[DONE]", b"[DONE] ", b"[DON]", b" [DONE]", b"", b"  ", data[:-1], data + b"}", b"[1]", b"7", b"null"]
            )
        )
    lines = [b"data:" + draw(st.sampled_from([b" ", b""])) + line for line in data.split(b"\n")]
    if where in ("event", "both"):
        lines.insert(draw(st.integers(0, len(lines))), b"event: " + kind.encode())
    for odd in draw(st.lists(odd_line, max_size=2)):
        lines.insert(draw(st.integers(0, len(lines))), odd)
    return b"".join(line + draw(end_of_line) for line in [*lines, b""])


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, bytes]:
    dialect = draw(st.sampled_from([OTHER, CHAT, RESPONSES, MESSAGES]))
    parts = draw(st.lists(event(dialect), max_size=4))
    stream = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + b"".join(parts)
    return dialect, stream[: len(stream) - draw(st.sampled_from([0, 0, 1, 2, 30]))]


def watch(splitter: EventSplitter, parts: list[bytes]) -> oracles.Seen:
    seen = oracles.Seen()
    for part in parts:
        seen.flags |= splitter.feed(part)
    seen.events = splitter.events
    seen.progress_events = splitter.progress_events
    seen.finished = splitter.finished
    for name in ("usage", "usage_start"):
        raw = getattr(splitter, name)()
        setattr(seen, name, None if raw is None else oracles.lenient_json(raw))
    return seen


@pytest.mark.req("TUN-10", "LIVE-2")
@given(streams(), cuts)
def test_events_are_classified_as_the_standards_say_however_they_are_cut(
    case: tuple[int, bytes], cuts: list[int]
) -> None:
    dialect, stream = case
    want = oracles.stream_seen(dialect, stream)
    for parts in ([stream], oracles.pieces(stream, cuts), [stream[i : i + 1] for i in range(len(stream))]):
        splitter = EventSplitter(dialect)
        assert watch(splitter, parts) == want
        assert splitter.at_boundary is oracles.stream_events(stream)[1]


@pytest.mark.req("API-8b")
@given(streams(), cuts)
def test_the_end_of_a_stream_ends_its_last_event(case: tuple[int, bytes], cuts: list[int]) -> None:
    dialect, stream = case
    want = oracles.stream_seen(dialect, stream + (b"\n" if stream.endswith(b"\r") else b"") + b"\n\n")
    splitter = EventSplitter(dialect)
    seen = watch(splitter, oracles.pieces(stream, cuts))
    flags = seen.flags | splitter.end()
    assert (flags, splitter.events, splitter.finished) == (want.flags, want.events, want.finished)


@given(st.text('ade:vtn \r\n{}"[', max_size=30).map(str.encode) | st.binary(max_size=30), cuts)
def test_noise_splits_as_the_standard_says(stream: bytes, cuts: list[int]) -> None:
    splitter = EventSplitter(OTHER)
    for part in oracles.pieces(stream, cuts):
        splitter.feed(part)
    events, boundary = oracles.stream_events(stream)
    assert splitter.events == len(events)
    assert splitter.at_boundary is boundary
