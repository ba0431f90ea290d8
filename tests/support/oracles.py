"""Slow, obviously right twins of the native kernels, written from the standards and from SPEC, not from the kernels.

They work on whole inputs with regular expressions and `json`; the kernels must agree, however the input is cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

TEXT = rb"[\t -~\x80-\xff]"
TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """``data`` cut at the given places (taken modulo its length); empty pieces included."""
    places = sorted(cut % (len(data) + 1) for cut in cuts)
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


# ---- HTTP (RFC 9112) ------------------------------------------------------------------------------------------------

SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})([ \t]*;" + TEXT + rb"*)?\r\n")
SIZE_LINE_START = re.compile(rb"(?:[0-9A-Fa-f]{0,16}|[0-9A-Fa-f]{1,16}(?:[ \t]*|[ \t]*;" + TEXT + rb"*|(?:[ \t]*;"
                             + TEXT + rb"*)?\r))\Z")  # fmt: skip
TRAILER = re.compile(TOKEN + rb"+:" + TEXT + rb"*\r\n")
TRAILER_START = re.compile(rb"(?:" + TOKEN + rb"*|" + TOKEN + rb"+:" + TEXT + rb"*\r?|\r)\Z")


class Refused(Exception):
    """The input is not what the standard allows, or over a limit."""


def chunked(data: bytes) -> tuple[bytes, int | None]:
    """(body so far, bytes used) of a chunked body; None = incomplete. Sizes of lines and trailers are not limited."""
    body, at = b"", 0
    while True:
        line = SIZE_LINE.match(data, at)
        if line is None:
            if SIZE_LINE_START.match(data, at):
                return body, None
            raise Refused
        at = line.end()
        size = int(line[1], 16)
        if size >= 1 << 63:
            raise Refused
        if size == 0:
            break
        body += data[at : at + size]
        at += size
        end = data[at : at + 2]
        if not b"\r\n".startswith(end):
            raise Refused
        if at + 2 > len(data):
            return body, None
        at += 2
    while not data.startswith(b"\r\n", at):
        trailer = TRAILER.match(data, at)
        if trailer is None:
            if TRAILER_START.match(data, at):
                return body, None
            raise Refused
        at = trailer.end()
    return body, at + 2


HEAD = re.compile(rb"(?:[!-~\x80-\xff]" + TEXT + rb"*\r\n)+\r\n")
HEAD_START = re.compile(rb"(?:[!-~\x80-\xff]" + TEXT + rb"*\r\n)*(?:\r|[!-~\x80-\xff]" + TEXT + rb"*\r?)?\Z")


def head(data: bytes, max_bytes: int) -> tuple[bytes | None, int]:
    """(the head or None if incomplete, bytes used). Refused = malformed or too large."""
    skipped = 0
    while data.startswith(b"\r\n", skipped):
        skipped += 2
        if skipped > 4:
            raise Refused
    if data[skipped:] == b"\r":
        return None, len(data)
    whole = HEAD.match(data, skipped)
    if whole and len(whole[0]) <= max_bytes:
        return whole[0], whole.end()
    if whole or not HEAD_START.match(data, skipped) or len(data) - skipped >= max_bytes:
        raise Refused
    return None, len(data)


# ---- JSON -----------------------------------------------------------------------------------------------------------


class Number(str):
    """The text of a number; json.loads would limit its length."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """An object as its members in order, duplicates kept."""

    def get(self, key: str) -> Any:
        return next((value for name, value in reversed(self) if name == key), None)


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def depth(value: object) -> int:
    if isinstance(value, Members):
        return 1 + max((depth(item) for _, item in value), default=0)
    if isinstance(value, list):
        return 1 + max((depth(item) for item in value), default=0)
    return 0


def strict_json(data: bytes) -> Any:
    """RFC 8259; ValueError if it is not."""
    text = data.decode("utf-8").removeprefix("\ufeff")
    return json.loads(
        text, object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=_no_constant
    )


def lenient_json(data: bytes) -> Any:
    """What json.loads(strict=False) takes, and any bytes inside strings."""
    return json.loads(
        data.decode("latin-1"),
        strict=False,
        object_pairs_hook=Members,
        parse_int=Number,
        parse_float=Number,
        parse_constant=Number,
    )


ROUTING = ("model", "stream", "store", "background", "previous_response_id", "tools")


def request_fault(root: Any) -> str | None:
    """The first fault of a well-formed document as a request, in the order of its bytes; None = acceptable."""
    if not isinstance(root, Members):
        return "not_object"
    if depth(root) > 512:
        return "depth"
    seen: set[str] = set()
    for key, value in root:
        name = read_as(key)
        if name in ROUTING:
            if name in seen:
                return "duplicate_key"
            if name != key:
                return "ambiguous_key"
            seen.add(name)
        if key == "model":
            if not isinstance(value, str) or isinstance(value, Number):
                return "model_not_string"
            if len(value.encode("utf-8", "surrogatepass")) > 512:
                return "model_too_long"
            if not value:
                return "missing_model"
            if any("\ud800" <= char <= "\udfff" for char in value):
                return "model_not_string"
        elif key in ("stream", "store", "background") and value not in (True, False, None):
            return "not_boolean"
    return None if "model" in seen else "missing_model"


def read_as(key: str) -> str:
    """What a decoder takes a key for that ignores the case of letters, by folding or by upper case, or ends at NUL."""
    text = key.partition("\0")[0]
    return "".join({"\u0130": "i", "\u0131": "i"}.get(c, c.casefold() if len(c.casefold()) == 1 else c) for c in text)


def tool_types(root: Members) -> frozenset[str]:
    tools = root.get("tools")
    if not isinstance(tools, list) or isinstance(tools, Members):
        return frozenset()
    return frozenset(
        value.encode("utf-8", "surrogatepass")[:64].decode("utf-8", "replace")
        for tool in tools
        if isinstance(tool, Members)
        for name, value in tool
        if read_as(name) == "type" and isinstance(value, str) and not isinstance(value, Number)
    )


def estimated_tokens(data: bytes) -> int:
    runs = [m for m in re.findall(rb"(?:[A-Za-z0-9+/=_-]|\\(?=/))+", data) if len(m) >= 1024]
    data = data.removeprefix(b"\xef\xbb\xbf")
    other = sum(byte > 127 for byte in data)
    ascii_bytes = len(data) - other - sum(map(len, runs))
    return ascii_bytes // 3 + other // 2 + 1500 * len(runs)


# ---- event streams (WHATWG) -----------------------------------------------------------------------------------------

PREAMBLE, SEMANTIC, FINISH, ERROR, EVENT_ID, ERROR_4XX = 1, 2, 4, 8, 32, 64
OTHER, CHAT, RESPONSES, MESSAGES = 0, 1, 2, 3


def stream_events(stream: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
    """([(event name, data)], whether the stream ends between two events, where an LF is not waited for)."""
    if stream.startswith(b"\xef\xbb\xbf"):
        stream = stream[3:]
    elif stream and b"\xef\xbb\xbf".startswith(stream):
        return [], False
    *lines, rest = re.split(rb"\r\n|\r|\n", stream)
    events: list[tuple[bytes, bytes]] = []
    name, fields = b"", 0
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                events.append((name, b"\n".join(data)))
            name, data, fields = b"", [], 0
            continue
        field, _, value = line.partition(b":")
        fields += field != b""
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    half = stream.endswith(b"\r") and re.search(rb"\r[^\n]", stream) is None
    return events, not rest and not fields and not half


def has_event_id(stream: bytes) -> bool:
    """Whether a whole event of the stream has an id."""
    whole = re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))[:-1]
    if b"" not in whole:
        return False
    last = len(whole) - 1 - whole[::-1].index(b"")
    return any(line.partition(b":")[0] == b"id" for line in whole[:last])


def choice_ends(root: Members) -> Iterator[tuple[int, bool]]:
    """The choices of one chat event: their indices, and whether they have finished."""
    choices = root.get("choices")
    for choice in choices if isinstance(choices, list) and not isinstance(choices, Members) else ():
        if isinstance(choice, Members):
            index = choice.get("index")
            small = isinstance(index, Number) and re.fullmatch("[0-9]{1,4}", index)
            number = 0 if index is None else int(index) if small else 128
            if number < 128:
                yield number, choice.get("finish_reason") not in (None, "")


@dataclass
class Seen:
    """What the splitter must have noticed in a whole stream."""

    flags: int = 0
    events: int = 0
    progress_events: int = 0
    finished: bool = False
    usage: Any = None
    usage_start: Any = None


def content(value: object) -> bool:
    return value is not None and (isinstance(value, Number) or value not in ("", []))


CLIENT_FAULTS = {"invalid_request_error", "context_length_exceeded", "BadRequestError", "rate_limit_error"}


def blames_client(error: object, *names: str) -> bool:
    if not isinstance(error, Members):
        return False
    found = [error.get(name) for name in names]
    return any(isinstance(v, str) and (v in CLIENT_FAULTS or re.fullmatch("4[0-9][0-9]", v)) for v in found)


def _object(value: object) -> Members:
    return value if isinstance(value, Members) else Members()


def chat_flags(root: Members) -> int:
    flags = 0
    choices = root.get("choices")
    is_array = isinstance(choices, list) and not isinstance(choices, Members)
    for choice in choices if is_array else ():
        for key, value in _object(_object(choice).get("delta")):
            if key != "role" and content(value):
                flags |= SEMANTIC
        if content(_object(choice).get("text")):
            flags |= SEMANTIC
        reason = _object(choice).get("finish_reason")
        if reason is not None and reason != "":
            flags |= FINISH
    if root.get("error") is not None:
        flags |= ERROR | (ERROR_4XX if blames_client(root.get("error"), "code", "type") else 0)
    known = is_array or isinstance(root.get("usage"), list)
    return flags or (PREAMBLE if known else SEMANTIC)


def typed_flags(dialect: int, kind: str | None, root: Members) -> int:
    """Responses and Messages; `kind` is the event's type, or its name where the data has no type."""
    error = root.get("error")
    blame = ERROR
    if blames_client(error, "code", "type"):
        blame |= ERROR_4XX
    if dialect == RESPONSES and (
        blames_client(root, "code") or blames_client(_object(root.get("response")).get("error"), "code", "type")
    ):
        blame |= ERROR_4XX
    if kind is None:
        return SEMANTIC if error is None else blame
    if dialect == RESPONSES:
        if kind in ("response.created", "response.in_progress", "response.queued", "keepalive"):
            return PREAMBLE
        if kind.endswith(".delta"):
            return SEMANTIC if content(root.get("delta")) else PREAMBLE
        if kind.endswith(".added"):
            call = _object(root.get("item")).get("type") in ("function_call", "custom_tool_call")
            return SEMANTIC if call else PREAMBLE
        if kind in ("response.completed", "response.incomplete"):
            return FINISH
        return {"response.failed": FINISH | blame, "error": blame}.get(kind, SEMANTIC)
    if kind in ("message_start", "ping"):
        return PREAMBLE
    if kind in ("content_block_delta", "message_delta"):
        return SEMANTIC if any(content(v) for k, v in _object(root.get("delta")) if k != "type") else PREAMBLE
    if kind == "content_block_start":
        block = _object(root.get("content_block"))
        quiet = block.get("type") in ("text", "thinking")
        return PREAMBLE if quiet and not any(content(v) for k, v in block if k != "type") else SEMANTIC
    return {"message_stop": FINISH, "error": blame}.get(kind, SEMANTIC)


def event_flags(dialect: int, name: bytes, data: bytes) -> tuple[int, Members]:
    """The flags of one event, and its document if that is an object."""
    if data.startswith(b"[DONE]"):
        return FINISH, Members()
    if dialect == OTHER:
        return (SEMANTIC if data else PREAMBLE), Members()
    try:
        root = lenient_json(data)
    except ValueError:
        root = None
    well_formed = isinstance(root, Members)
    root = _object(root)
    empty = not data.strip(b" \t\r\n")
    if dialect == CHAT:
        return (PREAMBLE if empty else chat_flags(root) if well_formed else SEMANTIC), root
    kind = root.get("type")
    if not isinstance(kind, str) or isinstance(kind, Number) or kind == "":
        kind = name.decode("latin-1") or None
    if well_formed:
        return typed_flags(dialect, kind, root), root
    about_data = kind is None or kind.endswith((".delta", ".added", "_delta", "content_block_start"))
    flags = SEMANTIC if about_data else typed_flags(dialect, kind, root)
    return (PREAMBLE if empty and flags == SEMANTIC else flags), root


def stream_seen(dialect: int, stream: bytes) -> Seen:
    """The whole stream, without the progress that an incomplete or large event makes."""
    seen = Seen(flags=EVENT_ID if has_event_id(stream) else 0)
    over = False
    choices: dict[int, bool] = {}
    for name, data in stream_events(stream)[0]:
        flags, root = event_flags(dialect, name, data)
        over |= bool(flags & ERROR) or (bool(flags & FINISH) and (dialect != CHAT or data.startswith(b"[DONE]")))
        if dialect == CHAT:
            for index, finished in choice_ends(root):
                choices[index] = choices.get(index, False) or finished
        seen.finished = over or (bool(choices) and all(choices.values()))
        places = {
            CHAT: ("usage", root.get("usage")),
            RESPONSES: ("usage", _object(root.get("response")).get("usage")),
            MESSAGES: ("usage", root.get("usage")),
        }
        found = [places[dialect]] if dialect in places else []
        if dialect == MESSAGES:
            found.append(("usage_start", _object(root.get("message")).get("usage")))
        usages = [(place, value) for place, value in found if isinstance(value, Members)]
        for place, value in usages:
            setattr(seen, place, value)
        seen.flags |= flags
        seen.events += 1
        seen.progress_events += bool(flags & (SEMANTIC | FINISH | ERROR) or usages)
    return seen
