# cython: language_level=3
"""Questions to a file descriptor that the select module answers at ten times the price, because it lets go of the
interpreter's lock for a call that never waits."""

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long n, int timeout)
    short POLLIN


def readable(int fd):
    cdef pollfd one
    one.fd = fd
    one.events = POLLIN
    one.revents = 0
    return poll(&one, 1, 0) > 0
