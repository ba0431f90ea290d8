"""Event streams as providers really send them (ADVERSARIAL D16, TUN-10, LIVE-2, API-7)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iop._fast.sse import (
    CHAT,
    ERROR,
    ERROR_4XX,
    EVENT_ID,
    FINISH,
    MESSAGES,
    OTHER,
    PREAMBLE,
    RESPONSES,
    SEMANTIC,
    EventSplitter,
)

pytestmark = pytest.mark.req("TUN-10")


def event(document: Any, name: str = "") -> bytes:
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(document)}\n\n".encode()


def chunk(delta: Any = None, finish: Any = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if delta is None else delta, "logprobs": None, "finish_reason": finish}
    return event({"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], **more})


def run(dialect: int, stream: bytes, size: int = 1 << 30) -> tuple[int, EventSplitter]:
    splitter, flags = EventSplitter(dialect), 0
    for at in range(0, len(stream), size):
        flags |= splitter.feed(stream[at : at + size])
    return flags, splitter


@pytest.mark.parametrize(
    ("stream", "flags"),
    [
        (chunk({"role": "assistant", "content": ""}), PREAMBLE),
        (chunk({"role": "assistant", "content": None, "tool_calls": [], "x": {}}), PREAMBLE),
        (chunk({"content": "hi"}), SEMANTIC),
        (chunk({"content": " "}), SEMANTIC),
        (chunk({"reasoning_content": "hm"}), SEMANTIC),
        (chunk({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}), SEMANTIC),
        (chunk({"refusal": "no"}), SEMANTIC),
        (chunk({}, "stop"), FINISH),
        (chunk({"content": "x"}, "length"), SEMANTIC | FINISH),
        (chunk({}, ""), PREAMBLE),
        (event({"choices": [{"text": "x", "finish_reason": None}]}), SEMANTIC),
        (event({"choices": [{"text": "", "finish_reason": "stop"}]}), FINISH),
        (event({"choices": [{"delta": {}}, {"delta": {"content": "b"}}, {"delta": {}, "finish_reason": "stop"}]}), 6),
        (event({"choices": [], "usage": {"total_tokens": 3}}), PREAMBLE),
        (event({"choices": [], "prompt_filter_results": [{"delta": {"content": "x"}}]}), PREAMBLE),
        (event({"x": {"choices": [{"delta": {"content": "x"}}]}, "choices": []}), PREAMBLE),
        (event({"choices": [{"message": {"delta": {"content": "x"}}}]}), PREAMBLE),
        (chunk({"content": 'data: [DONE] {"finish_reason":"stop"}'}), SEMANTIC),
        (b'data: {"choi\\u0063es":[{"del\\u0074a":{"content":"x"}}]}\n\n', SEMANTIC),
        (b'data: { "choices" : [ { "finish_reason" : "stop" , "delta" : { } } ] }\n\n', FINISH),
        (b"data: [DONE]\n\n", FINISH),
        (b"data:[DONE]\n\n", FINISH),
        (b"data: [1]\n\n", SEMANTIC),
        (b"data: not json\n\n", SEMANTIC),
        (b'data: {"choices":[{"delta":{}]}\n\n', SEMANTIC),
        (b'data: {"choices":[]} {}\n\n', SEMANTIC),
        (b'data: {"choices":[],"x":1\ndata: }\n\n', PREAMBLE),
        (b'data: {"choices":[],"x":1\ndata: 2}\n\n', SEMANTIC),
        (event({"object": "chat.something"}), SEMANTIC),
        (event({"error": {"message": "boom", "type": "server_error", "code": 500}}), ERROR),
        (event({"error": {"message": "no", "type": "BadRequestError", "code": 400}}), ERROR | ERROR_4XX),
        (event({"error": {"type": "invalid_request_error", "code": None}}), ERROR | ERROR_4XX),
        (event({"error": {"code": "context_length_exceeded"}}), ERROR | ERROR_4XX),
        (event({"error": {"message": 'says "code": 400', "code": 4000}}), ERROR),
        (event({"error": "boom"}), ERROR),
        (event({"error": None, "choices": []}), PREAMBLE),
        (b": ping\n\n", 0),
        (b"event: message\nid: 4\n\n", EVENT_ID),
        (b"id\n\n", EVENT_ID),
        (b"ids: 4\nidx\n\n", 0),
        (b"data\n\n", PREAMBLE),
        (b"data: \n\n", PREAMBLE),
    ],
)
@pytest.mark.parametrize("size", [1 << 30, 1], ids=["whole", "by-byte"])
def test_chat_events(stream: bytes, flags: int, size: int) -> None:
    got, splitter = run(CHAT, stream, size)
    assert got == flags
    assert splitter.at_boundary
    assert splitter.finished is bool(flags & (FINISH | ERROR))


@pytest.mark.parametrize(
    ("document", "name", "flags"),
    [
        ({"type": "response.created", "response": {"usage": None, "error": None}}, "", PREAMBLE),
        ({"response": {"output": [{"type": "error"}]}, "type": "response.in_progress"}, "", PREAMBLE),
        ({"type": "response.queued"}, "", PREAMBLE),
        ({"type": "response.output_item.added", "item": {"type": "message", "content": []}}, "", PREAMBLE),
        ({"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}}, "", PREAMBLE),
        ({"item": {"id": "f", "type": "function_call"}, "type": "response.output_item.added"}, "", SEMANTIC),
        ({"type": "response.output_text.delta", "delta": "x"}, "", SEMANTIC),
        ({"delta": "", "type": "response.output_text.delta"}, "", PREAMBLE),
        ({"type": "response.function_call_arguments.delta", "delta": '{"'}, "", SEMANTIC),
        ({"type": "response.output_text.done", "text": "x"}, "", SEMANTIC),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 1}}}, "", FINISH),
        ({"type": "response.incomplete", "response": {}}, "", FINISH),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, "", FINISH | ERROR),
        (
            {"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}},
            "",
            FINISH | ERROR | ERROR_4XX,
        ),
        ({"type": "error", "code": "server_error", "message": "4xx"}, "", ERROR),
        ({"type": "error", "code": "429"}, "", ERROR | ERROR_4XX),
        ({"type": "response.brand_new"}, "", SEMANTIC),
        ({"delta": "x"}, "response.output_text.delta", SEMANTIC),
        ({}, "response.completed", FINISH),
        ({"type": "response.created"}, "response.completed", PREAMBLE),
        ({"error": {"code": 500}}, "", ERROR),
    ],
)
def test_responses_events(document: Any, name: str, flags: int) -> None:
    for size in (1, 1000):
        assert run(RESPONSES, event(document, name), size)[0] == flags


@pytest.mark.parametrize(
    ("document", "name", "flags"),
    [
        ({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 3}}}, "", PREAMBLE),
        ({"type": "ping"}, "ping", PREAMBLE),
        ({}, "ping", PREAMBLE),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, "", PREAMBLE),
        ({"type": "content_block_start", "content_block": {"thinking": "", "type": "thinking"}}, "", PREAMBLE),
        ({"type": "content_block_start", "content_block": {"type": "tool_use", "input": {}}}, "", SEMANTIC),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}, "", SEMANTIC),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}}, "", PREAMBLE),
        ({"delta": {"type": "input_json_delta", "partial_json": "{"}, "type": "content_block_delta"}, "", SEMANTIC),
        ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}, "", SEMANTIC),
        ({"type": "message_stop"}, "", FINISH),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "error", ERROR),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, "error", ERROR | ERROR_4XX),
        ({"type": "brand_new"}, "", SEMANTIC),
    ],
)
def test_messages_events(document: Any, name: str, flags: int) -> None:
    for size in (1, 1000):
        assert run(MESSAGES, event(document, name), size)[0] == flags


def test_a_stream_of_no_known_dialect_is_all_content_until_done() -> None:
    assert run(OTHER, event({"type": "ping"}))[0] == SEMANTIC
    assert run(OTHER, b"data: [DONE]\n\n")[0] == FINISH


CONTENT = '{"choices":[{"delta":{"content":"\u20ac \U0001f600 [DONE]"},"finish_reason":null}]}'
SHAPES = {
    "lf": f"data: {CONTENT}\n\n",
    "crlf": f"data: {CONTENT}\r\n\r\n",
    "cr": f"data: {CONTENT}\r\r",
    "mixed": f": hello\rid: 7\ndata: {CONTENT}\r\n\n",
    "no-space": f"data:{CONTENT}\n\n",
    "comments-between": f":\n: x\r\ndata: {CONTENT}\n: y\n\n",
    "bom": f"\ufeffdata: {CONTENT}\n\n",
    "multi-line": "".join(f"data: {line}\n" for line in CONTENT.replace(",", ",\n").split("\n")) + "\n",
    "name-last": f"data: {CONTENT}\nevent: message\n\n",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_d16_any_shape_of_the_same_event_cut_at_every_byte(shape: str) -> None:
    stream = SHAPES[shape].encode()
    for cut in range(len(stream) + 1):
        splitter = EventSplitter(CHAT)
        flags = splitter.feed(stream[:cut]) | splitter.feed(stream[cut:])
        assert (flags & SEMANTIC, splitter.events, splitter.at_boundary, splitter.finished) == (
            SEMANTIC,
            1,
            True,
            False,
        )
    flags, splitter = run(CHAT, stream, 1)
    assert (flags & ~EVENT_ID, splitter.events, splitter.at_boundary) == (SEMANTIC, 1, True)


@pytest.mark.req("API-8b")
@pytest.mark.parametrize("cut", [0, 1, 2])
@pytest.mark.parametrize(
    ("dialect", "last"),
    [
        (CHAT, b"data: [DONE]\n\n"),
        (CHAT, chunk({}, "stop")),
        (MESSAGES, event({"type": "message_stop"}, "message_stop")),
        (RESPONSES, event({"type": "response.completed", "response": {}})),
        (OTHER, b"data: [DONE]\r\n\r\n"[:-2]),
    ],
)
def test_d16_the_last_event_counts_when_the_stream_ends_behind_it(dialect: int, last: bytes, cut: int) -> None:
    last = last[: len(last) - cut]
    flags, splitter = run(dialect, last)
    assert splitter.finished is (cut == 0 and dialect != OTHER)
    assert flags | splitter.end() == FINISH
    assert splitter.finished


@pytest.mark.req("API-8b")
def test_a_last_event_that_is_cut_in_its_data_ends_nothing() -> None:
    for cut in (3, 4, 10):
        _, splitter = run(CHAT, chunk({"content": "x"}) + chunk({}, "stop")[:-cut])
        splitter.end()
        assert not splitter.finished


def of_choice(index: object, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": finish}]})


@pytest.mark.req("API-8b")
def test_without_done_each_choice_that_was_seen_has_to_finish() -> None:
    splitter = EventSplitter(CHAT)
    told = []
    for part in (
        of_choice(0),
        of_choice(1),
        of_choice(0, "stop"),
        of_choice(1),
        of_choice(1, "length"),
        of_choice(127),
    ):
        splitter.feed(part)
        told.append(splitter.finished)
    assert told == [False, False, False, False, True, False]
    splitter.feed(of_choice(64) + of_choice(127, "stop"))
    assert not splitter.finished
    splitter.feed(of_choice(64, "stop"))
    assert splitter.finished


@pytest.mark.req("API-8b")
def test_done_ends_a_stream_whatever_its_choices_say_and_so_does_an_error() -> None:
    for last in (b"data: [DONE]\n\n", event({"error": {"message": "x"}})):
        _, splitter = run(CHAT, of_choice(0) + of_choice(1, "stop") + last, 1)
        assert splitter.finished


@pytest.mark.req("API-8b")
@pytest.mark.parametrize("index", [128, 1000, 99999, -1, 1.5, "1", [0]])
def test_a_choice_without_a_small_number_is_not_waited_for(index: object) -> None:
    _, splitter = run(CHAT, of_choice(index) + of_choice(0, "stop"))
    assert splitter.finished


@pytest.mark.req("API-8b")
def test_a_choice_without_an_index_is_the_first() -> None:
    _, splitter = run(CHAT, event({"choices": [{"delta": {"content": "x"}}]}) + of_choice(None) + of_choice(1, "stop"))
    assert not splitter.finished
    splitter.feed(event({"choices": [{"finish_reason": "stop"}]}))
    assert splitter.finished


@pytest.mark.req("API-8b")
def test_choices_of_a_malformed_event_do_not_count() -> None:
    _, splitter = run(CHAT, of_choice(0, "stop") + of_choice(1)[:-3] + b"\n\n")
    assert splitter.finished


@pytest.mark.req("API-7b")
def test_nothing_is_put_in_between_cr_and_lf() -> None:
    splitter = EventSplitter(CHAT)
    splitter.feed(b"data: [1]\r\n\r")
    assert not splitter.at_boundary
    splitter.feed(b"\n")
    assert splitter.at_boundary
    splitter.feed(b"data: [1]\r\r")
    assert splitter.at_boundary, "here a line ends with CR alone"


def test_a_boundary_is_where_another_event_may_be_put_in() -> None:
    splitter = EventSplitter(CHAT)
    told = []
    for part in (b"", b"da", b"ta: x", b"\n", b"\n", b": pi", b"ng\n", b"id: 1\n", b"\n", b"data: y\r", b"\r", b"\n"):
        splitter.feed(part)
        told.append(splitter.at_boundary)
    assert told == [True, False, False, False, True, False, True, False, True, False, True, True]


@pytest.mark.req("LIVE-2")
def test_d16_a_5_mb_event_is_classified_like_a_small_one_and_keeps_its_usage() -> None:
    document = {"response": {"output": ["x" * 5_000_000], "usage": {"input_tokens": 9}}, "type": "response.completed"}
    stream = event(document)
    flags, splitter = run(RESPONSES, stream, 61)
    assert (flags, splitter.usage()) == (FINISH, b'{"input_tokens": 9}')
    data_bytes = len(stream) - len(b"data: \n\n")
    assert splitter.progress_events == data_bytes // 4096 + 1


@pytest.mark.req("LIVE-2")
def test_comments_pings_and_preambles_are_no_progress_but_usage_is() -> None:
    stream = b": x\n\n" * 5000 + b": " + b"y" * 20_000 + b"\n\n" + chunk({"role": "assistant"})
    assert run(CHAT, stream)[1].progress_events == 0
    assert run(CHAT, event({"choices": [], "usage": {"total_tokens": 1}}))[1].progress_events == 1
    assert run(MESSAGES, event({"type": "ping"}))[1].progress_events == 0


@pytest.mark.req("TUN-3")
def test_d16_usage_in_its_own_last_chunk_or_on_every_chunk_is_the_last_one() -> None:
    every = b"".join(chunk({"content": "x"}, usage={"total_tokens": n}) for n in range(5))
    assert run(CHAT, every)[1].usage() == b'{"total_tokens": 4}'
    own = chunk({"content": "x"}, usage=None) + event({"choices": [], "usage": {"a": {"b": [1]}}}) + b"data: [DONE]\n\n"
    for size in (1, 7, 1000):
        assert run(CHAT, own, size)[1].usage() == b'{"a": {"b": [1]}}'
    assert run(CHAT, event({"x": {"usage": {"a": 1}}, "choices": []}))[1].usage() is None
    assert run(CHAT, b'data: {"usage":{"a":1},"choices":\n\n')[1].usage() is None


@pytest.mark.req("TUN-3")
def test_messages_usage_has_two_sides() -> None:
    stream = event({"type": "message_start", "message": {"usage": {"input_tokens": 4}}})
    stream += event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}})
    splitter = run(MESSAGES, stream, 5)[1]
    assert (splitter.usage_start(), splitter.usage()) == (b'{"input_tokens": 4}', b'{"output_tokens": 2}')


def test_a_usage_object_over_16_kib_is_not_kept() -> None:
    small, large = {"a": "x" * 16_000}, {"a": "x" * 17_000}
    assert run(CHAT, event({"choices": [], "usage": small}))[1].usage() is not None
    assert run(CHAT, event({"choices": [], "usage": large}))[1].usage() is None


def test_a_million_dripped_line_ends_cost_linear_time() -> None:
    """A splitter that searches the rest of the span for each line would look at 10^12 bytes here and never end."""
    for stream in (
        b"\r" * 1_000_000,
        b"\n" * 1_000_000,
        b"\r\n" * 500_000,
        b":\r" * 500_000,
        b"id:\rdata:\r" * 100_000,
    ):
        assert run(CHAT, stream)[1].at_boundary in (True, False)
    assert run(CHAT, b"event: " + b"x" * 1_000_000, 1)[1].events == 0


def test_an_unknown_dialect_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="dialect"):
        EventSplitter(4)
