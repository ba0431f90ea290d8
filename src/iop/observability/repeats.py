"""Lines that anybody can cause as often as they like: some are logged, the others are counted and told in one line."""

from __future__ import annotations

__all__ = ["PERIOD_S", "SAID", "Repeats"]

SAID = 100  # lines of one kind in a period that are logged as they are
PERIOD_S = 10.0
KINDS = 64  # that are told apart
OTHERS = "lines_repeated"  # stands for all others


class Repeats:
    """A machine. ``say`` tells whether a line of this kind is to be logged; ``due`` which kinds have lines that were
    not, and how many, once their period is over. The kinds are a closed set, whoever causes the lines."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int, int]] = {}  # when the period ends, lines said in it, and unsaid

    def say(self, kind: str, now: float) -> bool:
        if kind not in self._kinds and len(self._kinds) >= KINDS:
            kind = OTHERS
        ends_at, said, unsaid = self._kinds.get(kind, (now + PERIOD_S, 0, 0))
        if now >= ends_at and not unsaid:
            ends_at, said = now + PERIOD_S, 0
        if said < SAID:
            self._kinds[kind] = (ends_at, said + 1, unsaid)
            return True
        self._kinds[kind] = (ends_at, said, unsaid + 1)
        return False

    def due(self, now: float) -> list[tuple[str, int]]:
        """Each kind is told once a period; behind that its lines are logged again."""
        over = [(kind, state) for kind, state in self._kinds.items() if now >= state[0]]
        for kind, _ in over:
            del self._kinds[kind]
        return [(kind, unsaid) for kind, (_, _, unsaid) in over if unsaid]
