"""Token usage as the provider reported it: absent stays absent, nothing is estimated (EXEC-5, TUN-3)."""

from __future__ import annotations

import json
from dataclasses import dataclass

__all__ = ["Usage", "read_usage"]

_MAX_TOKENS = 2**63 - 1

#: Where each field may stand in a provider's usage object, as paths: Responses and Messages first, then Chat.
_PATHS: dict[str, tuple[tuple[str, ...], ...]] = {
    "input_tokens": (("input_tokens",), ("prompt_tokens",)),
    "output_tokens": (("output_tokens",), ("completion_tokens",)),
    "reasoning_tokens": (
        ("output_tokens_details", "reasoning_tokens"),
        ("completion_tokens_details", "reasoning_tokens"),
    ),
    "cached_input_tokens": (
        ("cache_read_input_tokens",),
        ("input_tokens_details", "cached_tokens"),
        ("prompt_tokens_details", "cached_tokens"),
    ),
}


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
        document = json.loads(raw)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return _NOTHING
    return Usage(**{name: _first_count(document, paths) for name, paths in _PATHS.items()})


def _first_count(document: object, paths: tuple[tuple[str, ...], ...]) -> int | None:
    for path in paths:
        value = document
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_TOKENS:
            return value
    return None
