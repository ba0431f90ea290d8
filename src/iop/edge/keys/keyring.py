"""Every key that is good: those of edge.yaml, and those of the keys file as it changes (API-11, CONF-2).

The file is looked at once a second; what looks different is read in a thread and taken over in one step, or refused
with all its faults, and then the keys stay that there are. A file that is gone is no fault: its keys are gone too. An
edge that names a keys file asks for a key in any case, even while there is none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iop.config.edge import HttpSection
from iop.config.keys import KeyRules
from iop.config.keysfile import Reading, Signature, Text, check_keys, conflicts, look, parse, read_text
from iop.edge.keys.limits import Key, Keyring, KeySpec
from iop.errors import ConfigError
from iop.net.loop import Runtime
from iop.net.wheel import Timer

__all__ = ["Found", "Keychain"]

log = logging.getLogger("iop.edge.keys.limits")

LOOK_S = 1.0
READ_S = 30.0
TOLD = 100  # faults in one line or answer, principals in one status


@dataclass(frozen=True, slots=True)
class Found:
    """What a reading of the keys file found: the file, and its good keys by the SHA-256 of each."""

    reading: Reading = field(default_factory=Reading)
    specs: Mapping[bytes, KeySpec] = field(default_factory=dict)


class Keychain:
    """``keys`` are those that count now; ``changed`` is called when the file has brought others. Raises ConfigError if
    there is a file and it is broken: there are no older keys to go on with."""

    def __init__(self, runtime: Runtime, http: HttpSection, changed: Callable[[], None]) -> None:
        self._runtime = runtime
        self._http = http
        self._changed = changed
        self._ring = Keyring()
        self._timer: Timer | None = None
        self._reading_at: float | None = None  # since when a thread reads
        self.faults: list[str] = []  # of the file as it is, if it was refused
        self.applied_at = time.time()
        self.found = Found()  # what counts of the keys file
        self._seen = _state(None)
        self._take(http, self.prepare(http))

    # ---- edge.yaml ---------------------------------------------------------------------------------------------------

    def prepare(self, http: HttpSection) -> Found:
        """Read the keys file that a configuration names. Raises ConfigError; a thread may do it."""
        return self._of(check_keys(http))

    def take(self, http: HttpSection, found: Found) -> None:
        """Take over a configuration, and the keys file as it was read for it, unless a newer state is known."""
        text, known = found.reading.text, self.found.reading.text
        if text is not None and known is not None and known.path == text.path and known.number > text.number:
            found = self.found
        before = self._ring.keys
        self._take(http, found)
        self._tell(before)

    def _of(self, reading: Reading) -> Found:
        """Thousands of keys are a matter of the thread; on the loop those that stay are seen to be the same objects."""
        known, specs = self.found.specs, {}
        for record in reading.records:
            if record.enabled and record.revoked_at is None:
                digest, spec = bytes.fromhex(record.key_sha256), _spec(record)
                old = known.get(digest)
                specs[digest] = old if old == spec and old is not None else spec
        return Found(reading, specs)

    def _take(self, http: HttpSection, found: Found) -> None:
        if http.keys_file != self._http.keys_file:
            self._reading_at = None  # one that hangs must not keep the other file from being followed
        self._http = http
        if found is not self.found:
            self.found = found
            self._seen = _state(found.reading.text)
            self.faults = []
        own = {key.key_hash: _spec(key) for key in http.api_keys if key.enabled}
        self._ring.configure({**found.specs, **own})

    # ---- following the file ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """From here on the file is looked at."""
        self._timer = self._runtime.wheel.arm(LOOK_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._runtime.wheel.arm(LOOK_S, self._look)
        path = self._http.keys_file
        if path is None:
            return
        if self._reading_at is not None:
            if self._runtime.wheel.now - self._reading_at > READ_S:
                self._refuse([f"{path}: reading it takes longer than {READ_S:g} s; is it on a disk?"])
            return
        settled, seen = self._seen
        if not settled or look(path) != seen:
            self._reading_at = self._runtime.wheel.now
            # A daemon: a disk that never answers must not keep the edge from ending.
            known = self.found.reading.text if not self.faults else None
            threading.Thread(target=self._read, args=(path, known), name="iop-keys", daemon=True).start()

    def _read(self, path: Path, known: Text | None) -> None:
        """In the thread. What has the contents that are known already is not parsed again."""
        text: Text | None = None
        found: Found | ConfigError | None
        try:
            text = read_text(path)
            found = None if known is not None and text.data == known.data else self._of(parse(text))
        except ConfigError as exc:
            found = exc
        except Exception as exc:
            log.error("keys_broken", exc_info=exc)
            found = ConfigError([f"{path}: could not be read for a fault of the edge itself; see its log"])
        try:
            self._runtime.loop.call_soon_threadsafe(self._came, path, text, found)
        except RuntimeError:  # the loop is closed: the edge has ended
            return

    def _came(self, path: Path, text: Text | None, found: Found | ConfigError | None) -> None:
        if self._timer is None or path != self._http.keys_file:
            return None  # closed, or another file by now
        self._reading_at = None
        known = self.found.reading.text
        if text is not None and known is not None and known.number > text.number:
            return None  # a reload has read it since
        # What cannot be read is not read again before it looks different.
        self._seen = _state(text) if text is not None else (True, look(path))
        if found is None:
            return None
        if isinstance(found, ConfigError):
            return self._refuse(found.faults)
        faults = conflicts(self._http.api_keys, found.reading)
        if faults:
            return self._refuse(faults)
        before, refused = self._ring.keys, bool(self.faults)
        self._take(self._http, found)
        self._tell(before, again=refused)
        self._changed()
        return None

    def _tell(self, before: Mapping[bytes, Key], *, again: bool = False) -> None:
        """One line for a change, also for one that only mends the file."""
        after = self._ring.keys
        added, removed = len(after.keys() - before.keys()), len(before.keys() - after.keys())
        changed = sum(key is not before[digest] for digest, key in after.items() if digest in before)
        if added or removed or changed or again:
            self.applied_at = time.time()
            fields = {"keys": len(after), "added": added, "removed": removed, "changed": changed}
            log.info("keys_reloaded", extra={"fields": fields})

    def _refuse(self, faults: list[str]) -> None:
        if faults[:TOLD] != self.faults:
            self.faults = faults[:TOLD]
            log.error("keys_refused", extra={"fields": {"faults": self.faults}})

    # ---- what is going on --------------------------------------------------------------------------------------------

    @property
    def keys(self) -> Mapping[bytes, Key]:
        """By the SHA-256 of each."""
        return self._ring.keys

    @property
    def count(self) -> int:
        """Good keys; one that expires counts until its entry goes."""
        return len(self._ring.keys)

    @property
    def named(self) -> set[str]:
        """The principals of all good keys."""
        return {key.principal for key in self._ring.keys.values()}

    def status(self) -> dict[str, Any]:
        """What ``/admin/status`` says of keys."""
        return {"count": self.count, "applied_at": round(self.applied_at, 3), "faults": self.faults}

    def principals(self, in_flight: dict[str, int], now: float) -> list[dict[str, Any]]:
        """Who is busy: requests under way, and what the keys with rates of each have used in the last minute; None
        where no key counts that. The busiest ones."""
        rows: dict[str, list[int | None]] = {name: [count, None, None] for name, count in in_flight.items()}
        for key in self._ring.keys.values():
            used, spec = key.counters, key.spec
            for column, limit, window in (
                (1, spec.requests_per_minute, used.requests),
                (2, spec.tokens_per_minute, used.tokens),
            ):
                if limit is not None and (window.held(now) or key.principal in rows):
                    row = rows.setdefault(key.principal, [0, None, None])
                    row[column] = (row[column] or 0) + window.total
        busiest = sorted(rows.items(), key=lambda item: ([-(n or 0) for n in item[1]], item[0]))[:TOLD]
        names = ("in_flight", "requests_last_minute", "tokens_last_minute")
        return [{"principal": name, **dict(zip(names, row, strict=True))} for name, row in busiest]


def _state(text: Text | None) -> tuple[bool, Signature]:
    return (True, ()) if text is None else (text.settled, text.seen)


def _spec(rules: KeyRules) -> KeySpec:
    return KeySpec(
        rules.principal,
        rules.models,
        rules.max_concurrent_requests,
        rules.requests_per_minute,
        rules.tokens_per_minute,
        rules.weight,
        rules.expires_at.timestamp() if rules.expires_at is not None else None,
    )
