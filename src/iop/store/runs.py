"""The run store: one row per run or tunnel, in SQLite (EXEC-9).

Callers put rows into memory, and one task writes what has gathered, in one transaction, at most 100 ms later. A row
that starts and ends between two writes is written once. No prompt and no output has a column. When the database does
not take rows (a full disk, a lock, a file that cannot be opened) they wait in memory; beyond a bound, new runs are left
out and counted. That is said once in the log when it begins and once when it is over.

Rows that a crash left at ``running`` become ``interrupted`` at the next start. A file belongs to one process at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from typing import Literal

import msgspec
from aiosqlite import Connection, connect

__all__ = ["MAX_PENDING", "MAX_ROWS", "Run", "RunStore", "Status"]

log = logging.getLogger("iop.store")

FLUSH_S = 0.08  # and the write itself: not more than 100 ms together
BATCH_ROWS = 1000
MAX_PENDING = 10_000  # rows in memory before new runs are left out; the ends of known ones may double it
MAX_ROWS = 100_000  # kept; a tenth more stand there before the oldest go
RETRY_S = 1.0
CLOSE_S = 2.0
MAX_SESSION_CHARS = 256
VERSION = 1

Kind = Literal["tunnel", "run"]
Status = Literal["running", "complete", "error", "cancelled", "interrupted"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY,         -- microseconds since 1970 at its start, made unique
    run_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,       -- of the run, counted by the edge
    kind TEXT NOT NULL,             -- tunnel | run
    adapter TEXT NOT NULL,
    provider TEXT NOT NULL,
    target TEXT NOT NULL,
    session_id TEXT NOT NULL,
    background INTEGER NOT NULL,
    status TEXT NOT NULL,           -- running | complete | error | cancelled | interrupted
    started_at REAL NOT NULL,       -- seconds since 1970
    ended_at REAL,
    error TEXT                      -- a code
)
"""
_PUT = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INTERRUPT = "UPDATE runs SET status = 'interrupted', ended_at = ? WHERE status = 'running' AND id < ?"
_PRUNE = "DELETE FROM runs WHERE id <= (SELECT id FROM runs ORDER BY id DESC LIMIT 1 OFFSET ?)"


class Run(msgspec.Struct, gc=False):
    """One row, in the order of the columns."""

    id: int
    run_id: str
    attempt: int
    kind: Kind
    adapter: str
    provider: str
    target: str
    session_id: str
    background: int  # 0 or 1: a bool has to be adapted, which takes sqlite3 longer than the rest of the row
    status: Status
    started_at: float
    ended_at: float | None = None
    error: str | None = None


class RunStore:
    """See the module. ``url`` is SQLite's: ``file:PATH?mode=rwc``; None keeps nothing. ``written`` and ``dropped``
    count rows.

    ``start`` begins to open it and to write; nobody waits for that. ``started`` and ``ended`` are for the loop's
    thread, cost a microsecond or two and never fail. ``close`` writes what is left, for at most two seconds.
    """

    def __init__(self, url: str | None, *, max_rows: int = MAX_ROWS, max_pending: int = MAX_PENDING) -> None:
        self.written = 0
        self.dropped = 0
        self._url = url
        self._max_rows = max_rows
        self._max_pending = max_pending
        self._pending: dict[int, Run] = {}
        self._last_id = self._first_id = time.time_ns() // 1000
        self._db: Connection | None = None
        self._some = asyncio.Event()  # there is something to write
        self._now = asyncio.Event()  # and it should not wait for more
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._failing = False
        self._unpruned = 0

    # ---- for whoever runs something ----------------------------------------------------------------------------------

    def started(
        self,
        run_id: str,
        attempt: int,
        kind: Kind,
        *,
        adapter: str,
        provider: str,
        target: str,
        session_id: bytes = b"",
        background: bool = False,
    ) -> Run | None:
        """A run begins. None: it is left out."""
        if self._url is None:
            return None
        if len(self._pending) >= self._max_pending or self._closing:
            self.dropped += 1
            return None
        now = time.time()
        self._last_id = row_id = max(self._last_id + 1, int(now * 1e6))
        session = session_id.decode("utf-8", "backslashreplace")[:MAX_SESSION_CHARS] if session_id else ""
        run = Run(row_id, run_id, attempt, kind, adapter, provider, target, session, int(background), "running", now)
        self._put(run)
        return run

    def ended(self, run: Run | None, status: Status, error: str | None = None) -> None:
        """A run that ``started`` gave is over; ``error`` is a code of ``iop.errors``."""
        if run is None:
            return
        run.status, run.error, run.ended_at = status, error, time.time()
        if run.id in self._pending:
            return  # its start was not written yet: one row for both
        if len(self._pending) >= 2 * self._max_pending or self._closing:
            self.dropped += 1
            return
        self._put(run)

    def _put(self, run: Run) -> None:
        pending = self._pending
        pending[run.id] = run
        if len(pending) == 1:
            self._some.set()
        elif len(pending) == BATCH_ROWS:
            self._now.set()

    # ---- the task that writes ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Opens the database, marks what a crash left running, and writes from then on."""
        if self._url is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Writes what is left and closes. Idempotent."""
        self._closing = True
        self._some.set()
        self._now.set()
        task, self._task = self._task, None
        if task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(task, CLOSE_S)
        self.dropped += len(self._pending)
        self._pending.clear()
        await self._let_go()

    async def _run(self) -> None:
        await self._write([])
        while True:
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._now.wait(), RETRY_S if self._failing else FLUSH_S)
            closing = self._closing
            batch, self._pending = self._pending, {}
            self._some.clear()
            self._now.clear()
            if batch and not await self._write([msgspec.structs.astuple(run) for run in batch.values()]):
                self._pending = batch | self._pending  # they wait, and are written as they are then
            if closing:
                return
            if self._pending:
                self._some.set()

    async def _write(self, rows: list[tuple[object, ...]]) -> bool:
        """One transaction. False: nothing of it is in the database."""
        try:
            db = self._db or await self._open()
            if rows:
                await db.executemany(_PUT, rows)
                self._unpruned += len(rows)
                if self._unpruned >= self._max_rows // 10:
                    await db.execute(_PRUNE, (self._max_rows,))
                    self._unpruned = 0
                await db.commit()
        except (sqlite3.Error, ValueError) as exc:  # ValueError: the connection is closed
            if not self._failing:
                self._failing = True
                # Its text may hold a path: the name of the error says as much.
                reason = getattr(exc, "sqlite_errorname", type(exc).__name__)
                log.warning("store_failing", extra={"fields": {"reason": reason}})
            await self._let_go()
            return False
        self.written += len(rows)
        if self._failing:
            self._failing = False
            log.info("store_recovered", extra={"fields": {"dropped": self.dropped}})
        return True

    async def _open(self) -> Connection:
        assert self._url is not None
        connecting = connect(self._url, uri=True, timeout=RETRY_S)
        connecting._thread.daemon = True  # a disk that hangs must not keep the program from ending
        db = await connecting
        self._db = db
        ((version,),) = await db.execute_fetchall("PRAGMA user_version")
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError("another version's file")
        await db.execute_fetchall("PRAGMA journal_mode = WAL")
        await db.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows, never the file
        await db.execute(_SCHEMA)
        await db.execute(f"PRAGMA user_version = {VERSION}")
        await db.execute(_INTERRUPT, (time.time(), self._first_id))
        await db.execute(_PRUNE, (self._max_rows,))
        await db.commit()
        return db

    async def _let_go(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error, ValueError, TimeoutError):
                await asyncio.wait_for(db.close(), CLOSE_S)
