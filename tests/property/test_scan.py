"""The request scanner against json.loads: the same documents, the same members, however they are cut (API-8c)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iop._fast.scan import FieldScanner, RequestScanner, json_string, splice_model
from iop.errors import ScanError
from tests.support import oracles

cuts = st.lists(st.integers(0, 1 << 16), max_size=12)
text = st.text(max_size=12) | st.sampled_from(
    ["", "model", "type", 'a"b\\', "\ud83d\ude00", "\ud800", "\u20ac" * 5, "A" * 1100]
)
scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
member = st.one_of(
    st.tuples(st.just("model"), text | value),
    st.tuples(st.sampled_from(["stream", "store", "background"]), st.none() | st.booleans() | scalar),
    st.tuples(st.just("previous_response_id"), scalar),
    st.tuples(st.just("tools"), st.lists(st.fixed_dictionaries({"type": text, "x": value}) | value, max_size=3)),
    st.tuples(text, value),
    st.tuples(
        st.sampled_from(["Model", "STREAM", "\u017ftore", "bac\u212aground", "prevIous_response_id", "tools\0x"])
        | st.sampled_from(["m\u00f6del", "model_", "mode", "\u0130", "type"]),
        value,
    ),
)


@st.composite
def document(draw: st.DrawFn) -> bytes:
    """A root object with any members in any order, as some encoder might have written it."""
    members = draw(st.lists(member, max_size=7))
    ascii_only = draw(st.booleans())
    space = draw(st.sampled_from(["", " ", "\n\t"]))

    def write(item: object) -> str:
        # A lone surrogate has no UTF-8, so it can only be escaped.
        raw = json.dumps(item, ensure_ascii=False, separators=(space + ",", ":" + space))
        return raw if not ascii_only and raw.isascii() is False and not _lone(raw) else json.dumps(item)

    keys = [draw(spelled(key)) for key, _ in members]
    body = ("," + space).join(
        f"{key}{space}:{space}{write(item)}" for key, (_, item) in zip(keys, members, strict=True)
    )
    return f"{space}{{{space}{body}}}{space}".encode()


def _lone(raw: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in raw)


@st.composite
def spelled(draw: st.DrawFn, key: str) -> str:
    """A key with some characters escaped that need not be."""
    out = json.dumps(key)[1:-1]
    if draw(st.booleans()) and key and key.isascii() and key.isalpha():
        at = draw(st.integers(0, len(key) - 1))
        code = f"{ord(key[at]):04x}"
        out = key[:at] + "\\u" + (code if draw(st.booleans()) else code.upper()) + key[at + 1 :]
    return f'"{out}"'


def scan(parts: list[bytes]) -> dict[str, Any]:
    scanner = RequestScanner()
    for part in parts:
        scanner.feed(part)
    scanner.finish()
    return {
        name: getattr(scanner, name)
        for name in (
            "model",
            "model_span",
            "stream",
            "store",
            "background",
            "has_previous_response_id",
            "tool_types",
            "estimated_tokens",
        )
    }


def outcome(parts: list[bytes]) -> object:
    try:
        return scan(parts)
    except ScanError as error:
        return error.reason, error.param, error.offset, str(error)


@pytest.mark.req("API-8c", "POOL-2")
@given(document(), cuts)
@example(b'{"mod\\u0065l":"a","model":"b"}', [])
@example(b'{"model":"\\ud83d\\ude00"}', [5, 12, 15, 16, 17, 18])
def test_well_formed_requests_are_read_as_json_loads_reads_them(data: bytes, cuts: list[int]) -> None:
    root = oracles.strict_json(data)
    got = outcome(oracles.pieces(data, cuts))
    assert got == outcome([data])
    fault = oracles.request_fault(root)
    if fault is not None:
        assert isinstance(got, tuple)
        assert got[0] == fault
        return
    assert isinstance(got, dict)
    span = got.pop("model_span")
    assert got == {
        "model": root.get("model"),
        "stream": root.get("stream"),
        "store": root.get("store"),
        "background": root.get("background"),
        "has_previous_response_id": root.get("previous_response_id") is not None,
        "tool_types": oracles.tool_types(root),
        "estimated_tokens": oracles.estimated_tokens(data),
    }
    assert json.loads(data[slice(*span)]) == root.get("model")
    spliced = splice_model(oracles.pieces(data, cuts), span, json_string("t\u00e4rget"))
    want = oracles.Members((k, "t\u00e4rget" if k == "model" else v) for k, v in root)
    assert oracles.strict_json(b"".join(spliced)) == want


junk = st.sampled_from([b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"]) | st.sampled_from(
    [b"", b'"', b"\\", b"{", b"]", b",", b"0", b"-", b"e", b".", b"u", b"n", b"\x1f", b"\xff", b"\xc3\xa9", b"\xc0\xaf"]
)
mutation = st.tuples(st.integers(0, 1 << 16), junk)


@pytest.mark.req("API-8c")
@given(document(), st.lists(mutation, min_size=1, max_size=3), cuts)
def test_damaged_requests_are_refused_exactly_when_they_are_not_json(
    data: bytes, damage: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    for place, junk in damage:
        at = place % (len(data) + 1)
        data = data[:at] + junk + data[at + (place & 1) :]
    got = outcome(oracles.pieces(data, cuts))
    assert got == outcome([data])
    try:
        fault = oracles.request_fault(oracles.strict_json(data))
    except ValueError:
        assert isinstance(got, tuple), "malformed JSON was accepted"
        return
    assert (got[0] if isinstance(got, tuple) else None) == fault


number = st.from_regex(r"-?[0-9]{0,3}(\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?", fullmatch=True)


@given(
    number | st.sampled_from(["NaN", "Infinity", "-Infinity", "nul", "true", "tru", "falsey", "1 2", "+1", "01"]), cuts
)
def test_scalars_follow_the_grammar(literal: str, cuts: list[int]) -> None:
    data = f'{{"model":"m","x":[{literal}]}}'.encode()
    try:
        oracles.strict_json(data)
        good = True
    except ValueError:
        good = False
    got = outcome(oracles.pieces(data, cuts))
    assert isinstance(got, dict) is good


@given(
    st.lists(
        st.sampled_from(["A" * 500, "b+/=", "\\/" * 40, " ", "\\n", "\u00e9", "x" * 1023, "y" * 1024, "\\\\"]),
        max_size=9,
    ),
    cuts,
)
@pytest.mark.req("POOL-2")
def test_inline_base64_is_counted_by_the_run_however_it_is_cut(parts: list[str], cuts: list[int]) -> None:
    data = f'{{"model":"m","x":"{"".join(parts)}"}}'.encode()
    got = scan(oracles.pieces(data, cuts))
    assert got["estimated_tokens"] == scan([data])["estimated_tokens"] == oracles.estimated_tokens(data)


@pytest.mark.req("TUN-3")
@given(
    st.dictionaries(st.sampled_from(["usage", "id"]) | text, value, max_size=5), st.sampled_from(["", " ", "\n"]), cuts
)
def test_a_member_of_an_answer_is_found_whole(root: dict[str, Any], space: str, cuts: list[int]) -> None:
    data = (space + json.dumps(root, separators=("," + space, space + ":" + space)) + space).encode()
    scanner = FieldScanner(b"usage", 600)
    for part in oracles.pieces(data, cuts):
        scanner.feed(part)
    found = scanner.value()
    raw = json.dumps(root.get("usage"), separators=("," + space, space + ":" + space)).encode()
    assert found == (raw if "usage" in root and len(raw) <= 600 else None)


@given(st.binary(max_size=60) | document(), cuts)
def test_an_odd_answer_never_raises(data: bytes, cuts: list[int]) -> None:
    scanner = FieldScanner(b"model")
    for part in oracles.pieces(data, cuts):
        scanner.feed(part)
    found = scanner.value()
    try:
        root = oracles.lenient_json(data)
    except ValueError:
        root = None
    if found is None and isinstance(root, oracles.Members) and "model" in dict(root):
        with pytest.raises(UnicodeDecodeError):
            data.decode()
    elif isinstance(root, oracles.Members) and "model" in dict(root):
        assert found is not None
        assert oracles.lenient_json(found) == root.get("model")
        assert found == found.strip()
    else:
        assert found is None


@given(st.text())
def test_json_strings_are_json(value: str) -> None:
    encoded = json_string(value)
    assert encoded.isascii()
    assert json.loads(encoded) == value


@given(st.lists(st.binary(max_size=6), max_size=6), st.binary(min_size=1), st.integers(0, 99), st.integers(0, 99))
def test_splicing_replaces_exactly_the_span(parts: list[bytes], last: bytes, start: int, size: int) -> None:
    parts = [*parts, last]
    whole = b"".join(parts)
    start %= len(whole)
    end = start + 1 + size % (len(whole) - start)
    out = splice_model(parts, (start, end), b"<new>")
    assert b"".join(out) == whole[:start] + b"<new>" + whole[end:]
    at = 0
    for part in parts:
        if at + len(part) <= start or at >= end:
            assert any(part is kept for kept in out)
        at += len(part)
