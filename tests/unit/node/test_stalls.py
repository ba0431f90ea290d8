"""Stalls on a whole node under a virtual clock: what ends a call, when, and what is told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from iop._fast import frame
from iop.node.calls.call import ProviderCall
from iop.wire import messages as m
from tests.simulation.virtual import BODY, DELTA, JSON_HEAD, LAST, SSE_HEAD, Call, Served, VirtualNode, chunk

WELL = b'{"data":[{"id":"t"}]}'
STALL_S = 2.0
SHORT = {"response_stall_timeout_ms": 2000}
TOLD_S = 0.4  # a tick of the watch, and one of the wheel


def well(served: Served) -> None:
    served.answer(200, WELL)


def after(seconds: float, then: Callable[[Served], None]) -> Callable[[Served], None]:
    """A provider that thinks before it answers."""

    def probe(served: Served) -> None:
        served.world.outside.call_later(seconds, lambda: None if served.gone else then(served))

    return probe


# ---- LIVE-1: the clocks ---------------------------------------------------------------------------------------------


@pytest.mark.req("LIVE-1", "LIVE-7")
@pytest.mark.parametrize("how", ["open", "run"])
def test_with_the_defaults_a_silent_prefill_ends_after_300_s(how: str) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = getattr(world, how)()
        world.pass_s(299.5)
        assert call.code == ""
        world.pass_s(1.5)
        failure = call.failure
        assert (failure.code.name, failure.retryable, failure.close_confirmed) == ("RESPONSE_STALLED", True, True)
        assert (failure.provider_health.name, failure.liveness_classification.name) == ("AVAILABLE", "REQUEST_STALLED")
        assert 300_000 <= failure.idle_ms <= 300_400
        assert failure.message == b""


@pytest.mark.req("LIVE-1", "LIVE-9")
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_silent_prefill_without_a_limit_of_its_own_lives_to_its_deadline(how: str) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = getattr(world, how)(first_response_timeout_ms=0, deadline_ms=7_200_000)
        world.pass_s(7199)
        assert call.code == ""
        assert world.probes == []
        world.pass_s(2)
        assert call.code == "deadline_exceeded"
        assert call.failure.close_confirmed


@pytest.mark.req("LIVE-1")
def test_after_the_first_progress_the_other_clock_counts() -> None:
    with VirtualNode() as world:
        world.probe = well
        calls = [world.open(first_response_timeout_ms=0, **SHORT) for _ in range(2)]
        calls[0].served.send(SSE_HEAD)
        world.pass_s(STALL_S + TOLD_S)
        assert [call.code for call in calls] == ["response_stalled", ""]
        world.cancel(calls[1])


@pytest.mark.req("LIVE-1")
@pytest.mark.parametrize("field", ["response_stall_timeout_ms", "first_response_timeout_ms"])
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_timeout_out_of_its_range_is_refused_before_the_provider_is_called(how: str, field: str) -> None:
    with VirtualNode() as world:
        call = getattr(world, how)(wait=False, **{field: 86_400_001})
        world.pass_s(1)
        assert call.code == "invalid_argument"
        assert world.served == []


# ---- LIVE-2: what is progress ---------------------------------------------------------------------------------------


def named(name: bytes, more: bytes = b"") -> bytes:
    """An event of the APIs that name theirs."""
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (name, name, more)


CHAT, RESPONSES, MESSAGES, OTHER = (
    m.EventDialect.CHAT, m.EventDialect.RESPONSES, m.EventDialect.MESSAGES, m.EventDialect.UNSPECIFIED
)  # fmt: skip
EVENTS: list[tuple[str, m.EventDialect, bytes, bool]] = [
    ("delta", CHAT, DELTA, True),
    ("reasoning", CHAT, b'data: {"choices":[{"delta":{"reasoning_content":"x"}}]}\n\n', True),
    ("tool call", CHAT, b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c"}]}}]}\n\n', True),
    ("usage", CHAT, b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n', True),
    ("unknown", CHAT, b'data: {"hello":1}\n\n', True),
    ("role", CHAT, b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', False),
    ("empty", CHAT, b'data: {"choices":[{"delta":{"content":"","tool_calls":[]}}],"usage":null}\n\n', False),
    ("comment", CHAT, b": ping\n\n", False),
    ("long comment", CHAT, b":" + bytes(10_000) + b"\n\n", False),
    ("field", CHAT, b"id: 7\nretry: 1\n\n", False),
    ("a piece of an event", CHAT, b"data: " + b"x" * 1000, False),
    ("4 KiB of an event", CHAT, b"data: " + b"x" * 4096, True),
    ("delta", RESPONSES, named(b"response.output_text.delta", b',"delta":"x"'), True),
    ("empty", RESPONSES, named(b"response.output_text.delta", b',"delta":""'), False),
    ("in progress", RESPONSES, named(b"response.in_progress"), False),
    ("keepalive", RESPONSES, named(b"keepalive"), False),
    ("added", RESPONSES, named(b"response.output_item.added"), False),
    ("delta", MESSAGES, named(b"content_block_delta", b',"delta":{"text":"x"}'), True),
    ("usage", MESSAGES, named(b"message_delta", b',"usage":{"output_tokens":1}'), True),
    ("ping", MESSAGES, named(b"ping"), False),
    ("start", MESSAGES, named(b"message_start", b',"message":{}'), False),
    ("any event", OTHER, b"data: x\n\n", True),
    ("comment", OTHER, b": x\n\n", False),
]  # fmt: skip


def lives(world: VirtualNode, call: Call, piece: bytes) -> bool:
    """Whether the call goes on while the provider sends this every second and a half."""
    for _ in range(5):
        if call.terminals:
            return False
        call.served.transport.write(piece)
        world.pass_s(1.5)
    return not call.terminals


@pytest.mark.req("LIVE-2", "LIVE-3")
@pytest.mark.parametrize(
    ("dialect", "piece", "progress"), [e[1:] for e in EVENTS], ids=[f"{e[1].name} {e[0]}" for e in EVENTS]
)
def test_what_is_progress_in_an_event_stream(dialect: m.EventDialect, piece: bytes, progress: bool) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.open(dialect=dialect, **SHORT)
        call.served.send(SSE_HEAD)
        assert lives(world, call, chunk(piece)) == progress
        world.cancel(call)


@pytest.mark.req("LIVE-2")
@pytest.mark.parametrize(
    "head",
    [
        JSON_HEAD,
        JSON_HEAD.replace(b"application/json", b"audio/mpeg"),
        SSE_HEAD[:-2] + b"content-encoding: gzip\r\n\r\n",
    ],
)
def test_any_byte_of_another_body_is_progress_and_of_its_framing_is_not(head: bytes) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.open(**SHORT)
        call.served.send(head)
        assert lives(world, call, chunk(b"\x00"))
        assert not lives(world, call, b"1") or not lives(world, call, b"0"), "a chunk's size is no body"


@pytest.mark.req("LIVE-2")
def test_a_head_that_drips_in_is_no_progress_and_a_whole_one_is() -> None:
    with VirtualNode() as world:
        world.probe = well
        drips, whole = world.open(**SHORT), world.open(**SHORT)
        assert not lives(world, drips, b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\nH")
        whole = world.open(**SHORT)
        world.pass_s(1.5)
        whole.served.send(SSE_HEAD)
        world.pass_s(1.5)
        assert whole.code == ""
        world.cancel(whole)


RUN_EVENTS = [
    ("delta", SSE_HEAD, DELTA, True),
    ("usage", SSE_HEAD, b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n', True),
    ("tool call", SSE_HEAD, b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c"}]}}]}\n\n', True),
    ("empty delta", SSE_HEAD, b'data: {"choices":[{"delta":{"content":"","tool_calls":[]}}]}\n\n', False),
    ("comment", SSE_HEAD, b": " + b"x" * 5000 + b"\n\n", False),
    ("endless comment", SSE_HEAD, b":" + b"x" * 5000, False),
    ("a piece of an event", SSE_HEAD, b"data: " + b"x" * 1000, False),
    ("4 KiB of an event", SSE_HEAD, b"data: " + b"x" * 4096, True),
    ("a document", JSON_HEAD, b" ", True),
]


@pytest.mark.req("LIVE-2")
@pytest.mark.parametrize(("head", "piece", "progress"), [e[1:] for e in RUN_EVENTS], ids=[e[0] for e in RUN_EVENTS])
def test_what_is_progress_in_a_run(head: bytes, piece: bytes, progress: bool) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.run(**SHORT)
        call.served.send(head)
        assert lives(world, call, chunk(piece)) == progress
        world.cancel(call)


# ---- LIVE-4: time that does not count -------------------------------------------------------------------------------


@pytest.mark.req("LIVE-4")
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_node_paused_by_a_slow_client_is_never_called_stalled(how: str) -> None:
    """And the silence before the pause still counts behind it: a pause is no progress."""
    with VirtualNode() as world:
        world.probe = well
        call = getattr(world, how)(window_bytes=100)
        call.served.send(SSE_HEAD + chunk(DELTA * 30))
        assert world.agent.calls[1].stream.paused
        world.pass_s(20_000)
        assert call.code == ""
        world.raw(frame.encode_credit(1, 10_000))
        world.pass_s(299)
        assert call.code == ""
        assert not world.agent.calls[1].stream.paused
        world.pass_s(3)
        assert call.code == "response_stalled"


@pytest.mark.req("LIVE-3", "LIVE-4")
def test_a_pause_stops_the_clock_and_does_not_set_it_back() -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.open(window_bytes=1000)
        call.served.send(SSE_HEAD + chunk(DELTA))
        world.pass_s(200)
        call.served.send(chunk(b":" + b"x" * 2000 + b"\n\n"))
        assert world.agent.calls[1].stream.paused
        world.pass_s(10_000)
        world.raw(frame.encode_credit(1, 100_000))
        world.pass_s(98)
        assert call.code == ""
        world.pass_s(4)
        assert call.code == "response_stalled"
        assert 300_000 <= call.failure.idle_ms < 301_000


@pytest.mark.req("LIVE-4")
def test_a_provider_that_waits_for_the_rest_of_the_request_is_not_stalled() -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.open(body=b"", body_follows=True, body_bytes=len(BODY), **SHORT)
        world.pass_s(1000)
        assert call.code == ""
        world.raw(frame.encode_tunnel_body(1, BODY, True))
        world.pass_s(STALL_S - 0.2)
        assert call.code == ""
        world.pass_s(0.2 + TOLD_S)
        assert call.code == "response_stalled"
        assert call.failure.idle_ms < 2500


# ---- LIVE-5, LIVE-6, LIVE-9: closing and probing at the same time ---------------------------------------------------


@pytest.mark.req("LIVE-5", "LIVE-6", "LIVE-9", "POOL-12")
@pytest.mark.parametrize("how", ["open", "run"])
@pytest.mark.parametrize(
    ("close_s", "probe_s", "told_at_s", "retryable", "confirmed"),
    [
        (0.0, 0.0, 0.0, True, True),
        (1.0, 0.0, 1.0, True, True),
        (0.0, 2.5, 2.5, True, True),
        (1.0, 2.0, 2.0, True, True),
        (1.8, 2.5, 2.5, True, True),
        (2.4, 2.8, 2.8, False, True),
        (6.0, 0.0, 2.0, False, False),
        (6.0, 1.0, 2.0, False, False),
        (6.0, 9.0, 3.0, False, False),
    ],
)
def test_the_terminal_comes_after_the_longer_of_the_two(
    how: str, close_s: float, probe_s: float, told_at_s: float, retryable: bool, confirmed: bool
) -> None:
    with VirtualNode(capacity=1) as world:
        world.probe = after(probe_s, well)
        call = getattr(world, how)(**SHORT)
        call.served.transport.peer.linger_s = close_s
        world.pass_s(12)
        claimed_at = world.probes[0].asked_at
        assert told_at_s - 0.01 <= call.ended_at - claimed_at <= told_at_s + 0.15
        failure = call.failure
        assert (failure.retryable, failure.close_confirmed) == (retryable, confirmed)
        assert failure.provider_health.name == ("UNAVAILABLE" if probe_s > 3 else "AVAILABLE")
        assert len(world.probes) == 1
        assert [closed.provider_id for closed in world.closed_calls] == ([] if confirmed else ["p"])


@pytest.mark.req("LIVE-9", "POOL-12", "EXEC-3")
def test_a_slot_is_held_exactly_as_long_as_its_call_lives() -> None:
    with VirtualNode(capacity=1) as world:
        world.probe = after(2.9, well)
        gate = world.backends.gate
        quick = world.open(**SHORT)
        world.pass_s(STALL_S + TOLD_S)
        assert (quick.code, gate.held("p")) == ("", 0), "closed, and only its probe goes on"
        world.pass_s(3)
        assert quick.code == "response_stalled"
        slow = world.open(**SHORT)
        slow.served.transport.peer.linger_s = 9.0
        world.pass_s(STALL_S + 3 + TOLD_S)
        assert (slow.code, gate.held("p"), world.closed_calls) == ("response_stalled", 1, [])
        refused = world.open(wait=False)
        assert refused.code == "capacity_exceeded"
        world.pass_s(6)
        assert (gate.held("p"), len(world.closed_calls)) == (0, 1)


@pytest.mark.req("LIVE-5")
@pytest.mark.parametrize("how", ["open", "run"])
def test_what_comes_behind_the_fence_is_dropped_and_counted(how: str) -> None:
    with VirtualNode() as world:
        world.probe = after(1.0, well)
        call = getattr(world, how)(**SHORT)
        call.served.send(SSE_HEAD + chunk(DELTA))
        call.served.transport.peer.linger_s = 5.0
        world.pass_s(STALL_S + TOLD_S)
        before, late = list(call.kinds), chunk(DELTA * 9)
        (running,) = world.agent.calls.values()
        assert isinstance(running, ProviderCall)
        assert running._connection is not None
        running._connection.data_received(late)  # as a transport does that had read it already
        world.pass_s(9)
        assert call.kinds[:-1] == before
        assert call.code == "response_stalled"
        kind = "tunnel" if how == "open" else "run"
        assert world.count(world.metrics.late_bytes) == {(kind,): len(late)}


@pytest.mark.req("LIVE-7")
def test_an_answer_that_comes_with_a_good_probe_is_too_late() -> None:
    """The provider is well and sends on, and the stall stands."""
    with VirtualNode() as world:
        call = world.open(**SHORT)

        def probe(served: Served) -> None:
            call.served.transport.write(SSE_HEAD + chunk(DELTA) + chunk(b"data: [DONE]\n\n") + LAST)
            served.answer(200, WELL)

        world.probe = probe
        world.pass_s(60)
        assert call.code == "response_stalled"
        assert call.kinds == [m.TunnelFrameKind.ERROR]


@pytest.mark.req("LIVE-9")
def test_the_deadline_and_a_cancel_win_over_a_stall_of_the_same_instant() -> None:
    with VirtualNode() as world:
        late = world.open(deadline_ms=2000, **SHORT)
        left = world.open(**SHORT)
        world.pass_s(STALL_S - 0.1)
        world.cancel(left)
        world.pass_s(1)
        assert (late.code, left.code) == ("deadline_exceeded", "cancelled")
        assert world.probes == []


RACES = ("complete", "cancel", "disconnect", "provider closes", "provider resets", "deadline", "refresh")


@pytest.mark.req("LIVE-5", "LIVE-9", "EXEC-2", "TUN-1")
@pytest.mark.parametrize("how", ["open", "run"])
@pytest.mark.parametrize("race", RACES)
def test_whatever_happens_around_a_stall_there_is_one_terminal(how: str, race: str) -> None:
    """At every point from before the claim to behind the last clock, with quick and slow closes and probes. That there
    is no second terminal, no slot left and none returned twice is checked when the world ends."""
    for close_s, probe_s in ((0.0, 0.0), (0.0, 9.0), (1.0, 2.0), (4.0, 1.0), (4.0, 9.0)):
        for step in range(28):
            at_s = 1.5 + step * 0.17
            with VirtualNode(capacity=1) as world:
                world.probe = after(probe_s, well)
                deadline = {"deadline_ms": int(at_s * 1000)} if race == "deadline" else {}
                call = getattr(world, how)(**SHORT, **deadline)
                call.served.transport.peer.linger_s = close_s
                world.pass_s(at_s)
                match race:
                    case "complete":
                        if not call.served.gone:
                            done = chunk(DELTA) + chunk(b"data: [DONE]\n\n") + LAST
                            call.served.transport.write(SSE_HEAD + done)
                    case "cancel":
                        world.cancel(call)
                    case "disconnect":
                        world.disconnect()
                    case "provider closes":
                        call.served.transport.close()
                    case "provider resets":
                        call.served.transport.peer.reset()
                    case "refresh":
                        world.refresh(connect_timeout_ms=900)
                world.pass_s(9)
                if race != "disconnect":
                    assert len(call.terminals) == 1, (close_s, probe_s, at_s)
                    numbers = [call.failure.health_observation_seq] if call.terminals != [None] else []
                    numbers += [seen.health_observation_seq for seen in world.observations]
                    assert sorted(n for n in numbers if n) == list(range(1, len([n for n in numbers if n]) + 1))


# ---- OBS: what is told ----------------------------------------------------------------------------------------------


@pytest.mark.req("OBS-1", "OBS-2")
def test_a_stall_is_counted_and_logged_in_closed_words(caplog: pytest.LogCaptureFixture) -> None:
    with VirtualNode() as world, caplog.at_level(logging.WARNING, "iop"):
        world.probe = well
        world.open(run_id="secret-run", target="secret-target", **SHORT)
        slow = world.run(session_id=b"secret-session", **SHORT)
        slow.served.transport.peer.linger_s = 5.0
        world.probe = lambda served: served.answer(503)
        world.pass_s(10)
        assert world.count(world.metrics.stalls) == {
            ("tunnel", "unavailable", "confirmed"): 1,
            ("run", "unavailable", "unconfirmed"): 1,
        }
        ((_, buckets, total),) = world.metrics.stall_seconds.read()
        assert (buckets[-1][1], 4.0 <= total <= 5.0) == (2, True)
        assert world.count(world.metrics.probes) == {("stall", "unavailable"): 2}
    lines = [record for record in caplog.records if record.getMessage() == "node_response_stall_observation"]
    assert [line.fields for line in lines] == [  # type: ignore[attr-defined]
        {
            "kind": kind,
            "provider_health": "unavailable",
            "liveness_classification": "provider_unhealthy",
            "close": close,
            "retryable": close == "confirmed",
        }
        for kind, close in (("tunnel", "confirmed"), ("run", "unconfirmed"))
    ]
    assert "secret" not in str([vars(record) for record in caplog.records])


# ---- LIVE-2b: answers that come whole -------------------------------------------------------------------------------

WHOLE = {"streaming": False, **SHORT}
IDLE, AT_WORK, CROWDED = b"[]", b'[{"is_processing":true}]', b'[{"is_processing":true},{"is_processing":true}]'


def engine(slots: bytes) -> Callable[[Served], None]:
    """A well llama.cpp server with these slots at work."""

    def probe(served: Served) -> None:
        served.answer(200, slots if served.path == b"/slots" else b"{}")

    return probe


def whole_answer(call: Call) -> None:
    call.served.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


@pytest.mark.req("LIVE-2b")
@pytest.mark.parametrize("early_head", [False, True])
def test_a_whole_answer_of_a_well_provider_may_take_five_intervals(early_head: bool) -> None:
    """Its head, if that comes early, says no more than its silence."""
    with VirtualNode() as world:
        world.probe = well
        call = world.open(**WHOLE)
        if early_head:
            call.served.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n")
        world.pass_s(5 * STALL_S + 1)
        assert call.code == ""
        assert len(world.probes) == 5
        if early_head:
            call.served.send(b"{}")
        else:
            whole_answer(call)
        world.pass_s(0.1)
        assert (call.code, call.body) == ("ok", b"{}")


@pytest.mark.req("LIVE-2b", "LIVE-6")
def test_the_sixth_interval_of_silence_is_a_stall_like_any() -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.open(**WHOLE)
        world.pass_s(6 * STALL_S + 2 * TOLD_S)
        failure = call.failure
        assert (failure.code.name, failure.provider_health.name) == ("RESPONSE_STALLED", "AVAILABLE")
        assert 6 * STALL_S * 1000 <= failure.idle_ms <= 6 * STALL_S * 1000 + 2000
        assert (failure.retryable, failure.engine_busy) == (True, False)
        assert len(world.probes) == 6


@pytest.mark.req("LIVE-2b", "LIVE-8")
def test_a_whole_answer_of_a_dead_provider_ends_with_its_first_probe() -> None:
    with VirtualNode() as world:
        world.probe = lambda served: served.answer(500)
        call = world.open(**WHOLE)
        world.pass_s(STALL_S + TOLD_S)
        failure = call.failure
        assert (failure.provider_health.name, failure.liveness_classification.name) == (
            "UNAVAILABLE",
            "PROVIDER_UNHEALTHY",
        )
        assert (failure.health_observation_seq, failure.retryable, failure.close_confirmed) == (1, True, True)
        assert len(world.probes) == 1


@pytest.mark.req("LIVE-2b")
@pytest.mark.parametrize(
    ("kind", "answers", "probes", "health"),
    [
        ("openai_compat", ["?", "?"], 2, "UNKNOWN"),
        ("openai_compat", ["?", "+", "?", "?"], 4, "UNKNOWN"),
        ("llama_cpp", [IDLE, IDLE], 2, "AVAILABLE"),
        ("llama_cpp", [IDLE, AT_WORK, IDLE, IDLE], 4, "AVAILABLE"),
    ],
)
def test_nothing_known_or_nothing_run_twice_running_is_a_stall(
    kind: str, answers: list[bytes | str], probes: int, health: str
) -> None:
    with VirtualNode(kind) as world:
        call = world.open(streaming=False, response_stall_timeout_ms=3000)
        left = list(answers)

        def probe(served: Served) -> None:
            first = served.path in (b"/v1/models", b"/health") and (kind == "llama_cpp" or served.path == b"/v1/models")
            if first and len(left) > 1 and len(world.probes) > 1:
                left.pop(0)
            answer = left[0]
            if isinstance(answer, bytes):
                engine(answer)(served)
            elif answer == "+":
                well(served)
            else:
                served.answer(404)

        world.probe = probe
        world.pass_s(3 * probes - 0.5)
        assert call.code == ""
        world.pass_s(2.5)
        assert (call.code, call.failure.provider_health.name) == ("response_stalled", health)
        assert call.failure.idle_ms // 3000 == probes
        world.probe = engine(IDLE)
        world.pass_s(3)


@pytest.mark.req("LIVE-2b", "POOL-11")
@pytest.mark.parametrize(("slots", "busy"), [(CROWDED, True), (AT_WORK, True), (IDLE, False)])
def test_a_stall_of_an_engine_that_runs_more_than_its_node_asked_for_says_so(slots: bytes, busy: bool) -> None:
    """The call is closed when the figures come, so whatever the engine runs then is not the node's."""
    with VirtualNode("llama_cpp") as world:
        world.probe = engine(AT_WORK)
        call = world.open(**WHOLE)
        world.pass_s(5 * STALL_S + 1.9)
        world.probe = engine(slots)
        world.pass_s(2.0)
        assert (call.code, call.failure.engine_busy) == ("response_stalled", busy)
        world.probe = engine(IDLE)
        world.pass_s(4)


@pytest.mark.req("LIVE-2b")
def test_a_whole_answer_that_has_begun_may_not_pause_for_longer_than_any() -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.open(**WHOLE)
        world.pass_s(3 * STALL_S)
        call.served.send(JSON_HEAD + chunk(b"{"))
        world.pass_s(STALL_S + 2 * TOLD_S)
        assert call.code == "response_stalled"


@pytest.mark.req("LIVE-2b", "LIVE-9")
@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_a_deadline_and_a_cancel_end_a_whole_answer_at_once_also_while_it_is_probed(how: str) -> None:
    with VirtualNode() as world:
        call = world.open(**WHOLE, deadline_ms=2500 if how == "deadline" else 0)  # its probe hangs from 2 s on
        world.pass_s(2.45)
        if how == "cancel":
            world.cancel(call)
        world.pass_s(0.4)
        assert call.code == ("deadline_exceeded" if how == "deadline" else "cancelled")
        world.pass_s(5)


@pytest.mark.req("LIVE-2b", "HEALTH-6")
@pytest.mark.parametrize("how", ["deadline", "cancel", "answer", "head"])
def test_what_the_probe_of_a_whole_answer_finds_is_told_although_the_call_has_ended(how: str) -> None:
    """The node logs that the provider is lowered; its edge hears the same."""
    with VirtualNode() as world:
        call = world.open(**WHOLE, deadline_ms=2500 if how == "deadline" else 0)  # its probe hangs from 2 s on
        world.pass_s(2.45)
        if how == "cancel":
            world.cancel(call)
        elif how == "answer":
            whole_answer(call)
        elif how == "head":
            call.served.send(JSON_HEAD + chunk(b"{"))
        world.pass_s(3.0)
        seen = [(o.provider_health.name, o.reason.name) for o in world.observations]
        # An answer that began behind the question says more of the provider than a probe that hung.
        assert seen == ([] if how in {"answer", "head"} else [("UNAVAILABLE", "REFUSED")])


@pytest.mark.req("LIVE-2b", "TUN-5")
def test_a_stall_of_a_call_that_connects_again_gives_up_the_connect() -> None:
    with VirtualNode() as world:
        call = world.open(**WHOLE)  # its probe hangs from 2 s to 5 s
        world.pass_s(4.5)
        ours, pool = world.agent.calls[call.stream_id], world.backends.providers["p"].pool
        world.network.unreachable.add(9001)
        # A kept connection that turns out dead with nothing of the request written, which this network never shows.
        ours._reused = True
        ours.connection_lost(None, written=False, heard=False)
        world.pass_s(0.2)
        assert (ours.state.value, len(pool._tasks)) == ("connecting", 1)
        world.pass_s(0.7)
        assert (call.code, call.failure.provider_health.name) == ("response_stalled", "UNAVAILABLE")
        assert pool._tasks == {}


# ---- LIVE-5: the bound, whatever health.timeout_ms says --------------------------------------------------------------


@pytest.mark.req("LIVE-5")
@pytest.mark.parametrize(("timeout_ms", "told_s"), [(10_000, 3.0), (0, 3.0), (500, 0.5)])
def test_the_probe_of_a_stall_delays_its_terminal_by_three_seconds_at_most(timeout_ms: int, told_s: float) -> None:
    with VirtualNode(health_timeout_ms=timeout_ms) as world:
        call = world.open(**SHORT)
        world.pass_s(20)
        assert told_s - 0.01 <= call.ended_at - world.probes[0].asked_at <= told_s + 0.15


# ---- LIVE-4: time in which the node itself did not run ---------------------------------------------------------------


@pytest.mark.req("LIVE-4", "LIVE-3")
@pytest.mark.parametrize("how", ["open", "run"])
@pytest.mark.parametrize("silent_s", [0.0, 1.9])
def test_a_node_that_was_stopped_reads_before_it_calls_anybody_silent(how: str, silent_s: float) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = getattr(world, how)(**SHORT)
        call.served.send(SSE_HEAD + chunk(DELTA))
        world.pass_s(silent_s)
        world.suspend(600)
        world.outside.call_later(0.0, call.served.transport.write, chunk(DELTA))
        world.pass_s(STALL_S - 0.1)
        assert (call.code, world.probes) == ("", [])
        world.pass_s(0.1 + 2 * TOLD_S)
        assert call.code == "response_stalled", "its silence behind that counts"


@pytest.mark.req("LIVE-4")
def test_what_was_silent_before_the_node_was_stopped_is_silent_behind_it() -> None:
    with VirtualNode() as world:
        world.probe = well
        calls = [world.open(**SHORT), world.open(streaming=False, **SHORT)]
        world.pass_s(1.5)
        world.suspend(600)
        world.pass_s(0.4)
        assert ([call.code for call in calls], world.probes) == (["", ""], [])
        world.pass_s(0.8)
        assert (calls[0].code, calls[1].code) == ("response_stalled", "")
        assert calls[0].failure.idle_ms < 3000
        world.cancel(calls[1])


# ---- LIVE-9, POOL-12: a client that leaves while the probe goes on --------------------------------------------------


@pytest.mark.req("LIVE-9", "POOL-12", "EXEC-7")
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_cancel_during_the_probe_brings_the_terminal_and_the_slot_at_once(how: str) -> None:
    with VirtualNode(capacity=1) as world:
        call = getattr(world, how)(**SHORT)  # its probe hangs
        world.pass_s(STALL_S + TOLD_S)
        assert (call.code, len(world.probes)) == ("", 1)
        world.cancel(call)
        world.pass_s(0.05)
        failure = call.failure
        assert (failure.code.name, failure.provider_health.name) == ("RESPONSE_STALLED", "UNKNOWN")
        assert (failure.close_confirmed, world.backends.gate.held("p")) == (True, 0)
        world.pass_s(4)
        (seen,) = world.observations
        assert (seen.provider_health.name, seen.reason.name) == ("UNAVAILABLE", "REFUSED"), "what it found is told"


@pytest.mark.req("LIVE-9", "POOL-12")
def test_a_cancel_during_the_probe_of_a_call_that_does_not_close_frees_nothing_early() -> None:
    with VirtualNode(capacity=1) as world:
        call = world.open(**SHORT)
        call.served.transport.peer.linger_s = 5.0
        world.pass_s(STALL_S + TOLD_S)
        world.cancel(call)
        world.pass_s(0.5)
        assert (call.code, world.backends.gate.held("p")) == ("", 1)
        world.pass_s(1.5)
        assert (call.code, call.failure.close_confirmed) == ("response_stalled", False)
        assert (world.backends.gate.held("p"), world.closed_calls) == (1, [])
        world.pass_s(4)
        assert (world.backends.gate.held("p"), len(world.closed_calls)) == (0, 1)
