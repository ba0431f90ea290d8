"""What the edge learns from a body, compressed or not, whole or in pieces (API-8c, D17)."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from iop.edge.intake import Intake, form_of
from iop.errors import InvalidRequest, PayloadTooLarge, ScanError, UnsupportedMediaType
from iop.net.http.head import parse_request

BODY = json.dumps({"messages": [{"role": "user", "content": "x" * 500}], "stream": True, "model": "m"}).encode()


def intake(*lines: str, limit: int = 1 << 20) -> Intake:
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "Host: a", *lines]).encode() + b"\r\n\r\n"
    return Intake(parse_request(head), limit)


def fed(one: Intake, body: bytes, step: int) -> Intake:
    for at in range(0, len(body), step):
        one.feed(body[at : at + step])
    one.finish()
    return one


@pytest.mark.req("API-8c", "API-2")
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_only_the_model_is_replaced(step: int) -> None:
    one = fed(intake(), BODY, step)
    assert (one.model, one.streaming, one.received_bytes) == ("m", True, len(BODY))
    pieces, total = one.body_for("target/é")
    assert b"".join(pieces) == BODY.replace(b'"model": "m"', b'"model": "target/\\u00e9"')
    assert total == len(b"".join(pieces))


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("step", [1, 50, 10_000])
@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_d17_a_compressed_body_leaves_plain_whether_the_model_changes_or_not(step: int, coding: str, compress) -> None:  # type: ignore[no-untyped-def]
    packed = compress(BODY)
    one = fed(intake(f"Content-Encoding: {coding}"), packed, step)
    assert one.model == "m"
    pieces, total = one.body_for("m")
    assert (b"".join(pieces), total) == (BODY, len(BODY))
    assert b"".join(one.body_for("t")[0]) == BODY.replace(b'"m"', b'"t"')
    assert one.held
    one.release()
    assert not one.held


@pytest.mark.req("TUN-9")
@pytest.mark.parametrize("charset", ["utf-8", "UTF8", '"utf-8"', "us-ascii"])
def test_utf_8_by_any_name_is_taken(charset: str) -> None:
    fed(intake(f"Content-Type: application/json; charset={charset}"), b'{"model": "m", "a": "\xc3\xa4"}', 5)


@pytest.mark.req("TUN-9")
def test_latin_1_is_taken_where_it_is_the_same_as_utf_8() -> None:
    kind = "Content-Type: application/json; charset=ISO-8859-1"
    fed(intake(kind), b'{"model": "m", "a": "a"}', 5)
    with pytest.raises(UnsupportedMediaType):
        fed(intake(kind), b'{"model": "m", "a": "\xc3\xa4"}', 5)


@pytest.mark.req("TUN-9")
@pytest.mark.parametrize(
    "kind", ["application/json;charset=utf-16", "text/plain; Charset = shift_jis", "a/b; charset=utf-8; charset=utf-7"]
)
def test_another_charset_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        intake(f"Content-Type: {kind}")


@pytest.mark.req("API-8c")
def test_a_bomb_is_noticed_at_the_limit() -> None:
    one = intake("Content-Encoding: gzip", limit=100_000)
    bomb = gzip.compress(b'{"a": "' + b" " * 50_000_000)
    with pytest.raises(PayloadTooLarge):
        fed(one, bomb, 65536)


@pytest.mark.parametrize(
    "body", [gzip.compress(BODY)[:-9], gzip.compress(BODY) + b"x", b"not gzip at all", gzip.compress(BODY)[:5]]
)
def test_broken_compression_is_the_clients_fault(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        fed(intake("Content-Encoding: gzip"), body, 100)


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "x"])
def test_other_codings_are_refused(coding: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        intake(f"Content-Encoding: {coding}")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"model": 1}', b'{"model": "a", "model": "b"}', b"{}", b'{"model": "a"']
)
def test_a_body_without_one_model_is_refused(body: bytes) -> None:
    with pytest.raises(ScanError):
        fed(intake(), body, 100)


@pytest.mark.req("API-8")
@pytest.mark.parametrize(
    ("extra", "stores", "replayable"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"store": False}, True, True),
        ({"store": True}, False, False),
        ({"background": True}, False, False),
        ({"previous_response_id": "r"}, False, False),
        ({"tools": [{"type": "function"}]}, False, True),
        ({"tools": [{"type": "function"}, {"type": "web_search_preview"}]}, False, False),
        ({"tools": [{"type": "mcp"}]}, False, False),
    ],
)
def test_what_must_not_be_sent_twice(extra: dict[str, object], stores: bool, replayable: bool) -> None:
    one = fed(intake(), json.dumps({"model": "m", **extra}).encode(), 100)
    assert one.replayable(stores_by_default=stores) is replayable


@pytest.mark.req("API-5")
def test_a_long_request_id_of_the_client_is_cut() -> None:
    assert intake("x-request-id: " + "x" * 5000).client_request_id == "x" * 128
    assert intake().client_request_id == ""


# ---- forms ----------------------------------------------------------------------------------------------------------

FORM = b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
FILE = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n' % (b"\r\n--C\0" * 999)


def form(*, kind: str = "multipart/form-data; boundary=B", more: str = "") -> Intake:
    request = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n{more}\r\n"
    head = parse_request(request.encode())
    return Intake(head, 1 << 20, form_of(head))


def body(*fields: tuple[bytes, bytes], before: bytes = FILE) -> bytes:
    return before + b"".join(FORM % field for field in fields) + b"--B--\r\n"


@pytest.mark.req("API-8c", "API-2")
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_the_model_of_a_form_is_replaced_as_it_is_spelled_there(step: int) -> None:
    data = body((b"model", b"m"), (b"stream", b"true"))
    one = fed(form(), data, step)
    assert (one.model, one.streaming, one.received_bytes, one.estimated_tokens) == ("m", True, len(data), 1501)
    pieces, total = one.body_for('größer"')
    want = body((b"model", 'größer"'.encode()), (b"stream", b"true"))
    assert (b"".join(pieces), total) == (want, len(want))


@pytest.mark.req("API-8c")
def test_large_pieces_of_a_form_are_passed_on_as_they_came() -> None:
    head, tail = FILE[:-2], body((b"model", b"m"), before=b"\r\n")
    one = form()
    pieces = [head, *[b"\0" * 200_000] * 4, tail]
    for piece in pieces:
        one.feed(piece)
    one.finish()
    sent, total = one.body_for("target")
    assert [a is b for a, b in zip(sent, pieces, strict=True)] == [True] * 5 + [False]
    assert total == one.received_bytes + len("target") - len("m")


@pytest.mark.req("API-8c")
def test_a_compressed_form_is_scanned_as_well() -> None:
    data = body((b"model", b"m"))
    one = fed(form(more="Content-Encoding: gzip\r\n"), gzip.compress(data), 11)
    assert b"".join(one.body_for("m")[0]) == data
    assert b"".join(one.body_for("t")[0]) == body((b"model", b"t"))


@pytest.mark.req("API-2", "API-5")
def test_a_target_that_would_end_its_own_part_is_refused() -> None:
    one = fed(form(), body((b"model", b"m")), 100)
    one.body_for("B--x-B")
    with pytest.raises(InvalidRequest, match="boundary"):
        one.body_for("a--B")


@pytest.mark.req("API-8c")
@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=B",
        "Multipart/Form-Data;charset=utf-8; BOUNDARY=B",
        'multipart/form-data ; boundary="B" ',
    ],
)
def test_content_types_of_forms(kind: str) -> None:
    assert fed(form(kind=kind), body((b"model", b"m")), 100).model == "m"


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("text", ["----=_Part_0_1.2", "a" * 70, "'()+_,-./:?", '"a b"', "----WebKitFormBoundaryAbC"])
def test_boundaries_that_clients_make(text: str) -> None:
    plain = text.strip('"').encode()
    data = body((b"model", b"m"), before=b"").replace(b"--B", b"--" + plain)
    assert fed(form(kind=f"multipart/form-data; boundary={text}"), data, 3).model == "m"


@pytest.mark.req("API-8c")
@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
        'multipart/form-data; boundary="a "',
        'multipart/form-data; boundary="a\\b"',
        "multipart/form-data; boundary=" + "a" * 71,
        "multipart/form-data; boundary=a; boundary=a",
        'multipart/form-data; x="; boundary=a"; boundary=b',
        "multipart/form-data; boundary=a b",
        "multipart/form-data; boundary=a@b",
        "multipart/form-data, multipart/form-data; boundary=a",
        "multipart/form-datax; boundary=a",
        "multipart/form-data; boundary=a\r\nContent-Type: application/json",
        "multipart/form-data; boundary=a\r\nContent-Type: multipart/form-data; boundary=a",
    ],
)
def test_a_boundary_that_is_not_certain_is_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="boundary of 1 to 70"):
        form(kind=kind)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/mixed; boundary=a"])
def test_whatever_is_no_form_is_json(kind: str) -> None:
    assert fed(form(kind=kind), b'{"model":"m"}', 5).model == "m"


@pytest.mark.req("API-8")
@pytest.mark.parametrize(
    ("field", "stores", "replayable"),
    [
        ((b"x", b""), False, True),
        ((b"x", b""), True, False),
        ((b"store", b"false"), True, True),
        ((b"store", b"true"), False, False),
        ((b"background", b"1"), False, False),
        ((b"previous_response_id", b"r"), False, False),
    ],
)
def test_which_forms_must_not_be_sent_twice(field: tuple[bytes, bytes], stores: bool, replayable: bool) -> None:
    one = fed(form(), body((b"model", b"m"), field), 100)
    assert one.replayable(stores_by_default=stores) is replayable
