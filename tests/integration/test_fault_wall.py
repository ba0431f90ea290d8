"""Every fault of a provider at every place of its answer, against real programs: docs/faults.md, case by case.

A test is one API in one mode; its cases run side by side, each with a provider of its own that has one slot. While a
case's request is at that provider, a second one queues for the slot: it must arrive there when the failing call has
really ended, not earlier, and must get its answer. So each case shows what its client got and what became of the slot.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aio import async_test, until, until_seen
from tests.support.faultyprovider import (
    APIS,
    AT_WORK,
    BUSY,
    PATHS,
    RETRY_AFTER_S,
    SLOW,
    STREAMED,
    Answer,
    Place,
    place_of,
    play,
    said,
    status_of,
    whole,
)
from tests.support.faultywall import DOCUMENT, OUTCOMES, Case, cases, document
from tests.support.http import Broken, Client, Head, post
from tests.support.provider import Call
from tests.support.stack import Scene, Stack, running_stack

QUICK, SLOWLY = 24, 56  # faulty providers: of faults that show at once, and of those that a clock has to end
LLAMAS = 4  # whose engines go on with what was abandoned
GOES_ON_S = 2.5
STALL_MS = 800
DEADLINE_MS = 1500
KEEPALIVE_S = 0.3
COMMENTS = (
    *(b": keepalive %b\n\n" % reason for reason in (b"queued", b"prefilling", b"recovering")),
    b": keepalive\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
)


def _stack(folder: Any, keepalive_s: float) -> Iterator[Stack]:
    providers: dict[str, dict[str, Any]] = {"good": {}}
    models: list[dict[str, Any]] = []
    hasty = {"response_stall_timeout_ms": STALL_MS, "first_response_timeout_ms": STALL_MS}
    kinds = {"f": {}, "s": hasty, "l": {"kind": "llama_cpp", **hasty}}
    for kind, count in (("f", QUICK), ("s", SLOWLY), ("l", LLAMAS)):
        for number in range(count):
            one = f"{kind}{number}"
            providers[one] = {"capacity": 1, **kinds[kind]}
            alone = [{"node": "n1", "provider": one, "target": f"on-{one}", "priority": 0}]
            spare = [*alone, {"node": "n1", "provider": "good", "target": "on-good", "priority": 1}]
            models.append({"id": f"pair-{one}", "candidates": spare})
            models.append({"id": f"alone-{one}", "candidates": alone})
            if kind == "s":
                models.append({"id": f"pair-late-{one}", "candidates": spare, "request_timeout_ms": DEADLINE_MS})
                models.append({"id": f"alone-late-{one}", "candidates": alone, "request_timeout_ms": DEADLINE_MS})
    with running_stack(folder, providers, models, http={"stream_keepalive_sec": keepalive_s}) as stack:
        yield stack


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from _stack(tmp_path_factory.mktemp("silent"), 0)


@pytest.fixture(scope="module")
def beating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    yield from _stack(tmp_path_factory.mktemp("beating"), KEEPALIVE_S)


class Run:
    """One case under way."""

    def __init__(self, case: Case, number: int, provider: str) -> None:
        self.case = case
        self.id = f"case-{number}"
        self.provider = provider
        self.arrived = asyncio.Event()
        self.told = asyncio.Event()  # its client has heard a keepalive
        self.faulty: list[Answer] = []
        self.good = 0
        self.bodies: list[Any] = []

    def answer(self, call: Call) -> None:
        case, place = self.case, place_of(self.case.place, self.case.api, stream=self.case.stream)
        self.bodies.append({**call.json, "model": ""})
        if call.provider == "good":
            self.good += 1
            Answer(call, case.api, place, stream=case.stream, text="g").good()
            return
        answer = Answer(call, case.api, place, stream=case.stream)
        self.faulty.append(answer)
        self.arrived.set()
        play(case.fault, answer)


class Wall:
    """The scripted server of one test: who is asked for what, and whether a slot was ever held by two."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.runs: dict[str, Run] = {}
        self.latest: dict[str, Answer] = {}  # by faulty provider
        self.overlaps: list[str] = []
        self.waiting: set[asyncio.Task[None]] = set()
        self.left_at: dict[Answer, float] = {}  # calls that were found to be over
        scene.provider.answer = self.answer

    def answer(self, call: Call) -> None:
        if call.method != b"POST":
            if not call.provider.startswith("l"):
                call.respond(b"{}", 404)  # figures and health: this server says nothing of itself
            else:
                call.respond(self._slots(call.provider) if call.path.endswith(b"/slots") else b"{}")
            return
        run = self.runs[(call.header(b"x-case") or b"").decode()]
        before = self.latest.get(call.provider)
        if before is not None and not _ended(before):
            self.overlaps.append(run.case.name)
        if call.header(b"x-next") is not None:
            self.latest[call.provider] = follower = Answer(call, "chat", Place(2), stream=False, text="n")
            follower.good()
        elif run.case.mode == "kept" and call.provider != "good" and not run.told.is_set():
            run.arrived.set()
            task = asyncio.get_running_loop().create_task(self._later(run, call))
            self.waiting.add(task)
            task.add_done_callback(self.waiting.discard)
        else:
            self._now(run, call)

    def _slots(self, provider: str) -> bytes:
        """What a llama.cpp server runs: the call that it has, and for a while one that was abandoned."""
        latest, now = self.latest.get(provider), asyncio.get_running_loop().time()
        if latest is None or latest.over:
            return b"[]"
        at_work = not _ended(latest) or now - self.left_at.setdefault(latest, now) < GOES_ON_S
        return b'[{"is_processing": true}]' if at_work else b"[]"

    async def _later(self, run: Run, call: Call) -> None:
        await run.told.wait()
        self._now(run, call)

    def _now(self, run: Run, call: Call) -> None:
        run.answer(call)
        if call.provider != "good":
            self.latest[call.provider] = run.faulty[-1]


def _ended(answer: Answer) -> bool:
    """Whether a call is over: its answer was whole, or the node has closed its connection. That is asked of the kernel,
    since the loop may not have come to it yet."""
    if answer.over or answer.call.gone.is_set():
        return True
    transport = answer.call.connection.transport
    sock = transport.get_extra_info("socket")
    if transport.is_closing() or sock is None:
        return True  # we have closed it, and the node can do nothing with it any more
    with socket.socket(fileno=socket.dup(sock.fileno())) as mine:
        try:
            return mine.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


# ---- one case --------------------------------------------------------------------------------------------------------


async def _case(wall: Wall, run: Run) -> None:
    case, http = run.case, wall.scene.stack.http
    group = f"{'pair' if case.spare else 'alone'}-{'late-' if case.outcome == 'd' else ''}{run.provider}"
    request: dict[str, Any] = {"model": group, "messages": [], "input": "", "stream": case.stream}
    fields = {"x-case": run.id, "x-request-id": run.id}
    client, follower = await Client.connect(http), await Client.connect(http)
    try:
        client.send(post(PATHS[case.api], json.dumps(request).encode(), fields))
        async with asyncio.timeout(10):
            await run.arrived.wait()
        body = json.dumps({"model": f"alone-{run.provider}", "messages": []}).encode()
        follower.send(post(PATHS["chat"], body, {"x-case": run.id, "x-next": "1"}))
        first = b""
        head = await client.head()
        if case.mode == "kept":
            first = await client.piece()
            run.told.set()
        try:
            got, broken = first + await client.body(), False
        except Broken as exc:
            got, broken = first + exc.body, exc.how == "fin"
        _check(run, head, got, broken)
        answer = await follower.answer()

        async def rested() -> bool:
            """The request may come behind the answer with which the provider asked for a pause (HEALTH-9)."""
            nonlocal follower, answer
            if answer.status == 429 and status_of(case.fault) in (429, 503):
                assert answer.json["error"]["code"] == "providers_resting"
                assert answer.get("retry-after") == str(RETRY_AFTER_S)
                await follower.close()
                follower = await Client.connect(http)
                follower.send(post(PATHS["chat"], body, {"x-case": run.id, "x-next": "1"}))
                answer = await follower.answer()
            return answer.status != 429

        await until_seen(rested, True)
        assert (answer.status, answer.body) == (200, whole("chat", "n")), "the slot's next request"
        assert answer.get("x-iop-provider") == run.provider
    finally:
        await client.close()
        await follower.close()


def _check(run: Run, head: Head, got: bytes, broken: bool) -> None:
    case, sent = run.case, run.faulty[-1]
    outcome = case.outcome
    if case.mode == "kept":
        assert (head.status, head.get("content-type")) == (200, "text/event-stream")
        assert any(got.startswith(comment) for comment in COMMENTS)
        for comment in COMMENTS:
            got = got.replace(comment, b"")
    else:
        assert head.get("x-iop-attempts") == str(len(run.bodies))
    assert all(body == run.bodies[0] for body in run.bodies), "what is sent again is what was sent"
    # A provider that stalled, and that a probe finds well, is asked again where there is no other: twice (POOL-11).
    assert len(run.faulty) == (3 if outcome == "a" and case.code == "response_stalled" and not case.spare else 1)
    assert run.good == int(outcome in "nao" and case.spare)
    if run.good:
        assert (head.status, got, broken) == (200, _good(case), False)
        assert case.mode == "kept" or head.get("x-iop-provider") == "good"
    elif case.mode == "kept":
        _check_kept(run, got, broken)
    elif outcome in "na":
        assert not broken
        status = 504 if case.code == "response_stalled" else 502
        assert head.status == status
        _check_error(case, json.loads(got), status, head.get("x-request-id"))
    elif outcome in "os":
        declared = sent.shown if case.fault == "length too short" else sent.sent
        status = status_of(case.fault)
        assert (head.status, got, broken) == (status, declared, False)
        assert head.get("retry-after") == (str(RETRY_AFTER_S) if status != 200 else None)
        if "gzip" in case.fault:
            assert head.get("content-encoding") == "gzip"
    else:
        assert head.status == 200
        assert broken, "a clean end"
        if outcome == "e":
            got = _without_error(case, got)
        _check_shown(run, got)


def _good(case: Case) -> bytes:
    return b"".join(said(case.api, "g").events) if case.stream else whole(case.api, "g")


def _check_shown(run: Run, got: bytes) -> None:
    sent = run.faulty[-1]
    if run.case.fault in SLOW:
        assert sent.sent.startswith(got)
        assert len(got) >= len(sent.shown)
    elif run.case.fault == "length too short":
        assert got == sent.shown
    else:
        assert got == sent.sent


def _check_kept(run: Run, got: bytes, broken: bool) -> None:
    """The client has heard a keepalive and nobody else can answer."""
    case, sent = run.case, run.faulty[-1]
    if case.outcome in "na":
        assert (_without_error(case, got), broken) == (b"", True)
    elif sent.sent == BUSY:
        assert broken
        assert _event(case, got)["message"] == "busy"
    elif "gzip" in case.fault or "whole" in case.fault:
        assert broken
        assert b"instead of an event stream" in got
    else:
        assert got == sent.sent
        assert broken == (case.outcome == "o")


def _without_error(case: Case, got: bytes) -> bytes:
    """What came before the error event at the end."""
    before, mark, last = got.rpartition(b"event: error\ndata: " if case.api in ("responses", "messages") else b"data: ")
    assert mark, got
    assert last.endswith(b"\n\n")
    assert before == b"" or before.endswith(b"\n\n")
    value = json.loads(last)
    if case.api == "responses":
        assert (value["type"], value["code"]) == ("error", case.code)
    else:
        _check_error(case, value, 504 if case.code == "response_stalled" else 502, None)
    return before


def _check_error(case: Case, value: Any, status: int, request_id: str | None) -> None:
    if case.api == "messages":
        assert value["type"] == "error"
        assert value["error"]["type"] == ("timeout_error" if status == 504 else "api_error")
        assert request_id is None or value["request_id"] == request_id
    else:
        assert value["error"]["code"] == case.code
        assert value["error"]["type"] == "server_error"


def _event(case: Case, got: bytes) -> Any:
    value = json.loads(got.rpartition(b"data: ")[2])
    return value if case.api == "responses" else value["error"]


# ---- all of them -----------------------------------------------------------------------------------------------------


async def _play_all(stack: Stack, api: str, mode: str) -> None:
    async with stack.scene() as scene:
        wall = Wall(scene)
        since = len(stack.edge.lines)
        free: dict[str, asyncio.Queue[str]] = {kind: asyncio.Queue() for kind in "fsl"}
        for kind, count in (("f", QUICK), ("s", SLOWLY), ("l", LLAMAS)):
            for number in range(count):
                free[kind].put_nowait(f"{kind}{number}")
        failures: list[str] = []

        async def one(case: Case, number: int) -> None:
            kind = "l" if case.fault == AT_WORK else "s" if case.fault in SLOW else "f"
            provider = await free[kind].get()
            run = wall.runs[f"case-{number}"] = Run(case, number, provider)
            try:
                await _case(wall, run)
            except Exception as exc:
                text = str(exc) or repr(exc)
                failures.append(f"{case.name} -> {OUTCOMES[case.outcome][0]}: {text[:1500]}")
            free[kind].put_nowait(provider)

        ordered = sorted(cases(api, mode), key=lambda case: case.fault not in SLOW)
        await asyncio.gather(*(one(case, number) for number, case in enumerate(ordered)))
        for task in wall.waiting:
            task.cancel()
        assert not failures, f"{len(failures)} of {len(ordered)} cases:\n" + "\n".join(failures)
        assert not wall.overlaps, f"a slot was given away while its call lived: {wall.overlaps}"
        await _check_aftermath(scene, wall, since)


async def _check_aftermath(scene: Scene, wall: Wall, since: int) -> None:
    """Nothing lingers, each request has one outcome in the log, and the two programs are still connected."""
    await scene.in_use(0)
    status = await scene.status()
    rows = [row for node in status["nodes"] for row in node["providers"]]
    assert [row["id"] for row in rows if row["lingering"]] == []
    said_of: dict[str, list[str]] = {}

    def all_there() -> bool:
        said_of.clear()
        for line in scene.stack.edge.lines[since:]:
            if line.get("client_request_id"):
                said_of.setdefault(line["client_request_id"], []).append(line["outcome"])
        return said_of.keys() >= wall.runs.keys()

    await until(all_there, what="an outcome line for each case")
    wrong = [
        f"{run.case.name}: {said_of[run.id]}" for run in wall.runs.values() if said_of[run.id] != [_outcome(run.case)]
    ]
    assert not wrong, "\n".join(wrong)
    events = {line.get("event") for line in scene.stack.edge.lines[since:]}
    assert not events & {"request_broken", "node_disconnected", "protocol_error"}, events
    assert "call_broken" not in {line.get("event") for line in scene.stack.node.lines}


def _outcome(case: Case) -> str:
    if case.outcome == "d":
        return "deadline_exceeded"
    if case.outcome in "nao" and case.spare:
        return "ok"
    if case.code and case.outcome != "s":
        return case.code
    if case.mode == "kept" and ("gzip" in case.fault or "whole" in case.fault):
        return "provider_protocol_error"
    own_error = case.fault.startswith("error event") or status_of(case.fault) >= 400
    return "provider_error" if own_error else "ok"


@pytest.mark.req("API-7", "API-8", "API-8b", "TUN-4", "EXEC-11", "POOL-7")
@pytest.mark.parametrize("api", STREAMED)
@async_test(timeout_s=60)
async def test_a_stream_is_whole_or_ends_with_an_error(silent: Stack, api: str) -> None:
    await _play_all(silent, api, "stream")


@pytest.mark.req("API-7b", "API-8", "API-8b")
@pytest.mark.parametrize("api", STREAMED)
@async_test(timeout_s=60)
async def test_a_stream_whose_client_has_heard_keepalives_does_too(beating: Stack, api: str) -> None:
    await _play_all(beating, api, "kept")


@pytest.mark.req("API-7", "API-8", "API-8b", "TUN-4", "EXEC-11", "POOL-7")
@pytest.mark.parametrize("api", APIS)
@async_test(timeout_s=60)
async def test_a_whole_answer_is_whole_or_breaks_off(silent: Stack, api: str) -> None:
    await _play_all(silent, api, "whole")


def test_the_document_says_what_is_tested() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run `make docs`"
