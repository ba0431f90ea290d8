"""Keys with limits under load: how exactly a real edge holds them, by its own log lines.

    python -m benchmarks.keys_load                                three minutes and a bit
    python -m benchmarks.keys_load --seconds 70 --json out.json

An edge and a node with the built-in echo provider, each in a process of its own, on free loopback ports; and clients in
this one: some that ask all the time whatever they are told, some that ask a tenth more often than they may, one that
does as ``Retry-After`` says, some that use up tokens, many at once on a key with a cap, and some without limits beside
them. The exit code is 1 if a rate was exceeded by 1 % in any minute, or missed by 1 % by a client that always asked.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import secrets
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.children import Child

PERIOD_S = 60.0
TOLERANCE = 0.01
REFUSED_PAUSE_S = 0.01  # of a client that asks all the time: all of it is one machine

#: Principal, which is the key as well, and its limits; then how its clients behave.
KEYS: dict[str, dict[str, int]] = {
    "greedy": {"requests_per_minute": 1200},
    "paced": {"requests_per_minute": 600},
    "patient": {"requests_per_minute": 30},
    "tokens": {"tokens_per_minute": 20_000},
    "many": {"max_concurrent_requests": 4},
    "free": {},
}
CLIENTS = {"greedy": 4, "paced": 1, "patient": 1, "tokens": 4, "many": 12, "free": 2}


@dataclass
class Seen:
    """What the edge logged of one principal, and what its clients were told."""

    accepted_at: list[float] = field(default_factory=list)
    tokens: list[tuple[float, int]] = field(default_factory=list)
    told: Counter[int] = field(default_factory=Counter)
    untrue: int = 0  # waits as Retry-After says, after which a lone client was refused again


class Edge(Child):
    """An edge whose outcome lines are kept."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.seen = {name: Seen() for name in KEYS}
        super().__init__(*arguments, **more)

    def _read(self) -> None:
        assert self._stream is not None
        for raw in self._stream:
            line = json.loads(raw)
            if line.get("event") != "request":
                self._lines.put(line)
                continue
            seen = self.seen[line["principal"]]
            seen.accepted_at.append(line["ts"] - line["duration_ms"] / 1000)
            seen.tokens.append((line["ts"], line.get("input_tokens", 0) + line.get("output_tokens", 0)))
        self._lines.put(None)


@contextmanager
def running() -> Iterator[tuple[Edge, int, int]]:
    """The edge, the port for clients, and the admin port."""
    anywhere = {"listen": "127.0.0.1:0"}
    keys = [
        {"principal": name, "key_sha256": hashlib.sha256(name.encode()).hexdigest(), **limits}
        for name, limits in KEYS.items()
    ]
    config = {
        "http": {**anywhere, "api_keys": keys},
        "transport": anywhere,
        "admin": anywhere,
        "nodes": [
            {"id": "n", "token_env": "IOP_TOKEN_LOAD", "providers": [{"id": "p", "kind": "echo", "capacity": 1000}]}
        ],
        "models": [{"id": "m", "candidates": [{"node": "n", "provider": "p", "target": "t"}]}],
    }
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        file = Path(folder) / "edge.yaml"
        file.write_text(json.dumps(config))
        token = secrets.token_urlsafe(16)
        logs = ["--log-format", "json", "--until-eof"]
        serve = ["-m", "iop.cli.edge", "serve", "-c", str(file), *logs]
        edge = Edge("edge", serve, tells="stderr", env={"IOP_TOKEN_LOAD": token})
        stack.callback(edge.end)
        host, port = edge.listening("nodes")
        admin, http = edge.listening("admin")[1], edge.listening("http")[1]
        join = ["-m", "iop.cli.node", "join", f"{host}:{port}", *logs]
        node = Child("node", join, tells="stderr", env={"IOP_NODE_TOKEN": token})
        stack.callback(node.end)
        node.line(lambda line: line.get("event") == "edge_connected")
        yield edge, http, admin


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, int, bytes]:
        """Status, Retry-After (0: none) and body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(fields["content-length"]))
        return int(head[0].split()[1]), int(fields.get("retry-after", 0)), body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def request(key: str, words: int = 1) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * words}]}).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer %b\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
    )


async def behave(name: str, seen: Seen, port: int, until_at: float) -> None:
    """One client of this principal."""
    client, data = Client(port), request(name, 50 if name == "tokens" else 1)
    loop = asyncio.get_running_loop()
    rate = KEYS[name].get("requests_per_minute", 0)
    next_at, waited = loop.time(), False
    try:
        while (now := loop.time()) < until_at:
            if name == "paced":
                next_at += PERIOD_S / rate / 1.1
                await asyncio.sleep(max(0.0, next_at - now))
            status, retry_after_s, _ = await client.ask(data)
            seen.told[status] += 1
            if name == "patient":
                seen.untrue += waited and status == 429
                waited = status == 429
                if waited:
                    await asyncio.sleep(min(retry_after_s, max(0.0, until_at - loop.time())))
            elif status == 429:
                await asyncio.sleep(REFUSED_PAUSE_S)
            elif name in ("free", "many"):
                await asyncio.sleep(0.01)
    finally:
        client.close()


async def watch(admin: int, until_at: float) -> int:
    """The greatest number of requests under way of the key with a cap, as the status shows it."""
    most, client = 0, Client(admin)
    try:
        while asyncio.get_running_loop().time() < until_at:
            _, _, body = await client.ask(b"GET /admin/status HTTP/1.1\r\nhost: localhost\r\n\r\n")
            for row in json.loads(body)["principals"]:
                if row["principal"] == "many":
                    most = max(most, row["in_flight"])
            await asyncio.sleep(0.02)
    finally:
        client.close()
    return most


def most_in_a_minute(times: list[float]) -> int:
    return max((i + 1 - bisect_right(times, at - PERIOD_S) for i, at in enumerate(times)), default=0)


def report(edge: Edge, began_at: float, seconds: float, most: int) -> tuple[dict[str, Any], list[str]]:
    """The figures, and what is wrong with them."""
    wrong: list[str] = []
    figures: dict[str, Any] = {"seconds": seconds, "most_at_once": most}
    minutes = int(seconds / PERIOD_S)
    for name, seen in edge.seen.items():
        times = sorted(seen.accepted_at)
        row: dict[str, Any] = {"let_in": len(times), "refused": seen.told[429]}
        others = {status: n for status, n in seen.told.items() if status not in (200, 429)}
        if others:
            wrong.append(f"{name}: other answers {others}")
        if limit := KEYS[name].get("requests_per_minute"):
            row["most_in_any_minute"] = worst = most_in_a_minute(times)
            whole = sum(at < began_at + minutes * PERIOD_S for at in times)
            row["share_of_the_limit"] = round(whole / (limit * minutes), 4)
            if worst > limit * (1 + TOLERANCE):
                wrong.append(f"{name}: {worst} requests in a minute, limit {limit}")
            if name != "patient" and row["share_of_the_limit"] < 1 - TOLERANCE:
                wrong.append(f"{name}: got {row['share_of_the_limit']:.2%} of its limit")
            if name == "patient":
                row["untrue_retry_after"] = seen.untrue
                if seen.untrue:
                    wrong.append(f"{name}: {seen.untrue} times refused after waiting as told")
        if limit := KEYS[name].get("tokens_per_minute"):
            used = sum(count for at, count in seen.tokens if at < began_at + minutes * PERIOD_S)
            row["share_of_the_limit"] = round(used / (limit * minutes), 4)
            if not 1 - TOLERANCE <= row["share_of_the_limit"] <= 1 + TOLERANCE:
                wrong.append(f"{name}: used {row['share_of_the_limit']:.2%} of its limit")
        figures[name] = row
    if most > KEYS["many"]["max_concurrent_requests"]:
        wrong.append(f"many: {most} requests at once")
    return figures, wrong


async def load(edge: Edge, http: int, admin: int, seconds: float) -> tuple[float, int]:
    """When it began, in the edge's time, and the most at once."""
    until_at = asyncio.get_running_loop().time() + seconds
    began_at = time.time()
    clients = [behave(name, edge.seen[name], http, until_at) for name, count in CLIENTS.items() for _ in range(count)]
    most, *_ = await asyncio.gather(watch(admin, until_at), *clients)
    return began_at, most


def main() -> int:
    parser = argparse.ArgumentParser(description="Limits of keys under load, through a real edge and node.")
    parser.add_argument("--seconds", type=float, default=185.0, help="how long; whole minutes are what counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    arguments = parser.parse_args()
    if arguments.seconds < PERIOD_S:
        parser.error("a rate per minute shows after a minute: --seconds 60 or more")
    with running() as (edge, http, admin):
        began_at, most = asyncio.run(load(edge, http, admin, arguments.seconds))
        edge.end()  # what it logs last is read by then
        figures, wrong = report(edge, began_at, arguments.seconds, most)
    for name, row in figures.items():
        if isinstance(row, dict):
            limits = ", ".join(f"{key} {value}" for key, value in KEYS[name].items()) or "no limit"
            print(f"{name:8} {limits}: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row.items()))
        else:
            print(f"{name.replace('_', ' ')}: {row}")
    for line in wrong:
        print(f"WRONG: {line}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**figures, "wrong": wrong}, indent=2))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
