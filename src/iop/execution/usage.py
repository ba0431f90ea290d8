"""Token usage as the provider reported it: absent stays absent, nothing is estimated (EXEC-5, TUN-3)."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["POSSIBLE_TOKENS", "Usage", "possible", "read_usage"]

_MAX_TOKENS = 2**63 - 1


#: More than any model takes or gives in one request: a count above it is a fault of whoever reports it (WIRE-10).
POSSIBLE_TOKENS = 10_000_000


Counts = tuple[int | None, int | None, int | None, int | None]


def possible(counts: Counts) -> Counts:
    """The counts without those that cannot be, which become None."""
    a, b, c, d = (None if count is not None and count > POSSIBLE_TOKENS else count for count in counts)
    return a, b, c, d


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one execution; None means that the provider did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None

    def __bool__(self) -> bool:
        """Whether the provider said anything."""
        return self != _NOTHING

    def updated(self, later: Usage) -> Usage:
        """This, with whatever ``later`` reports instead (Messages reports in two events)."""
        return Usage(
            *(
                new if new is not None else old
                for old, new in (
                    (self.input_tokens, later.input_tokens),
                    (self.output_tokens, later.output_tokens),
                    (self.reasoning_tokens, later.reasoning_tokens),
                    (self.cached_input_tokens, later.cached_input_tokens),
                )
            )
        )


_NOTHING = Usage()


def read_usage(raw: bytes | None) -> Usage:
    """Read a provider's ``usage`` object, in Chat, Responses or Messages shape.

    Hostile input is welcome: whatever is not a plain count at a known place is absent.
    """
    if not raw:
        return _NOTHING
    try:
        u = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_odd(raw)
    received = u.input_tokens_details or u.prompt_tokens_details or _NO_DETAILS
    sent = u.output_tokens_details or u.completion_tokens_details or _NO_DETAILS
    return Usage(
        u.input_tokens if u.input_tokens is not None else u.prompt_tokens,
        u.output_tokens if u.output_tokens is not None else u.completion_tokens,
        sent.reasoning_tokens,
        u.cache_read_input_tokens if u.cache_read_input_tokens is not None else received.cached_tokens,
    )


_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOKENS)] | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Count = None
    reasoning_tokens: _Count = None


class _Reported(msgspec.Struct, gc=False):
    """All shapes at once, as honest providers send them."""

    input_tokens: _Count = None
    prompt_tokens: _Count = None
    output_tokens: _Count = None
    completion_tokens: _Count = None
    cache_read_input_tokens: _Count = None
    input_tokens_details: _Details | None = None
    prompt_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


_DECODER = msgspec.json.Decoder(_Reported)
_NO_DETAILS = _Details()


def _read_odd(raw: bytes) -> Usage:
    """The same for an object with members that are something else than they should be: the others still count."""
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NOTHING
    if not isinstance(document, dict):
        return _NOTHING
    get = document.get
    received = _details(get("input_tokens_details") or get("prompt_tokens_details"))
    sent = _details(get("output_tokens_details") or get("completion_tokens_details"))
    return Usage(
        _first_count(get("input_tokens"), get("prompt_tokens")),
        _first_count(get("output_tokens"), get("completion_tokens")),
        _first_count(sent.get("reasoning_tokens")),
        _first_count(get("cache_read_input_tokens"), received.get("cached_tokens")),
    )


def _details(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _first_count(*values: object) -> int | None:
    """The first that is a count; a bool is an int to Python, but not here."""
    for value in values:
        if type(value) is int and 0 <= value <= _MAX_TOKENS:
            return value
    return None
