"""Event classification: native (whole, and cut into TCP-like reads), json.loads per event, and memcpy as the floor.

Divide by 280 for the cost of one event of about 220 bytes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from iop._fast.sse import CHAT, MESSAGES, RESPONSES, EventSplitter

EVENTS = 280


def stream(document: dict[str, Any], name: str = "") -> bytes:
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(document, separators=(',', ':'))}\n\n".encode() * EVENTS


CHOICE = {"index": 0, "delta": {"content": " hello there"}, "logprobs": None, "finish_reason": None}
USAGE = {"prompt_tokens": 12, "completion_tokens": 34, "total_tokens": 46}
ITEM = "item_0123456789abcdef0123456789abcdef"
HEAD = {
    "id": "chatcmpl-0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "qwen3-32b",
}
STREAMS = {
    "chat": (CHAT, stream({**HEAD, "choices": [CHOICE]})),
    "chat-usage": (CHAT, stream({**HEAD, "choices": [CHOICE], "usage": USAGE})),
    "responses": (
        RESPONSES,
        stream(
            {"type": "response.output_text.delta", "sequence_number": 42, "item_id": ITEM, "output_index": 0}
            | {"content_index": 0, "delta": " hello there", "logprobs": []},
            "response.output_text.delta",
        ),
    ),
    "messages": (
        MESSAGES,
        stream(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " hello there"}},
            "content_block_delta",
        ),
    ),
}


def native(dialect: int, parts: list[bytes]) -> int:
    splitter, flags = EventSplitter(dialect), 0
    for part in parts:
        flags |= splitter.feed(part)
    return flags


def python(data: bytes) -> bool:
    """The twin: no line-end variants, no partial input, chat only."""
    seen = False
    for event in data.split(b"\n\n"):
        for line in event.split(b"\n"):
            if line.startswith(b"data: "):
                document = json.loads(line[6:])
                for choice in document.get("choices", ()):
                    seen |= any(v not in (None, "", [], {}) for k, v in choice["delta"].items() if k != "role")
    return seen


@pytest.mark.parametrize("size", [1 << 20, 1448], ids=["one-read", "1448-byte-reads"])
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.benchmark(group="event stream of 280 events")
def test_native(benchmark: Any, kind: str, size: int) -> None:
    dialect, data = STREAMS[kind]
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    assert benchmark(native, dialect, parts) == 2
    benchmark.extra_info["ns_per_event"] = round(benchmark.stats.stats.min / EVENTS * 1e9)
    benchmark.extra_info["event_bytes"] = len(data) // EVENTS


@pytest.mark.benchmark(group="event stream of 280 events")
def test_python(benchmark: Any) -> None:
    assert benchmark(python, STREAMS["chat"][1])


@pytest.mark.benchmark(group="event stream of 280 events")
def test_memcpy(benchmark: Any) -> None:
    benchmark(bytearray, STREAMS["chat"][1])
