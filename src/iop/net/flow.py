"""Socket options that the relay's promises rest on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import select
import socket
import struct
import sys
import termios

__all__ = ["abort", "is_exhausted", "peer_closed", "tune", "untaken"]

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

# Not in the socket module of every Python; the numbers are those of linux/tcp.h and netinet/tcp.h.
_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else 0x201)


def is_exhausted(error: BaseException) -> bool:
    """Whether a connection failed for want of descriptors, memory or ports on this machine, not for its peer."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def tune(transport: asyncio.Transport, *, notsent_lowat_bytes: int | None = 65536) -> None:
    """No Nagle, and at most ``notsent_lowat_bytes`` unsent in the kernel: without it a client that stopped reading
    hides 4 MB there before anything pauses (WIRE-5), and a heartbeat waits behind them (WIRE-6)."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if notsent_lowat_bytes is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, notsent_lowat_bytes)


def abort(transport: asyncio.Transport, *, reset: bool) -> None:
    """Closes at once. With ``reset`` the peer sees RST, which no reader can mistake for the end of a body (API-8b);
    a plain abort sends FIN."""
    if reset:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def untaken(transport: asyncio.Transport) -> int:
    """Bytes that were written and that the peer's kernel has not acknowledged; without those in the own kernel where
    that does not tell."""
    waiting: int = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            waiting += int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return waiting


def peer_closed(fd: int) -> bool:
    """Whether the peer of a socket that is not being read has closed or reset it. Always False where the platform has
    no POLLRDHUP (then the close is noticed when reading goes on)."""
    flag = getattr(select, "POLLRDHUP", None)
    if flag is None:
        return False
    poller = select.poll()
    poller.register(fd, flag)
    return any(events & (flag | select.POLLERR | select.POLLHUP) for _, events in poller.poll(0))
