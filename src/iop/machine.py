"""State machines by their tables: from a state, by an event, to a state."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from iop.errors import InvalidTransition

__all__ = ["Step", "Transitions"]

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=Hashable)


class Step(dict[S, S]):
    """What one event does: by state, the state behind it. A machine on the path of requests looks up this alone, which
    takes half as long. Raises InvalidTransition on access, for a state that does not list the event."""

    def __init__(self, machine: str, event: str, rows: Mapping[S, S]) -> None:
        super().__init__(rows)
        self._machine = machine
        self._event = event

    def __missing__(self, state: S) -> S:
        raise InvalidTransition(self._machine, str(state), self._event)


class Transitions(dict[tuple[S, E], S], Generic[S, E]):
    """The table of one machine: ``table[state, event]`` is the state behind it.

    Args:
        name: The machine's, for messages and diagrams.
        first: The states that it may begin in.
        rows: What it may do; every state is in them, or behind one of them.

    Raises:
        InvalidTransition: On access, for a pair that has no row: a fault of ours.
        ValueError: When made, if a state can never be reached.
    """

    def __init__(self, name: str, first: tuple[S, ...], rows: Mapping[tuple[S, E], S]) -> None:
        super().__init__(rows)
        self.name = name
        self.first = first
        reached, before = set(first), 0
        while len(reached) > before:
            before = len(reached)
            reached |= {to for (state, _), to in rows.items() if state in reached}
        if lost := {*type(first[0])} - reached:
            raise ValueError(f"{name}: no way leads to {', '.join(sorted(lost))}")

    def __missing__(self, key: tuple[S, E]) -> S:
        raise InvalidTransition(self.name, str(key[0]), str(key[1]))

    def step(self, event: E) -> Step[S]:
        """What ``event`` does."""
        return Step(self.name, str(event), {state: to for (state, which), to in self.items() if which == event})

    def after(self, state: S, event: E, who: str, story: tuple[str, ...] = ()) -> S:
        """The same for a machine that is not on the path of requests: the message names it, and what it did before."""
        to = self.get((state, event))
        if to is None:
            raise InvalidTransition(f"{self.name} {who}", str(state), str(event), story)
        return to

    def diagram(self) -> str:
        """The machine as a state diagram of Mermaid."""
        lines = ["stateDiagram-v2", *(f"    [*] --> {state}" for state in self.first)]
        arrows: dict[tuple[str, str], list[str]] = {}
        for (state, event), to in self.items():
            arrows.setdefault((str(state), str(to)), []).append(str(event))
        lines += [f"    {state} --> {to}: {', '.join(events)}" for (state, to), events in arrows.items()]
        left = {state for (state, _), to in self.items() if to != state}
        lines += [f"    {state} --> [*]" for state in type(self.first[0]) if state not in left]
        return "\n".join(lines)
