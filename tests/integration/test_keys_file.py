"""The keys file under a running edge, and the commands that change it (API-11, CONF-2)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test, until
from tests.support.http import chat, post
from tests.support.programs import Program, command, edge_config, edge_program
from tests.support.provider import DONE, chat_answer, chat_delta, chat_event
from tests.support.stack import Scene, Stack, model, running_stack

CHAT = "/v1/chat/completions"
STREAMS = 50


class Keys:
    """The command on one file."""

    def __init__(self, folder: Path) -> None:
        self.where = ("-c", str(folder / "edge.yaml"))
        self.file = folder / "keys.json"

    def run(self, *arguments: str, code: int = 0) -> str:
        words = [*arguments[:1], *self.where, *arguments[1:]]
        ran = subprocess.run(command("iop-edge", "key", *words), capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stderr
        return ran.stdout if code == 0 else ran.stderr

    async def new(self, principal: str, *arguments: str) -> tuple[str, str]:
        """The key and its id."""
        text = await asyncio.to_thread(self.run, "new", "--principal", principal, "--json", *arguments)
        made = json.loads(text)
        return made["key"], made["id"]

    async def revoke(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.run, "revoke", *arguments)

    def write(self, text: str) -> None:
        fresh = self.file.with_name("fresh")
        fresh.write_text(text)
        os.replace(fresh, self.file)


@contextmanager
def stacked(folder: Path) -> Iterator[tuple[Stack, Keys]]:
    http = {"keys_file": "keys.json"}
    with running_stack(folder, {"m": {}}, [model("m")], http=http) as stack:
        yield stack, Keys(folder)


async def status_of(scene: Scene, key: str) -> int:
    client = await scene.client()
    client.send(f"GET /v1/models HTTP/1.1\r\nHost: a\r\nx-api-key: {key}\r\n\r\n".encode())
    answer = await client.answer()
    await client.close()
    return answer.status


async def becomes(scene: Scene, key: str, status: int, *, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while await status_of(scene, key) != status:
            pass


async def shows(scene: Scene, wanted: Any) -> Any:
    """The status, once its part on keys is as wanted."""
    async with asyncio.timeout(5):
        while not wanted((seen := await scene.status())["edge"]["keys"]):
            pass
    return seen


@pytest.mark.req("OBS-1c", "API-11")
@async_test(timeout_s=60)
async def test_metrics_do_not_name_a_principal_whose_last_key_has_gone(tmp_path: Path) -> None:
    http = {"keys_file": "keys.json"}
    with running_stack(tmp_path, {"m": {}}, [model("m")], http=http, metrics={"principals": True}) as stack:
        keys = Keys(tmp_path)
        async with stack.scene() as scene:
            for name in ("alice", "bob"):
                key, key_id = await keys.new(name)
                await becomes(scene, key, 200)
                client = await scene.send(post(CHAT, chat("m"), {"x-api-key": key}))
                (await scene.provider.call()).respond(chat_answer("x"))
                assert (await client.answer()).status == 200
                await scene.settled()
            assert 'principal="bob"' in await scene.metrics()
            await keys.revoke(key_id)
            await becomes(scene, key, 401)
            told = await scene.metrics()
            assert 'principal="alice"' in told
            assert 'principal="bob"' not in told


@pytest.mark.req("API-11", "CONF-2")
@async_test(timeout_s=60)
async def test_keys_come_and_go_under_fifty_streams_and_no_stream_is_dropped(tmp_path: Path) -> None:
    with stacked(tmp_path) as (stack, keys):
        async with stack.scene() as scene:
            # With a keys file there is no such thing as anonymous, also on loopback and without the file.
            assert await status_of(scene, "") == 401
            key, name = await keys.new("alice", "--max-concurrent", str(STREAMS + 5))
            other, _ = await keys.new("bob", "--models", "m", "oth*", "--rpm", "3", "--expires", "90d")
            await becomes(scene, key, 200)
            await becomes(scene, other, 200)
            request = post(CHAT, chat("m", stream=True), {"x-api-key": key})
            clients = [await scene.send(request) for _ in range(STREAMS)]
            calls = [await scene.provider.call() for _ in clients]
            for call in calls:
                call.start_stream()
                call.event(chat_delta("first"))
            for client in clients:
                await client.head()
                await client.read_through(b"first")
            _, third = await keys.new("carol")
            await keys.revoke(third)
            for call in calls:
                call.event(chat_delta("second"))
            for client in clients:
                await client.read_through(b"second")
            # The streams' own key stays one and the same: its places are those of before.
            more = [await scene.send(request) for _ in range(5)]
            for _ in more:
                await scene.provider.call()
            assert (await (await scene.send(request)).answer()).status == 429
            for client in more:
                client.leave()
            said = await keys.revoke(name[:6])
            assert said == f"{name} of alice: revoked\n"
            await becomes(scene, key, 401)
            assert await status_of(scene, other) == 200
            for call in calls:
                call.event(chat_event({"content": "third"}, "stop"))
                call.event(DONE)
                call.end_stream()
            for client in clients:
                body = await client.body()
                assert b"third" in body
                assert b"[DONE]" in body
                client.send(request)
                assert (await client.answer()).status == 401
            gone = await asyncio.to_thread(stack.edge.wait_line, lambda line: line.get("keys") == 1 and line["removed"])
            assert (gone["event"], gone["changed"]) == ("keys_reloaded", 0)

            def whole() -> int:
                return sum(line.get("principal") == "alice" and line["outcome"] == "ok" for line in stack.edge.lines)

            await until(lambda: whole() == STREAMS)


@pytest.mark.req("API-11", "CONF-2")
@async_test(timeout_s=60)
async def test_a_broken_file_leaves_the_keys_and_a_missing_one_leaves_none(tmp_path: Path) -> None:
    with stacked(tmp_path) as (stack, keys):
        async with stack.scene() as scene:
            key, _ = await keys.new("alice")
            await becomes(scene, key, 200)
            good = keys.file.read_text()
            keys.write('{"keys": [{"principal": "a", "key_sha256": "secret"}]}')
            seen = await shows(scene, lambda part: part["faults"])
            assert seen["edge"]["keys"]["count"] == 1
            (fault,) = seen["edge"]["keys"]["faults"]
            assert "keys[0].key_sha256: write 64 hex digits" in fault
            assert "iop_edge_keys_last_reload_refused 1.0" in await scene.metrics()
            assert await status_of(scene, key) == 200
            # Nor does the command make it worse; a reload of the edge's file says it, too.
            assert "64 hex digits" in await asyncio.to_thread(keys.run, "new", "--principal", "b", code=2)
            reload = command("iop-edge", "reload", "--admin", f"127.0.0.1:{stack.admin[1]}")
            ran = await asyncio.to_thread(subprocess.run, reload, capture_output=True, text=True, check=False)
            assert (ran.returncode, "64 hex digits" in ran.stderr) == (2, True)
            for text in ("", '{"keys": 1}'):
                keys.write(text)
                await shows(scene, lambda part, before=fault: part["faults"] not in ([], [before]))
                (fault,) = (await scene.status())["edge"]["keys"]["faults"]
                assert await status_of(scene, key) == 200
            keys.write(good)
            await shows(scene, lambda part: not part["faults"])
            assert await status_of(scene, key) == 200
            lines = [line for line in stack.edge.lines if line.get("event") == "keys_refused"]
            assert len(lines) == 3
            keys.file.unlink()
            await becomes(scene, key, 401)
            assert await status_of(scene, "") == 401
            keys.write(good)
            await becomes(scene, key, 200)


@pytest.mark.req("API-11", "CONF-2")
@async_test(timeout_s=60)
async def test_a_reload_takes_another_keys_file_in_the_same_step(tmp_path: Path) -> None:
    with stacked(tmp_path) as (stack, keys):
        async with stack.scene() as scene:
            key, _ = await keys.new("alice", "--rpm", "5")
            await becomes(scene, key, 200)
            scene.provider.answer = lambda call: call.respond(chat_answer("x"))
            client = await scene.send(post(CHAT, chat("m"), {"x-api-key": key}))
            assert (await client.answer()).get("x-ratelimit-remaining-requests") == "4"
            config = json.loads((tmp_path / "edge.yaml").read_text())
            os.rename(keys.file, tmp_path / "others.json")
            config["http"]["keys_file"] = "others.json"
            (tmp_path / "edge.yaml").write_text(json.dumps(config))
            keys.file = tmp_path / "others.json"
            reload = command("iop-edge", "reload", "--admin", f"127.0.0.1:{stack.admin[1]}")
            ran = await asyncio.to_thread(subprocess.run, reload, capture_output=True, text=True, check=False)
            assert "http.keys_file" in ran.stdout
            client.send(post(CHAT, chat("m"), {"x-api-key": key}))
            answer = await client.answer()
            assert (answer.status, answer.get("x-ratelimit-remaining-requests")) == (200, "3")
            new, _ = await keys.new("bob")  # found by the edge's file, which names the new one
            await becomes(scene, new, 200)
            # One key in both files: that is a fault of whichever changed last.
            twin = {"principal": "x", "key_sha256": json.loads(keys.file.read_text())["keys"][0]["key_sha256"]}
            config["http"]["api_keys"] = [twin]
            (tmp_path / "edge.yaml").write_text(json.dumps(config))
            ran = await asyncio.to_thread(subprocess.run, reload, capture_output=True, text=True, check=False)
            assert (ran.returncode, "the same key as http.api_keys[0]" in ran.stderr) == (2, True)
            check = command("iop-edge", "check", "-c", str(tmp_path / "edge.yaml"))
            env = {**os.environ, "IOP_TOKEN": "t0", "IOP_OTHER_TOKEN": "t1"}
            ran = await asyncio.to_thread(subprocess.run, check, capture_output=True, text=True, check=False, env=env)
            assert (ran.returncode, "the same key as http.api_keys[0]" in ran.stderr) == (2, True)


@pytest.mark.req("API-11")
def test_a_broken_keys_file_keeps_an_edge_from_starting_and_a_missing_one_does_not(tmp_path: Path) -> None:
    config = edge_config(http={"keys_file": "keys.json"})
    with edge_program(tmp_path, config) as edge:
        edge.address("http")
    (tmp_path / "keys.json").write_text("{")
    with Program(command("iop-edge", "serve", "-c", str(tmp_path / "edge.yaml"))) as edge:
        assert edge.wait() == 2
        assert "keys.json:1: not valid JSON" in str(edge.lines)


@pytest.mark.req("API-11")
def test_commands_at_once_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text("http: {keys_file: keys.json}")
    where = ["-c", str(tmp_path / "edge.yaml")]
    racing = [Program(command("iop-edge", "key", "new", *where, "--principal", f"p{i}", "--json")) for i in range(8)]
    made = []
    for program in racing:
        with program:
            assert program.wait() == 0
        made.append(json.loads(program.output))
    listed = Keys(tmp_path).run("list", "--json")
    rows = json.loads(listed)
    assert {row["id"] for row in rows} == {one["id"] for one in made}
    assert len(rows) == len(racing)
    assert {row["state"] for row in rows} == {"active"}
    ends = [Program(command("iop-edge", "key", "revoke", *where, one["id"])) for one in made]
    for program in ends:
        with program:
            assert program.wait() == 0
    assert {row["state"] for row in json.loads(Keys(tmp_path).run("list", "--json"))} == {"revoked"}
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("edge.yaml", "keys.json")] == []
