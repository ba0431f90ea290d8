"""``iop-edge run``: one normalized run through a running edge, its text as it comes (POOL-14)."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any

from iop.cli.program import Exit, Usage, say, shown
from iop.config.fields import HostPort
from iop.errors import ProviderProtocolError
from iop.net.http.events import EventReader

__all__ = ["run"]

PROMPT_BYTES = 3 << 20  # the edge takes 4 MiB, and line ends take two bytes in JSON
ERROR_BYTES = 1 << 20


def run(admin: HostPort, asked: dict[str, Any], *, timeout_s: float, as_json: bool) -> int:
    """Ask for the run, print what it says, and return the exit code: 0 for a complete one, 1 for any other end.

    ``asked`` is the body of ``POST /admin/runs``. Raises ConnectionError if nobody answers, :class:`Usage` for an
    answer that is not of an edge. Who leaves in the middle (Ctrl-C) cancels it.
    """
    request = urllib.request.Request(
        f"http://{admin}/admin/runs",
        method="POST",
        data=json.dumps({**asked, "timeout_ms": int(timeout_s * 1000)}, ensure_ascii=False).encode("utf-8", "replace"),
        headers={"content-type": "application/json"},
    )
    # Without the handlers of the environment: a proxy has no business with this address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s + 10) as response:
            if response.status == 202:
                say(json.loads(response.read(ERROR_BYTES))["run_id"])
                return Exit.OK
            return _follow(response, as_json=as_json)
    except urllib.error.HTTPError as error:
        with error:
            return _refused(error.read(ERROR_BYTES), error.code)
    except BrokenPipeError:
        raise  # the reader of our output has left
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise ConnectionError(0, f"no answer from the edge on {admin}: {text}; is it running?") from None


def read_prompt(words: list[str]) -> str:
    """The prompt: the words of the command line, or standard input for ``-``."""
    if words != ["-"]:
        return os.fsencode(" ".join(words)).decode("utf-8", "replace")
    text = sys.stdin.buffer.read(PROMPT_BYTES + 1)
    if len(text) > PROMPT_BYTES:
        raise Usage(f"the prompt has at most {PROMPT_BYTES} bytes")
    return text.decode("utf-8", "replace")


def _follow(response: HTTPResponse, *, as_json: bool) -> int:
    """Print the events; the last one decides."""
    written = False
    for event in _events(response):
        if as_json:
            print(json.dumps(event), flush=True)
        elif event.get("event") == "delta":
            written = True
            sys.stdout.write(shown(event.get("text", ""), keep="\n\t"))
            sys.stdout.flush()
        if event.get("event") in ("complete", "error", "cancelled"):
            if written:
                print()
            if event["event"] == "complete":
                return Exit.OK
            if not as_json:
                say(f"iop-edge: {_message(event)}", error=True)
            return Exit.FAILURE
    if written:
        print()
    print("iop-edge: the edge broke off before the run's end", file=sys.stderr)
    return Exit.FAILURE


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    reader = EventReader()
    while data := response.read1(65536):
        try:
            for item in reader.feed(data):
                event = json.loads(item)
                if isinstance(event, dict):
                    yield event
        except (ValueError, ProviderProtocolError):
            raise Usage("the answer is no run's; is this the admin address of an edge?") from None


def _refused(body: bytes, status: int) -> int:
    try:
        message = _message(json.loads(body))
    except ValueError:
        raise Usage(f"answered {status}; is this the admin address of an edge?") from None
    say(f"iop-edge: {message}", error=True)
    return Exit.FAILURE


def _message(event: Any) -> str:
    error = event.get("error") if isinstance(event, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else "no reason was given"
