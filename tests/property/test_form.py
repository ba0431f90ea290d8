"""The form scanner against a plain reading of RFC 2046, whole and however it is cut (API-8c)."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iop._fast.form import FormScanner
from iop._fast.scan import splice_model
from iop.errors import ScanError
from tests.support import oracles

B = b"ab"
DELIMITER = b"--" + B

cuts = st.lists(st.integers(0, 1 << 16), max_size=12)
odd = st.sampled_from(
    [b"\r--ab", b"\r", b"\n", b"\r\n", b"-", b"--", b"--a", b"--ab", b"\r\n--a", b"\n--ab", b"\xff", b"x" * 600]
)
value = st.lists(odd | st.binary(max_size=4), max_size=5).map(b"".join)
names = ["model", "stream", "store", "previous_response_id", "file", "", "Model", "\u017ftream", "_charset_", "a b"]
harmless = st.sampled_from(["", "", "", ""])
more = harmless | st.sampled_from(
    ["; filename=x", '; filename="a;b"', "; name=b", "; x=y", "; name*=x", '; filename="\\"', "x"]
)
fields = st.sampled_from([[], [], [], ["X: y"], ["Content-Type: text/plain"]])
bad_fields = st.sampled_from([["content-transfer-encoding: 8bit"], [" folded"], ["bad"]])
MODEL = b'--ab\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'


@st.composite
def part(draw: st.DrawFn, name: str) -> bytes:
    plain = draw(st.booleans())
    lines = [f'Content-Disposition: form-data; name="{name}"{draw(harmless if plain else more)}']
    lines += draw(fields if plain else fields | bad_fields)
    content = draw(st.sampled_from([b"true", b"0"]) if plain and name in ("stream", "store") else value)
    return b"--ab\r\n%b\r\n\r\n%b\r\n" % ("\r\n".join(lines).encode(), content)


@st.composite
def body(draw: st.DrawFn) -> bytes:
    unique = draw(st.integers(0, 4))
    drawn = draw(st.lists(st.sampled_from(names), max_size=4, unique=bool(unique)))
    parts = [MODEL if name == "model" and draw(st.booleans()) else draw(part(name)) for name in drawn]
    if "model" not in drawn and unique:
        parts.insert(draw(st.integers(0, len(parts))), MODEL)
    return b"".join(parts) + draw(st.sampled_from([b"--ab--\r\n", b"--ab--", b"--ab--\r\n", b"--ab"]))


PART = re.compile(rb"\r\n((?:[^\r\n\0]+\r\n)*)\r\n", re.DOTALL)
NAMED = re.compile(
    rb'content-disposition: form-data((?:[ ]?;[ ]?[a-z*-]+=(?:"[^"]*(?<!\\)"|""|[a-z-]+))*)', re.IGNORECASE
)
KNOWN = {b"model", b"stream", b"store", b"background", b"previous_response_id"}
FLAGS = {b"true": True, b"1": True, b"on": True, b"yes": True} | dict.fromkeys(
    (b"false", b"0", b"off", b"no", b""), False
)


class Refused(Exception):
    pass


def read(body: bytes) -> tuple[str, tuple[int, int], object, object, bool]:
    """Model, its span, stream, store, previous response; or Refused. Written for the forms that are drawn here."""
    seen: dict[bytes, tuple[int, int]] = {}
    if not body.startswith(DELIMITER):
        raise Refused
    at = len(DELIMITER)
    while not body[at:].startswith(b"--"):
        header = PART.match(body, at)
        if header is None:
            raise Refused
        fields = header[1].split(b"\r\n")[:-1]
        if any(re.fullmatch(rb"[A-Za-z-]+:.*", field) is None for field in fields):
            raise Refused
        named = [m for m in map(NAMED.fullmatch, fields) if m]
        parameters = re.findall(rb';[ ]?([a-z*-]+)=(?:"([^"]*)"|([a-z-]+))', named[0][1]) if len(named) == 1 else []
        keys = [key for key, _, _ in parameters]
        if b"name" not in keys or len({*keys}) != len(keys) or not {*keys} <= {b"name", b"filename", b"filename*"}:
            raise Refused
        start = header.end()
        end = body.find(b"\n" + DELIMITER, start)
        if body.startswith(DELIMITER, start) or end <= start or body[end - 1 : end] != b"\r":
            raise Refused
        if b"\r" + DELIMITER in body[start:end]:
            raise Refused
        label = next(quoted or plain for key, quoted, plain in parameters if key == b"name")
        folded = label.lstrip(b"/").decode("utf-8", "replace").strip().casefold().encode()
        if folded == b"_charset_" or (folded in KNOWN and folded != label) or b"\\" in label:
            raise Refused
        if label in KNOWN:
            encoded = any(field.lower().startswith(b"content-transfer") for field in fields)
            if label in seen or b"filename" in keys or encoded:
                raise Refused
            seen[label] = (start, end - 1)
        at = end + 1 + len(DELIMITER)
    if body[at:] not in (b"--", b"--\r\n") or b"model" not in seen:
        raise Refused
    text = {label: body[slice(*span)] for label, span in seen.items()}
    try:
        model = text[b"model"].decode()
        flags = [FLAGS[text[label].lower()] if label in text else None for label in (b"stream", b"store")]
    except (UnicodeDecodeError, KeyError):
        raise Refused from None
    if not 1 <= len(text[b"model"]) <= 512:
        raise Refused
    return model, seen[b"model"], flags[0], flags[1], bool(text.get(b"previous_response_id"))


def outcome(parts: list[bytes]) -> object:
    scanner = FormScanner(B)
    try:
        for piece in parts:
            scanner.feed(piece)
        scanner.finish()
    except ScanError as error:
        return error.reason, error.param, error.offset, str(error)
    told = scanner.model, scanner.model_span, scanner.stream, scanner.store, scanner.has_previous_response_id
    return (*told, scanner.estimated_tokens)


@pytest.mark.req("API-8c")
@given(body(), cuts, st.just([]) | st.lists(st.tuples(st.integers(0, 1 << 16), odd), max_size=2))
@example(b'--ab\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--ab--', list(range(80)), [])
def test_forms_are_read_as_rfc_2046_says_however_they_are_cut(
    body: bytes, cuts: list[int], damage: list[tuple[int, bytes]]
) -> None:
    for place, junk in damage:
        at = place % (len(body) + 1)
        body = body[:at] + junk + body[at + (place & 1) :]
    got = outcome(oracles.pieces(body, cuts))
    assert got == outcome([body]) == outcome([body[i : i + 1] for i in range(len(body))])
    assert isinstance(got, tuple)
    try:
        want = read(body)
    except Refused:
        assert len(got) == 4
        return
    assert got[:5] == want
    spliced = b"".join(splice_model(oracles.pieces(body, cuts), want[1], b"target"))
    assert read(spliced)[0] == "target"
    start, end = want[1]
    assert spliced == body[:start] + b"target" + body[end:]
