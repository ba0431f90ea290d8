"""A file of ours is replaced in one step: whoever opens its name gets the old one or the new one, whole, also after a
power cut.

The new one may hold secrets. It is its writer's alone until ``give`` has said whose it is to be, and only then is
anything in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, data: bytes, give: Callable[[int], None]) -> None:
    """Writes a new file beside the old one and renames it over it; a link stays one. ``give`` sets owner and mode of a
    descriptor. One writer at a time: what is there by the new one's name is of a command that was killed. Raises
    OSError, and whatever ``give`` does; then the old file is there and nothing beside it."""
    path = Path(os.path.realpath(path))
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            give(descriptor)
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
