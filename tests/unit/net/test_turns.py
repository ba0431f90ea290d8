"""Long work, shared out over turns of the loop (API-8c)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iop.net.turns import TURN_S, Turns


class Loop:
    """Turns that the test runs, and a clock that each step moves."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.now = 0.0
        self.done: list[str] = []
        self.turns = Turns(self.due.append, lambda: self.now)

    def work(self, name: str, steps: int, takes_s: float) -> Callable[[], bool]:
        left = steps

        def step() -> bool:
            nonlocal left
            left -= 1
            self.now += takes_s
            self.done.append(name)
            return left > 0

        return step

    def turn(self) -> list[str]:
        (callback,) = self.due
        self.due.clear()
        before = len(self.done)
        callback()
        return self.done[before:]


@pytest.mark.req("API-8c")
def test_however_much_there_is_to_do_a_turn_is_short_and_everybody_gets_a_step() -> None:
    loop = Loop()
    for number in range(5):
        loop.turns.add(loop.work(str(number), 3, TURN_S * 0.6))
    assert len(loop.due) == 1
    turns = []
    while loop.due:
        began = loop.now
        turns.append(loop.turn())
        assert loop.now - began < 2 * TURN_S
    assert "".join(name for turn in turns for name in turn) == "012340123401234"
    assert {len(turn) for turn in turns[:-1]} == {2}


@pytest.mark.req("API-8c")
def test_quick_steps_share_a_turn_and_a_step_may_add_another() -> None:
    loop = Loop()
    again = loop.work("b", 2, 0.0)

    def first() -> bool:
        loop.done.append("a")
        loop.turns.add(again)
        return False

    loop.turns.add(first)
    assert loop.turn() == ["a", "b", "b"]
    assert loop.due == []
    loop.turns.add(loop.work("c", 1, 0.0))
    assert loop.turn() == ["c"]


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_step_that_raises_is_the_last_of_its_own_and_the_others_go_on(others: int) -> None:
    loop = Loop()

    def broken() -> bool:
        loop.done.append("x")
        raise RuntimeError

    loop.turns.add(broken)
    for number in range(others):
        loop.turns.add(loop.work(str(number), 2, 0.0))
    with pytest.raises(RuntimeError):  # which the loop's exception handler is given
        loop.turn()
    while loop.due:
        loop.turn()
    assert loop.done == ["x", *2 * [str(number) for number in range(others)]]
    loop.turns.add(loop.work("later", 1, 0.0))
    assert loop.turn() == ["later"]
