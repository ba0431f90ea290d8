"""Request scanning: native (whole, and in 256 KiB reads) against json.loads and memcpy, for several kinds of prompt."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from iop._fast.scan import FieldScanner, RequestScanner, splice_model

CODE = '    if depth > limit:\n        raise ValueError("too deep")\n'
TEXTS = {
    "english": "The quick brown fox jumps over the lazy dog. " * 9000,
    "code": CODE * 7000,
    "korean": "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4. " * 18_000,
    "image": base64.b64encode(random.Random(1).randbytes(300_000)).decode(),
}


def request(content: Any) -> bytes:
    document = {"messages": [{"role": "user", "content": content}], "stream": True, "model": "qwen3-32b"}
    return json.dumps(document, ensure_ascii=False).encode()


BODIES = {name: request(text) for name, text in TEXTS.items()} | {
    "tokens": json.dumps({"input": list(range(60_000)), "model": "m"}).encode(),
    "small": request("Say hello."),
}


def native(parts: list[bytes]) -> RequestScanner:
    scanner = RequestScanner()
    for part in parts:
        scanner.feed(part)
    scanner.finish()
    return scanner


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.benchmark(group="request body")
def test_native(benchmark: Any, kind: str) -> None:
    body = BODIES[kind]
    parts = [body[at : at + 262_144] for at in range(0, len(body), 262_144)]
    assert benchmark(native, parts).model is not None
    benchmark.extra_info["bytes"] = len(body)
    benchmark.extra_info["mb_per_s"] = round(len(body) / benchmark.stats.stats.min / 1e6)


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.benchmark(group="request body")
def test_json_loads(benchmark: Any, kind: str) -> None:
    benchmark(json.loads, BODIES[kind])


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.benchmark(group="request body")
def test_memcpy(benchmark: Any, kind: str) -> None:
    benchmark(bytearray, BODIES[kind])


@pytest.mark.benchmark(group="model splice, 400 KB")
def test_splice(benchmark: Any) -> None:
    body = BODIES["english"]
    parts = [body[:262_144], body[262_144:]]
    span = native(parts).model_span
    assert span is not None
    benchmark(splice_model, parts, span, b'"Qwen/Qwen3-32B"')


@pytest.mark.benchmark(group="usage of a 2 KB answer")
@pytest.mark.parametrize("native", [True, False], ids=["native", "json.loads"])
def test_usage(benchmark: Any, native: bool) -> None:
    answer = json.dumps(
        {
            "id": "c",
            "choices": [{"message": {"role": "assistant", "content": "word " * 400}}],
            "usage": {"total_tokens": 9},
        }
    ).encode()

    def find() -> bytes | None:
        scanner = FieldScanner(b"usage")
        scanner.feed(answer)
        return scanner.value()

    assert benchmark(find if native else lambda: json.loads(answer)["usage"])
