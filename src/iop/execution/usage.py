"""Token usage as the provider reported it: absent stays absent, nothing is estimated (EXEC-5, TUN-3)."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

__all__ = ["Usage", "read_usage"]

_MAX_TOKENS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Usage:
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


_NO_DETAILS: dict[str, object] = {}


def _details(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else _NO_DETAILS


def _first_count(*values: object) -> int | None:
    """The first that is a count; a bool is an int to Python, but not here."""
    for value in values:
        if type(value) is int and 0 <= value <= _MAX_TOKENS:
            return value
    return None
