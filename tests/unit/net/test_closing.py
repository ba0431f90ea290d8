"""The end of a client's connection, with a client that reads at a pace of its own (TUN-5c, API-8b)."""

from __future__ import annotations

from typing import Any

import pytest

from iop.net import flow
from iop.net.http.closing import CUT, DELIVER, LINGER_S, REFUSE, REFUSED_BYTES, Closing, Way

IDLE_S = 10.0
ANSWER = 400_000
HIDDEN = 20_000


class Transport:
    """Holds what the client has not taken. ``end`` is how it was closed: by close, abort or reset.

    Over TLS some of it lies below the encryption, where nobody is told of it. It goes to the kernel once the rest has.
    """

    def __init__(self, *, tls: bool) -> None:
        self.tls = tls
        self.left = ANSWER
        self.hidden = HIDDEN if tls else 0
        self.lost = 0  # bytes that its end took away
        self.fin = False
        self.end = ""

    def can_write_eof(self) -> bool:
        return not self.tls

    def write_eof(self) -> None:
        self.fin = True

    def untaken(self) -> int:
        seen = max(0, self.left - self.hidden)
        if not seen:
            self.hidden = 0
        return seen

    def get_write_buffer_size(self) -> int:
        return max(0, self.left - 65536)

    def ended(self, how: str) -> None:
        assert not self.end, "once"
        self.end = how
        self.lost = self.left if how == "reset" else self.get_write_buffer_size()

    def close(self) -> None:
        self.ended("close")

    def abort(self) -> None:
        self.ended("abort")


@pytest.fixture(autouse=True)
def _sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(transport: Any, *, reset: bool) -> None:
        transport.ended("reset" if reset else "abort")

    monkeypatch.setattr(flow, "untaken", lambda transport: transport.untaken())
    monkeypatch.setattr(flow, "abort", abort)


def run(way: Way, transport: Transport, taken_per_s: float, *, sends_until_s: float = 0.0) -> float:
    """The seconds until the connection is over."""
    now = 0.0
    closing = Closing(way, transport, now, IDLE_S)  # type: ignore[arg-type]
    wait = closing.begin()
    while wait is not None:
        assert 0 < wait <= LINGER_S
        now += wait
        assert now < 2000, "it has no end"
        transport.left = max(0, transport.left - round(wait * taken_per_s))
        if now < sends_until_s:
            closing.dropped(1, now)
        wait = closing.look(now)
    assert transport.end
    return now


@pytest.mark.req("TUN-5c", "API-10")
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("way", [DELIVER, REFUSE, CUT])
@pytest.mark.parametrize("taken_per_s", [1e9, 50_000, 5_000, 400])
def test_a_client_that_goes_on_reading_gets_all(way: Way, tls: bool, taken_per_s: float) -> None:
    """However long it takes: it is given up only when nothing moves."""
    transport = Transport(tls=tls)
    took_s = run(way, transport, taken_per_s)
    assert transport.lost == 0
    assert transport.end == ("reset" if way is CUT else "close" if tls else "abort")
    assert transport.fin is (way is not CUT and not tls)
    assert took_s < ANSWER / taken_per_s + 2 * LINGER_S


@pytest.mark.req("API-8b", "API-10")
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("way", [DELIVER, REFUSE, CUT])
def test_a_client_that_reads_nothing_is_given_up_with_a_reset(way: Way, tls: bool) -> None:
    transport = Transport(tls=tls)
    took_s = run(way, transport, 0)
    assert IDLE_S <= took_s <= IDLE_S + LINGER_S
    assert transport.end == "reset"


@pytest.mark.req("API-6b")
def test_a_refused_client_over_tls_may_go_on_sending_for_a_while() -> None:
    for sends_until_s, most_s in ((0.0, 1.2), (3.0, 4.2), (100.0, LINGER_S + 0.2)):
        transport = Transport(tls=True)
        assert min(sends_until_s, LINGER_S) < run(REFUSE, transport, 1e9, sends_until_s=sends_until_s) < most_s
        assert transport.end == "close"
    transport = Transport(tls=True)
    closing = Closing(REFUSE, transport, 0.0, IDLE_S)  # type: ignore[arg-type]
    assert closing.dropped(REFUSED_BYTES, 0.1)
    assert not closing.dropped(1, 0.1), "there is a bound"


@pytest.mark.req("TUN-5c")
def test_a_short_answer_over_tls_closes_at_once() -> None:
    transport = Transport(tls=True)
    transport.left = 3000
    assert Closing(DELIVER, transport, 0.0, IDLE_S).begin() is None  # type: ignore[arg-type]
    assert transport.end == "close"


@pytest.mark.req("API-8b")
def test_there_is_no_time_for_the_rest_any_more() -> None:
    for way, left, end in ((DELIVER, ANSWER, "reset"), (DELIVER, 0, "abort"), (CUT, 0, "reset")):
        transport = Transport(tls=False)
        transport.left = left
        Closing(way, transport, 0.0, IDLE_S).give_up()  # type: ignore[arg-type]
        assert transport.end == end
