"""The built-in provider: a deterministic OpenAI- and Anthropic-compatible server on loopback, for demos and tests.

It repeats the last user message, word by word, about ten words a second when streaming. It is no model and says so: its
answers start with ``echo:`` and its model is owned by ``iop-echo`` (EXEC-4).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from iop.errors import IopError
from iop.net.http.exchange import Exchange, ServerLimits
from iop.net.http.server import HttpServer
from iop.net.loop import Runtime
from iop.net.wheel import TICK_S
from iop.node.providers.kind import Adapter
from iop.node.providers.questions import working

__all__ = ["ADAPTER", "EchoServer"]

ADAPTER = Adapter("echo", rest_after_stream=False, built_in=True, any_name=True, questions=(working(b"/health"),))

_JSON = b"content-type: application/json\r\n"
_SSE = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"
EMBEDDING_SIZE = 8

Json = dict[str, Any]


class EchoServer:
    """Serves the echo model on a free loopback port; ``base_url`` once started."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._server = HttpServer(runtime, self, self.fail, ServerLimits(idle_timeout_s=10.0))
        self._serial = itertools.count(1)
        self.base_url = ""

    async def start(self) -> None:
        """Raises OSError when no port can be had."""
        port = await self._server.start("127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{port}/v1"

    def close(self) -> None:
        self._server.close()

    # ---- the App protocol --------------------------------------------------------------------------------------------

    def head_received(self, ex: Exchange) -> None:
        ex.context = []

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        ex.context.append(piece)

    def client_gone(self, ex: Exchange, reason: str) -> None:
        """The next word finds the exchange done."""

    def rejected(self, code: str) -> None:
        """Nothing to count."""

    @staticmethod
    def fail(ex: Exchange, error: IopError) -> None:
        body = {"error": {"message": error.message, "type": "invalid_request_error", "param": None, "code": error.code}}
        ex.respond(error.status, _JSON, json.dumps(body).encode())

    def request_complete(self, ex: Exchange) -> None:
        path = ex.head.path
        if path in (b"/health", b"/v1/models"):
            models = [{"id": "echo", "object": "model", "created": 0, "owned_by": "iop-echo"}]
            ex.respond(200, _JSON, json.dumps({"object": "list", "data": models}).encode())
            return
        kind = _KINDS.get(path)
        try:
            request = json.loads(b"".join(ex.context))
            ex.context = None
            if kind is None or not isinstance(request, dict):
                raise ValueError
        except ValueError:
            ex.respond(404 if kind is None else 400, _JSON, b'{"error":{"message":"no such endpoint, or bad JSON"}}')
            return
        reply = kind(request, f"echo-{next(self._serial)}")
        if isinstance(reply, dict):
            ex.respond(200, _JSON, json.dumps(reply).encode())
        else:
            ex.writer.write(ex.head_bytes(200, _SSE, b"transfer-encoding: chunked\r\n"))
            self._next(ex, reply)

    def _next(self, ex: Exchange, events: Iterator[bytes]) -> None:
        if ex.done:
            return
        event = next(events, None)
        if event is None:
            ex.writer.write(b"0\r\n\r\n")
            ex.finish()
            return
        ex.writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._runtime.wheel.arm(TICK_S, lambda: self._next(ex, events))


# ---- what is said ---------------------------------------------------------------------------------------------------


def _text(content: Any) -> str:
    """The text of a message's content, in any of the forms that the APIs have."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(_text(part.get("text", "")) if isinstance(part, dict) else _text(part) for part in content)
    return ""


def _last_text(messages: Any) -> str:
    if isinstance(messages, str):
        return messages
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return _text(message.get("content"))
    return ""


def _words(text: str) -> list[str]:
    words = ["echo:", *text.split()]
    return [word if i == 0 else " " + word for i, word in enumerate(words)]


def _data(event: Json, name: str = "") -> bytes:
    line = b"data: %b\n\n" % json.dumps(event).encode()
    return b"event: %b\n%b" % (name.encode(), line) if name else line


def _chat(request: Json, serial: str) -> Json | Iterator[bytes]:
    words = _words(_last_text(request.get("messages")))
    usage = {"prompt_tokens": len(words) - 1, "completion_tokens": len(words), "total_tokens": 2 * len(words) - 1}
    base = {"id": serial, "created": 0, "model": request.get("model", "echo")}
    if not request.get("stream"):
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {**base, "object": "chat.completion", "choices": [choice], "usage": usage}

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({**base, "object": "chat.completion.chunk", "choices": [choice]})

    def events() -> Iterator[bytes]:
        yield chunk({"role": "assistant", "content": ""})
        for word in words:
            yield chunk({"content": word})
        yield chunk({}, "stop")
        if (request.get("stream_options") or {}).get("include_usage"):
            yield _data({**base, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    return events()


def _completions(request: Json, serial: str) -> Json | Iterator[bytes]:
    prompt = request.get("prompt")
    words = _words(_text(prompt))
    base = {"id": serial, "object": "text_completion", "created": 0, "model": request.get("model", "echo")}
    if not request.get("stream"):
        usage = {"prompt_tokens": len(words) - 1, "completion_tokens": len(words), "total_tokens": 2 * len(words) - 1}
        choice = {"index": 0, "text": "".join(words), "finish_reason": "stop", "logprobs": None}
        return {**base, "choices": [choice], "usage": usage}

    def events() -> Iterator[bytes]:
        for word in words:
            yield _data({**base, "choices": [{"index": 0, "text": word, "finish_reason": None}]})
        yield _data({**base, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        yield b"data: [DONE]\n\n"

    return events()


def _embeddings(request: Json, serial: str) -> Json:
    given = request.get("input")
    texts = given if isinstance(given, list) else [given]
    vectors = [[float(len(_text(text)) % (i + 2)) for i in range(EMBEDDING_SIZE)] for text in texts]
    rows = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "data": rows, "model": request.get("model", "echo"), "usage": usage}


def _responses(request: Json, serial: str) -> Json | Iterator[bytes]:
    words = _words(_last_text(request.get("input")))
    text = "".join(words)
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": f"msg_{serial}", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": len(words) - 1, "output_tokens": len(words), "total_tokens": 2 * len(words) - 1}
    done = {
        "id": f"resp_{serial}",
        "object": "response",
        "created_at": 0,
        "model": request.get("model", "echo"),
        "status": "completed",
        "output": [item],
        "usage": usage,
    }
    if not request.get("stream"):
        return done

    def events() -> Iterator[bytes]:
        serials = itertools.count()
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}

        def event(name: str, **fields: Any) -> bytes:
            return _data({"type": name, "sequence_number": next(serials), **fields}, name)

        begun = {**done, "status": "in_progress", "output": [], "usage": None}
        yield event("response.created", response=begun)
        empty = {**item, "status": "in_progress", "content": []}
        yield event("response.output_item.added", output_index=0, item=empty)
        yield event("response.content_part.added", **place, part={**part, "text": ""})
        for word in words:
            yield event("response.output_text.delta", **place, delta=word)
        yield event("response.output_text.done", **place, text=text)
        yield event("response.content_part.done", **place, part=part)
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response=done)

    return events()


def _messages(request: Json, serial: str) -> Json | Iterator[bytes]:
    words = _words(_last_text(request.get("messages")))
    usage = {"input_tokens": len(words) - 1, "output_tokens": len(words)}
    base: Json = {
        "id": f"msg_{serial}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "echo"),
        "stop_sequence": None,
    }
    if not request.get("stream"):
        content = [{"type": "text", "text": "".join(words)}]
        return {**base, "content": content, "stop_reason": "end_turn", "usage": usage}

    def events() -> Iterator[bytes]:
        start = {**base, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
        yield _data({"type": "message_start", "message": start}, "message_start")
        block = {"type": "text", "text": ""}
        yield _data({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start")
        for word in words:
            delta = {"type": "text_delta", "text": word}
            yield _data({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
        yield _data({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        spent = {"output_tokens": usage["output_tokens"]}
        yield _data({"type": "message_delta", "delta": end, "usage": spent}, "message_delta")
        yield _data({"type": "message_stop"}, "message_stop")

    return events()


def _count_tokens(request: Json, serial: str) -> Json:
    return {"input_tokens": len(_last_text(request.get("messages")).split())}


_KINDS = {
    b"/v1/chat/completions": _chat,
    b"/v1/completions": _completions,
    b"/v1/embeddings": _embeddings,
    b"/v1/responses": _responses,
    b"/v1/messages": _messages,
    b"/v1/messages/count_tokens": _count_tokens,
}
