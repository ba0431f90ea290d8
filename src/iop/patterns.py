"""Names with stars, as the configuration has them: ``*`` stands for any text, also for none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Patterns", "fits"]


def fits(name: str, pattern: str) -> bool:
    """Whether the pattern fits the whole name.

    Names come from clients and nodes. Each text between stars is looked for once, from the left, so the time is
    proportional to the name's length times the pattern's, whatever the two are.
    """
    first, *rest = pattern.split("*")
    return _fits(name, first, rest[:-1], rest[-1]) if rest else name == first


def _fits(name: str, first: str, middle: Sequence[str], last: str) -> bool:
    at, end = len(first), len(name) - len(last)
    if end < at or not name.startswith(first) or not name.endswith(last):
        return False
    for text in middle:
        found = name.find(text, at, end)
        if found < 0:
            return False
        at = found + len(text)
    return True


class Patterns:
    """Several patterns, split once, for many names.

    Patterns of the usual kinds (``abc``, ``abc*``, ``*abc`` and ``*abc*``) are compared natively or looked up, so that
    many of them cost a name hardly more than a few. Texts of ``*abc*`` are looked up by their first characters, as many
    as the shortest of them has. Any other pattern is looked up by the text before its first star, and is compared only
    if the name has its longest inner text and its end.
    """

    __slots__ = ("_ends", "_inner", "_lengths", "_names", "_others", "_size", "_starts")

    def __init__(self, patterns: Iterable[str]) -> None:
        names, starts, ends, inner = set(), [], [], []
        self._others: dict[str, list[tuple[str, list[str], str]]] = {}
        for pattern in patterns:
            first, *rest = pattern.split("*")
            match rest:
                case []:
                    names.add(first)
                case [""]:
                    starts.append(first)
                case [last] if not first:
                    ends.append(last)
                case [text, ""] if not first:
                    inner.append(text)
                case [*middle, last]:
                    self._others.setdefault(first, []).append((max(middle, key=len, default=""), middle, last))
        self._names = frozenset(names)
        self._starts, self._ends = tuple(starts), tuple(ends)
        self._size = size = min(map(len, inner), default=0)
        self._inner: dict[str, tuple[str, ...]] = {}
        for text in inner:
            self._inner[text[:size]] = (*self._inner.get(text[:size], ()), text)
        self._lengths = sorted({len(first) for first in self._others})

    def fit(self, name: str) -> bool:
        """Whether one of them fits the whole name, as :func:`fits` says it."""
        if name in self._names or name.startswith(self._starts) or name.endswith(self._ends):
            return True
        inner, size = self._inner, self._size
        if inner:
            for at in range(len(name) - size + 1):
                texts = inner.get(name[at : at + size])
                if texts is not None and name.startswith(texts, at):
                    return True
        for length in self._lengths:
            first = name[:length]
            for longest, middle, last in self._others.get(first, ()):
                if longest in name and name.endswith(last) and _fits(name, first, middle, last):
                    return True
        return False
