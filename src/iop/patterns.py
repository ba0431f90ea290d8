"""Names with stars, as the configuration has them: ``*`` stands for any text, also for none."""

from __future__ import annotations

__all__ = ["fits"]


def fits(name: str, pattern: str) -> bool:
    """Whether the pattern fits the whole name.

    Names come from clients and nodes. Each text between stars is looked for once, from the left, so the time is
    proportional to the name's length times the pattern's, whatever the two are.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return name == first
    *middle, last = rest
    at, end = len(first), len(name) - len(last)
    if end < at or not name.startswith(first) or not name.endswith(last):
        return False
    for text in middle:
        found = name.find(text, at, end)
        if found < 0:
            return False
        at = found + len(text)
    return True
