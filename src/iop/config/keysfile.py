"""The keys file: JSON that ``iop-edge key`` writes and the edge follows (API-11, CONF-2).

One key a line. It is written whole beside itself and renamed into place, under a lock on its folder, so that a reader
sees one state or the next and two commands at once lose nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from iop.config.edge import ApiKey, HttpSection
from iop.config.keys import MAX_KEYS, KeyRecord, KeysDocument
from iop.config.load import field_faults, render
from iop.config.replace import replace_file
from iop.errors import ConfigError

__all__ = [
    "Reading",
    "Signature",
    "Text",
    "change_keys",
    "check_keys",
    "conflicts",
    "look",
    "parse",
    "read_keys",
    "read_text",
]

FILE_BYTES = 8 << 20
REVOKED_KEPT = 1_000
LOCK_S = 10.0
LOCK_POLL_S = 0.02
#: A file that changed this recently may change again without looking different.
SETTLED_S = 2.0

Signature = tuple[int, ...]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Text:
    """What was found at a path: None for ``data`` if there is no file. ``settled`` if a later change is sure to show in
    the signature. ``number`` orders readings by when they began."""

    path: Path
    seen: Signature
    data: bytes | None
    settled: bool
    number: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The keys of a file, and of which state of it."""

    text: Text | None = None
    records: tuple[KeyRecord, ...] = ()


def look(path: Path) -> Signature:
    """What a file looks like from outside; another value means that it has changed. Empty if it is not there."""
    try:
        return _signature(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        return (error.errno or 0,)


def _signature(seen: os.stat_result) -> Signature:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def read_text(path: Path) -> Text:
    """The file's bytes. A missing file is no fault; raises ConfigError for one that cannot be read."""
    number = next(_numbers)
    try:
        # Not blocking: what looks like a file may be a pipe that nobody writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Text(path, (), None, True, number)
    except OSError as error:
        raise ConfigError([f"{path}: cannot read it: {error.strerror}"]) from None
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise ConfigError([f"{path}: not a file"])
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot read it: {error.strerror}"]) from None
    finally:
        os.close(descriptor)
    if len(data) > FILE_BYTES:
        raise ConfigError([f"{path}: larger than {FILE_BYTES >> 20} MiB"])
    settled = abs(time.time() - max(seen.st_mtime, seen.st_ctime)) > SETTLED_S
    return Text(path, _signature(seen), data, settled, number)


def parse(text: Text) -> Reading:
    """The keys that the bytes say. Raises ConfigError with all faults; no fault quotes a value."""
    if text.data is None:
        return Reading(text)
    try:
        tree = json.loads(text.data, object_pairs_hook=_object)
    except _Twice as error:
        raise ConfigError([f"{text.path}: {error.args[0]!r} is given twice in one object"]) from None
    except RecursionError:
        raise ConfigError([f"{text.path}: nested too deeply"]) from None
    except ValueError as error:
        where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError([f"{text.path}{where}: not valid JSON, as `iop-edge key` writes it"]) from None
    if not isinstance(tree, dict):
        raise ConfigError([f'{text.path}: should be an object with a list: {{"keys": [...]}}'])
    try:
        records = KeysDocument.model_validate_json(json.dumps(tree)).keys
    except ValidationError as error:
        raise ConfigError(render(list(field_faults(KeysDocument, error)), {}, str(text.path))) from None
    seen: dict[str, int] = {}
    twins = [
        f"{text.path}: keys[{index}]: the same key as keys[{first}]"
        for index, record in enumerate(records)
        if (first := seen.setdefault(record.key_sha256, index)) != index
    ]
    if twins:
        raise ConfigError(twins)
    return Reading(text, records)


class _Twice(ValueError):
    """A name that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1)[:40])
    return found


def read_keys(path: Path | None) -> Reading:
    """The keys of a file; none without one. Raises ConfigError."""
    return Reading() if path is None else parse(read_text(path))


def conflicts(api_keys: Iterable[ApiKey], reading: Reading) -> list[str]:
    """Faults: keys that both files have. Then it would not be clear which entry counts."""
    text = reading.text
    if text is None:
        return []
    places = {bytes.fromhex(record.key_sha256): index for index, record in enumerate(reading.records)}
    return [
        f"{text.path}: keys[{places[key.key_hash]}]: the same key as http.api_keys[{index}]; keep it in one place"
        for index, key in enumerate(api_keys)
        if key.key_hash in places
    ]


def check_keys(http: HttpSection) -> Reading:
    """The keys file of a configuration, as an edge takes it. Raises ConfigError with all faults."""
    reading = read_keys(http.keys_file)
    faults = conflicts(http.api_keys, reading)
    if faults:
        raise ConfigError(faults)
    return reading


# ---- changing it ----------------------------------------------------------------------------------------------------


def change_keys(
    path: Path, change: Callable[[list[KeyRecord]], list[KeyRecord]], *, beside: Path | None = None
) -> list[KeyRecord]:
    """Reads the file, lets ``change`` make new records of the old ones, and writes these. Nobody else does meanwhile.

    A new file has mode 0600. If ``beside``, the edge's own file, is for another group to read, so is the new one: that
    is how an edge that runs under a user of its own reads what root writes. An old file keeps owner and group, and what
    the group may read. Raises ConfigError for a file that is broken or cannot be locked, and OSError.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    with _locked(path.parent):
        text = read_text(path)
        before = list(parse(text).records)
        after = change(list(before))
        if after == before and text.data is not None:
            return after
        kept = _pruned(after)
        if len(kept) > MAX_KEYS:
            raise ConfigError([f"{path}: a keys file has at most {MAX_KEYS} keys; revoke some"])
        replace_file(path, _render(kept), lambda descriptor: _give(descriptor, path, beside))
        return kept


def _pruned(records: list[KeyRecord]) -> list[KeyRecord]:
    """Revoked keys stay for the record, the latest ones; in their old order."""
    revoked = sorted((r for r in records if r.revoked_at), key=lambda r: str(r.revoked_at), reverse=True)
    gone = {record.key_sha256 for record in revoked[REVOKED_KEPT:]}
    return [record for record in records if record.key_sha256 not in gone]


def _render(records: list[KeyRecord]) -> bytes:
    rows = [json.dumps(record.model_dump(mode="json", exclude_defaults=True)) for record in records]
    return ('{"keys": [\n  ' + ",\n  ".join(rows) + "\n]}\n" if rows else '{"keys": []}\n').encode()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder's lock: the file itself is replaced, so a lock on it would be one on the past."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline_at = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_at:
                    raise ConfigError([f"{folder}: another command has held its lock for {LOCK_S:g} s"]) from None
                time.sleep(LOCK_POLL_S)
            except OSError as error:
                raise ConfigError(
                    [f"{folder}: cannot lock it: {error.strerror}; keep the keys file on a local disk"]
                ) from None
        yield
    finally:
        os.close(descriptor)


def _give(descriptor: int, path: Path, beside: Path | None) -> None:
    """Owner, group and mode of the new file. Whom it may not be given to by us does not get it."""
    mine = os.fstat(descriptor)
    with contextlib.suppress(FileNotFoundError):
        old = path.stat()
        if (old.st_uid, old.st_gid) != (mine.st_uid, mine.st_gid):
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, old.st_uid, old.st_gid)
        given = os.fstat(descriptor)
        group = 0o040 if given.st_gid == old.st_gid else 0
        os.fchmod(descriptor, 0o600 | (old.st_mode & group))
        return
    if beside is not None:
        like = beside.stat()
        if like.st_mode & 0o040 and like.st_gid != mine.st_gid:
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, -1, like.st_gid)
                os.fchmod(descriptor, 0o640)
