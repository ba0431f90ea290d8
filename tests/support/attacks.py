"""Floods against one edge in a process of its own: gzip bodies, forms, silent sockets, events of a node (WIRE-10).

Each returns :class:`Figures`: the longest turn of the edge's loop, how far its memory grew beyond where it began, and
how long a good node took to register meanwhile. Whoever runs them asserts; ``make attack`` prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from iop._fast import frame
from iop.wire import codec
from iop.wire import messages as m
from tests.support.http import Client, chat, post
from tests.support.programs import Program, edge_config
from tests.support.rawlink import RawLink
from tests.support.stack import rss_bytes

__all__ = ["ATTACKS", "MIB", "Figures", "attack"]

MIB = 1 << 20
GOOD_S = 10.0  # for which a node tries; a figure beyond the bound is a finding, not a hang


@dataclass
class Figures:
    """``bound_bytes``: what the edge may hold of what it is sent, by its configuration."""

    name: str
    longest_ms: float
    grown_bytes: int
    bound_bytes: int
    registered_s: float
    said: str

    def __str__(self) -> str:
        return (
            f"{self.name:8} longest turn {self.longest_ms:5.1f} ms, memory +{self.grown_bytes / MIB:.0f} MiB of "
            f"{self.bound_bytes / MIB:.0f} MiB, a good node registered in {self.registered_s:.2f} s; {self.said}"
        )

    def hold(self) -> None:
        """Asserts the bounds."""
        assert self.longest_ms <= 20, self
        assert self.grown_bytes <= self.bound_bytes * 1.1, self
        assert self.registered_s <= 2, self


class Target:
    """The edge under attack."""

    def __init__(self, program: Program, buffered_bytes: int) -> None:
        self.program = program
        self.http = program.address("http")
        self.nodes = program.address("nodes")
        self.buffered_bytes = buffered_bytes
        self._base = 0

    async def begin(self) -> None:
        await self.longest_ms()
        self._base = rss_bytes(self.program)
        self._forget_peak()

    def _forget_peak(self) -> None:
        Path(f"/proc/{self.program.pid}/clear_refs").write_text("5")

    async def longest_ms(self) -> float:
        before = len(self.program.lines)
        self.program.signal(signal.SIGUSR2)
        line = await asyncio.to_thread(self.program.wait_event, "turned", after=before)
        return float(line["longest_ms"])

    def grown_bytes(self) -> int:
        status = Path(f"/proc/{self.program.pid}/status").read_text()
        (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        return int(peak) * 1024 - self._base

    async def good_node(self) -> float:
        """How long until a node is ready that tries as nodes do: at once, and again."""
        began = time.monotonic()
        while time.monotonic() - began < GOOD_S:
            with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError, AssertionError):
                link = await RawLink.connect(self.nodes)
                try:
                    await link.ready("token-good")
                    return time.monotonic() - began
                finally:
                    await link.close()
            await asyncio.sleep(0.2)  # as a node does between its tries
        return GOOD_S


@asynccontextmanager
async def target(folder: Path, buffered_bytes: int) -> AsyncIterator[Target]:
    def node(name: str) -> dict[str, object]:
        token = hashlib.sha256(f"token-{name}".encode()).hexdigest()
        return {"id": name, "token_sha256": token, "providers": [{"id": f"{name}-p", "kind": "echo", "capacity": 100}]}

    config = edge_config(
        nodes=[node("good"), node("bad")],
        models=[
            {"id": model, "candidates": [{"node": node_id, "provider": f"{node_id}-p", "target": "t"}]}
            for model, node_id in (("m", "good"), ("bad", "bad"))
        ],
    )
    config["http"] = {**config.get("http", {}), "max_buffered_body_bytes": buffered_bytes}
    file = folder / "edge.yaml"
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "tests.support.turned", "iop-edge", "serve", "-c", str(file)]
    with Program([*command, "--log-format", "json"]) as program:
        yield Target(program, buffered_bytes)


# ---- the floods -----------------------------------------------------------------------------------------------------

Flood = Callable[[Target, float], Awaitable[tuple[int, str]]]  # how long; the bound, and what is to be said


async def _post(of: Target, head: bytes, body: bytes, answers: Counter[int], until_s: float) -> None:
    """One client that sends the same again and again, and leaves out the end of each: what was sent stays held."""
    while time.monotonic() < until_s:
        try:
            reader, writer = await asyncio.open_connection(*of.http)
        except OSError:
            answers[0] += 1
            await asyncio.sleep(0)
            continue
        try:
            writer.write(head + body[:-1])
            async with asyncio.timeout(max(0.1, until_s - time.monotonic())):
                line = await reader.readline()
            answers[int(line.split()[1]) if line else 0] += 1
        except (OSError, TimeoutError):
            answers[0] += 1
        finally:
            writer.transport.abort()


async def gzip_flood(of: Target, seconds: float, clients: int = 60) -> tuple[int, str]:
    """32 MiB of JSON in 32 KiB each, sixty at a time."""
    plain = b'{"model": "m", "x": "' + b"a" * (32 * MIB - 64) + b'"}'
    body = gzip.compress(plain, 9)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    )
    answers: Counter[int] = Counter()
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(_post(of, head % len(body), body, answers, until_s) for _ in range(clients)))
    return of.buffered_bytes, f"{clients} clients, {len(body)} bytes each, statuses {dict(answers)}"


def hostile_form() -> bytes:
    """As many parts as a form may have, with as many lines as a part may have, and blanks that a match might chew."""
    lines = b"".join(b"a%d:b%bc\r\n" % (n, b" " * 200) for n in range(14))
    part = b'--B\r\nContent-Disposition: form-data; name="x"\r\n' + lines + b"\r\n\r\n"
    few = b'--B\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n'
    return (
        part * 500
        + few * 500
        + b'--B\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'
        + (b"\r\n--" * (4 * MIB // 4))
    )


async def form_flood(of: Target, seconds: float, clients: int = 60) -> tuple[int, str]:
    body = hostile_form()
    head = (
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: %d\r\n\r\n"
    )
    answers: Counter[int] = Counter()
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(_post(of, head % len(body), body, answers, until_s) for _ in range(clients)))
    return of.buffered_bytes, f"{clients} clients, {len(body)} bytes each, statuses {dict(answers)}"


async def silent_sockets(of: Target, seconds: float, count: int = 1100) -> tuple[int, str]:
    """More than the port has room for, from five addresses, renewed as they are closed."""
    loop = asyncio.get_running_loop()
    held: list[socket.socket] = []
    refused = 0
    until_s = time.monotonic() + seconds

    async def connect(number: int) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.bind((f"127.0.0.{1 + number % 5}", 0))
            await loop.sock_connect(sock, of.nodes)
        held.append(sock)

    try:
        for number in range(count):
            await connect(number)
        while time.monotonic() < until_s:
            gone = [sock for sock in held if _closed(sock)]
            refused += len(gone)
            for sock in gone:
                held.remove(sock)
                sock.close()
            await asyncio.gather(*(connect(number) for number in range(min(50, len(gone)))))
            await asyncio.sleep(0.05)
    finally:
        for sock in held:
            sock.close()
    return 64 * MIB, f"{count} sockets, {refused} were closed"


def _closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def event_flood(of: Target, seconds: float) -> tuple[int, str]:
    """A node that says one thing after the other without pause: calls that ended, health, figures, usage."""
    events: list[m.Message] = [
        m.EdgeNodeEvent(call_closed=m.CallClosed("bad-p", 1)),
        m.EdgeNodeEvent(health_observation=m.HealthObservation("bad-p", "echo", "t", m.ProviderHealth.UNAVAILABLE, 1)),
        m.EdgeNodeEvent(inventory=m.Inventory([], [])),
        m.NodeCommandResponse(1 << 40),
    ]
    chunk = b"".join([codec.encode(event) for event in events]) * 2000
    until_s = time.monotonic() + seconds
    sent = links = 0
    clients: list[Client] = []
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError, AssertionError):
            link = await RawLink.connect(of.nodes)
            links += 1
            try:
                await link.ready("token-bad")
                client = await Client.connect(of.http)
                clients.append(client)
                client.send(post("/v1/chat/completions", chat("bad")))
                while not isinstance(await link.message(), m.ProviderTunnelRequest):
                    pass
                seq = 0
                while time.monotonic() < until_s and not link.at_eof:
                    usage = b"".join(frame.encode_tunnel_frame(1, number, 3) for number in range(seq, seq + 2000))
                    seq += 2000
                    link.send(usage, chunk)
                    sent += 10_000
                    async with asyncio.timeout(max(0.1, until_s - time.monotonic())):
                        await link.drain()
            except TimeoutError:
                pass
            finally:
                link.abort()
    for client in clients:
        await client.close()
    return 64 * MIB, f"{sent} events on {links} links"


ATTACKS: dict[str, Flood] = {
    "gzip": gzip_flood,
    "forms": form_flood,
    "silent": silent_sockets,
    "events": event_flood,
}


async def attack(folder: Path, name: str, seconds: float, buffered_bytes: int) -> Figures:
    """One flood, and a good node that comes 2.5 s after its start, when silent sockets are old enough to give way."""
    async with target(folder, buffered_bytes) as of:
        await of.begin()
        flood = asyncio.ensure_future(ATTACKS[name](of, seconds))
        await asyncio.sleep(min(2.5, seconds / 2))
        registered_s = await of.good_node()
        bound, said = await flood
        return Figures(name, await of.longest_ms(), of.grown_bytes(), bound, registered_s, said)
