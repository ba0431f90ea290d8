"""What the edge learns from a body, compressed or not, whole or in pieces (API-8c, D17)."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from iop.edge.api.body import FORM_STEP_BYTES, JSON_STEP_BYTES, Intake, form_of, require_plain_query
from iop.errors import InvalidRequest, Overloaded, PayloadTooLarge, ScanError, UnsupportedMediaType
from iop.net.http.head import parse_request

BODY = json.dumps({"messages": [{"role": "user", "content": "x" * 500}], "stream": True, "model": "m"}).encode()


def intake(*lines: str, limit: int = 1 << 20) -> Intake:
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "Host: a", *lines]).encode() + b"\r\n\r\n"
    return Intake(parse_request(head), limit)


def feed(one: Intake, piece: bytes) -> int:
    """How many steps the piece took."""
    steps = 0
    if one.feed(piece):
        while one.step():
            steps += 1
    return steps


def fed(one: Intake, body: bytes, step: int) -> Intake:
    for at in range(0, len(body), step):
        feed(one, body[at : at + step])
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
def test_d17_a_compressed_body_leaves_plain(step: int, coding: str, compress) -> None:  # type: ignore[no-untyped-def]
    packed = compress(BODY)
    one = fed(intake(f"Content-Encoding: {coding}"), packed, step)
    assert (one.model, one.received_bytes, one.held_bytes) == ("m", len(packed), len(BODY))
    for target in (b"m", b"t"):
        pieces, total = one.body_for(target.decode())
        assert b"".join(pieces) == BODY.replace(b'"m"', b'"%b"' % target)
        assert total == len(BODY)
    assert one.held_bytes == len(BODY)
    one.release()
    assert one.held_bytes is None


@pytest.mark.req("API-8c")
def test_inflating_takes_bounded_steps_and_its_plain_bytes_count() -> None:
    body = b'{"model": "m", "x": "' + b" " * 3_000_000 + b'"}'
    held: list[int] = []
    head = parse_request(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n\r\n")
    one = Intake(head, 1 << 22, hold=held.append)
    packed = gzip.compress(body)
    assert feed(one, packed) >= len(body) // JSON_STEP_BYTES
    assert sum(held) == len(body) - len(packed)
    assert max(held) <= JSON_STEP_BYTES
    one.finish()

    def full(size: int) -> None:
        raise Overloaded

    with pytest.raises(Overloaded):
        feed(Intake(head, 1 << 22, hold=full), packed)


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_a_byte_order_mark_is_not_passed_on(step: int) -> None:
    one = fed(intake(), b"\xef\xbb\xbf" + BODY, step)
    pieces, total = one.body_for("m")
    assert (b"".join(pieces), total) == (BODY, len(BODY))
    for broken in (b"\xef\xbb{}", b"\xef\xbb", b" \xef\xbb\xbf" + BODY, b"\xef\xbb\xbf\xef\xbb\xbf" + BODY):
        with pytest.raises(ScanError):
            fed(intake(), broken, step)


@pytest.mark.req("TUN-9")
@pytest.mark.parametrize(
    ("kind", "ascii_taken", "other_taken"),
    [
        ("application/json", True, True),
        ("application/json; charset=UTF-8", True, True),
        ('application/json;charset = "utf-8"; x=y', True, True),
        ("application/json; charset=ISO-8859-1", True, False),
        ("text/plain; charset=us-ascii", True, False),
        ("application/json; charset=utf-16", False, False),
        ("text/plain; Charset = shift_jis", False, False),
        ("a/b;charset=UTF8", True, True),
        ("application/json; charset=utf-7", False, False),
        ("application/json; charset=utf-8; charset=utf-16", False, False),
        ("application/json; charset*=utf-8''utf-16", False, False),
        ("application/json; charset=", False, False),
    ],
)
def test_a_body_is_utf_8_whatever_charset_it_is_declared_in(kind: str, ascii_taken: bool, other_taken: bool) -> None:
    for text, taken in (("plain", ascii_taken), ("größer", other_taken)):
        body = json.dumps({"model": "m", "x": text}, ensure_ascii=False).encode()
        if taken:
            assert fed(intake(f"Content-Type: {kind}"), body, 7).model == "m"
        else:
            with pytest.raises(UnsupportedMediaType):
                fed(intake(f"Content-Type: {kind}"), body, 7)


@pytest.mark.req("API-8c")
def test_a_second_content_type_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="content-type"):
        intake("Content-Type: application/json", "Content-Type: text/plain")
    for second in ("application/json", "multipart/form-data; boundary=B"):
        with pytest.raises(InvalidRequest, match="content-type"):
            form(more=f"Content-Type: {second}\r\n")


@pytest.mark.req("API-8c")
@pytest.mark.parametrize(
    "query", [b"model=x", b"a=b&model=x", b"MODEL", b"%6dodel=x", b"a;model=x", b"+mode%6C=", b"model"]
)
def test_a_model_in_the_query_is_refused(query: bytes) -> None:
    with pytest.raises(InvalidRequest, match="query"):
        require_plain_query(query)


@pytest.mark.req("API-1")
@pytest.mark.parametrize(
    "query", [b"", b"beta=true", b"api-version=2024-10-21&x=model", b"models=x", b"a=%", b"=model"]
)
def test_any_other_query_passes(query: bytes) -> None:
    require_plain_query(query)


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
def test_a_form_is_read_in_bounded_steps() -> None:
    one = form()
    data = FILE[:-2] + b"\0" * 200_000 + body((b"model", b"m"), before=b"\r\n")
    assert feed(one, data) == len(data) // FORM_STEP_BYTES
    one.finish()
    sent, total = one.body_for("target")
    assert b"".join(sent) == data.replace(b"\r\n\r\nm\r\n", b"\r\n\r\ntarget\r\n")
    assert total == one.received_bytes + len("target") - len("m")


@pytest.mark.req("API-8c")
def test_a_compressed_form_is_scanned_as_well() -> None:
    data = body((b"model", b"m"))
    one = fed(form(more="Content-Encoding: gzip\r\n"), gzip.compress(data), 11)
    assert b"".join(one.body_for("m")[0]) == data
    assert b"".join(one.body_for("t")[0]) == body((b"model", b"t"))


@pytest.mark.req("API-8c", "API-2")
@pytest.mark.parametrize("step", [1, 9, 1000])
def test_the_length_of_a_part_has_to_be_true_and_goes_with_the_model_that_it_is_of(step: int) -> None:
    part = b'--B\r\nContent-Disposition: form-data; name="%b"\r\nContent-Length: %d\r\n\r\n%b\r\n'
    one = fed(form(), body((b"x", b"y"), before=part % (b"model", 1, b"m")), step)
    assert b"".join(one.body_for("long")[0]) == body((b"x", b"y"), before=FORM % (b"model", b"long"))
    other = part % (b"x", 2, b"yz")
    assert other in b"".join(fed(form(), body((b"model", b"m"), before=other), step).body_for("t")[0])
    for length in (0, 1, 3, 1000):
        with pytest.raises(ScanError, match="length"):
            fed(form(), body((b"model", b"m"), before=part % (b"x", length, b"yz")), step)


@pytest.mark.req("API-2", "API-5")
def test_a_target_that_would_end_its_own_part_is_refused() -> None:
    one = fed(form(), body((b"model", b"m")), 100)
    one.body_for("B--x-B")
    with pytest.raises(InvalidRequest, match="boundary"):
        one.body_for("a--B")
    kind = b'--B\r\nContent-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=%b\r\n\r\nm\r\n'
    fed(form(), body(before=kind % b"utf-8"), 100).body_for("größer")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        fed(form(), body(before=kind % b"ISO-8859-1"), 100).body_for("größer")


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
        "multipart/form-data; boundary=a; boundary*=utf-8''b",
        "multipart/form-data; boundary*0=a; boundary*1=b",
        "multipart/form-data; boundary=a; x=y",
        "multipart/form-data; boundary=a;",
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


@pytest.mark.req("TUN-5b", "API-8")
@pytest.mark.parametrize(
    ("more", "ordinary"),
    [
        ("", True),
        ('"stream": true, "tools": [{"type": "function"}], ', True),
        ('"tools": [{"type": "function"}, {"type": "web_search_preview"}], ', False),
        ('"store": true, ', False),
        ('"background": true, ', False),
        ('"previous_response_id": "r", ', False),
    ],
)
def test_the_quick_look_finds_whatever_the_thorough_one_would(more: str, ordinary: bool) -> None:
    one = fed(intake(), f'{{{more}"model": "m"}}'.encode(), 7)
    assert one.ordinary is ordinary
    assert one.replayable(stores_by_default=False) is ordinary
