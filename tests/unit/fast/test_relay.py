"""A tunnel's half at the edge: gate, framing and request bodies (API-7, API-8b, TUN-1, TUN-2)."""

from __future__ import annotations

import pytest

from iop._fast import frame
from iop._fast.relay import BODILESS, CHUNKED, LENGTH, RAW
from iop._fast.sse import BOUNDARY, ERROR, ERROR_4XX, FINISH, PREAMBLE, SEMANTIC
from tests.support.halves import BODY, DELTA, END, ERROR_FRAME, HEAD, ROLE, WINDOW, Edge


@pytest.mark.req("TUN-2")
@pytest.mark.parametrize(
    ("mode", "length", "seen"),
    [
        (RAW, 0, b"HEAD|abcdefgh"),
        (LENGTH, 8, b"HEAD|abcdefgh"),
        (CHUNKED, 0, b"HEAD|3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n"),
        (BODILESS, 0, b"HEAD|"),
    ],
)
def test_how_an_answer_is_framed(mode: int, length: int, seen: bytes) -> None:
    edge = Edge(mode, length)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    edge.frame(BODY, b"defgh")
    edge.frame(END)
    assert edge.stream.finish()
    edge.round()
    assert edge.client == seen
    assert edge.heard == [(200, b""), "commit", (END, None, None)]
    assert edge.mux.stream_count == 0
    assert edge.hub.buffered_bytes == 0


@pytest.mark.parametrize("n", [1, 15, 16, 255, 256, 4095, 65535, 65536])
def test_chunk_sizes(n: int) -> None:
    edge = Edge(CHUNKED)
    edge.frame(HEAD)
    edge.frame(BODY, b"z" * n)
    assert edge.client == b"HEAD|%x\r\n%b\r\n" % (n, b"z" * n)


@pytest.mark.req("API-8b")
def test_a_short_body_is_not_a_good_end() -> None:
    edge = Edge(LENGTH, 9)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    edge.frame(END)
    assert not edge.stream.finish()


@pytest.mark.req("WIRE-2")
def test_a_long_body_is_a_fault_and_not_one_byte_of_it_is_sent() -> None:
    edge = Edge(LENGTH, 2)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    assert [fault.reason for fault in edge.faults] == ["body_too_long"]
    assert edge.client in (b"", b"HEAD|")


@pytest.mark.req("API-7")
@pytest.mark.parametrize("flags", [SEMANTIC, FINISH, PREAMBLE | SEMANTIC, ERROR | ERROR_4XX])
def test_the_gate_holds_head_and_preamble_until_a_committing_event(flags: int) -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, ROLE, PREAMBLE | BOUNDARY)
    assert edge.client == b""
    assert edge.stream.held_bytes == len(ROLE)
    assert not edge.stream.committed
    edge.frame(BODY, DELTA, flags)
    assert edge.client == b"HEAD|" + ROLE + DELTA
    assert edge.stream.committed


@pytest.mark.req("API-7")
def test_an_error_after_a_preamble_does_not_commit() -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, b"data: {}\n\n", ERROR | BOUNDARY)
    edge.frame(ERROR_FRAME)
    assert edge.client == b""
    assert edge.heard[1:] == [(ERROR_FRAME, None, None)]


@pytest.mark.req("API-7")
def test_more_than_16_kib_of_preamble_commits() -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, b"x" * 16384, PREAMBLE)
    assert not edge.stream.committed
    edge.frame(BODY, b"y", PREAMBLE)
    assert edge.stream.committed
    assert edge.client == b"HEAD|" + b"x" * 16384 + b"y"


@pytest.mark.req("API-7")
def test_a_preamble_that_ends_well_is_delivered() -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, ROLE, PREAMBLE)
    edge.frame(END)
    assert edge.stream.finish()
    edge.round()
    assert edge.client == b"HEAD|" + ROLE


ORDERS: dict[str, list[tuple[int, bytes, int]]] = {
    "a body first": [(BODY, b"x", 0)],
    "an end first": [(END, b"", 0)],
    "two heads": [(HEAD, b"", 0), (HEAD, b"", 1)],
    "an empty body": [(HEAD, b"", 0), (BODY, b"", 1)],
    "a gap": [(HEAD, b"", 0), (BODY, b"x", 2)],
    "a repeat": [(HEAD, b"", 0), (BODY, b"x", 1), (BODY, b"x", 1)],
    "not from 0": [(HEAD, b"", 1)],
    "an unknown kind": [(HEAD, b"", 0), (6, b"", 1)],
    "kind 0": [(0, b"", 0)],
}


@pytest.mark.req("TUN-1", "WIRE-2")
@pytest.mark.parametrize("case", ORDERS)
def test_e4_frames_out_of_order_are_a_fault(case: str) -> None:
    edge = Edge()
    for kind, body, seq in ORDERS[case]:
        edge.frame(kind, body, seq=seq)
    assert [fault.reason for fault in edge.faults] in (["wrong_state"], ["sequence"], ["unknown_kind"])


@pytest.mark.req("WIRE-2")
def test_e4_a_run_event_of_a_tunnel_is_a_fault() -> None:
    edge = Edge()
    edge.mux.feed(frame.encode_run_event(1, 0, 2, b"x"))
    assert [fault.reason for fault in edge.faults] == ["wrong_state"]


@pytest.mark.req("TUN-1")
def test_nothing_follows_the_terminal() -> None:
    edge = Edge()
    edge.frame(HEAD)
    edge.frame(END)
    edge.frame(END)
    edge.frame(BODY, b"x")
    assert edge.heard == [(200, b""), "commit", (END, None, None)]
    assert edge.mux.late_frames == 2
    assert not edge.faults


@pytest.mark.req("EXEC-7")
def test_after_a_discard_only_the_terminal_counts() -> None:
    edge = Edge(CHUNKED)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    seen = edge.client
    edge.stream.discard()
    for _ in range(4):
        edge.frame(BODY, bytes(60_000))
    assert edge.client == seen
    assert edge.mux.stream_count == 1
    edge.frame(ERROR_FRAME)
    assert edge.heard[-1] == (ERROR_FRAME, None, None)
    assert edge.hub.buffered_bytes == 0


def test_a_discard_before_the_head_hears_only_the_terminal() -> None:
    edge = Edge()
    edge.stream.discard()
    edge.frame(HEAD)
    edge.frame(BODY, b"x")
    edge.frame(END)
    assert edge.heard == [(END, None, None)]
    assert edge.client == b""


def test_commit_without_an_event() -> None:
    edge = Edge(CHUNKED, gated=True)
    edge.stream.commit()
    edge.frame(HEAD)
    edge.stream.commit()
    edge.stream.commit()
    edge.round()
    assert edge.client == b"HEAD|"
    assert edge.heard.count("commit") == 1


@pytest.mark.req("API-7b", "WIRE-5")
def test_a_collected_answer_is_held_up_to_its_bound_without_a_hole() -> None:
    edge = Edge(CHUNKED, respond=False)
    edge.frame(HEAD)
    edge.stream.respond(b"", CHUNKED, -1, gated=True, collected=True)
    pieces = [b"a" * 40_000, b"b" * 40_000, b"c"]
    for piece in pieces:
        edge.frame(BODY, piece, SEMANTIC)
    assert edge.client == b""
    assert edge.stream.take_held() == b"".join(pieces)[:65_536]


@pytest.mark.req("API-8b")
def test_inject_follows_what_the_provider_sent() -> None:
    edge = Edge(CHUNKED)
    edge.frame(HEAD)
    edge.stream.inject(b"not yet")
    edge.frame(BODY, DELTA, SEMANTIC | BOUNDARY)
    assert edge.stream.at_boundary
    edge.frame(ERROR_FRAME)
    edge.stream.inject(b"oops")
    edge.round()
    assert edge.client == b"HEAD|%x\r\n%b\r\n4\r\noops\r\n" % (len(DELTA), DELTA)


@pytest.mark.req("API-7", "API-8b")
@pytest.mark.parametrize("flags", [SEMANTIC, FINISH, ERROR | ERROR_4XX, ERROR, 0])
def test_an_event_that_ended_with_the_body_commits_as_any_other(flags: int) -> None:
    edge = Edge(gated=True)
    edge.held_end = True
    edge.frame(HEAD)
    edge.frame(BODY, DELTA[:-1])
    edge.frame(END, flags=flags)
    assert edge.stream.flags_seen == flags
    commits = flags not in (ERROR, 0)
    assert edge.client == (b"HEAD|" + DELTA[:-1] if commits else b"")
    assert edge.stream.take_held() == (b"" if commits else DELTA[:-1])


@pytest.mark.req("API-7b")
def test_a_byte_order_mark_behind_comments_is_left_out() -> None:
    for head, shown in ((b"HEAD|", b"HEAD|\xef\xbb\xbf" + DELTA), (b"", DELTA)):
        edge = Edge(respond=False)
        edge.frame(HEAD)
        edge.stream.respond(head, RAW, -1, True)
        edge.frame(BODY, b"\xef\xbb\xbf")
        edge.frame(BODY, DELTA, SEMANTIC | BOUNDARY)
        assert edge.client == shown


@pytest.mark.req("API-7b")
def test_a_head_that_is_held_can_be_replaced() -> None:
    edge = Edge(CHUNKED, gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, ROLE, PREAMBLE | BOUNDARY)
    edge.stream.respond(b"", RAW, -1, True)
    edge.frame(BODY, DELTA, SEMANTIC | BOUNDARY)
    assert edge.client == ROLE + DELTA


@pytest.mark.req("WIRE-5")
def test_a_body_that_the_client_must_not_see_does_not_stop_the_sender() -> None:
    edge = Edge(BODILESS)
    edge.frame(HEAD)
    for _ in range(3):
        edge.frame(BODY, bytes(60_000))
    assert edge.client == b"HEAD|"
    assert edge.hub.buffered_bytes < WINDOW // 2


def test_at_boundary_is_the_last_frames_word() -> None:
    edge = Edge()
    edge.frame(HEAD)
    assert edge.stream.at_boundary
    edge.frame(BODY, DELTA + b"data: {", SEMANTIC)
    assert not edge.stream.at_boundary
    edge.frame(BODY, b"}\n\n", BOUNDARY)
    assert edge.stream.at_boundary
    assert edge.stream.flags_seen == SEMANTIC | BOUNDARY


def test_progress_is_the_hubs_time() -> None:
    edge = Edge()
    edge.hub.now = 5.0
    edge.frame(HEAD)
    edge.hub.now = 7.0
    edge.frame(BODY, b"x")
    assert edge.stream.progress_at == 7.0


@pytest.mark.req("WIRE-5", "WIRE-6")
@pytest.mark.parametrize("cuts", [[200_000], [1, 0, 65_536, 65_537, 68_926], [100_000] * 5])
def test_a_request_body_leaves_as_credit_allows(cuts: list[int]) -> None:
    edge = Edge()
    pieces = [bytes([n]) * size for n, size in enumerate(cuts)]
    total = sum(cuts)
    edge.stream.send_body(pieces)
    sent, lasts = b"", []
    while True:
        edge.round()
        data, edge.out = edge.out, b""
        if not data:
            break
        while data:
            n = int.from_bytes(data[:4], "big")
            chunk = frame.decode(data[4 : 4 + n])
            assert chunk is not None
            assert len(chunk["body"]) <= 65536
            sent += chunk["body"]
            lasts.append(chunk["last"])
            data = data[4 + n :]
        assert len(sent) <= WINDOW + max(0, len(sent) - WINDOW)
        assert edge.stream.send_credit >= 0
        if len(sent) < total:
            edge.mux.feed(frame.encode_credit(1, WINDOW // 2))
    assert sent == b"".join(pieces)
    assert lasts == [False] * (len(lasts) - 1) + [True]
