"""What the edge has checked is what any parser reads (API-8c): bodies that parsers read differently, as who reads them.

    python -m tests.fuzz.differential --json 1000000 --forms 100000 [--seed N]

Each body is refused by the edge, or no parser of :mod:`tests.support.parsers` that takes what leaves the edge sees
another model, or another value of what the edge decided by.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter

from iop._fast.form import FormScanner
from iop._fast.scan import RequestScanner
from iop.edge.api.body import Intake, form_of
from iop.errors import IopError
from iop.net.http.head import parse_request
from tests.support import parsers

TARGET = "target"
HEAD = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\n\r\n"
KEYS = (*parsers.READ, "tools")
LIMIT = 1 << 20


Facts = RequestScanner | FormScanner


def left(kind: str, body: bytes, rng: random.Random, tally: Counter[str]) -> tuple[Facts, bytes] | None:
    """What the edge has learnt, and the body that leaves it for :data:`TARGET`; None if it refuses. Counted."""
    try:
        head = parse_request((HEAD % kind).encode("latin-1"))
        intake = Intake(head, LIMIT, form_of(head))
        cut = rng.randrange(len(body) + 1) if body else 0
        for piece in (body[:cut], body[cut:]):
            if intake.feed(piece):
                while intake.step():
                    pass
        intake.finish()
        out = b"".join(intake.body_for(TARGET)[0])
    except IopError:
        tally["refused"] += 1
        return None
    tally["taken"] += 1
    return intake._scanner, out


# ---- JSON -----------------------------------------------------------------------------------------------------------

SPELLINGS = {"s": "sS\u017f", "k": "kK\u212a", "i": "iI\u0131\u0130"}
VALUES = ('"secret"', "true", "false", "null", "0", '"true"', "[]", "{}", '["secret"]', '""', '{"model":"secret"}')
TOOLS = ('[{"type":"mcp"}]', '[{"TYPE":"mcp"}]', '[{"type":"a","type":"mcp"}]', '[{"type":"mcp","type":"a"}]', "null")
KINDS = ("application/json", "application/json", "text/plain", "application/x-www-form-urlencoded", "x; charset=utf-8",
         "application/json; charset=iso-8859-1", "application/json; charset=utf-16")  # fmt: skip
SPACES = ("", "", "", " ", "\n", "\t\r ", "\x0b", "\u00a0", "\u2028")


def spelled(key: str, rng: random.Random) -> str:
    """The key, or another one that some parser may take for it."""
    odd = rng.random()
    if odd < 0.45:
        text = key
    elif odd < 0.8:
        text = "".join(rng.choice(SPELLINGS.get(c, c + c.upper())) if rng.random() < 0.3 else c for c in key)
    elif odd < 0.9:
        text = key + rng.choice(("\0", "\0x", " ", "\u200b", "\ufeff", "\u0301", "s", "[]", "\ud800"))
    else:
        text = rng.choice((" ", "\0", "\ufeff", "$")) + key
    escaped = "".join(f"\\u{ord(c):04x}" if rng.random() < 0.1 and ord(c) < 0x10000 else c for c in text)
    return '"' + "".join(f"\\u{ord(c):04x}" if c < " " or "\ud800" <= c <= "\udfff" else c for c in escaped) + '"'


def json_case(rng: random.Random) -> tuple[str, bytes]:
    members = [('"model"', '"allowed"')] if rng.random() < 0.9 else []
    for _ in range(rng.randrange(4)):
        key = rng.choice(KEYS)
        values = TOOLS if key == "tools" and rng.random() < 0.8 else VALUES
        members.append((spelled(key, rng), rng.choice(values)))
    rng.shuffle(members)
    space = rng.choice(SPACES) if rng.random() < 0.2 else ""
    text = "{" + f"{space},".join(f"{space}{key}:{space}{value}" for key, value in members) + "}" + space
    body = text.encode("utf-8", "surrogatepass")
    how = rng.random()
    if how < 0.05:
        body = rng.choice((b"\xef\xbb\xbf", b"\xef\xbb", b" ", b"\xff\xfe", b"\0")) + body
    elif how < 0.07:
        body = text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32-be", "utf-7")), "surrogatepass")
    elif how < 0.2:
        body = damaged(body, rng, b'{}[]",:\\u0 \n\0\xff\xc5\xbf/*#')
    return rng.choice(KINDS), body


def damaged(body: bytes, rng: random.Random, junk: bytes) -> bytes:
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(len(body) + 1)
        body = body[:at] + bytes(rng.choices(junk, k=rng.randrange(3))) + body[at + rng.randrange(3) :]
    return body


def check_json(rng: random.Random, tally: Counter[str]) -> str | None:
    """One case; what is wrong with it, if anything."""
    kind, body = json_case(rng)
    got = left(kind, body, rng, tally)
    if got is None:
        return None
    facts, out = got
    want = {
        "model": TARGET, "stream": facts.stream is True, "store": facts.store,
        "background": facts.background is True, "previous": facts.has_previous_response_id,
    }  # fmt: skip
    for name, parse in parsers.JSON.items():
        seen = parse(out)
        if seen is None:
            continue
        tally[name] += 1
        read = {
            "model": seen.get("model"), "stream": bool(seen.get("stream")), "store": seen.get("store"),
            "background": bool(seen.get("background")), "previous": seen.get("previous_response_id") is not None,
        }  # fmt: skip
        if read != want or not seen["tools"] <= facts.tool_types:
            return f"{name} reads {read} {seen['tools']}, the edge {want} {set(facts.tool_types)}: {body!r} as {kind}"
    return None


# ---- forms ----------------------------------------------------------------------------------------------------------

BOUNDARIES = ("B", "B", "----WebKitFormBoundaryAbC", "a b", "=_x", "-", "--", "a'b", "(x)", "a,b", "x:y?")
NAMES = ('"%s"', '"%s"', "%s", "'%s'", '" %s"', '"%s "', '"<%s>"', '"%s\\"', '"%s";', '"%s"; name*=utf-8\'\'secret',
         '"x"; name*=utf-8\'\'%s', '"x"; name*0="%s"', '"x"; name="%s"', '"x" ; NAME="%s"', '"=?utf-8?q?%s?="',
         '"%s"; filename="f"', '"%s"; filename=', '"%s"; filename*=utf-8\'\'f', '"%s"; x="; name=secret"',
         '"x\\"; name=\\"%s"', '"%s"; creation-date="x"')  # fmt: skip
LINES = ("Content-Type: text/plain", "Content-Type: text/plain; charset=utf-16",
         "Content-Type: text/plain; charset=utf-7", "Content-Type: application/octet-stream",
         "Content-Type: multipart/mixed; boundary=B", "X: y", " folded",
         "Content-Type: multipart/form-data; boundary=C", "Content-Transfer-Encoding: base64", "Content-Length: 1",
         "Content-Transfer-Encoding: quoted-printable", "Content-Encoding: gzip", "Content-Encoding: deflate",
         "Content-Length: 7", "Content-Length: 300", "content-disposition: form-data; name=model", "",
         "Content-Type: message/rfc822", "Content-Type: application/x-www-form-urlencoded")  # fmt: skip
ENDS = ("\r\n", "\n", "\r", "\n\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "", " \r\n", "\r\n ", "\r\r\n")


def form_case(rng: random.Random) -> tuple[str, bytes]:
    boundary = rng.choice(BOUNDARIES)
    told = f'"{boundary}"' if rng.random() < 0.5 else boundary
    kind = f"multipart/form-data; boundary={told}"
    how = rng.random()
    if how < 0.05:
        kind += rng.choice(
            ("; charset=utf-7", "; charset=utf-16", "; charset=utf-8", "; boundary=C", "; boundary*=C", ";")
        )
    elif how < 0.08:
        kind = kind.replace("boundary", rng.choice(("Boundary", "boundary ", "boundary*", "boundary*0")))
    sure = f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\nallowed'
    parts = [sure] if rng.random() < 0.95 else []
    for _ in range(rng.randrange(4)):
        parts.append(part(boundary, rng))
    rng.shuffle(parts)
    ends = [rng.choice(ENDS) if rng.random() < 0.08 else "\r\n" for _ in parts]
    text = "".join(p + e for p, e in zip(parts, ends, strict=True)) + f"--{boundary}--"
    text += "" if rng.random() < 0.3 else "\r\n"
    body = text.encode("utf-8", "surrogateescape")
    if rng.random() < 0.15:
        body = damaged(body, rng, b'\r\n-- "=;\\\0B\xff')
    return kind, body


def part(boundary: str, rng: random.Random) -> str:
    key = rng.choice((*parsers.READ, "model", "model", "_charset_", "x"))
    if rng.random() < 0.2:
        key = json.loads(spelled(key, rng)).replace("\0", "").encode("utf-8", "replace").decode()
    elif rng.random() < 0.1:
        at = rng.randrange(len(key))
        key = key[:at] + rng.choice(("\\", "%6d", "+", "/", "?", ";", "\t", "&#x6d;", '"')) + key[at:]
    lines = [f"Content-Disposition: form-data; name={rng.choice(NAMES if rng.random() < 0.4 else NAMES[:1]) % key}"]
    lines += rng.choices(LINES, k=rng.choice((0, 0, 0, 1, 1, 2)))
    if rng.random() < 0.3:
        rng.shuffle(lines)
    value = rng.choice(("secret", "true", "0", "", "utf-16", "+AG0-odel", "\r", "x" * 20))
    if rng.random() < 0.25:
        inner = rng.choice(ENDS) + f"--{boundary}" + rng.choice(ENDS)
        value += (
            inner + f'Content-Disposition: form-data; name="model"{rng.choice(ENDS[:3])}{rng.choice(ENDS[:3])}secret'
        )
    end = "\r\n" if rng.random() < 0.97 else rng.choice(ENDS)
    return f"--{boundary}{end}" + "".join(line + "\r\n" for line in lines) + "\r\n" + value


def check_form(rng: random.Random, tally: Counter[str]) -> str | None:
    kind, body = form_case(rng)
    got = left(kind, body, rng, tally)
    if got is None:
        return None
    facts, out = got
    want = {"stream": facts.stream is True, "store": facts.store, "background": facts.background is True}
    for name, parse in parsers.FORMS.items():
        fields = parse(kind, out)
        if fields is None:
            continue
        tally[name] += 1
        seen: dict[str, list[bytes]] = {}
        for key, value in fields:
            seen.setdefault(key.strip().casefold(), []).append(value)
        read = {flag: _flag(seen.get(flag)) for flag in want}
        if want["store"] is not None:
            read["store"] = bool(read["store"])
        read["stream"], read["background"] = bool(read["stream"]), bool(read["background"])
        previous = seen.get("previous_response_id", []) not in ([], [b""])
        if seen.get("model") != [TARGET.encode()] or read != want or previous != facts.has_previous_response_id:
            return f"{name} reads {seen}, the edge {want}: {body!r} as {kind}"
    return None


def _flag(values: list[bytes] | None) -> object:
    if values is None:
        return None
    text = values[0].lower() if len(values) == 1 else b"?"
    return {b"true": True, b"1": True, b"on": True, b"yes": True}.get(
        text, False if text in (b"false", b"0", b"off", b"no", b"") else text
    )


# ---- running --------------------------------------------------------------------------------------------------------

CHECKS = {"json": check_json, "forms": check_form}


def run(what: str, cases: int, seed: int) -> Counter[str]:
    """So many cases; how many were refused, taken, and read by whom. Raises AssertionError at a difference."""
    rng, tally, check = random.Random(seed), Counter[str](), CHECKS[what]
    for case in range(cases):
        wrong = check(rng, tally)
        assert wrong is None, f"seed {seed}, case {case}: {wrong}"
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.differential")
    parser.add_argument("--json", type=int, default=0, metavar="N")
    parser.add_argument("--forms", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    args = parser.parse_args()
    for what in CHECKS:
        began = time.monotonic()
        tally = run(what, getattr(args, what), args.seed)
        took = time.monotonic() - began
        print(
            f"{what}: {getattr(args, what)} cases in {took:.0f} s, seed {args.seed}, 0 differences: {dict(tally)}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
