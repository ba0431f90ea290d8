"""Questions to a file descriptor (fd.pyx)."""

def readable(fd: int) -> bool:
    """Whether a read would not block: bytes, EOF or an error wait there, or it is not open. Never waits."""
