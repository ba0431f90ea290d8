"""What the edge learns from a body, compressed or not, whole or in pieces (API-8c, D17)."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from iop.edge.intake import Intake
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
    pieces, total, encoded = one.body_for("target/é")
    assert b"".join(pieces) == BODY.replace(b'"model": "m"', b'"model": "target/\\u00e9"')
    assert (total, encoded) == (len(b"".join(pieces)), False)


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("step", [1, 50, 10_000])
@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_d17_a_compressed_body_passes_as_it_was_unless_the_model_changes(step: int, coding: str, compress) -> None:  # type: ignore[no-untyped-def]
    packed = compress(BODY)
    one = fed(intake(f"Content-Encoding: {coding}"), packed, step)
    assert one.model == "m"
    pieces, total, encoded = one.body_for("m")
    assert (b"".join(pieces), total, encoded) == (packed, len(packed), True)
    pieces, total, encoded = one.body_for("t")
    assert b"".join(pieces) == BODY.replace(b'"m"', b'"t"')
    assert not encoded


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
