"""Hostile JSON ends in a `ScanError` or a result, the same for any cut, and nothing accepted is not JSON (API-8c)."""

from __future__ import annotations

import json

import pytest

from iop._fast.scan import FieldScanner, RequestScanner, json_string, splice_model
from iop.errors import ScanError
from tests.fuzz import corpus
from tests.fuzz.fuzzer import fuzz


@pytest.mark.req("API-8c")
def test_requests() -> None:
    def scan(parts: list[bytes]) -> object:
        scanner = RequestScanner()
        try:
            for part in parts:
                scanner.feed(part)
            scanner.finish()
        except ScanError as error:
            return error.reason, error.param, error.offset, error.message
        span = scanner.model_span
        assert span is not None
        document = json.loads(b"".join(splice_model(parts, span, json_string("target"))).decode())
        assert document["model"] == "target"
        return (
            scanner.model,
            span,
            scanner.stream,
            scanner.store,
            scanner.background,
            scanner.has_previous_response_id,
            scanner.tool_types,
            scanner.estimated_tokens,
        )

    fuzz(scan, corpus.REQUESTS, corpus.REQUEST_TOKENS)


@pytest.mark.req("TUN-3")
def test_answers() -> None:
    def find(parts: list[bytes]) -> object:
        scanner = FieldScanner(b"model", 64)
        for part in parts:
            scanner.feed(part)
        found = scanner.value()
        assert found is None or (json.loads(found.decode(), strict=False) or True)
        return found

    fuzz(find, corpus.REQUESTS, corpus.REQUEST_TOKENS, seed=2)
