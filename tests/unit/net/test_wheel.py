"""One timer for all clocks: never early, at most a tick late."""

from __future__ import annotations

import gc
import random

import pytest

from iop.net.wheel import TICK_S, Timer, Wheel

START = 12_345.678


def run_to(wheel: Wheel, seconds: float, step_s: float = TICK_S) -> None:
    end_at = wheel.now + seconds
    while wheel.now < end_at:
        wheel.advance(min(end_at, wheel.now + step_s))


@pytest.mark.parametrize("step_s", [TICK_S / 7, TICK_S, 0.13, 3.0, 40.0, 700.0])
def test_never_early_and_at_most_one_tick_late(step_s: float) -> None:
    rng = random.Random(4)
    wheel = Wheel(START)
    fired: dict[int, float] = {}
    due: dict[int, float] = {}
    for number in range(400):
        delay_s = rng.choice([0.0, rng.random() * 0.2, rng.random() * 30, rng.random() * 600, 25.6, TICK_S])
        due[number] = wheel.now + delay_s

        def callback(number: int = number) -> None:
            assert number not in fired
            fired[number] = wheel.now

        wheel.arm(delay_s, callback)
        if rng.random() < 0.2:
            wheel.advance(wheel.now + rng.random() * step_s)
    run_to(wheel, 2000, step_s)
    assert fired.keys() == due.keys()
    for number, at in fired.items():
        assert due[number] <= at <= due[number] + TICK_S + step_s + 1e-6


def test_a_cancelled_timer_never_fires() -> None:
    wheel = Wheel(START)
    fired: list[str] = []
    early = wheel.arm(0.1, lambda: fired.append("early"))
    late = wheel.arm(100, lambda: fired.append("late"))
    early.cancel()
    early.cancel()
    run_to(wheel, 60)
    late.cancel()
    run_to(wheel, 60)
    assert fired == []


def test_a_callback_may_arm_and_cancel() -> None:
    wheel = Wheel(START)
    story: list[str] = []
    victim: list[Timer] = []

    def first() -> None:
        story.append("first")
        victim[0].cancel()
        wheel.arm(0.0, lambda: story.append("again"))

    wheel.arm(0.2, first)
    victim.append(wheel.arm(0.2, lambda: story.append("victim")))
    run_to(wheel, 0.3)
    assert story in (["first"], ["first", "again"])
    run_to(wheel, 0.2)
    assert story == ["first", "again"]


def test_a_callback_that_rearms_itself_with_no_delay_does_not_spin() -> None:
    wheel = Wheel(START)
    count = 0

    def again() -> None:
        nonlocal count
        count += 1
        wheel.arm(0.0, again)

    wheel.arm(0.0, again)
    run_to(wheel, 1.0)
    assert 18 <= count <= 21
    wheel.advance(wheel.now + 100)
    assert count <= 23


def test_a_fired_timer_holds_nothing() -> None:
    wheel = Wheel(START)
    timer = wheel.arm(0.1, lambda: None)
    run_to(wheel, 0.3)
    assert timer.callback is None


def test_one_failure_keeps_nobody_from_firing() -> None:
    wheel = Wheel(START)
    fired: list[int] = []

    def fail() -> None:
        raise ValueError("first")

    for n in range(5):
        wheel.arm(0.1, fail if n == 1 else lambda n=n: fired.append(n))  # type: ignore[misc]
    ticks: list[float] = []
    wheel.every(ticks.append)
    with pytest.raises(ValueError, match="first"):
        wheel.advance(START + 1)
    assert fired == [0, 2, 3, 4]
    assert ticks == [START + 1]
    wheel.advance(START + 2)
    assert ticks == [START + 1, START + 2]


def test_time_never_runs_backwards() -> None:
    wheel = Wheel(START)
    wheel.advance(START + 10)
    wheel.advance(START + 5)
    assert wheel.now == START + 10


def test_a_cancelled_timer_is_forgotten_at_once() -> None:
    def timers() -> set[Timer]:
        return {x for x in gc.get_objects() if isinstance(x, Timer)}

    wheel = Wheel(START)
    others = timers()
    for _ in range(1000):
        wheel.arm(3600, print).cancel()
    kept = wheel.arm(3600, print)
    assert timers() - others == {kept}


def test_a_callback_may_cancel_everybody_in_its_tick() -> None:
    wheel = Wheel(START)
    fired: list[int] = []
    timers: list[Timer] = []

    def fire(number: int) -> None:
        fired.append(number)
        for timer in timers:
            timer.cancel()

    timers.extend(wheel.arm(0.1, lambda n=n: fire(n)) for n in range(10))  # type: ignore[misc]
    run_to(wheel, 1)
    assert fired == [0]
