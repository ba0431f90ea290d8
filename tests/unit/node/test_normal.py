"""Normalized runs as chat completions: the request that is made, and the events of what comes back (EXEC-1, EXEC-2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iop.errors import InvalidArgument
from iop.execution.events import RunEvent, RunEventKind
from iop.execution.usage import Usage
from iop.node.providers.chat_form import Reader, request_body

K = RunEventKind


def body(given: Any, options: Any = None) -> Any:
    raw = json.dumps(options).encode() if options is not None else b""
    return json.loads(request_body("real-m", json.dumps(given).encode(), raw))


@pytest.mark.req("EXEC-1")
def test_a_prompt_becomes_one_message_and_options_are_added() -> None:
    assert body({"prompt": "hi"}, {"max_tokens": 3}) == {
        "model": "real-m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tools = [{"type": "function", "function": {"name": "f"}}]
    given = {"messages": [{"role": "system", "content": "s"}], "tools": tools}
    assert body(given)["tools"] == tools
    assert body(given)["messages"] == given["messages"]


@pytest.mark.req("EXEC-1")
@pytest.mark.parametrize(
    ("given", "options"),
    [
        (b"no", b""),
        (b"[]", b""),
        (b"{}", b""),
        (b'{"prompt":3}', b""),
        (b'{"messages":[]}', b""),
        (b'{"messages":"x"}', b""),
        (b'{"prompt":"a","messages":[{}]}', b""),
        (b'{"prompt":"a","model":"other"}', b""),
        (b'{"prompt":"a"}', b'{"stream":false}'),
        (b'{"prompt":"a"}', b'{"messages":[]}'),
        (b'{"prompt":"a"}', b"[]"),
        (b'{"prompt":"a"}', b"{"),
        (b"[" * 5000, b""),
        (b'{"prompt":"\xff"}', b""),
    ],
)
def test_bad_input_is_refused_before_the_provider_is_asked(given: bytes, options: bytes) -> None:
    with pytest.raises(InvalidArgument):
        request_body("m", given, options)


def events(*chunks: Any) -> list[RunEvent]:
    reader = Reader()
    out = []
    for chunk in chunks:
        out += list(reader.read(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()))
    return out + list(reader.end())


def delta(finish: str | None = None, index: int = 0, **fields: Any) -> Any:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


@pytest.mark.req("EXEC-1", "EXEC-5")
def test_a_stream_becomes_events() -> None:
    got = events(
        delta(role="assistant", content=""),
        delta(reasoning_content="think"),
        delta(content="hé"),
        delta(tool_calls=[{"index": 1, "id": "c1", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 1, "function": {"arguments": '{"a":1}'}}]),
        delta(index=1, content="another choice"),
        delta("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
        b"[DONE]",
    )
    assert got == [
        RunEvent(K.REASONING_DELTA, b"think"),
        RunEvent(K.DELTA, "hé".encode()),
        RunEvent(K.TOOL_CALL_DELTA, b"", 1, b"c1", b"f"),
        RunEvent(K.TOOL_CALL_DELTA, b'{"a":1}', 1),
        RunEvent(K.USAGE, usage=Usage(5, 2)),
        RunEvent(K.COMPLETE, finish_reason=b"tool_calls"),
    ]


@pytest.mark.req("EXEC-1")
def test_an_answer_that_is_no_stream_is_read_whole() -> None:
    got = events(
        {"choices": [{"message": {"role": "assistant", "content": "all"}, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": 1}}
    )  # fmt: skip
    assert [event.kind for event in got] == [K.DELTA, K.USAGE, K.COMPLETE]


@pytest.mark.req("EXEC-2")
def test_a_stream_that_just_ends_has_no_terminal_of_its_own() -> None:
    assert [event.kind for event in events(delta(content="half"))] == [K.DELTA]


@pytest.mark.parametrize(
    "chunk",
    [b"no json", b"[]", b'{"choices":3}', b'{"error":{"message":"secret words"}}', b'{"choices":[{"delta":5}]}'],
)
def test_what_is_no_chunk_is_an_error_and_its_text_is_not_repeated(chunk: bytes) -> None:
    got = events(chunk)
    assert [event.kind for event in got] == [K.ERROR]
    assert got[0].failure is not None
    assert got[0].failure.code == "provider_protocol_error"
    assert b"secret" not in got[0].failure.message


def test_a_long_tool_call_is_cut_and_its_name_is_told_once() -> None:
    text = "x" * 20_000
    got = events(delta(tool_calls=[{"id": "c", "function": {"name": "f", "arguments": text}}]))
    assert b"".join(event.text for event in got) == text.encode()
    assert max(len(event.text) for event in got) <= 8192
    assert [event.tool_call_id for event in got] == [b"c", b"", b""]


@pytest.mark.req("EXEC-1")
def test_the_calls_of_a_whole_answer_are_numbered_by_their_places() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "ab"]
    got = events({"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]})
    assert [(event.tool_index, event.tool_call_id) for event in got[:-1]] == [(0, b"a"), (1, b"b")]


@pytest.mark.req("EXEC-1")
@pytest.mark.parametrize("index", [-1, 2**32, 2**70, 0.5, "0"])
def test_a_call_with_an_impossible_number_is_an_error_of_the_provider(index: Any) -> None:
    got = events(delta(tool_calls=[{"index": index, "function": {"name": "f"}}]))
    assert [(event.kind, event.failure and event.failure.code) for event in got] == [
        (K.ERROR, "provider_protocol_error")
    ]


@pytest.mark.req("EXEC-2")
@pytest.mark.parametrize("odd", [b"", {"choices": None}, {"object": "ping"}, {"choices": [], "usage": None}])
def test_events_that_say_nothing_are_passed_over(odd: Any) -> None:
    assert [event.kind for event in events(odd, delta("stop", content="a"), odd)] == [K.DELTA, K.COMPLETE]


@pytest.mark.req("EXEC-2")
def test_nothing_counts_behind_the_end_of_the_stream() -> None:
    got = events(delta("stop", content="a"), b"[DONE]", delta(content="b"), b"no json")
    assert [event.text for event in got if event.kind is K.DELTA] == [b"a"]
    assert got[-1].kind is K.COMPLETE
