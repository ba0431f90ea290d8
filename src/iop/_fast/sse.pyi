"""Event streams split and classified as they pass, without a JSON tree (TUN-10, LIVE-2, API-7)."""

from typing import Final

PREAMBLE: Final[int]
SEMANTIC: Final[int]
FINISH: Final[int]
ERROR: Final[int]
BOUNDARY: Final[int]
EVENT_ID: Final[int]
ERROR_4XX: Final[int]

OTHER: Final[int]
CHAT: Final[int]
RESPONSES: Final[int]
MESSAGES: Final[int]

class EventSplitter:
    """Follows one event stream in the given dialect; any chunking of the same bytes gives the same results.

    Nothing is buffered but the last usage object (of at most 16 KiB, else none), so an event may have any size.
    An event whose data is not a JSON object, or that is not known, is semantic. `OTHER` reads no data: every event is
    semantic, ``[DONE]`` finishes.
    """

    def __init__(self, dialect: int) -> None: ...
    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two events, so that another event may be put in here."""
    @property
    def finished(self) -> bool:
        """Nothing has to follow (API-8b): a last event was seen, or an error, or in a chat stream a finish reason of
        each choice that there was."""
    @property
    def events(self) -> int:
        """Complete events with data."""
    @property
    def progress_events(self) -> int:
        """Grows with each semantic, finish, error or usage event, and each further 4 KiB of an incomplete one."""
    def feed(self, data: bytes) -> int:
        """The flags of the events that ``data`` completes, or-ed; `BOUNDARY` is never among them."""
    def end(self) -> int:
        """The stream is complete, which also ends its last event: the flags of that one."""
    def usage(self) -> bytes | None:
        """Raw JSON of the last usage object: chat ``usage``, ``response.usage``, ``message_delta``'s ``usage``."""
    def usage_start(self) -> bytes | None:
        """Raw JSON of ``message_start``'s ``message.usage``, which has the input side (Messages only)."""
