"""Whatever is lowered comes back by itself: each state of docs/operations.md, with real programs (HEALTH-8, HEALTH-9).

Edge and node are programs. The servers are a process each where they have to be killed or frozen, else they answer by a
script in here. No test asks the server about its health: the node does, and the table says how long that may take.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from iop.config.edge import HealthSection
from iop.execution.failure import HealthReason
from iop.node.providers.lingering import ASK_S, BOUND_S
from iop.pool.overlay import LAST_ASK_S
from iop.pool.pool import MAX_REST_S
from tests.support.aio import async_test, until_seen
from tests.support.http import Answer, Client, chat, post
from tests.support.modelserver import ModelServer
from tests.support.provider import Call, chat_answer
from tests.support.stack import Scene, Stack, running_stack

CHAT = "/v1/chat/completions"
OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
PROBE_S = next(p.le for p in HealthSection.model_fields["timeout_ms"].metadata if hasattr(p, "le")) / 1000
QUICK = {"response_stall_timeout_ms": 500, "connect_timeout_ms": 1000}


class Site(NamedTuple):
    stack: Stack
    mortal: ModelServer
    frozen: ModelServer


def candidates(*ways: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"node": "n1", "provider": provider, "target": target} for provider, target in ways]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    names = ("mortal", "frozen", "failing", "resting")
    models = [{"id": name, "candidates": candidates((name, name))} for name in names]
    models += [{"id": target, "candidates": candidates(("listed", target))} for target in ("here", "there")]
    models.append({"id": "llama", "candidates": candidates(("llama", "llama"))})
    mortal = ModelServer()
    mortal.kill()  # its port is known, and nobody listens there
    with ModelServer() as frozen:
        at = {name: f"http://127.0.0.1:{server.port}/v1" for name, server in (("mortal", mortal), ("frozen", frozen))}
        providers: dict[str, dict[str, Any]] = {
            "mortal": {"base_url": at["mortal"], **QUICK},
            "frozen": {"base_url": at["frozen"], **QUICK},
            "failing": QUICK,
            "resting": QUICK,
            "listed": QUICK,
            "llama": {"kind": "llama_cpp", "capacity": 1},
        }
        with running_stack(tmp_path_factory.mktemp("back"), providers, models) as stack:
            yield Site(stack, mortal, frozen)


class Server:
    """What the scripted server says: by path of a question, else to a chat. 404 for what is not there."""

    def __init__(self, scene: Scene) -> None:
        self.asked: dict[str, Callable[[Call], None]] = {}
        self.chat: Callable[[Call], None] = well
        scene.provider.answer = scene.provider.asked = self._answer

    def _answer(self, call: Call) -> None:
        if call.method == b"GET":
            for path, answer in self.asked.items():
                if call.path.endswith(path.encode()):
                    answer(call)
                    return
            call.respond(b"{}", 404)
        else:
            self.chat(call)


def well(call: Call) -> None:
    call.respond(chat_answer("hi"))


def lists(*names: str) -> Callable[[Call], None]:
    body = json.dumps({"data": [{"id": name} for name in names]}).encode()
    return lambda call: call.respond(body)


async def ask(scene: Scene, model: str) -> Answer:
    client = await Client.connect(scene.stack.http)
    try:
        client.send(post(CHAT, chat(model)))
        return await client.answer()
    finally:
        await client.close()


async def lowered(scene: Scene, provider: str) -> dict[str | None, str]:
    """Why the provider is down, under None, and each of its targets."""
    rows = {p["id"]: p for node in (await scene.status())["nodes"] for p in node["providers"]}
    row = rows[provider]
    found: dict[str | None, str] = {target: low["reason"] for target, low in row["lowered_targets"].items()}
    return found | ({None: row["lowered"]["reason"]} if row["lowered"] else {})


async def down(scene: Scene, provider: str, expected: dict[str | None, str]) -> None:
    await until_seen(lambda: lowered(scene, provider), expected)


async def back(scene: Scene, model: str, within_s: float, note: str | None = None) -> None:
    """Requests for the model are answered again, within the time that the table says. Then the status says so, too, and
    what is noted of the server that is there now (HEALTH-10)."""

    async def status() -> int:
        return (await ask(scene, model)).status

    async def shown() -> tuple[str, str | None]:
        said = await scene.status()
        (provider,) = (row["candidates"][0]["provider"] for row in said["models"] if row["id"] == model)
        (row,) = (row for node in said["nodes"] for row in node["providers"] if row["id"] == provider)
        return row["health"], row["note"]

    await until_seen(status, 200, timeout_s=within_s)
    await until_seen(shown, ("available", note), timeout_s=LAST_ASK_S + PROBE_S)


# ---- the table -------------------------------------------------------------------------------------------------------


def table() -> dict[str, list[str]]:
    """The rows of the document's table, by state: the cells behind the first."""
    text = OPERATIONS.read_text(encoding="utf-8").partition("### How each lowered state comes back\n")[2]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text.partition("\n## ")[0], re.M)
    return {state: [cell.strip() for cell in cells.split("|")] for state, cells in rows}


@pytest.mark.req("HEALTH-8", "HEALTH-9")
def test_the_document_has_every_lowered_state_and_the_longest_way_back_is_under_30_s() -> None:
    """A state of the code that the table lacks, or a time that is not the code's, fails here."""
    rows = table()
    assert set(rows) == {*(reason.value for reason in HealthReason), "resting", "lingering"}
    longest_s = LAST_ASK_S + PROBE_S  # a probe that began when it could not yet serve, and the wait behind that
    assert longest_s < 30
    for reason in HealthReason:
        assert rows[reason.value][-1] == f"{longest_s:g} s"
    assert rows["resting"][-1] == f"its end, {MAX_REST_S:g} s at most"
    assert rows["lingering"][-1] == f"{2 * ASK_S:g} s, or {BOUND_S:g} s where the server does not tell"


# ---- each state ------------------------------------------------------------------------------------------------------


@pytest.mark.req("HEALTH-6", "HEALTH-8", "HEALTH-10")
@async_test()
async def test_refused_a_server_that_was_killed_is_asked_again_when_it_is_back(site: Site) -> None:
    async with site.stack.scene() as scene:
        await down(scene, "mortal", {None: "refused"})  # found at the start, before any request (HEALTH-10)
        for _ in range(2):
            site.mortal.start()
            try:
                await back(scene, "mortal", LAST_ASK_S + PROBE_S)
            finally:
                site.mortal.kill()
            assert (await ask(scene, "mortal")).status in (502, 503)
            await down(scene, "mortal", {None: "refused"})


@pytest.mark.req("HEALTH-2", "HEALTH-8")
@async_test()
async def test_stalled_a_server_that_was_frozen_is_asked_again_when_it_runs(site: Site) -> None:
    async with site.stack.scene() as scene:
        assert (await ask(scene, "frozen")).status == 200
        site.frozen.program.signal(signal.SIGSTOP)
        assert (await ask(scene, "frozen")).status == 504
        await down(scene, "frozen", {None: "stalled"})
        site.frozen.program.signal(signal.SIGCONT)
        await back(scene, "frozen", LAST_ASK_S + PROBE_S)


@pytest.mark.req("HEALTH-6", "HEALTH-8")
@async_test()
async def test_failing_a_server_whose_errors_are_over_is_asked_again_whatever_it_lists(site: Site) -> None:
    async with site.stack.scene() as scene:
        server = Server(scene)
        server.chat = Call.reset
        server.asked["/v1/models"] = lambda call: call.respond(b"{}", 500)
        assert (await ask(scene, "failing")).status == 502
        await down(scene, "failing", {None: "failing"})
        server.chat = well
        server.asked["/v1/models"] = lists("quite another name")
        await back(scene, "failing", LAST_ASK_S + PROBE_S, "not listed: failing")
        server.asked["/v1/models"] = lists("failing")
        await back(scene, "failing", 0.0)


@pytest.mark.req("HEALTH-7", "HEALTH-8")
@async_test()
async def test_not_listed_a_target_goes_and_comes_with_the_list_and_its_neighbour_stays(site: Site) -> None:
    async with site.stack.scene() as scene:
        server, seen = Server(scene), asyncio.Event()

        def whole_list(call: Call) -> None:
            lists("here", "there")(call)
            seen.set()

        server.asked["/v1/models"] = whole_list
        server.chat = Call.reset  # a loss makes the node look, and it sees the list
        assert (await ask(scene, "there")).status == 502
        async with asyncio.timeout(LAST_ASK_S + PROBE_S):
            await seen.wait()  # it has to have seen the list before it can miss something in it
        server.chat = lambda call: well(call) if call.json["model"] == "here" else call.respond(b"{}", 404)
        server.asked["/v1/models"] = lists("here")

        async def asked() -> dict[str | None, str]:
            await ask(scene, "there")
            return await lowered(scene, "listed")

        # The node looks once in 10 s.
        await until_seen(asked, {"there": "not_listed"}, timeout_s=15.0)
        assert (await ask(scene, "here")).status == 200, "what the evidence is not about"
        assert (await ask(scene, "there")).json["error"]["code"] == "unavailable"
        server.chat = well
        server.asked["/v1/models"] = lists("here", "there")
        await back(scene, "there", LAST_ASK_S + PROBE_S)


@pytest.mark.req("HEALTH-9")
@async_test()
async def test_resting_a_provider_is_left_alone_for_as_long_as_it_asked(site: Site) -> None:
    async with site.stack.scene() as scene:
        server, calls = Server(scene), []

        def refuse(call: Call) -> None:
            calls.append(call)
            call.respond(b"{}", 429, [(b"Retry-After", b"2")])

        server.chat = refuse
        assert (await ask(scene, "resting")).get("retry-after") == "2"
        for _ in range(5):
            told = await ask(scene, "resting")
            assert (told.status, told.json["error"]["code"]) == (429, "providers_resting")
            assert told.get("retry-after") in ("1", "2")
        assert len(calls) == 1
        rows = {m["id"]: m["candidates"][0]["status"] for m in (await scene.status())["models"]}
        assert rows["resting"] == "resting"
        server.chat = well
        await back(scene, "resting", 4.0)


@pytest.mark.req("TUN-5d", "POOL-12")
@async_test()
async def test_lingering_a_slot_comes_back_when_its_engine_is_done(site: Site) -> None:
    async with site.stack.scene() as scene:
        server = Server(scene)
        at_work = b'[{"is_processing": true}]'
        server.asked |= {
            "/health": lambda call: call.respond(b"{}"), "/slots": lambda call: call.respond(at_work),
        }  # fmt: skip
        server.chat = lambda call: None
        client = await scene.send(post(CHAT, chat("llama")))
        await scene.in_use(1)
        await client.close()
        await scene.in_use(0)
        waiting = await scene.send(post(CHAT, chat("llama")))
        await scene.in_use(0, waiting=1)
        server.chat = well
        at_work = b"[]"
        async with asyncio.timeout(2 * ASK_S + 1):
            assert (await waiting.answer()).status == 200
