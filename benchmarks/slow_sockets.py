"""Whether clients that are slow on purpose delay those that are not (API-6, API-10): 500 sockets, with and without.

    python -m benchmarks.slow_sockets                      5 rounds of 3 s without and 3 s with them
    python -m benchmarks.slow_sockets --sockets 2000 --rounds 10

A quarter each sends a head at one byte in five seconds, sends a body so, says nothing behind an answer, and closes its
side only. One client meanwhile asks for whole answers, one after the other, over a kept connection, through a real edge
and node. The exit code is 1 if its 99th percentile is more than 5 ms higher with them, in the median of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
import time
from pathlib import Path

if __package__ in (None, ""):  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.children import Child
from benchmarks.tunnel_load import Settings, running_pair

BAR_S = 0.005
DRIP_S = 5.0
BODY = json.dumps({"model": "load", "messages": [{"role": "user", "content": "hi"}]}).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
HEAD = REQUEST[: -len(BODY)]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def ask(sock: socket.socket) -> float:
    """Seconds of one request and its whole answer."""
    begun = time.perf_counter()
    sock.sendall(REQUEST)
    got = b""
    while b"\r\n\r\n" not in got:
        got += _some(sock)
    head, _, body = got.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if not head.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"a normal request got {head[:40]!r}")
    while len(body) < int(fields[b"content-length"]):
        body += _some(sock)
    return time.perf_counter() - begun


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise SystemExit("a normal request's connection was closed")
    return data


def hold(port: int, count: int) -> None:
    """Opens the sockets, says so, and keeps them slow until the standard input ends."""
    import select

    socks = [connect(port) for _ in range(count)]
    dripping = []
    for i, sock in enumerate(socks):
        if i % 4 == 0:
            dripping.append(sock)
        elif i % 4 == 1:
            sock.sendall(HEAD)
            dripping.append(sock)
        elif i % 4 == 2:
            ask(sock)
        else:
            sock.sendall(HEAD[:20])
            sock.shutdown(socket.SHUT_WR)
    print(json.dumps({"event": "ready"}), flush=True)
    started, sent = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        due = int((time.monotonic() - started) / DRIP_S * len(dripping))
        while sent < due:
            sock, at = dripping[sent % len(dripping)], sent // len(dripping)
            with contextlib.suppress(OSError):  # its clock has run out
                sock.send(REQUEST[at : at + 1] if sent % 2 == 0 else b" ")
            sent += 1


def window(port: int, seconds: float) -> list[float]:
    with connect(port) as sock:
        for _ in range(20):
            ask(sock)
        end, taken = time.monotonic() + seconds, []
        while time.monotonic() < end:
            taken.append(ask(sock))
    return sorted(taken)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_sockets")
    parser.add_argument("--sockets", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold is not None:
        hold(options.hold, options.sockets)
        return 0
    added = []
    with running_pair(Settings(non_stream=True, streams=2 * options.sockets + 10)) as pair:
        for number in range(1, options.rounds + 1):
            told = []
            for count in (0, options.sockets):
                slow = None
                if count:
                    arguments = ["-m", "benchmarks.slow_sockets", "--hold", str(pair.port), "--sockets", str(count)]
                    slow = Child("slow", arguments)
                try:
                    if slow is not None:
                        slow.line(lambda line: line.get("event") == "ready")
                    taken = window(pair.port, options.seconds)
                finally:
                    if slow is not None:
                        slow.end()
                told.append((taken[len(taken) // 2], taken[int(len(taken) * 0.99)], len(taken)))
            added.append(told[1][1] - told[0][1])
            text = "; ".join(
                f"{name} p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms of {n}"
                for name, (p50, p99, n) in zip(("without", f"with {options.sockets}"), told, strict=True)
            )
            print(f"round {number}: {text}", flush=True)
    median = statistics.median(added)
    print(f"p99 with them is {median * 1000:+.2f} ms in the median of the rounds; the bar is +{BAR_S * 1000:.0f} ms")
    return int(median > BAR_S)


if __name__ == "__main__":
    sys.exit(main())
