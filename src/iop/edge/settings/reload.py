"""Reading the configuration again while the edge runs (CONF-2): on SIGHUP, `iop-edge reload`, ``POST /admin/reload``.

The file is read in a thread of its own, since YAML of many nodes takes longer than a stream may wait; what it says is
taken over on the loop in one piece, or not at all. One reading is under way at a time. A caller that comes meanwhile is
served by the next one, together with all others, so a storm of requests costs what one does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iop.config.diff import Change
from iop.config.edge import EdgeConfig
from iop.edge.keys.keyring import Found
from iop.errors import ConfigError, InternalError, IopError, Overloaded, ShuttingDown
from iop.net.loop import Runtime
from iop.net.wheel import TICK_S
from iop.observability.metrics import EdgeMetrics
from iop.pool.evidence import Known, ProviderKey
from iop.wire import messages as m

__all__ = ["Prepared", "Reloaded", "Reloader"]

log = logging.getLogger("iop.edge.settings.reload")

MAX_ASKERS = 256
READ_S = 30.0
ANSWER_S = 5.0  # for nodes to take over what changed, before the caller of the reload is answered
TOLD = 100  # names and faults in one answer or log line

Load = Callable[[], EdgeConfig]
Answer = Callable[["Reloaded | IopError"], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What there is to take over: the change from ``running``, and what nodes (``told``) and pool are to be given.
    ``file`` is what was read, with its open places; ``silent`` are settings without effect that were not there before,
    ``keys`` what the keys file says, ``known`` what evidence of health can be about.
    """

    running: EdgeConfig
    file: EdgeConfig
    change: Change
    revision: int
    told: dict[str, m.NodeConfigPayload]
    pool: dict[str, Any]
    silent: list[str]
    keys: Found = field(default_factory=Found)
    known: Mapping[ProviderKey, Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of one reading. ``nodes`` are those that were told something new; for the caller, ``unanswered``
    are those of them that had not answered within ``ANSWER_S``, and ``rejected`` what nodes do not take (CONF-2), as
    rows with node, provider, code and detail."""

    revision: int
    change: Change
    nodes: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)

    @property
    def result(self) -> str:
        return "applied" if self.change.changed else "unchanged"


class Reloader:
    """``load`` reads and checks the file, ``prepare`` makes of it what can be made beforehand: both in the thread, and
    both may raise ConfigError. ``take`` takes that over. ``answers`` adds what the nodes have said so far. Without
    ``load`` there is no file to read."""

    def __init__(  # noqa: PLR0917 - one for each step of a reload
        self,
        runtime: Runtime,
        metrics: EdgeMetrics,
        load: Load | None,
        prepare: Callable[[EdgeConfig], Prepared],
        take: Callable[[Prepared], Reloaded],
        answers: Callable[[Reloaded], Reloaded] = lambda outcome: outcome,
    ) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._load = load
        self._prepare = prepare
        self._take = take
        self._answers = answers
        self._askers: list[Answer] = []
        self._serving: list[Answer] = []
        self._wanted = False
        self._reading = 0  # number of the reading that is under way
        self._count = 0
        self._stuck = False  # a reading that was given up has not come back
        self._closed = False
        self.applied_at = time.time()
        self.needs_restart: tuple[str, ...] = ()
        self.faults: list[str] = []  # of the last reading, if it was refused

    def ask(self, answer: Answer | None = None) -> None:
        """Reads the file once more; ``answer`` hears of it, once. A refusal is a ConfigError with all faults.

        Raises ShuttingDown, or Overloaded when too many wait for an answer.
        """
        if self._closed:
            raise ShuttingDown
        if answer is not None:
            if len(self._askers) >= MAX_ASKERS:
                raise Overloaded("too many reloads wait for an answer; try again")
            self._askers.append(answer)
        self._wanted = True
        if not self._reading:
            self._start()

    def close(self) -> None:
        """Callers that wait are told that the edge leaves; what is still being read is dropped."""
        self._closed = True
        self._reading = 0
        self._tell(ShuttingDown(), [*self._serving, *self._askers])
        self._serving, self._askers = [], []

    # ---- one reading -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._wanted = False
        self._serving, self._askers = self._askers, []
        self._count = self._reading = number = self._count + 1
        if self._load is None:
            return self._end(number, ConfigError(["this edge was started without a file; there is nothing to reload"]))
        if self._stuck:
            return self._end(
                number, ConfigError(["an earlier reload still reads the file or one that it names; is it on a disk?"])
            )
        # A daemon: a file that never answers (a pipe, a lost network disk) must not keep the edge from ending.
        threading.Thread(target=self._read, args=(number, self._load), name="iop-reload", daemon=True).start()
        self._runtime.wheel.arm(READ_S, lambda: self._give_up(number))
        return None

    def _read(self, number: int, load: Load) -> None:
        """In the thread."""
        found: Prepared | IopError
        try:
            found = self._prepare(load())
        except IopError as exc:
            found = exc
        except Exception as exc:
            log.error("reload_broken", exc_info=exc)
            found = InternalError("the file could not be read for a fault of the edge itself; see its log")
        try:
            self._runtime.loop.call_soon_threadsafe(self._came, number, found)
        except RuntimeError:  # the loop is closed: the edge has ended
            return

    def _came(self, number: int, found: Prepared | IopError) -> None:
        self._stuck = False
        self._end(number, found)

    def _give_up(self, number: int) -> None:
        if number == self._reading:
            self._stuck = True
            self._end(number, ConfigError([f"reading the file, or one that it names, took longer than {READ_S:g} s"]))

    def _end(self, number: int, found: Prepared | IopError) -> None:
        if number != self._reading:
            return  # given up, or closed
        self._reading = 0
        serving, self._serving = self._serving, []
        outcome: Reloaded | IopError
        try:
            outcome = found if isinstance(found, IopError) else self._take(found)
        except ConfigError as exc:
            outcome = exc
        self._note(outcome)
        if isinstance(outcome, Reloaded) and serving:
            self._tell_when_answered(outcome, serving, self._runtime.wheel.now + ANSWER_S)
        else:
            self._tell(outcome, serving)
        if self._wanted and not self._closed:
            self._start()

    def _tell_when_answered(self, outcome: Reloaded, serving: list[Answer], due_at: float) -> None:
        """Tell the caller once the nodes have answered, which the next reading does not wait for."""
        told = self._answers(outcome)
        if not told.unanswered or self._closed or self._runtime.wheel.now >= due_at:
            return self._tell(told, serving)
        self._runtime.wheel.arm(TICK_S, lambda: self._tell_when_answered(outcome, serving, due_at))
        return None

    def _note(self, outcome: Reloaded | IopError) -> None:
        if isinstance(outcome, Reloaded):
            self._metrics.config_reloads[outcome.result].value += 1
            self.faults = []
            self.applied_at = time.time()
            self.needs_restart = outcome.change.needs_restart
            fields = {
                "revision": outcome.revision,
                "changed": list(outcome.change.changed[:TOLD]),
                "needs_restart": list(outcome.change.needs_restart),
                "nodes": len(outcome.nodes),
            }
            log.info("config_reloaded", extra={"fields": fields})
            return
        self._metrics.config_reloads["refused"].value += 1
        faults = outcome.faults if isinstance(outcome, ConfigError) else [outcome.message]
        self.faults = faults[:TOLD]
        log.error("config_refused", extra={"fields": {"faults": self.faults}})

    @staticmethod
    def _tell(outcome: Reloaded | IopError, answers: list[Answer]) -> None:
        for answer in answers:
            answer(outcome)
