"""Multipart forms, scanned as they come (API-8c)."""

from __future__ import annotations

import time

import pytest

from iop._fast.form import FormScanner
from iop._fast.scan import splice_model
from iop.errors import ScanError

B = b"xYz"


def part(name: str, value: bytes, *lines: str, more: str = "") -> bytes:
    fields = "".join(f"{line}\r\n" for line in (f'Content-Disposition: form-data; name="{name}"{more}', *lines))
    return b"--%b\r\n%b\r\n%b\r\n" % (B, fields.encode(), value)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--%b--\r\n" % B


def file(name: str, value: bytes) -> bytes:
    return part(name, value, "Content-Type: application/octet-stream", more='; filename="a b;c.wav"')


MODEL = part("model", b"m")


def scan(body: bytes, step: int = 1 << 30) -> FormScanner:
    scanner = FormScanner(B)
    for at in range(0, len(body), step):
        scanner.feed(body[at : at + step])
    scanner.finish()
    return scanner


@pytest.mark.req("API-8c", "API-2")
@pytest.mark.parametrize("step", [1, 2, 7, 1 << 30])
@pytest.mark.parametrize("place", ["first", "last"])
def test_the_model_is_found_anywhere_and_only_its_value_is_replaced(step: int, place: str) -> None:
    audio = bytes(range(256)) * 20 + b"\r\n--xY\r\n--xy\r\n\r\n--\n\n--x"
    rest = [file("file", audio), part("temperature", "0,5 é".encode()), part("stream", b"true")]
    body = form(*([MODEL, *rest] if place == "first" else [*rest, MODEL]))
    one = scan(body, step)
    assert (one.model, one.stream, one.store, one.background, one.has_previous_response_id) == (
        *("m", True),
        *(None, None, False),
    )
    assert one.tool_types == frozenset()
    assert one.model_span is not None
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    target = "org/größer".encode()
    assert b"".join(splice_model(pieces, one.model_span, target)) == body.replace(MODEL, part("model", target))


@pytest.mark.req("POOL-2")
def test_files_count_flat_and_text_counts_as_in_json() -> None:
    body = form(MODEL, part("prompt", b"a" * 300 + "é".encode() * 10), file("image[]", b"x" * 9999), file("mask", b""))
    assert scan(body, 1).estimated_tokens == 301 // 3 + 20 // 2 + 2 * 1500


@pytest.mark.req("API-8c")
@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("stream", b"true", True),
        ("stream", b"False", False),
        ("store", b"1", True),
        ("store", b"", False),
        ("background", b"off", False),
        ("background", b"YES", True),
    ],
)
def test_flags(name: str, value: bytes, seen: bool) -> None:
    assert getattr(scan(form(MODEL, part(name, value)), 1), name) is seen


@pytest.mark.req("API-8")
def test_a_previous_response_is_noticed_unless_it_is_empty() -> None:
    assert scan(form(MODEL, part("previous_response_id", b"r"))).has_previous_response_id
    assert not scan(form(MODEL, part("previous_response_id", b""))).has_previous_response_id


DISPOSITION = "Content-Disposition: form-data"


def with_header(*lines: str) -> bytes:
    """A form whose first part has this header."""
    header = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
    return b"--%b\r\n%b\r\nx\r\n" % (B, header) + form(MODEL)


@pytest.mark.req("API-8c")
@pytest.mark.parametrize(
    "body",
    [
        form(part("model", b"m" * 512)),
        form(MODEL)[:-2],  # the last line end is not part of the form
        form(MODEL, part("", b"")),
        form(MODEL, part("model[]", b"x"), part("models", b"y"), part("stream_options", b"z")),
        form(part("model", b"m", "Content-Type: text/plain; charset=utf-8", "Content-Length: 1")),
        form(part("model", b"m", 'Content-Type: Text/Plain; Charset="UTF-8"')),
        form(part("model", b"m", "Content-Type: text/plain; charset=ISO-8859-1")),
        with_header(f"{DISPOSITION}; name=plain"),
        with_header("content-DISPOSITION:form-data;NAME=\"a\" ;filename*=UTF-8''%e2%82%ac"),
        with_header(f'{DISPOSITION}; name="a/b"; filename="C:\\x.wav"'),
        with_header(f'{DISPOSITION}; name="\xff"', "X-Other: \t ", "Content-Transfer-Encoding: base64"),
        with_header(f'{DISPOSITION}; name="a"', "X: " + "x" * (4096 - 47)),
        with_header(*[f'{DISPOSITION}; name="a"', *["X: y"] * 15]),
        form(*[part("a", b"")] * 1023, MODEL),
    ],
)
def test_what_a_form_may_have(body: bytes) -> None:
    for step in (1, 1 << 30):
        assert scan(body, step).model in ("m", "m" * 512)


SYNTAX = [
    b"",
    b"--xYz",
    b"--xYz\r",
    b"--xYz--x",
    b"--xYz--\r\n\r\n",
    b"--xYz-\r\n",
    b'{"model":"m"}',
    b"\r\n" + form(MODEL),
    b"preamble\r\n" + form(MODEL),
    form(MODEL) + b"epilogue",
    form(MODEL).replace(b"--xYz\r\n", b"--xYz \r\n"),
    form(MODEL).replace(b"--xYz\r\n", b"--xYz\n"),
    form(MODEL).replace(b"--xYz\r\n", b"--xYzz\r\n"),
    form(MODEL).replace(b"\r\nm\r\n", b"\r\nm\n"),
    form(MODEL).replace(b"m\r\n--", b"m\r\r\n\n--"),
    form(MODEL).replace(b"\r\n\r\n", b"\n\n"),
    form(MODEL)[:-5],
    form(MODEL)[:-4],
    form(part("a", b"x\n--xYz\r\nContent-Disposition: form-data; name=model\r\n\r\nother"), MODEL),
    form(part("a", b"x\r--xYz\r\nContent-Disposition: form-data; name=model\r\n\r\nother"), MODEL),
    form(part("_charset_", b"utf-16"), MODEL),
    form(part("a", b"x", "Content-Length: 2"), MODEL),
    form(part("a", b"x", "Content-Length: -1"), MODEL),
    form(part("a", b"x", "Content-Length: 1", "content-length: 1"), MODEL),
    form(part("a", b"x", "Content-Type: multipart/mixed; boundary=q"), MODEL),
    with_header(f'{DISPOSITION}; name="mo\\del"'),
    with_header(f'{DISPOSITION}; name="a"; name*0="mod"; name*1="el"'),
    with_header(f'{DISPOSITION}; name="a"; x=y'),
    form(part("a", b""), MODEL).replace(b"\r\n\r\n\r\n", b"\r\n\r\n", 1),  # the boundary right behind the empty line
    form(part("a", b""), MODEL).replace(b"\r\n\r\n\r\n", b"\r\n", 1),  # and without one
    b"--xYz\r\n\r\nx\r\n" + form(MODEL),
    with_header("Content-Type: text/plain"),
    with_header(DISPOSITION),
    with_header(f'{DISPOSITION}; filename="a"'),
    with_header('Content-Disposition: attachment; name="a"'),
    with_header(f'{DISPOSITION}; name="a"', f'{DISPOSITION}; name="b"'),
    with_header(f'{DISPOSITION}; name="a"; name="b"'),
    with_header(f"{DISPOSITION}; name=a; name*=UTF-8''model"),
    with_header(f'{DISPOSITION}; name="a\\"; x="'),
    with_header(f'{DISPOSITION}; name="a'),
    with_header(f'{DISPOSITION}; name="a" b'),
    with_header(f"{DISPOSITION}; name = a"),
    with_header(f"{DISPOSITION}; name="),
    with_header(f'{DISPOSITION} : x; name="a"'),
    with_header(f'{DISPOSITION}; name="a"', "no colon"),
    with_header(f'{DISPOSITION}; name="a"', "space : x"),
    with_header(f"{DISPOSITION};", ' name="a"'),
    with_header(f'{DISPOSITION}; name="a\x00"'),
    with_header(f'{DISPOSITION}; name="a\rb"'),
    with_header(f'{DISPOSITION}; name="a"', "X: " + "x" * (4097 - 47)),
    with_header(*[f'{DISPOSITION}; name="a"', *["X: y"] * 16]),
    form(*[part("a", b"")] * 1024, MODEL),
]

FAULTS = [
    (form(), "missing_model", "model"),
    (form(part("models", b"m")), "missing_model", "model"),
    (form(part("model", b"")), "missing_model", "model"),
    (form(MODEL, MODEL), "duplicate_key", "model"),
    (form(part("stream", b"true"), part("stream", b"true"), MODEL), "duplicate_key", "stream"),
    (form(part("model", b"m" * 513)), "model_too_long", "model"),
    (form(part("model", b"m" * 100_000)), "model_too_long", "model"),
    (form(part("model", b"\xff")), "model_not_string", "model"),
    (form(part("model", b"m", more='; filename="m"')), "model_not_string", "model"),
    (form(part("model", b"m", more="; filename*=utf-8''m")), "model_not_string", "model"),
    (form(part("model", b"bQ==", "Content-Transfer-Encoding: base64")), "model_not_string", "model"),
    (form(MODEL, part("MODEL", b"x")), "duplicate_key", "model"),
    (form(part(" Model", b"x"), MODEL), "ambiguous_key", "model"),
    (form(part("\u017ftore", b"true"), MODEL), "ambiguous_key", "store"),
    (form(part("//stream", b"true"), MODEL), "ambiguous_key", "stream"),
    (form(part("model", b"m", "Content-Type: text/plain; charset=utf-16")), "model_not_string", "model"),
    (form(part("model", b"\xc3\xa9", "Content-Type: text/plain; charset=iso-8859-1")), "model_not_string", "model"),
    (form(part("model", b'"m"', "Content-Type: application/json")), "model_not_string", "model"),
    (form(part("model", b"m", "Content-Encoding: gzip")), "model_not_string", "model"),
    (form(part("stream", b"maybe"), MODEL), "not_boolean", "stream"),
    (form(part("store", b"x" * 17), MODEL), "not_boolean", "store"),
    (form(part("background", b"true", more='; filename="x"'), MODEL), "not_plain", "background"),
]


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("step", [1, 3, 1 << 30])
def test_what_is_refused_and_by_which_name(step: int) -> None:
    for body, reason, param in [*((body, "syntax", None) for body in SYNTAX), *FAULTS]:
        with pytest.raises(ScanError) as caught:
            scan(body, step)
        assert (caught.value.reason, caught.value.param) == (reason, param), body
        assert param is None or param in caught.value.message


@pytest.mark.req("API-8c")
def test_a_fault_stays() -> None:
    scanner = FormScanner(B)
    for _ in range(2):
        with pytest.raises(ScanError):
            scanner.feed(b"{}")
        with pytest.raises(ScanError):
            scanner.finish()


@pytest.mark.req("API-2")
def test_a_value_with_the_boundary_does_not_fit() -> None:
    scanner = FormScanner(B)
    assert scanner.fits(b"xYz--xY")
    assert not scanner.fits(b"a--xYz")


def test_boundaries_have_bounds() -> None:
    FormScanner(b"x" * 70)
    for boundary in (b"", b"x" * 71, b"a\nb"):
        with pytest.raises(ValueError, match="70 bytes"):
            FormScanner(boundary)


@pytest.mark.req("API-8c")
def test_a_dripped_file_costs_linear_time() -> None:
    """What nearly is the delimiter, over and over, byte by byte: twice the bytes take about twice the time."""

    def seconds(n: int) -> float:
        scanner = FormScanner(b"-" * 70)
        head = b"--" + b"-" * 70 + b"\r\n" + part("file", b"", more="; filename=x").partition(b"\r\n")[2][:-2]
        scanner.feed(head)
        drops = [b"\n", *[b"-"] * 71] * (n // 72)
        begun = time.process_time()
        for drop in drops:
            scanner.feed(drop)
        return time.process_time() - begun

    small = min(seconds(20_000) for _ in range(3))
    assert min(seconds(160_000) for _ in range(3)) < 8 * 4 * small
