"""multipart/form-data bodies scanned as they arrive, without joining them (API-8c). Pieces may be cut anywhere."""

from iop._fast.scan import BodyFacts

class FormScanner(BodyFacts):
    """Checks that a body is one form with exactly one `model`, and keeps what routing and recovery need.

    ``boundary`` is that of the content-type, 1 to 70 bytes; what it may consist of is the caller's to check. The
    members are those of `iop._fast.scan.RequestScanner`. Read are the parts ``model``, ``stream``, ``store``,
    ``background`` and ``previous_response_id``: each at most once, as a plain field. A flag is true, 1, on, yes, or
    false, 0, off, no and nothing, in any case of letters. At most 1024 parts, whose headers have at most 4 KiB and
    16 lines each. No preamble, epilogue, padding or bare line ends, no forms inside of parts, no parameters of a
    content-disposition but ``name``, ``filename`` and ``filename*``. What some parser takes for one of the parts that
    are read, by the case of its letters or Unicode folding, is refused, and so is a content-length that is not true.
    """

    def __init__(self, boundary: bytes) -> None: ...
    @property
    def ordinary(self) -> bool:
        """Nothing was found that speaks against sending it twice: a quick look before the thorough one (API-8)."""
    @property
    def tool_types(self) -> frozenset[str]:
        """None: forms have no tools."""
    @property
    def estimated_tokens(self) -> int:
        """Of all fields ASCII bytes / 3 + other bytes / 2, and 1500 for each file; final after `finish`."""
    def feed(self, piece: bytes) -> None:
        """Scans the next piece; keeps no reference to it.

        Raises `ScanError` at the first byte that is at fault, and at every later call: ``syntax``, ``duplicate_key``,
        ``ambiguous_key``, ``missing_model`` (empty), ``model_not_string`` (a file, encoded, or no UTF-8),
        ``model_too_long``, ``not_plain``, ``not_boolean``.
        """
    def finish(self) -> None:
        """The body is complete. Raises `ScanError`: ``syntax`` if the form is not, ``missing_model``."""
    def fits(self, value: bytes) -> bool:
        """Whether ``value`` may be the model of this body: the boundary is not in it, and the part's charset has it."""
