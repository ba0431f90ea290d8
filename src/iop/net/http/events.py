"""Event streams read event by event, for whoever needs their data and not just their bytes (WHATWG HTML, section 9.2).

Tunnels never do: their events pass as they are.
"""

from __future__ import annotations

from iop.errors import ProviderProtocolError

__all__ = ["EventReader"]

MAX_EVENT_BYTES = 1 << 20
_TOO_LONG = "an event of the provider's stream is longer than 1 MiB"
_BOM = b"\xef\xbb\xbf"


class EventReader:
    """Splits an event stream, however it was cut. One event may have 1 MiB; only ``data`` fields are of interest."""

    __slots__ = ("_after_cr", "_data", "_data_bytes", "_fresh", "_line", "_line_bytes")

    def __init__(self) -> None:
        self._line: list[bytes] = []  # of a line that is not whole
        self._line_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_cr = False  # a LF that comes next belongs to the CR before it
        self._fresh = True

    @property
    def open_bytes(self) -> int:
        """Of the event that is not whole yet; comments do not count."""
        comment = not self._line or self._line[0].startswith(b":")
        return self._data_bytes + (0 if comment else self._line_bytes)

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that ``piece`` completes. Raises ProviderProtocolError for one above the bound."""
        if self._after_cr and piece:
            self._after_cr = False
            if piece[:1] == b"\n":
                piece = piece[1:]
        if piece[-1:] == b"\r":
            self._after_cr = True
        whole = b"".join((*self._line, piece)) if b"\n" in piece or b"\r" in piece else None
        if whole is None:
            self._line.append(piece)
            self._line_bytes += len(piece)
            if self._line_bytes > MAX_EVENT_BYTES:
                raise ProviderProtocolError(_TOO_LONG)
            return []
        lines = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop()
        self._line, self._line_bytes = [rest] if rest else [], len(rest)
        if self._fresh:
            self._fresh = False
            lines[0] = lines[0].removeprefix(_BOM)
        return [data for line in lines if (data := self._take(line)) is not None]

    def end(self) -> list[bytes]:
        """The stream is over: the data of its last event where the blank line behind it is missing. Some servers leave
        it out, and the body is known to be whole."""
        return self.feed(b"\n\n")

    def _take(self, line: bytes) -> bytes | None:
        """The data of the event that this line ends, if it ends one that has any."""
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                value = value.removeprefix(b" ")
                self._data.append(value)
                self._data_bytes += len(value) + 1
                if self._data_bytes > MAX_EVENT_BYTES:
                    raise ProviderProtocolError(_TOO_LONG)
            return None
        if not self._data:
            return None
        data, self._data, self._data_bytes = b"\n".join(self._data), [], 0
        return data
