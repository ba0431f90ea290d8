"""The poll round: what was written during it leaves in one write per socket (WIRE-3, DESIGN hot path)."""

from __future__ import annotations

import pytest

from iop._fast.out import Hub, OutBuffer, Writer


class Loop:
    """Collects what was scheduled."""

    def __init__(self) -> None:
        self.ready: list[object] = []
        self.errors: list[Exception] = []
        self.hub = Hub(self.ready.append, self.errors.append)

    def round(self) -> None:
        batch, self.ready[:] = self.ready[:], []
        for callback in batch:
            callback()  # type: ignore[operator]


class Transport:
    def __init__(self, writer: Writer | None = None, *, fails: bool = False, pauses: bool = False) -> None:
        self.writes: list[bytes] = []
        self.writer = writer
        self.fails = fails
        self.pauses = pauses

    def write(self, data: bytes) -> None:
        if self.fails:
            raise OSError("broken")
        self.writes.append(data)
        if self.pauses and self.writer is not None:
            self.writer.pause()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))


def test_a_buffer_grows_and_starts_again() -> None:
    buffer = OutBuffer()
    assert buffer.taken() == b""
    for size in (1, 0, 63, 5000, 200_000, 1):
        parts = [bytes([n % 251]) * size for n in range(7)]
        for part in parts:
            buffer.append(part)
        assert buffer.n == 7 * size
        taken = buffer.taken()
        assert taken == b"".join(parts)
        assert type(taken) is bytes
        assert buffer.n == 0


def test_what_was_taken_never_changes() -> None:
    buffer = OutBuffer()
    buffer.append(b"first")
    first = buffer.taken()
    buffer.append(b"SECOND")
    assert (first, buffer.taken()) == (b"first", b"SECOND")


def test_many_writes_leave_in_one() -> None:
    loop = Loop()
    writer = Writer(loop.hub)
    transport = Transport()
    writer.attach(transport)
    for n in range(100):
        writer.write(b"%d " % n)
    assert transport.writes == []
    assert writer.pending_bytes == sum(len(b"%d " % n) for n in range(100))
    loop.round()
    assert transport.writes == [b"".join(b"%d " % n for n in range(100))]
    assert writer.handed == len(transport.writes[0])
    loop.round()
    assert len(transport.writes) == 1


def test_order_holds_around_big_pieces() -> None:
    loop = Loop()
    writer = Writer(loop.hub)
    transport = Transport()
    writer.attach(transport)
    pieces = [b"a", b"B" * 16384, b"c", b"", b"D" * 50_000, b"E" * 16384, b"f"]
    for piece in pieces:
        writer.write(piece)
    loop.round()
    assert b"".join(transport.writes) == b"".join(pieces)
    assert len(transport.writes) == 1


def test_written_during_a_flush_leaves_in_the_next_round() -> None:
    loop = Loop()
    first, second = Writer(loop.hub), Writer(loop.hub)
    transport = Transport()

    class Chatty(Transport):
        def write(self, data: bytes) -> None:
            super().write(data)
            second.write(b"after")

    first.attach(Chatty())
    second.attach(transport)
    first.write(b"x")
    loop.round()
    assert transport.writes == []
    loop.round()
    assert transport.writes == [b"after"]


def test_one_broken_socket_keeps_nobody_from_being_written() -> None:
    loop = Loop()
    good, broken = Writer(loop.hub), Writer(loop.hub)
    transport = Transport()
    broken.attach(Transport(fails=True))
    good.attach(transport)
    broken.write(b"x")
    good.write(b"y")
    loop.round()
    assert transport.writes == [b"y"]
    assert [str(error) for error in loop.errors] == ["broken"]


def test_nothing_leaves_before_attach_or_after_detach() -> None:
    loop = Loop()
    writer = Writer(loop.hub)
    writer.write(b"early ")
    loop.round()
    transport = Transport()
    writer.attach(transport)
    writer.write(b"now")
    loop.round()
    writer.write(b"late")
    writer.write(b"B" * 20_000)
    writer.detach()
    loop.round()
    assert transport.writes == [b"early now"]
    assert writer.pending_bytes == 0


def test_flush_now_does_not_wait_for_the_round() -> None:
    loop = Loop()
    writer = Writer(loop.hub)
    transport = Transport()
    writer.attach(transport)
    writer.write(b"bye")
    writer.flush_now()
    assert transport.writes == [b"bye"]
    loop.round()
    assert transport.writes == [b"bye"]


@pytest.mark.parametrize("value", ["text", bytearray(b"x"), None])
def test_only_bytes_are_written(value: object) -> None:
    writer = Writer(Loop().hub)
    with pytest.raises(TypeError):
        writer.write(value)  # type: ignore[arg-type]
