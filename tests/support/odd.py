"""``python -m tests.support.odd``: the whole suite as somebody else may run it.

From a folder whose path has 120 characters, as a background job (SIGINT and SIGHUP ignored), without a terminal, with
80 columns, a strict umask and an odd time zone. Arguments are pytest's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH_CHARS = 120
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")


def main() -> int:
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with tempfile.TemporaryDirectory(prefix="iop-odd-") as base:
        folder = Path(base) / ("x" * max(1, PATH_CHARS - len(base) - 1))
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        print(f"pytest in {folder}", flush=True)
        environment = os.environ | {
            "COLUMNS": "80",
            "TZ": "Pacific/Chatham",  # 12:45 hours ahead of UTC
            "PYTHONPATH": str(folder / "src"),
        }
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]
        reading, writing = os.pipe()  # so that standard output is no terminal either
        with subprocess.Popen(
            line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing
        ) as process:
            os.close(writing)
            while data := os.read(reading, 65536):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            return process.wait()


if __name__ == "__main__":
    sys.exit(main())
