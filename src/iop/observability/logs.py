"""Lines about what happened: one per request outcome, and the ordinary messages of stdlib ``logging`` (OBS-2).

All of them go through one :class:`Sink`. Writing is a thread's work: the caller appends a small record to a list, so
that neither formatting nor a reader that has stopped ever holds up the event loop. The thread writes what has gathered
after 100 ms or about 32 KiB, whichever comes first, and warnings at once; what exceeds 1 MiB unread is dropped and
counted. A write that fails (a full disk, a reader that has gone) costs the lines that it had, and the next ones are
tried again; once writing succeeds, ``log_lines_dropped`` says how many lines are missing.

Messages are events with plain fields: ``log.info("node_connected", extra={"fields": {"node": node_id}})``. Prompts,
outputs, URLs and secrets are no fields (SEC-4), and an exception of foreign make is logged by its type and place only,
because its text may quote what it choked on.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from iop.errors import IopError
from iop.plain import JSON_ESCAPES, plain

__all__ = ["LogFormat", "Message", "RequestOutcome", "Sink", "listen", "setup", "times_ms"]

LogFormat = Literal["json", "console"]

FLUSH_S = 0.1
FLUSH_BYTES = 32 * 1024
BACKLOG_BYTES = 1024 * 1024
FULL_S = 0.5  # how long one wait for a non-blocking descriptor takes; then it is looked whether the sink was closed
CLOSE_S = 2.0
OUTCOME_BYTES = 400  # a usual outcome line, for the two bounds above


#: The default of times, and what :func:`times_ms` returns for none: a field is left out only if it is this object.
NO_TIME_MS = 0.0


def times_ms(duration_s: float, queue_s: float, first_s: float) -> tuple[float, float, float]:
    """The times of a request as the fields of its line: milliseconds with one decimal."""
    # In one call and in floats alone, since every request asks: through int it would take three times as long.
    return (
        duration_s * 10_000.0 // 1.0 / 10.0 or NO_TIME_MS,
        queue_s * 10_000.0 // 1.0 / 10.0 or NO_TIME_MS if queue_s else NO_TIME_MS,
        first_s * 10_000.0 // 1.0 / 10.0 or NO_TIME_MS if first_s else NO_TIME_MS,
    )


class RequestOutcome(msgspec.Struct, tag_field="event", tag="request", omit_defaults=True, gc=False):
    """The one line about a request (OBS-2): the only line that carries its id.

    ``model`` is the model group it was resolved to, never the client's spelling; ``outcome`` is as in the metric. Times
    are milliseconds, sizes body bytes as the client saw them. Absent fields are left out.
    """

    ts: float
    request_id: str
    api: str
    outcome: str
    status: int
    duration_ms: float
    client_request_id: str = ""
    principal: str = ""
    model: str = ""
    node: str = ""
    provider: str = ""
    stream: bool = False
    attempts: int = 0
    queue_ms: float = NO_TIME_MS
    first_token_ms: float = NO_TIME_MS
    bytes_in: int = 0
    bytes_out: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Message(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Any other line."""

    ts: float
    level: str
    logger: str
    event: str
    fields: dict[str, Any] = {}
    error: str = ""


Record = RequestOutcome | Message


class Sink:
    """Take records from any thread and write them to one file descriptor, in order."""

    def __init__(self, fd: int, log_format: LogFormat) -> None:
        self._fd = fd
        self._render = _json_lines if log_format == "json" else _console_lines
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._bytes = 0
        self._some = threading.Event()  # the thread has something to do
        self._now = threading.Event()  # and should not wait for more
        self._closed = False
        self._mid_line = False  # the last write ended within a line
        self._told = 0  # of the dropped ones
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="iop-logs", daemon=True)
        self._thread.start()

    def outcome(self, record: RequestOutcome) -> None:
        """Logs a request's end. Never blocks."""
        self._put(record, OUTCOME_BYTES, urgent=False)

    def message(self, record: Message, size: int, *, urgent: bool) -> None:
        """Logs a message of about ``size`` bytes; ``urgent`` ones do not wait for company."""
        self._put(record, size, urgent=urgent)

    def close(self) -> None:
        """Write what is left, for at most two seconds, and end the thread. Later records are dropped."""
        with self._lock:
            self._closed = True
        self._some.set()
        self._now.set()
        self._thread.join(CLOSE_S)

    def _put(self, record: Record, size: int, *, urgent: bool) -> None:
        with self._lock:
            if self._closed or self._bytes + size > BACKLOG_BYTES:
                self.dropped += 1
                return
            first = not self._records
            self._records.append(record)
            self._bytes += size
            full = self._bytes >= FLUSH_BYTES
        if first:
            self._some.set()
        if urgent or full:
            self._now.set()

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._now.wait(FLUSH_S)
            with self._lock:
                records, closed = self._records, self._closed
                self._records = []
                self._some.clear()
                self._now.clear()
            self._write_all(records)
            with self._lock:
                # Only now: what is being written counts against the backlog too.
                self._bytes = sum(_size(record) for record in self._records) if self._records else 0
                if self._closed and not closed:
                    self._some.set()
                    self._now.set()
            if closed:
                return

    def _write_all(self, records: list[Record]) -> None:
        """Write the lines, or count them as dropped."""
        missing = self.dropped - self._told
        if missing:
            fields = {"lines": missing}
            gap = Message(ts=time.time(), level="warning", logger=__name__, event="log_lines_dropped", fields=fields)
            records = [gap, *records]
        if not records or self._write(self._render(records)):
            self._told += missing
        else:
            with self._lock:
                self.dropped += len(records) - bool(missing)

    def _write(self, data: bytes) -> bool:
        """Whether the descriptor took all of it. What was cut off in the middle of a line is ended first."""
        view = memoryview(b"\n" + data if self._mid_line else data)
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    if not self._wait_for_room():
                        return False
                    continue
                self._mid_line = bool(view)
        except OSError:
            return False
        return True

    def _wait_for_room(self) -> bool:
        """Wait until a non-blocking descriptor takes more. False once the sink is to be closed."""
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        while not poller.poll(FULL_S * 1000):
            if self._closed:
                return False
        return True


def _size(record: Record) -> int:
    return OUTCOME_BYTES if isinstance(record, RequestOutcome) else 100 + len(record.event) + len(record.error)


# ---- stdlib logging -------------------------------------------------------------------------------------------------


class _Handler(logging.Handler):
    """From ``logging`` to the sink."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = Message(
                ts=record.created,
                level=record.levelname.lower(),
                logger=record.name,
                event=record.getMessage(),
                fields=getattr(record, "fields", {}),
                error=_describe(record.exc_info[1]) if record.exc_info else "",
            )
            self._sink.message(message, _size(message), urgent=record.levelno >= logging.WARNING)
        except Exception:  # as logging itself does: a bad log call must not fail its caller
            self.handleError(record)


def _describe(error: BaseException | None) -> str:
    """One line: what is known to be free of payload. Our errors carry safe texts; the system's carry an errno."""
    if error is None:
        return ""
    if isinstance(error, IopError):
        text = f"{error.code}: {error.message}"
    elif isinstance(error, OSError) and error.strerror:
        text = f"{type(error).__name__}: {error.strerror}"
    else:
        text = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    place = " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{text} at {place}" if place else text


def setup(log_format: LogFormat = "console", *, level: int = logging.INFO, fd: int | None = None) -> Sink:
    """Start the sink (on stderr unless ``fd`` says otherwise) and make it the only handler of stdlib logging.

    The caller owns the sink and closes it last.
    """
    sink = Sink(sys.stderr.fileno() if fd is None else fd, log_format)
    logging.raiseExceptions = False
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(_Handler(sink))
    root.setLevel(level)
    return sink


async def listen(
    logger: logging.Logger,
    listener: str,
    setting: str,
    address: tuple[str, int],
    start: Callable[[str, int], Awaitable[int]],
) -> int:
    """Start a listener, and say where it really is, or which setting asked for what cannot be had.

    Args:
        logger: Of the program.
        listener: Its name for people.
        setting: The field of the configuration file that has its address.
        address: Its host and port; 0 for any port.
        start: Binds, and returns the port.

    Returns:
        The port.

    Raises:
        OSError: From ``start``; its line is written.
    """
    host, port = address
    name = f"[{host}]" if ":" in host else host
    try:
        bound = await start(host, port)
    except OSError as error:
        # The loop wraps the system's text in one of its own. A resolver's numbers are not the system's.
        if error.errno and not isinstance(error, socket.gaierror):
            reason = os.strerror(error.errno)
        else:
            reason = error.strerror or str(error)
        fields = {"setting": setting, "address": f"{name}:{port}", "reason": reason}
        logger.error("cannot_listen", extra={"fields": fields})
        raise
    logger.info("listening", extra={"fields": {"listener": listener, "address": f"{name}:{bound}"}})
    return bound


# ---- rendering ------------------------------------------------------------------------------------------------------


def _safe(value: object) -> str:
    """For whatever a field may hold that JSON has no form for."""
    return str(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_safe)


def _json_lines(records: list[Record]) -> bytes:
    lines = _ENCODER.encode_lines([_flat(r) if isinstance(r, Message) and r.fields else r for r in records])
    if lines.isascii() and b"\x7f" not in lines:
        return lines
    return lines.decode().translate(JSON_ESCAPES).encode()


def _flat(record: Message) -> dict[str, Any]:
    """Fields stand beside the event, where the ones of the outcome line stand."""
    flat: dict[str, Any] = {**record.fields, "ts": record.ts, "level": record.level, "logger": record.logger}
    flat["event"] = record.event
    if record.error:
        flat["error"] = record.error
    return flat


def _console_lines(records: list[Record]) -> bytes:
    return "".join(map(_console_line, records)).encode("utf-8", "backslashreplace")


def _console_line(record: Record) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(record.ts))
    if isinstance(record, RequestOutcome):
        parts = [record.request_id, record.api, record.model or "-", str(record.status), record.outcome]
        parts.append(f"{record.duration_ms:.0f} ms")
        if record.first_token_ms:
            parts.append(f"first token {record.first_token_ms:.0f} ms")
        if record.queue_ms >= 1:
            parts.append(f"queued {record.queue_ms:.0f} ms")
        if record.provider:
            parts.append(f"by {record.provider}")
        return plain(f"{at} request {' '.join(parts)}") + "\n"
    fields = "".join(f" {key}={value}" for key, value in record.fields.items())
    error = f" ({record.error})" if record.error else ""
    level = "" if record.level == "info" else f"{record.level}: "
    return plain(f"{at} {level}{record.event}{fields}{error}") + "\n"
