"""Request bodies: what is refused and how it is named, what is found, and that size costs nothing (API-8c)."""

from __future__ import annotations

import json

import pytest

from iop._fast.scan import FieldScanner, RequestScanner, json_string, splice_model
from iop.errors import ScanError

pytestmark = pytest.mark.req("API-8c")


def scan(data: bytes, size: int = 1 << 30) -> RequestScanner:
    scanner = RequestScanner()
    for at in range(0, len(data), size):
        scanner.feed(data[at : at + size])
    scanner.finish()
    return scanner


def nested(levels: int) -> bytes:
    """A request whose deepest container lies at that level."""
    return b'{"model":"m","x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize("size", [1 << 30, 1], ids=["whole", "by-byte"])
@pytest.mark.parametrize(
    ("body", "reason", "param"),
    [
        (b"", "syntax", None),
        (b"  ", "syntax", None),
        (b"[]", "not_object", None),
        (b'"model"', "not_object", None),
        (b"7", "not_object", None),
        (b"null", "not_object", None),
        (b"\xef\xbb\xbf{}", "missing_model", "model"),
        (b"\xef\xbb{}", "syntax", None),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"model":"a"}', "syntax", None),
        (b'{"model":"a","MODEL":"b"}', "duplicate_key", "model"),
        (b'{"MODEL":"b","model":"a"}', "ambiguous_key", "model"),
        (b'{"Model":"b"}', "ambiguous_key", "model"),
        (b'{"model":"a","\\u004dodel":"b"}', "duplicate_key", "model"),
        ('{"model":"a","\u017ftream":true}'.encode(), "ambiguous_key", "stream"),
        (b'{"model":"a","\\u017Ftore":true}', "ambiguous_key", "store"),
        ('{"model":"a","bac\u212aground":true}'.encode(), "ambiguous_key", "background"),
        ('{"model":"a","prev\u0131ous_response_id":1}'.encode(), "ambiguous_key", "previous_response_id"),
        (b'{"model":"a","TOOLS":[]}', "ambiguous_key", "tools"),
        (b'{"model":"a","model\\u0000":"b"}', "duplicate_key", "model"),
        (b"{}", "missing_model", "model"),
        (b'{"messages":[{"model":"inner"}]}', "missing_model", "model"),
        (b'{"model":""}', "missing_model", "model"),
        (b'{"model":null}', "model_not_string", "model"),
        (b'{"model":["a"]}', "model_not_string", "model"),
        (b'{"model":"\\ud800"}', "model_not_string", "model"),
        (b'{"model":"' + b"m" * 513 + b'"}', "model_too_long", "model"),
        (b'{"model":"' + b"\\u20ac" * 171 + b'"}', "model_too_long", "model"),
        (b'{"model":"a","model":"a"}', "duplicate_key", "model"),
        (b'{"model":"a","m\\u006Fdel":"b"}', "duplicate_key", "model"),
        (b'{"model":"a","stream":true,"str\\u0065am":false}', "duplicate_key", "stream"),
        (b'{"model":"a","tools":[],"tools":[{"type":"mcp"}]}', "duplicate_key", "tools"),
        (b'{"model":"a","stream":"true"}', "not_boolean", "stream"),
        (b'{"model":"a","store":1}', "not_boolean", "store"),
        (b'{"model":"a","background":{}}', "not_boolean", "background"),
        (b'{"model":"a"', "syntax", None),
        (b'{"model":"a"}}', "syntax", None),
        (b'{"model":"a",}', "syntax", None),
        (b'{"model":"a" "b":1}', "syntax", None),
        (b'{"model":"a","x":[1,]}', "syntax", None),
        (b'{"model":"a","x":[1}}', "syntax", None),
        (b'{"model":"a","x":01}', "syntax", None),
        (b'{"model":"a","x":NaN}', "syntax", None),
        (b'{"model":"a","x":"\n"}', "syntax", None),
        (b'{"model":"a","x":"\\x"}', "syntax", None),
        (b'{"model":"a","x":"\\u12g4"}', "syntax", None),
        (b"{'model':'a'}", "syntax", None),
        (b'{"model":"a"}//', "syntax", None),
        (b'{"model":"\xc3("}', "syntax", None),
        (b'{"model":"\xed\xa0\x80"}', "syntax", None),
        (b'{"model":"\xf5\x80\x80\x80"}', "syntax", None),
        (nested(513), "depth", None),
        (b'{"x":' * 600, "depth", None),
        (json.dumps({"model": "a", "tools": [{"type": f"t{i}"} for i in range(33)]}).encode(), "tool_types", "tools"),
    ],
)
def test_a_body_that_is_refused_says_why(body: bytes, reason: str, param: str | None, size: int) -> None:
    with pytest.raises(ScanError) as caught:
        scan(body, size)
    assert (caught.value.reason, caught.value.param, caught.value.status) == (reason, param, 400)


def test_a_syntax_fault_names_its_byte_and_nothing_of_the_body() -> None:
    with pytest.raises(ScanError) as caught:
        scan(b'{"model":"m","secret":oops}', 4)
    assert caught.value.offset == 22
    assert "byte 22" in caught.value.message
    assert "secret" not in caught.value.message


def test_a_refused_body_stays_refused() -> None:
    scanner = RequestScanner()
    with pytest.raises(ScanError):
        scanner.feed(b"[")
    with pytest.raises(ScanError):
        scanner.feed(b'{"model":"m"}')
    with pytest.raises(ScanError):
        scanner.finish()


def test_depth_512_is_allowed_and_513_is_not() -> None:
    assert scan(nested(512)).model == "m"
    with pytest.raises(ScanError):
        scan(nested(513))


def test_the_model_may_come_last_escaped_and_cut_anywhere() -> None:
    body = (
        b'{"messages":[{"role":"user","content":"\\"model\\":\\"no\\""}],"m\\u006fdel" : "a\\/b\\u00e9\\ud83d\\ude00" }'
    )
    for size in (1, 2, 3, 7, 1000):
        scanner = scan(body, size)
        assert scanner.model == "a/b\u00e9\U0001f600"
        assert scanner.model_span is not None
        assert json.loads(body[slice(*scanner.model_span)]) == scanner.model
    assert scan(b'{"model":"' + b"m" * 512 + b'"}').model == "m" * 512


@pytest.mark.req("API-8")
def test_members_that_recovery_asks_about() -> None:
    body = json.dumps(
        {
            "model": "m",
            "stream": True,
            "store": False,
            "background": None,
            "previous_response_id": "resp_1",
            "tools": [
                {"type": "function", "function": {"type": "mcp"}},
                {"function": {"parameters": [{"type": "x"}]}, "type": "web_search_preview"},
                "type",
                ["type", "y"],
                {"type": 7},
            ],
            "metadata": {"stream": False, "tools": [{"type": "z"}]},
        }
    ).encode()
    for size in (1, 1000):
        scanner = scan(body, size)
        assert (scanner.stream, scanner.store, scanner.background) == (True, False, None)
        assert scanner.has_previous_response_id
        assert scanner.tool_types == {"function", "web_search_preview"}
    bare = scan(b'{"model":"m","previous_response_id":null}')
    assert (bare.stream, bare.store, bare.background, bare.has_previous_response_id) == (None, None, None, False)


@pytest.mark.req("POOL-2")
def test_estimates_count_ascii_by_three_others_by_two_and_images_flat() -> None:
    prefix = len(b'{"model":"m","x":""}')
    assert scan(b'{"model":"m","x":"%b"}' % (b"ab " * 100)).estimated_tokens == (prefix + 300) // 3
    assert scan(b'{"model":"m","x":"%b"}' % ("\u00e9".encode() * 50)).estimated_tokens == prefix // 3 + 50
    image = b"data:image/png;base64," + b"iVBORw0KGgo+/" * 1000
    one = scan(b'{"model":"m","x":"%b"}' % image).estimated_tokens
    assert one == (prefix + len(b"data:image/png;base64,")) // 3 + 1500
    slashed = image.replace(b"/", b"\\/")
    assert scan(b'{"model":"m","x":["%b","%b"]}' % (slashed, image)).estimated_tokens // 1500 == 2


@pytest.mark.req("POOL-2")
def test_an_image_cut_inside_an_escaped_slash_is_still_one() -> None:
    body = b'{"model":"m","x":"' + b"A" * 1030 + b"\\/" * 8 + b'B"}'
    for cut in range(len(body)):
        scanner = RequestScanner()
        for part in (body[:cut], body[cut:]):
            scanner.feed(part)
        scanner.finish()
        assert scanner.estimated_tokens == len(b'{"model":"m","x":""}') // 3 + 1500


def test_a_large_prompt_dripped_costs_linear_time() -> None:
    """A scanner that rescans what it has would look at 10^12 bytes here and never end."""
    scanner = RequestScanner()
    scanner.feed(b'{"x":"')
    for part in [b"word \\n", b"A"]:
        for _ in range(300_000):
            scanner.feed(part)
    scanner.feed(b'","model":"m"}')
    scanner.finish()
    assert scanner.model == "m"


def test_splicing_leaves_the_other_pieces_alone() -> None:
    prompt = b'{"messages":"' + b"x" * 200_000
    rest = b'","model":"abc","z":1}'
    pieces = [prompt, rest[:12], rest[12:]]
    span = scan(b"".join(pieces)).model_span
    assert span is not None
    out = splice_model(pieces, span, json_string('t"\u00e9'))
    assert out[0] is prompt
    assert json.loads(b"".join(out)) == {"messages": "x" * 200_000, "model": 't"\u00e9', "z": 1}
    with pytest.raises(ValueError, match="span"):
        splice_model([b"abc"], (1, 4), b"x")
    with pytest.raises(ValueError, match="span"):
        splice_model([b"abc"], (2, 2), b"x")


@pytest.mark.req("TUN-3")
@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (b'{"id":"x","usage":{"a":[1,{"usage":2}]},"z":0}', b'{"a":[1,{"usage":2}]}'),
        (b'{"usage" :\n {"a":1} }', b'{"a":1}'),
        (b'{"us\\u0061ge":5}', b"5"),
        (b'{"usage":null}', b"null"),
        (b'{"usage":"a\\"b"}', b'"a\\"b"'),
        (b'{"usage":1,"usage":2}', b"2"),
        (b'{"x":{"usage":1},"y":["usage"]}', None),
        (b'["usage",1]', None),
        (b'{"usage":{"a":1}', None),
        (b'{"usage":{"a":1}}x', None),
        (b'{"usage":{"a":}}', None),
        (b"<html>", None),
        (b"", None),
    ],
)
def test_one_member_of_an_answer_or_nothing(answer: bytes, value: bytes | None) -> None:
    for size in (1, 3, 1000):
        scanner = FieldScanner(b"usage")
        for at in range(0, len(answer), size):
            scanner.feed(answer[at : at + size])
        assert scanner.value() == value


@pytest.mark.req("TUN-3")
def test_a_member_is_kept_up_to_its_bound() -> None:
    for n, kept in ((98, True), (99, False)):
        scanner = FieldScanner(b"usage", 100)
        scanner.feed(b'{"usage":"' + b"x" * n + b'"}')
        assert (scanner.value() is not None) is kept
