"""A link's own part: the order of a close, and the one reason why it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from iop._fast import frame
from iop._fast.out import Hub
from iop.errors import InternalError
from iop.net import link
from iop.net.link import Link
from iop.wire import limits
from iop.wire import messages as m
from iop.wire.session import NodeSession, State


class Transport:
    def __init__(self) -> None:
        self.story: list[Any] = []
        self.high = self.low = 0
        self.closing = False

    def write(self, data: bytes) -> None:
        self.story.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.story.append(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.high, self.low = high, low

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 4711) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        self.story.append("close")

    def abort(self) -> None:
        self.closing = True
        self.story.append("abort")


class Owner:
    def __init__(self) -> None:
        self.ready: list[Callable[[], None]] = []
        self.made = 0
        self.lost: list[str] = []
        self.session = NodeSession(Hub(self.ready.append, self._raise), self, 0.0)
        self.link = Link(self.session, self)
        self.transport = Transport()

    def _raise(self, exc: Exception) -> None:
        raise exc

    def link_made(self, link: Link) -> None:
        assert link is self.link
        self.made += 1

    def link_lost(self, link: Link, reason: str) -> None:
        self.lost.append(reason)

    def received(self, message: m.Message) -> None:
        raise AssertionError(message)

    def ended(self, reason: str, detail: str) -> None:
        self.link.abort(reason)

    def connect(self) -> None:
        self.link.connection_made(cast("Any", self.transport))


@pytest.fixture
def owner() -> Owner:
    owner = Owner()
    owner.connect()
    return owner


@pytest.mark.req("WIRE-6")
def test_the_transport_says_pause_before_the_multiplexer_stops_feeding(owner: Owner) -> None:
    assert owner.made == 1
    assert owner.transport.high < limits.LINK_SEND_HIGH_BYTES
    assert 0 < owner.transport.low < owner.transport.high
    assert owner.link.peer == "127.0.0.1:4711"


def test_close_sends_what_is_queued_first(owner: Owner) -> None:
    owner.session.goodbye(m.GoodbyeReason.SHUTDOWN)
    owner.link.close("shutdown")
    owner.link.close("twice")
    data, closed = owner.transport.story
    assert data[4:6] == b"\x72\x02"
    assert closed == "close"
    owner.link.connection_lost(None)
    assert owner.lost == ["shutdown"]
    owner.link.close("late")
    owner.link.abort("late")
    assert owner.transport.story[2:] == []


def test_a_fault_aborts_and_drops_what_is_queued(owner: Owner) -> None:
    owner.session.send(m.EdgeNodeEvent(draining=m.Draining(1)))
    owner.link.data_received(b"\0\0\0\0")
    assert owner.transport.story == ["abort"]
    assert owner.session.state is State.CLOSED
    owner.link.connection_lost(None)
    assert owner.lost == ["frame_length"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "peer_closed"),
        (ConnectionResetError(104, "reset"), "ConnectionResetError"),
        (InternalError(), "InternalError"),
    ],
)
def test_what_the_socket_says_is_the_reason_unless_we_closed(
    owner: Owner, error: Exception | None, reason: str
) -> None:
    owner.link.connection_lost(error)
    assert owner.lost == [reason]
    assert owner.link.transport is None


def test_the_first_reason_stays(owner: Owner) -> None:
    owner.link.abort("superseded")
    owner.link.abort("other")
    owner.link.connection_lost(ConnectionResetError())
    assert owner.lost == ["superseded"]


def test_a_half_close_is_a_close(owner: Owner) -> None:
    assert not owner.link.eof_received()


def test_pause_and_resume_reach_the_multiplexer(owner: Owner) -> None:
    owner.link.pause_writing()
    assert owner.session.mux.paused
    owner.session.mux.send(frame.encode_heartbeat(1))
    owner.link.resume_writing()
    for callback in owner.ready:
        callback()
    assert owner.transport.story == [frame.encode_heartbeat(1)]


def test_nothing_happens_before_a_connection() -> None:
    owner = Owner()
    owner.link.close("early")
    owner.link.abort("early")
    assert owner.link.peer == "?"
    assert owner.lost == []


@pytest.mark.req("WIRE-7")
def test_the_clocks_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IOP_TEST_TIMING", raising=False)
    clocks = link.timing()
    assert (clocks.heartbeat_interval_s, clocks.response_wait_s) == (30, 45)
    assert (clocks.write_stall_s, clocks.register_s, clocks.ready_s) == (45, 10, 60)


def test_end_to_end_tests_may_shorten_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOP_TEST_TIMING", "0.3,1.0")
    clocks = link.timing()
    assert (clocks.heartbeat_interval_s, clocks.response_wait_s, clocks.write_stall_s) == (0.3, 1.0, 1.0)
    assert clocks.register_s == 10
