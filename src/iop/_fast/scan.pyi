"""JSON bodies scanned as they arrive, without a tree (API-8c, POOL-2, TUN-3). Pieces may be cut anywhere."""

class BodyFacts:
    """What routing and recovery need to know of a request's body, in whatever form it comes. Not made by itself."""

    @property
    def model(self) -> str | None:
        """Not empty and at most 512 bytes; None until it was seen whole."""
    @property
    def model_span(self) -> tuple[int, int] | None:
        """Offsets in the whole body of the model's value, the quotes of JSON included, for `splice_model`."""
    @property
    def cut(self) -> tuple[int, int] | None:
        """Offsets of what has to be left out when the body is sent, and lies before ``model_span``: a byte order mark,
        or the length of the form's model."""
    @property
    def ascii(self) -> bool:
        """Whether all bytes so far are ASCII, files of a form left aside."""
    @property
    def stream(self) -> bool | None:
        """None = absent, or null."""
    @property
    def store(self) -> bool | None: ...
    @property
    def background(self) -> bool | None: ...
    @property
    def has_previous_response_id(self) -> bool:
        """Present, and not null or empty."""

class RequestScanner(BodyFacts):
    """Checks that a request body is one strict RFC 8259 object and keeps what routing and recovery need.

    Feed every piece, then call `finish`. Nesting is bounded by 512. Keys are unescaped before they are compared; only
    members of the root count. A duplicate of a member that is kept is refused, and so is one that only some decoders
    take for it (by letter case, Unicode folding, a NUL): the provider may take the other one. A byte order mark in
    front is skipped.
    """

    @property
    def ordinary(self) -> bool:
        """Nothing was found that speaks against sending it twice: a quick look before the thorough one (API-8)."""
    @property
    def tool_types(self) -> frozenset[str]:
        """The distinct ``tools[*].type``, at most 32, each cut at 64 bytes."""
    @property
    def estimated_tokens(self) -> int:
        """ASCII bytes / 3 + other bytes / 2, runs of base64 of 1 KiB and more 1500 each; final after `finish`."""
    def feed(self, piece: bytes) -> None:
        """Scans the next piece; keeps no reference to it.

        Raises `ScanError` at the first byte that is at fault, and at every later call: ``not_object``, ``syntax``,
        ``depth``, ``duplicate_key``, ``ambiguous_key``, ``missing_model`` (empty), ``model_not_string``,
        ``model_too_long``, ``not_boolean``, ``tool_types``.
        """
    def finish(self) -> None:
        """The body is complete. Raises `ScanError`: ``syntax`` if the document is not, ``missing_model``."""

class FieldScanner:
    """Finds one member of the root object of a JSON answer, leniently: it never raises, and keeps ``max_bytes``."""

    def __init__(self, key: bytes, max_bytes: int = 16384) -> None: ...
    def feed(self, data: bytes) -> None: ...
    def value(self) -> bytes | None:
        """The member's raw JSON, once the whole document was fed; of several, the last one.

        None if it is absent, longer than ``max_bytes``, not UTF-8, or the document is malformed or cut short. What is
        malformed is up to ``json.loads(strict=False)``: NaN and control characters in strings pass.
        """

def splice_model(pieces: list[bytes], span: tuple[int, int], json_target: bytes) -> list[bytes]:
    """The pieces with the bytes of ``span`` replaced by ``json_target`` (API-2).

    Pieces outside the span are the same objects; ``ValueError`` if the span is not inside the pieces.
    """

def json_string(text: str) -> bytes:
    """``text`` as a JSON string with its quotes, in ASCII."""
