"""Rows of text in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["aligned"]


def aligned(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The lines: a head and its rows, each column as wide as its widest cell."""
    grid = [head, *rows]
    widths = [max(len(row[column]) for row in grid) for column in range(len(head))]
    for row in grid:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
