"""Whether a read would block."""

from __future__ import annotations

import socket

from iop._fast.fd import readable


def test_an_idle_socket_is_not_readable_and_bytes_or_eof_make_it_so() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not readable(ours.fileno())
        theirs.send(b"x")
        assert readable(ours.fileno())
        ours.recv(1)
        assert not readable(ours.fileno())
        theirs.close()
        assert readable(ours.fileno())
        fd = ours.fileno()
    assert readable(fd)  # closed: whoever asks finds out by reading
