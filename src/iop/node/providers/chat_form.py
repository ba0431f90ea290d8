"""Normalized runs as chat completions: what every server of the OpenAI kind understands (EXEC-1, EXEC-2).

The input of a run is a JSON object with ``messages`` as in chat completions (and ``tools``, if any), or ``prompt``, a
string; its options are the other members of such a request, ``temperature`` or ``max_tokens``. The model and the form
of the answer are the run's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from iop.errors import InvalidArgument, ProviderProtocolError
from iop.execution.events import RunEvent, RunEventKind
from iop.execution.failure import failure_of
from iop.execution.usage import read_usage

__all__ = ["CHAT", "NormalForm", "Reader", "request_body"]

TEXT_BYTES = 8192  # of one tool call delta

_OURS = frozenset({"model", "messages", "prompt", "stream", "stream_options", "n"})


def request_body(target: str, given: bytes, options: bytes) -> bytes:
    """The provider's request for a run. Raises InvalidArgument, saying what is wrong with the input or the options."""
    request = _object(given, "the run's input")
    extra = _object(options, "the run's options") if options else {}
    prompt = request.pop("prompt", None)
    if prompt is not None and "messages" in request:
        raise InvalidArgument("the run's input has either messages or a prompt")
    if isinstance(prompt, str):
        request["messages"] = [{"role": "user", "content": prompt}]
    if not isinstance(request.get("messages"), list) or not request["messages"]:
        raise InvalidArgument("the run's input needs messages, a list, or a prompt, a string")
    known = _OURS - {"messages"}
    for name in (*known.intersection(request), *_OURS.intersection(extra)):
        raise InvalidArgument(f"{name} is not for a run to choose")
    request |= extra
    request |= {"model": target, "stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(request)


def _object(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is not a JSON object")
    return value


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    index: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """A chunk of a stream, or a whole answer of a server that does not stream."""

    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(_Chunk)


class Reader:
    """Makes a run's events of one answer. They end with ``complete`` only if the provider said that it has finished."""

    def __init__(self) -> None:
        self._finish_reason = b""
        self._done = False

    def read(self, data: bytes) -> Iterator[RunEvent]:
        """The data of one event of the stream, or the whole body of an answer that is none."""
        if self._done or not data:
            return
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            error = ProviderProtocolError("what the provider answered is not a chat completion")
            yield RunEvent(RunEventKind.ERROR, failure=failure_of(error))
            return
        if bytes(chunk.error) != b"null":
            error = ProviderProtocolError("the provider reported an error in its stream")
            yield RunEvent(RunEventKind.ERROR, failure=failure_of(error))
            return
        for choice in chunk.choices or ():
            if choice.index == 0:
                yield from self._choice(choice)
        usage = read_usage(bytes(chunk.usage))
        if usage:
            yield RunEvent(RunEventKind.USAGE, usage=usage)

    def _choice(self, choice: _Choice) -> Iterator[RunEvent]:
        delta = choice.delta or choice.message
        if delta is not None:
            for kind, text in (
                (RunEventKind.REASONING_DELTA, delta.reasoning_content or delta.reasoning),
                (RunEventKind.DELTA, delta.content),
            ):
                if text:
                    yield RunEvent(kind, text.encode())
            for place, call in enumerate(delta.tool_calls or ()):
                yield from _tool_call(call, place if call.index is None else call.index)
        if choice.finish_reason:
            self._finish_reason = choice.finish_reason.encode()[:64]

    def end(self) -> Iterator[RunEvent]:
        """The body is complete."""
        if self._done or self._finish_reason:
            yield RunEvent(RunEventKind.COMPLETE, finish_reason=self._finish_reason)


def _tool_call(call: _ToolCall, index: int) -> Iterator[RunEvent]:
    """An answer that is not streamed numbers its calls by their places alone."""
    function = call.function or _Function()
    text = (function.arguments or "").encode()
    call_id, name = (call.id or "").encode()[:256], (function.name or "").encode()[:256]
    for at in range(0, max(1, len(text)), TEXT_BYTES):
        piece = text[at : at + TEXT_BYTES]
        if piece or call_id or name:
            yield RunEvent(RunEventKind.TOOL_CALL_DELTA, piece, index, call_id, name)
        call_id = name = b""


@dataclass(frozen=True, slots=True)
class NormalForm:
    """How a kind of provider is asked for a run: the path below its base URL, what makes the request of (target, input,
    options), and what reads the answer."""

    path: bytes
    request_body: Callable[[str, bytes, bytes], bytes]
    reader: Callable[[], Reader]


CHAT = NormalForm(b"/chat/completions", request_body, Reader)
