"""Text of peers, made fit for terminals and log lines: the one place that decides which characters pass."""

from __future__ import annotations

__all__ = ["JSON_ESCAPES", "plain"]

#: Join letters and emoji, and change nothing else on a terminal.
_JOINERS = "\u200c\u200d"

#: For ``str.translate`` on JSON: what the encoder leaves as it is and terminals may act on. DEL, the C1 controls, marks
#: that change the direction of text, line and paragraph separators, the byte order mark.
JSON_ESCAPES = {
    code: f"\\u{code:04x}"
    for code in (*range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
}


def plain(text: object, keep: str = "", *, mark: str = "") -> str:
    """The text without characters that are not printable: controls, escapes, marks of direction, line ends, halves of
    surrogate pairs. ``mark`` stands for each of them, or else it is spelled out (``\\x1b``). Those in ``keep`` pass."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        c if c.isprintable() or c in keep or c in _JOINERS else mark or c.encode("unicode_escape").decode("ascii")
        for c in shown
    )
