"""How model servers read a request: what each sees of the members that the edge routes and decides by (API-8c).

A parser takes the body that leaves the edge and tells what it sees, or :data:`NOTHING` if it refuses the body. Go's
``encoding/json`` and ``mime/multipart`` are written down here from their documented rules, since most Python machines
have no Go; the other parsers are the libraries themselves.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from tests.support.oracles import Members

#: Members that the edge reads; ``tools`` stands for the kinds of its entries.
READ = ("model", "stream", "store", "background", "previous_response_id")
Seen = dict[str, Any]
NOTHING: Seen | None = None


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _load(body: bytes) -> Members | None:
    try:
        root = json.loads(body.decode(), object_pairs_hook=Members)
    except (ValueError, RecursionError):
        return None
    return root if isinstance(root, Members) else None


def go_fold(text: str) -> str:
    """The least rune of each simple folding orbit that has a Latin letter; other orbits are of no concern here."""
    return "".join(_ORBITS.get(char, char) for char in text)


_ORBITS = {chr(c): chr(c).upper() for c in range(ord("a"), ord("z") + 1)} | {"\u017f": "S", "\u212a": "K"}


def go_json(body: bytes) -> Seen | None:
    """``json.Unmarshal`` into a struct with these members: an exact name first, else one that is equal under folding;
    each member that is found is set, so the last one counts; null changes nothing; another kind is an error."""
    root = _load(body)
    if root is None:
        return NOTHING
    kinds = {"model": str, "stream": bool, "store": bool, "background": bool, "previous_response_id": str}
    folded = {go_fold(name): name for name in (*kinds, "tools")}
    seen: Seen = {}
    tools: set[str] = set()
    for key, value in root:
        name = key if key in kinds else folded.get(go_fold(key))
        if name is None or value is None:
            continue
        if name == "tools":
            for tool in value if isinstance(value, list) and not isinstance(value, Members) else ():
                kind = [v for k, v in tool if go_fold(k) == "TYPE"] if isinstance(tool, Members) else []
                tools.update(v for v in kind[-1:] if isinstance(v, str))
        elif name == "previous_response_id" and not isinstance(value, str):
            seen[name] = value
        elif not isinstance(value, kinds[name]):
            return NOTHING
        else:
            seen[name] = value
    return seen | {"tools": tools}


def c_json(body: bytes) -> Seen | None:
    """A C library that keeps texts up to a NUL and looks members up without regard to case: the first one counts."""
    root = _load(body)
    if root is None:
        return NOTHING
    seen: Seen = {"tools": set()}
    for key, value in root:
        name = key.partition("\0")[0].lower()
        if name in READ and name not in seen:
            seen[name] = value.partition("\0")[0] if isinstance(value, str) else value
    return seen


def upper_json(body: bytes) -> Seen | None:
    """A decoder that compares names in upper case, as .NET's does; the last one counts."""
    root = _load(body)
    if root is None:
        return NOTHING
    names = {name.upper(): name for name in READ}
    found = {names[key.upper()]: value for key, value in root if key.upper() in names}
    return {**found, "tools": set()}


def _from_dict(root: object) -> Seen | None:
    if not isinstance(root, dict):
        return NOTHING
    tools = root.get("tools")
    kinds = {t["type"] for t in tools if isinstance(t, dict) and isinstance(t.get("type"), str)} if isinstance(
        tools, list) else set()  # fmt: skip
    return {name: root[name] for name in READ if name in root} | {"tools": kinds}


def python_json(body: bytes) -> Seen | None:
    """``json.loads`` of the bytes, which also finds out about UTF-16 and UTF-32."""
    try:
        return _from_dict(json.loads(body))
    except (ValueError, RecursionError):
        return NOTHING


def msgspec_json(body: bytes) -> Seen | None:
    try:
        return _from_dict(msgspec.json.decode(body))
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return NOTHING


JSON: dict[str, Callable[[bytes], Seen | None]] = {
    "go": go_json,
    "c": c_json,
    "upper": upper_json,
    "python": python_json,
    "msgspec": msgspec_json,
}


# ---- forms: each parser tells its fields as (name, value), files left out -------------------------------------------

Fields = list[tuple[str, bytes]]


def go_form(kind: str, body: bytes) -> Fields | None:
    """``mime/multipart.Reader`` and ``mime.ParseMediaType``: line ends may be LF alone if the first one is, blanks may
    follow a boundary, a preamble is skipped, a boundary counts only if a line end, a blank or ``--`` follows it."""
    media = _go_media(kind)
    if media is None or media[0] != "multipart/form-data" or not media[1].get("boundary"):
        return None
    dash = b"--" + media[1]["boundary"].encode("utf-8", "surrogateescape")
    nl, at, fields, first = b"\r\n", 0, Fields(), True
    while True:  # a boundary line
        end = body.find(b"\n", at)
        line = body[at:] if end < 0 else body[at : end + 1]
        at += len(line)
        if line.startswith(dash):
            rest = line[len(dash) :]
            blank = rest.lstrip(b" \t")
            if rest.startswith(b"--") and rest[2:].lstrip(b" \t") in (b"", nl):
                return fields
            if first and blank == b"\n":
                nl = b"\n"
            if blank == nl:
                first = False
                part = _go_part(body, at, nl, dash)
                if part is None:
                    return None
                at, field = part
                if field is not None:
                    fields.append(field)
                continue
        if end < 0:
            return None
        if not first and line not in (b"\n", b"\r\n"):
            return None


def _go_part(body: bytes, at: int, nl: bytes, dash: bytes) -> tuple[int, tuple[str, bytes] | None] | None:
    """One part from its header on: where it ends, and its field unless it is a file."""
    header: dict[str, str] = {}
    last = ""
    while True:
        end = body.find(b"\n", at)
        if end < 0:
            return None
        line = body[at:end].removesuffix(b"\r")
        at = end + 1
        if not line:
            break
        if line[:1] in b" \t" and last:
            header[last] += " " + line.strip(b" \t").decode("latin-1")
            continue
        key, colon, value = line.partition(b":")
        if not colon or not key or key != key.strip(b" \t"):
            return None
        last = key.decode("latin-1").lower()
        header.setdefault(last, value.strip(b" \t").decode("latin-1"))
    start = at
    while True:
        found = body.find(dash, at)
        if found < 0:
            return None
        behind = body[found + len(dash) : found + len(dash) + 1]
        if behind in b" \t\r\n-" and behind:
            if found == start:
                content, at = b"", found
                break
            if body[:found].endswith(nl):
                content, at = body[start : found - len(nl)], found
                break
        at = found + 1
    media = _go_media(header.get("content-disposition", ""))
    if media is None or media[0] != "form-data" or "filename" in media[1] or not media[1].get("name"):
        return at, None
    if header.get("content-transfer-encoding", "").lower() == "quoted-printable":
        import quopri

        content = quopri.decodestring(content)
    return at, (media[1]["name"], content)


_TSPECIALS = '()<>@,;:\\"/[]?='


def _go_media(text: str) -> tuple[str, dict[str, str]] | None:
    kind, _, rest = text.partition(";")
    kind, rest = kind.strip().lower(), text[len(kind) :]
    parameters: dict[str, str] = {}
    while rest.strip():
        rest = rest.lstrip()
        if not rest.startswith(";"):
            return None
        rest = rest[1:].lstrip()
        if not rest:
            break
        key, equals, value = rest.partition("=")
        if not equals or not key.strip() or any(c in _TSPECIALS or not "!" <= c <= "~" for c in key):
            return None
        out = ""
        if value.startswith('"'):
            i = 1
            while i < len(value) and value[i] != '"':
                if value[i] == "\\" and i + 1 < len(value) and value[i + 1] in _TSPECIALS:
                    i += 1
                if value[i] in "\r\n":
                    return None
                out += value[i]
                i += 1
            if i >= len(value):
                return None
            rest = value[i + 1 :]
        else:
            i = 0
            while i < len(value) and "!" <= value[i] <= "~" and value[i] not in _TSPECIALS:
                i += 1
            out, rest = value[:i], value[i:]
            if not out:
                return None
        key = key.lower()
        base, star, number = key.partition("*")
        if star and not number:
            from urllib.parse import unquote

            key, out = base, unquote(out.rpartition("'")[2])
        elif star:
            key, out = base, parameters.get(base, "") + out
        elif key in parameters:
            return None
        parameters[key] = out
    return kind, parameters


def werkzeug_form(kind: str, body: bytes) -> Fields | None:
    from werkzeug.formparser import FormDataParser
    from werkzeug.http import parse_options_header

    mime, options = parse_options_header(kind)
    try:
        parser = FormDataParser(silent=False, stream_factory=_in_memory)
        _, form, _ = parser.parse(io.BytesIO(body), mime, len(body), options)
    except Exception:  # whatever it raises, it has not read the form
        return None
    return [(name, value.encode("utf-8", "replace")) for name, value in form.items(multi=True)]


def _in_memory(*_: object, **__: object) -> io.BytesIO:
    return io.BytesIO()


def _finished(coroutine: Coroutine[Any, Any, Fields | None]) -> Fields | None:
    """Runs what never really waits: all of the body is there."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        fields: Fields | None = done.value
        return fields
    coroutine.close()
    raise AssertionError("the parser waits")


def starlette_form(kind: str, body: bytes) -> Fields | None:
    from starlette.datastructures import Headers
    from starlette.formparsers import MultiPartParser

    async def stream() -> Any:
        yield body

    async def parse() -> Fields | None:
        try:
            parser = MultiPartParser(Headers(raw=[(b"content-type", kind.encode("latin-1"))]), stream())
            form = await parser.parse()
        except Exception:
            return None
        await form.close()
        return [(n, v.encode("utf-8", "replace")) for n, v in form.multi_items() if isinstance(v, str)]

    return _finished(parse())


def aiohttp_form(kind: str, body: bytes) -> Fields | None:
    from aiohttp import MultipartReader
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.streams import StreamReader

    async def read() -> Fields | None:
        protocol = BaseProtocol(_LOOP)
        stream = StreamReader(protocol, 1 << 20, loop=_LOOP)
        stream.feed_data(body)
        stream.feed_eof()
        fields: Fields = []
        try:
            reader = MultipartReader({"Content-Type": kind}, stream)
            while (part := await reader.next()) is not None:
                if isinstance(part, MultipartReader):
                    await part.release()
                    continue
                text = b"" if part.filename is not None else (await part.text()).encode("utf-8", "replace")
                if part.filename is None and part.name is not None:
                    fields.append((part.name, text))
                else:
                    await part.release()
        except Exception:
            return None
        return fields

    return _finished(read())


class _Loop:
    """What aiohttp's stream asks a loop for when nothing ever waits."""

    def get_debug(self) -> bool:
        return False


_LOOP: Any = _Loop()

FORMS: dict[str, Callable[[str, bytes], Fields | None]] = {
    "go": go_form,
    "werkzeug": werkzeug_form,
    "starlette": starlette_form,
    "aiohttp": aiohttp_form,
}
