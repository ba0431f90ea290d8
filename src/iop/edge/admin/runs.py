"""``POST /admin/runs``: SubmitRun for people and scripts, its events as server-sent events (POOL-14, EXEC-1).

The answer begins with ``accepted``, which names the run, goes on with the run's events as they come, and ends with
exactly one of ``complete``, ``error`` and ``cancelled``. Who leaves cancels the run, unless it is a background one:
that is answered with its name alone, and what becomes of it is told by the event bus and the log.
"""

from __future__ import annotations

import codecs
from typing import Annotated, Any

import msgspec

from iop._fast.out import Writer
from iop.edge.admin.event_stream import message
from iop.edge.api.errors import error_object
from iop.edge.requests.dispatcher import Dispatcher
from iop.edge.requests.normalized_run import EdgeRun, RunResult, RunSpec, submit_run
from iop.errors import InvalidRequest, RequestCancelled
from iop.net.http.exchange import Exchange
from iop.wire import messages as m

__all__ = ["RunFeed", "open_run"]

PRINCIPAL = "operator"
MAX_SESSION_BYTES = 256
MAX_DETAIL_CHARS = 200
MAX_FREE_BYTES = 256 * 1024  # waiting to be written, beyond which what costs no credit is left out
MAX_TOOLS = 256  # whose text may be cut inside a character at a time
_JSON = b"content-type: application/json\r\ncache-control: no-store\r\n"
_EVENTS = b"content-type: text/event-stream\r\ncache-control: no-store\r\n"
_TOKENS = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens")
_ENCODER = msgspec.json.Encoder()


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The request: a queued run has ``model``; a direct one ``adapter``, ``target`` and perhaps ``node``."""

    model: str = ""
    node: str = ""
    adapter: str = ""
    target: str = ""
    prompt: str | None = None
    input: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    session_id: str = ""
    background: bool = False
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] | None = None


_DECODER = msgspec.json.Decoder(_Asked)


def _spec(body: bytes) -> RunSpec:
    try:
        asked = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        # It names the field, and quotes no value.
        detail = f": {str(exc)[:MAX_DETAIL_CHARS]}" if isinstance(exc, msgspec.ValidationError) else ""
        raise InvalidRequest(f"the body is not a run's description{detail}") from None
    if (asked.prompt is None) is (asked.input is None):
        raise InvalidRequest("a run needs a prompt, or an input object with messages", param="prompt")
    session_id = asked.session_id.encode()
    if len(session_id) > MAX_SESSION_BYTES:
        raise InvalidRequest(f"session_id has at most {MAX_SESSION_BYTES} bytes", param="session_id")
    return RunSpec(
        _ENCODER.encode(asked.input if asked.input is not None else {"prompt": asked.prompt}),
        _ENCODER.encode(asked.options) if asked.options else b"",
        asked.model,
        asked.node,
        asked.adapter,
        asked.target,
        session_id,
        asked.background,
        asked.timeout_ms / 1000 if asked.timeout_ms is not None else None,
        _replayable(asked.input or {}, asked.options or {}),
    )


def _replayable(given: dict[str, Any], options: dict[str, Any]) -> bool:
    """Whether the provider keeps and does nothing for it beyond its answer: as for tunnels, but with every tool that is
    no function of the client's taken for one that does."""
    tools = given.get("tools", options.get("tools")) or []
    plain = isinstance(tools, list) and all(isinstance(tool, dict) and tool.get("type") == "function" for tool in tools)
    return plain and not (given.get("store") or options.get("store"))


def open_run(d: Dispatcher, ex: Exchange, body: bytes) -> RunFeed:
    """Starts the run that ``body`` describes and answers ``ex`` with what it says. Raises what refuses it."""
    return RunFeed(d, ex, _spec(body))


class RunFeed:
    """One run's listener, and through it the caller."""

    writer: Writer | None

    def __init__(self, d: Dispatcher, ex: Exchange, spec: RunSpec) -> None:
        self._ex = ex
        self._background = spec.background
        self._session_id = spec.session_id.decode()
        self._text = {kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in _TEXTS}
        self._tools: dict[int, codecs.IncrementalDecoder] = {}
        self._early: list[bytes] = []  # what the run said before its name was told
        self._open = False
        self.writer = None if spec.background else ex.writer
        self._run: EdgeRun = submit_run(d, spec, self, PRINCIPAL)
        if spec.background:
            ex.respond(202, _JSON, _ENCODER.encode({"run_id": self._run.request_id}))
            return
        self._open = True
        ex.begin_stream(_EVENTS)
        early, self._early = self._early, []
        self._say("accepted", {"run_id": self._run.request_id})
        for said in early:
            self._write(said)
        if self._run.listener_done:
            self._close()

    def client_gone(self) -> None:
        """The caller has left."""
        self._open = False
        self._ex.context = None
        if not self._background:
            self._run.cancel()

    # ---- the run's listener ------------------------------------------------------------------------------------------

    def run_event(self, event: m.RunEvent) -> None:
        if self._background:
            return
        kind = event.kind
        data: dict[str, Any] = {}
        if kind is m.RunEventKind.TOOL_CALL_DELTA:
            decoder = self._tools.get(event.tool_index)
            if decoder is None:
                if len(self._tools) >= MAX_TOOLS:
                    self._tools.clear()
                decoder = self._tools[event.tool_index] = codecs.getincrementaldecoder("utf-8")("replace")
            data = {"index": event.tool_index, "arguments": decoder.decode(event.text)}
            for name, value in (("id", event.tool_call_id), ("name", event.tool_name)):
                if value:
                    data[name] = value.decode("utf-8", "replace")
        elif kind in self._text:
            data = {"text": self._text[kind].decode(event.text)}
        elif kind is m.RunEventKind.USAGE:
            if self._ex.writer.paused or self._ex.writer.pending_bytes > MAX_FREE_BYTES:
                return  # it costs no credit, and the last event has it too (WIRE-5)
            data = _usage(event.usage)
        self._say(kind.name.lower(), data)

    def run_ended(self, result: RunResult) -> None:
        if self._background:
            return
        error = result.error
        if error is None:
            reason = result.finish_reason.decode("utf-8", "replace")
            self._say("complete", {"finish_reason": reason, "usage": _usage(result.usage)})
        else:
            name = "cancelled" if isinstance(error, RequestCancelled) else "error"
            said: dict[str, Any] = {"error": error_object(error), "status": error.status}
            if error.retry_after_s is not None:
                said["retry_after_s"] = error.retry_after_s
            self._say(name, said)
        if self._open:
            self._close()

    # ---- output ------------------------------------------------------------------------------------------------------

    def _say(self, name: str, data: dict[str, Any]) -> None:
        data = {"event": name, **data}
        if self._session_id:
            data["session_id"] = self._session_id
        said = message(name, _ENCODER.encode(data))
        if self._open:
            self._write(said)
        else:
            self._early.append(said)

    def _write(self, data: bytes) -> None:
        if not self._ex.done:
            self._ex.send(data)

    def _close(self) -> None:
        self._open = False
        self._ex.context = None
        if not self._ex.done:
            self._ex.end_stream()


_TEXTS = (m.RunEventKind.DELTA, m.RunEventKind.REASONING_DELTA)


def _usage(usage: tuple[int | None, ...] | None) -> dict[str, Any]:
    return {name: count for name, count in zip(_TOKENS, usage or (), strict=False) if count is not None}
