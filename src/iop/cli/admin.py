"""Asking a running edge's admin listener, and what to say when it does not answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from iop.cli.program import Usage
from iop.config.fields import HostPort

__all__ = ["ask", "printable"]

ANSWER_BYTES = 64 << 20


def ask(admin: HostPort, method: str, path: str, *, timeout_s: float) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of an answer; of those that are no success only an error object's.

    Raises ConnectionError if nobody answers and :class:`Usage` if whoever does is no edge.
    """
    # Without the handlers of the environment: a proxy has no business with this address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://{admin}{path}", method=method)
    try:
        try:
            with opener.open(request, timeout=timeout_s) as response:
                status, body = response.status, response.read(ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read(ANSWER_BYTES)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise ConnectionError(
            0, f"no edge answers on {admin}: {text}; is it running, with this admin.listen?"
        ) from None
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or (status >= 300 and not isinstance(answer.get("error"), dict)):
        said = "did not answer with JSON" if status < 300 else f"answered {status}"
        raise Usage(f"{admin} {said}; is it the admin address of an edge?")
    return status, answer


def printable(text: object) -> str:
    """Safe to print on a terminal, whoever wrote it."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
