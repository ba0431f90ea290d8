"""The two pairs of edge and node that the tests of requests share: one with usual clocks, one with short ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.stack import Stack, model, running_stack


def _port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Models ``m`` (plenty of room), ``one`` (a single slot), ``still`` (may not be silent for long), ``down`` and
    ``down-too`` (silent servers, until a test closes them), ``absent`` (its node is not there), and ``scripted`` with
    two slots on the node that a test may play itself."""
    with ExitStack() as opened:
        silent = {name: opened.enter_context(socket.create_server(("127.0.0.1", 0))) for name in ("down", "down-too")}
        with running_stack(
            tmp_path_factory.mktemp("stack"),
            {
                "m": {"capacity": 2000},
                "one": {"capacity": 1},
                "still": {"response_stall_timeout_ms": 400},
                **{name: {"base_url": f"http://127.0.0.1:{_port_of(sock)}/v1"} for name, sock in silent.items()},
            },
            [
                model("m", aliases=["gpt-4o-mini"]),
                model("a--b", "m"),
                model("one"),
                model("still"),
                model("down"),
                model("down-too"),
                model("absent", node="n2"),
                model("scripted", node="n2"),
            ],
            http={"more_paths": ["/v1/jobs"]},
            other_providers={"absent": {}, "scripted": {"capacity": 2}},
        ) as running:
            running.silent = silent
            yield running


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """As ``stack``, with clocks that run out within a test: models ``m``, ``one`` (one slot, at most two waiters),
    ``late`` (whole time), ``still`` (gaps), ``mute`` (first byte), ``deaf`` (connections are never accepted), ``brief``
    (kept connections)."""
    with ExitStack() as opened:
        deaf = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # a full backlog: the next SYN is not answered
            sock = opened.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(deaf.getsockname())
        yield opened.enter_context(
            running_stack(
                tmp_path_factory.mktemp("hasty"),
                {
                    "m": {},
                    "one": {"capacity": 1},
                    "late": {},
                    "still": {"response_stall_timeout_ms": 400},
                    "brief": {"idle_sec": 0.3},
                    "mute": {"first_response_timeout_ms": 400},
                    "deaf": {"base_url": f"http://127.0.0.1:{_port_of(deaf)}/v1", "connect_timeout_ms": 400},
                },
                [
                    model("m"),
                    model("one"),
                    model("late", request_timeout_ms=700),
                    model("late-one", "one", request_timeout_ms=700),
                    model("still"),
                    model("brief"),
                    model("mute"),
                    model("deaf"),
                ],
                http={"client_idle_timeout_sec": 0.6, "body_timeout_sec": 0.6, "header_timeout_sec": 0.6},
                queue={"timeout_ms": 1500, "max_waiters": 2},
            )
        )
