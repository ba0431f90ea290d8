"""HTTP/1.1 message bodies and heads under caps (API-6, RFC 9112). Input may be cut anywhere; cost is linear."""

from typing import Final

FRAMING_NONE: Final[int]
FRAMING_LENGTH: Final[int]
FRAMING_CHUNKED: Final[int]
FRAMING_EOF: Final[int]
BODY_NEED: Final[int]
BODY_DATA: Final[int]
BODY_DONE: Final[int]

class BodyDecoder:
    """Decodes one message body; make a new one for each message.

    ``framing`` is one of the ``FRAMING_`` values. ``length`` is the content-length of ``FRAMING_LENGTH``.
    ``max_bytes`` caps the decoded body (0 = no cap); over it, also when only announced, is `PayloadTooLarge`.
    Chunked: 1 to 16 hex digits, CRLF exactly, a size line of at most 4 KiB, at most 16 KiB of extensions and 8 KiB of
    trailers in all; both are checked and discarded. Anything else is a `BodyError`, then and at every later call.
    """

    def __init__(self, framing: int, length: int = 0, max_bytes: int = 0) -> None: ...
    @property
    def done(self) -> bool:
        """The body is complete."""
    @property
    def body_bytes(self) -> int:
        """Decoded bytes so far."""
    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """The body bytes in ``data`` (no piece or one: small chunks are joined) and how much of ``data`` was taken.

        Bytes that were not taken belong to the next message. A piece that is all of ``data`` is ``data`` itself.
        """
    def eof(self) -> bool:
        """The peer closed. True if that completes the body or it was complete; False = it is cut short (TUN-4)."""

class HeadFinder:
    """Finds the end of a request or response head, so that the HTTP parser gets exactly one whole head (API-6).

    ``max_bytes`` bounds the head with its blank line; one byte more is `HeadTooLarge`. Up to two empty lines before
    the start line are skipped and belong to no head. Bare CR or LF, other control characters and folded lines are a
    `HeadError`, then and at every later call until `reset`.
    """

    def __init__(self, max_bytes: int) -> None: ...
    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished head seen so far; 0 between messages."""
    def feed(self, data: bytes, offset: int = 0) -> tuple[bytes | None, int]:
        """The whole head or None, and the number of bytes taken from ``data[offset:]``.

        After a head the finder is ready for the next one; the bytes that were not taken are the body.
        """
    def reset(self) -> None:
        """Forgets an unfinished head or a fault."""

def check_header_block(block: bytes, max_fields: int) -> int:
    """Number of fields in ``block``, which must be zero or more lines ``name: value CRLF``.

    To be called on a block that came over the wire before it is put on a socket. Raises `HeadError` for a name that
    is no token or a control character in a value, `HeadTooLarge` for more than ``max_fields``.
    """

def filter_headers(
    headers: list[tuple[bytes, bytes]], drop: frozenset[bytes], drop_prefixes: tuple[bytes, ...]
) -> bytes:
    """The fields as a header block, order and repeats kept, without those in ``drop`` or under a prefix (TUN-2, TUN-9).

    Names are lower case already; ``drop`` holds what Connection lists, too. What is emitted passes
    `check_header_block`; a field that cannot is a `HeadError`.
    """
