"""What has to be equal: status, content type and body, but for the keepalives that IOP puts between events."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.oracle.visits import Exchange
from tests.oracle.wire import Got

KEEPALIVE = re.compile(rb": keepalive[^\r\n]*\n(\n?)")
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
BOM = b"\xef\xbb\xbf"
MARK = re.compile(rb": keepalive|event: ping\n")


def difference(exchange: Exchange, direct: Got, through: Got) -> str:
    """What is different, in a line; empty if nothing is."""
    assert not direct.fault, f"the provider itself: {direct.fault}"
    if direct.status == 415 and b"misread" in direct.body:
        raise AssertionError("the provider does not understand the direct question")
    told_early = exchange.stream and not through.all(b"x-iop-attempts") and through.status == 200
    if told_early and not exchange.answer.events:
        return _as_event(direct, through)
    if through.fault:
        return f"the answer {through.fault} after {len(through.body)} of {len(direct.body)} bytes"
    if through.status != direct.status:
        return f"status {through.status} instead of {direct.status}: {through.body[:300]!r}"
    if told_early:
        if through.all(b"content-type") != [b"text/event-stream"]:
            return f"content type {through.all(b'content-type')} behind a keepalive"
    else:
        for name in (b"content-type", b"content-encoding", b"x-extra"):
            if through.all(name) != direct.all(name):
                return f"{name!r} is {through.all(name)} instead of {direct.all(name)}"
    body = through.body
    if exchange.answer.events:
        if list(sticky_events(body)) != list(sticky_events(direct.body)):
            return "a decoder that keeps ids reads other events"
        expected = direct.body.removeprefix(BOM) if told_early else direct.body  # it is not the first thing any more
        return _where(without_keepalives(body, expected), expected)
    return _where(body, direct.body)


def _where(body: bytes, expected: bytes) -> str:
    if body == expected:
        return ""
    at = next(
        (i for i, (a, b) in enumerate(zip(body, expected, strict=False)) if a != b), min(len(body), len(expected))
    )
    told = f"{len(body)} bytes instead of {len(expected)}, other from byte {at} on: "
    return told + f"{body[max(0, at - 40) : at + 80]!r} instead of {expected[max(0, at - 40) : at + 80]!r}"


def _as_event(direct: Got, through: Got) -> str:
    """A stream was begun for keepalives before the provider gave another answer: that is told as an event, and the end
    is unclean (API-7b)."""
    if not through.fault:
        return "a clean end behind a keepalive and an answer that is no stream"
    if b"error" not in through.body:
        return f"no error event behind a keepalive: {through.body[-300:]!r}"
    if direct.status >= 400 and b'"message": "wrong x' not in through.body:
        return "the provider's own error is not told behind a keepalive"
    return ""


def without_keepalives(body: bytes, expected: bytes) -> bytes:
    """``body`` without what IOP put in; only places between two events of ``expected`` count."""
    parts: list[bytes] = []
    at = length = 0
    for mark in MARK.finditer(body):
        if mark.start() < at:
            continue
        length_before = length + mark.start() - at
        if not _between(expected, length_before):
            continue
        match = KEEPALIVE.match(body, mark.start())
        if match is not None:
            after_id = re.search(rb"(?:^|[\r\n])id[:\r\n]", expected[:length_before]) is not None
            end = match.start(1) if after_id else match.end()
        elif body.startswith(PING, mark.start()) and not expected.startswith(PING, length_before):
            end = mark.start() + len(PING)
        else:
            continue
        parts.append(body[at : mark.start()])
        length, at = length_before, end
    return b"".join([*parts, body[at:]])


def _between(expected: bytes, at: int) -> bool:
    """Whether nothing, or a blank line, comes before this place; comments do not count as an event begun."""
    before = expected[max(0, at - 4096) : at].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    while before.endswith(b"\n") and (line := before[:-1].rpartition(b"\n")[2]).startswith(b":"):
        before = before[: -len(line) - 1]
    return at == 0 or before.endswith(b"\n\n") or before in (b"", b"\n", BOM)


def sticky_events(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Type and data of the events as decoders see them that dispatch at every blank line once there was an id: those
    of openai-python and others. Pings are left out."""
    kind, data, seen_id = b"", [], False
    for line in re.split(rb"\r\n|\n|\r", body.removeprefix(BOM)):
        if not line:
            if data or kind or seen_id:
                if kind != b"ping":
                    yield kind, b"\n".join(data)
                kind, data = b"", []
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            kind = value.removeprefix(b" ")
        elif name == b"id":
            seen_id = True
