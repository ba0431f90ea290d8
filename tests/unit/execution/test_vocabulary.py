"""Usage and failures: closed vocabulary, nothing invented (EXEC-5, LIVE-6, LIVE-7)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop.errors import WIRE_CODES, CapacityExceeded, ProviderConnectionLost, ResponseStalled
from iop.execution import (
    ExecutionFailure,
    LivenessClassification,
    ProviderHealth,
    Usage,
    capacity_exceeded,
    failure_of,
    normalise_evidence,
    read_usage,
    stalled,
)


@pytest.mark.req("EXEC-5")
@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        (b'{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}', Usage(7, 3)),
        (
            (
                b'{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4},'
                b'"completion_tokens_details":{"reasoning_tokens":2}}'
            ),
            Usage(7, 3, 2, 4),
        ),
        (
            (
                b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":0},"output_tokens":5,'
                b'"output_tokens_details":{"reasoning_tokens":0}}'
            ),
            Usage(9, 5, 0, 0),
        ),
        (b'{"input_tokens":9,"cache_read_input_tokens":8,"output_tokens":1}', Usage(9, 1, None, 8)),
        (b'{"output_tokens":1}', Usage(None, 1)),
        (b"{}", Usage()),
        (b'{"prompt_tokens":"seven","completion_tokens":3}', Usage(None, 3)),  # one odd member costs that one
        (b'{"prompt_tokens":7,"prompt_tokens_details":[4],"completion_tokens":-1}', Usage(7)),
        (b'{"prompt_tokens":true,"completion_tokens":3.5,"input_tokens":6}', Usage(6)),
    ],
)
def test_usage_is_what_the_provider_reported(raw: bytes, usage: Usage) -> None:
    assert read_usage(raw) == usage
    assert bool(usage) == (raw != b"{}")


@pytest.mark.req("EXEC-5")
@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"null",
        b"[]",
        b"7",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"prompt_tokens":-1}',
        b'{"prompt_tokens":true}',
        b'{"prompt_tokens":"7"}',
        b'{"prompt_tokens":7.0}',
        b'{"prompt_tokens":99999999999999999999}',
        b'{"prompt_tokens_details":[4],"completion_tokens_details":"x"}',
        b'{"prompt_tokens":' + b"9" * 5000 + b"}",
    ],
)
def test_odd_usage_is_absent(raw: bytes | None) -> None:
    assert read_usage(raw) == Usage()


@pytest.mark.req("EXEC-5")
@given(st.binary(max_size=200))
def test_no_bytes_make_usage_raise(raw: bytes) -> None:
    read_usage(raw)


@pytest.mark.req("EXEC-5")
def test_messages_usage_comes_in_two_parts() -> None:
    assert Usage(10, 1, None, 4).updated(Usage(None, 25)) == Usage(10, 25, None, 4)
    assert Usage(10, 1).updated(Usage(0, 0)) == Usage(0, 0)


@pytest.mark.req("LIVE-7")
def test_only_three_pairs_of_evidence_exist() -> None:
    good = {
        ("available", "request_stalled"),
        ("unavailable", "provider_unhealthy"),
        ("unknown", "health_unknown"),
    }
    healths = [*(h.value for h in ProviderHealth), "odd", "", None]
    classes = [*(c.value for c in LivenessClassification), "odd", "", None]
    for pair in itertools.product(healths, classes):
        expected = pair if pair in good else ("unknown", "health_unknown")
        assert tuple(v.value for v in normalise_evidence(*pair)) == expected


@pytest.mark.req("LIVE-6", "LIVE-7")
@pytest.mark.parametrize("health", list(ProviderHealth))
@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("in_grace", [True, False])
def test_a_stall_is_retryable_only_if_its_call_was_closed_in_time(
    health: ProviderHealth, confirmed: bool, in_grace: bool
) -> None:
    failure = stalled(health, seq=4, idle_ms=300_000, close_confirmed=confirmed, retryable=in_grace)
    assert (failure.code, failure.retryable) == ("response_stalled", confirmed and in_grace)
    assert (failure.health_observation_seq, failure.idle_ms, failure.close_confirmed) == (4, 300_000, confirmed)
    pair = (failure.provider_health, failure.liveness_classification)
    assert pair == normalise_evidence(*pair)
    assert isinstance(failure.error(), ResponseStalled)


@pytest.mark.req("LIVE-7")
def test_a_failure_with_odd_evidence_says_unknown_and_one_without_says_nothing() -> None:
    odd = ExecutionFailure("response_stalled", provider_health=ProviderHealth.AVAILABLE)
    assert (odd.provider_health, odd.liveness_classification) == ("unknown", "health_unknown")
    plain = ExecutionFailure("internal")
    assert (plain.provider_health, plain.liveness_classification) == (None, None)


@pytest.mark.req("LIVE-6", "SEC-4")
def test_a_failure_is_bounded_and_its_code_is_known() -> None:
    failure = ExecutionFailure("made_up", message=b"x" * 5000)
    assert (failure.code, len(failure.message)) == ("internal", 512)


@pytest.mark.req("LIVE-6")
@pytest.mark.parametrize("code", sorted(WIRE_CODES))
def test_every_wire_error_survives_the_way_there_and_back(code: str) -> None:
    error = WIRE_CODES[code]("do this")
    back = failure_of(error).error()
    assert (type(back), back.message) == (type(error), "do this")
    assert ExecutionFailure(code).error().message == WIRE_CODES[code].text


@pytest.mark.req("TUN-5", "EXEC-3")
def test_special_fields_travel_with_their_codes() -> None:
    lost = failure_of(ProviderConnectionLost(), connection_reused=True, response_started=False)
    assert (lost.connection_reused, lost.response_started, lost.retryable) == (True, False, True)
    full = capacity_exceeded(8)
    assert (full.slots_held, full.close_confirmed) == (8, True)
    assert isinstance(full.error(), CapacityExceeded)
