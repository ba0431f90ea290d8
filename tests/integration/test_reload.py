"""CONF-2 with real programs: what a changed file does to requests, nodes and keys, and what a bad one does not."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test, run
from tests.support.http import Answer, Client, chat, post
from tests.support.programs import Program, command, edge_config, edge_program, node_config
from tests.support.provider import DONE, ScriptedProvider, chat_answer, chat_delta, chat_event, listening_socket
from tests.support.refreshing import Rig

CHAT = "/v1/chat/completions"
ENV = {"IOP_TOKEN": "t0", "IOP_OTHER_TOKEN": "t1", "IOP_NODE_TOKEN": "t0", "IOP_KEY": "k"}
REFRESHES = 60


class Live:
    """An edge whose file changes, a node ``n1``, and a scripted provider that answers by the test's word."""

    def __init__(self, folder: Path, stack: ExitStack, **sections: Any) -> None:
        self.folder = folder
        self._stack = stack
        self.sock = stack.enter_context(listening_socket())
        self.sections = sections
        self.providers: dict[str, dict[str, Any]] = {"p": {"capacity": 2}}
        self.models: dict[str, str] = {"m": "p"}
        self.other_nodes: list[dict[str, Any]] = []
        self.token_env = "IOP_TOKEN"
        self.edge = stack.enter_context(edge_program(folder, self.config(), env=ENV))
        self.node = self.start_node()
        self.edge.wait_event("node_connected", node="n1")
        self.provider: ScriptedProvider
        self.clients: list[Client] = []

    def start_node(self, variable: str = "IOP_NODE_TOKEN", name: str = "node") -> Program:
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(node_config(self.edge.address("nodes"), node={"token_env": variable})))
        return self._stack.enter_context(
            Program(command("iop-node", "serve", "-c", str(file), "--log-format", "json"), env=ENV)
        )

    def config(self) -> dict[str, Any]:
        port = self.sock.getsockname()[1]
        base: dict[str, Any] = {"kind": "openai_compat", "base_url": f"http://127.0.0.1:{port}/p/v1"}
        rows = [{"id": name, **({} if "kind" in row else base), **row} for name, row in self.providers.items()]
        nodes = [{"id": "n1", "token_env": self.token_env, "providers": rows}] if self.providers else []
        owners = {p["id"]: node["id"] for node in [*nodes, *self.other_nodes] for p in node["providers"]}
        models = [
            {"id": name, "candidates": [{"node": owners[p], "provider": p, "target": f"real-{name}"}]}
            for name, p in self.models.items()
        ]
        return edge_config(nodes=[*nodes, *self.other_nodes], models=models, **self.sections)

    def write(self, text: str | None = None) -> None:
        fresh = self.folder / "edge.yaml.new"
        fresh.write_text(json.dumps(self.config()) if text is None else text)
        os.replace(fresh, self.folder / "edge.yaml")

    async def reload(self, text: str | None = None) -> Any:
        """Writes the file and lets the edge read it; the body of a 200."""
        self.write(text)
        answer = await self.admin(b"POST", "/admin/reload")
        assert answer.status == 200, answer.body
        return answer.json

    async def admin(self, method: bytes, path: str, headers: bytes = b"") -> Answer:
        client = await Client.connect(self.edge.address("admin"))
        try:
            client.send(
                b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%b\r\n" % (method, path.encode(), headers)
            )
            return await client.answer()
        finally:
            await client.close()

    async def status(self) -> Any:
        return (await self.admin(b"GET", "/admin/status")).json

    async def row(self, provider_id: str) -> Any:
        rows = [p for n in (await self.status())["nodes"] for p in n["providers"] if p["id"] == provider_id]
        return rows[0] if rows else None

    async def settled(self) -> None:
        """Every node that is there has what it is to have."""
        await self.shows(
            lambda seen: all(not n["connected"] or n["applied_revision"] == n["revision"] for n in seen["nodes"])
        )

    async def shows(self, wanted: Callable[[Any], bool]) -> None:
        """Looks at the status until it is as wanted."""
        async with asyncio.timeout(10):
            while not wanted(await self.status()):
                pass

    async def send(self, model: str = "m", *, stream: bool = False, key: str = "") -> Client:
        client = await Client.connect(self.edge.address("http"))
        self.clients.append(client)
        client.send(post(CHAT, chat(model, stream=stream), {"Authorization": f"Bearer {key}"} if key else None))
        return client

    async def refused(self, code: str, model: str = "m") -> bool:
        answer = await (await self.send(model)).answer()
        return bool(answer.status >= 400 and answer.json["error"]["code"] == code)

    async def serves(self, model: str = "m") -> None:
        client = await self.send(model)
        call = await self.provider.call()
        assert call.json["model"] == f"real-{model}"
        call.respond(chat_answer("yes"))
        assert (await client.answer()).status == 200


@contextmanager
def started(folder: Path, **sections: Any) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(folder, stack, **sections)


@asynccontextmanager
async def living(folder: Path, **sections: Any) -> AsyncIterator[Live]:
    with started(folder, **sections) as live:
        async with ScriptedProvider(live.sock) as live.provider:
            try:
                yield live
            finally:
                for client in live.clients:
                    await client.close()


async def iop_edge(*arguments: str) -> tuple[int, str, str]:
    line = command("iop-edge", *arguments)
    ran = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=20, check=False)
    return ran.returncode, ran.stdout, ran.stderr


# ---- under load -----------------------------------------------------------------------------------------------------


@pytest.mark.req("CONF-2", "POOL-7", "EXEC-3")
def test_many_changes_under_load_drop_nothing_and_exceed_no_capacity(tmp_path: Path) -> None:
    async def body() -> None:
        with Rig(tmp_path) as rig:
            async with rig.load(clients=20) as load:
                for _ in range(REFRESHES):
                    await load.refresh()
                    await load.answered(2)  # so that requests live on both sides of each change
            assert load.faults == []
            assert load.refreshes["malformed"] > 0
            assert load.outcomes["complete"] == sum(load.outcomes.values()) > 2 * REFRESHES
            assert 'cause="capacity_exceeded"' not in await load.metrics()

    run(body(), timeout_s=60)


# ---- asking, and a file that is not right ---------------------------------------------------------------------------


@pytest.mark.req("CONF-2", "CONF-1")
@async_test()
async def test_a_bad_file_is_told_with_every_fault_and_changes_nothing(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        live.write("http: {prot: 1}\nqueue: {timeout_ms: -5}\nnodes: 7")
        admin = "{}:{}".format(*live.edge.address("admin"))
        code, out, err = await iop_edge("reload", "--admin", admin)
        assert (code, out) == (2, "")
        *faults, last = err.splitlines()
        assert last == "iop-edge: the file was refused; the edge goes on with the configuration that it has"
        assert [part for fault in faults for part in ("http.prot", "queue.timeout_ms", "nodes") if part in fault] == [
            "http.prot",
            "queue.timeout_ms",
            "nodes",
        ]
        assert str(tmp_path / "edge.yaml") in faults[0]
        assert live.edge.wait_event("config_refused")["faults"] == faults
        seen = await live.status()
        assert seen["edge"]["revision"] == 1
        assert seen["edge"]["config"]["faults"] == faults
        metrics = (await live.admin(b"GET", "/metrics")).body.decode()
        assert 'iop_edge_config_reloads_total{result="refused"} 1.0' in metrics
        assert "iop_edge_config_last_reload_refused 1.0" in metrics
        answer = await live.admin(b"POST", "/admin/reload")
        assert (answer.status, answer.json["error"]["code"]) == (400, "config_error")
        assert answer.json["error"]["faults"] == faults
        await live.serves()

        live.providers["p"]["capacity"] = 3
        live.write()
        code, out, err = await iop_edge("reload", "--admin", admin)
        assert (code, err) == (0, "")
        assert out.splitlines()[:2] == ["took over revision 2", "  changed: nodes[n1].providers[p].capacity"]
        assert "iop_edge_config_last_reload_refused 0.0" in (await live.admin(b"GET", "/metrics")).body.decode()
        assert (await live.status())["edge"]["config"]["faults"] == []


@pytest.mark.req("CONF-2")
@async_test()
async def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        live.providers["p"]["capacity"] = 7
        live.write()
        live.edge.signal(signal.SIGHUP)
        line = await asyncio.to_thread(live.edge.wait_event, "config_reloaded")
        assert (line["revision"], line["changed"]) == (2, ["nodes[n1].providers[p].capacity"])
        await asyncio.to_thread(live.edge.wait_event, "node_config_applied", node="n1", revision=2)
        await asyncio.to_thread(live.node.wait_event, "config_applied", revision=2)
        assert (await live.row("p"))["capacity"] == 7
        live.write("[")
        live.edge.signal(signal.SIGHUP)
        await asyncio.to_thread(live.edge.wait_event, "config_refused")
        assert (await live.row("p"))["capacity"] == 7


@pytest.mark.req("CONF-2", "OBS-4")
@async_test()
async def test_only_a_post_of_this_origin_reloads(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        assert (await live.admin(b"GET", "/admin/reload")).status == 405
        foreign = await live.admin(b"POST", "/admin/reload", b"Origin: http://evil.example\r\n")
        assert foreign.status == 403
        other_port = await live.admin(b"POST", "/admin/reload", b"Origin: http://localhost:3000\r\n")
        assert other_port.status == 403, "a page that some other program on this machine serves"
        assert not [line for line in live.edge.lines if line.get("event") == "config_reloaded"]
        assert (await live.admin(b"POST", "/admin/reload")).json["result"] == "unchanged"


@pytest.mark.req("CONF-2")
@async_test()
async def test_what_needs_a_restart_is_named_and_the_rest_is_taken_over(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        live.sections = {"edge": {"id": "another"}, "http": {"listen": "127.0.0.1:1"}, "queue": {"max_waiters": 1}}
        live.providers["p"]["capacity"] = 1
        said = await live.reload()
        assert said["needs_restart"] == ["edge.id", "http.listen"]
        assert said["changed"] == ["queue.max_waiters", "nodes[n1].providers[p].capacity"]
        seen = (await live.status())["edge"]
        assert (seen["id"], seen["config"]["needs_restart"]) == ("edge-1", ["edge.id", "http.listen"])
        await live.send()
        await live.provider.call()
        await live.send()
        await live.shows(lambda seen: seen["waiting"] == 1)
        assert await live.refused("queue_full")
        # What is put back needs no restart any more.
        live.sections = {"queue": {"max_waiters": 1}}
        assert (await live.reload())["needs_restart"] == []


# ---- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.req("CONF-2", "POOL-7")
@async_test()
async def test_a_stream_outlives_its_provider_and_its_model(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        client = await live.send(stream=True)
        call = await live.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        await client.read_through(b'"a"')
        live.providers = {"q": {}}
        live.models = {"other": "q"}
        await live.reload()
        assert (await live.row("p"))["status"] == "draining"
        assert await live.refused("model_not_found")
        await live.settled()
        await live.serves("other")
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()
        assert (await client.body()).endswith(DONE)
        assert await live.row("p") is None


@pytest.mark.req("CONF-2")
@async_test()
async def test_lower_capacity_counts_at_once_and_waiters_keep_their_order(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        clients = [await live.send() for _ in range(2)]
        calls = [await live.provider.call() for _ in clients]
        waiting = await live.send()
        await live.shows(lambda seen: seen["waiting"] == 1)
        live.providers["p"]["capacity"] = 1
        await live.reload()
        calls[0].respond(chat_answer("a"))
        await clients[0].answer()
        assert [(await live.status())[key] for key in ("leases_in_use", "waiting")] == [1, 1]
        live.providers["p"]["capacity"] = 2
        await live.reload()
        third = await live.provider.call()
        assert third.json["model"] == "real-m"
        for call in (calls[1], third):
            call.respond(chat_answer("b"))
        assert (await waiting.answer()).status == 200


@pytest.mark.req("CONF-2", "API-4")
@async_test()
async def test_keys_count_for_the_next_request_also_on_an_open_connection(tmp_path: Path) -> None:
    key = {"principal": "alice", "key_env": "IOP_KEY"}
    async with living(tmp_path, http={"api_keys": [key]}) as live:
        client = await live.send(key="k")
        call = await live.provider.call()
        live.sections = {"http": {"api_keys": [{"principal": "bob", "key_sha256": "0" * 64}]}}
        said = await live.reload()
        assert said["changed"] == ["http.api_keys"]
        assert "0" * 64 not in json.dumps(said)
        call.respond(chat_answer("a"))
        assert (await client.answer()).status == 200
        client.send(post(CHAT, chat("m"), {"Authorization": "Bearer k"}))
        assert (await client.answer()).status == 401


# ---- nodes ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("CONF-2", "TUN-7")
@async_test()
async def test_a_provider_that_a_node_may_not_have_is_rejected_alone_and_everybody_is_told(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        live.providers["away"] = {"base_url": "http://192.0.2.1:8000/v1"}
        live.models["far"] = "away"
        live.providers["p"]["capacity"] = 5
        told = await live.reload()
        assert told["unanswered"] == []
        (rejected,) = told["rejected"]
        assert [rejected[key] for key in ("node", "provider", "code")] == ["n1", "away", "upstream_not_allowed"]
        line = await asyncio.to_thread(live.edge.wait_event, "provider_rejected")
        assert [line[key] for key in ("node", "provider", "reason")] == ["n1", "away", "upstream_not_allowed"]
        detail = (await asyncio.to_thread(live.node.wait_event, "provider_rejected"))["detail"]
        assert "allow_upstreams" in detail
        assert "192.0.2.1" not in detail
        await live.serves()
        assert await live.refused("unavailable", "far")
        (node, *_) = (await live.status())["nodes"]
        assert (node["revision"], node["applied_revision"], node["config_refused"]) == (2, 2, None)
        assert (await live.row("p"))["capacity"] == 5, "what it may have counts"
        away = await live.row("away")
        assert (away["status"], away["capacity"]) == ("rejected", 0)
        assert away["rejected"].startswith("upstream_not_allowed: ")
        admin = "{}:{}".format(*live.edge.address("admin"))
        _, out, _ = await iop_edge("status", "--admin", admin)
        assert "n1/away rejected by its node: " in out
        _, out, _ = await iop_edge("reload", "--admin", admin)
        assert "rejected: n1/away: " in out

        del live.providers["away"], live.models["far"]
        assert (await live.reload())["rejected"] == []
        await live.settled()
        assert (await live.status())["nodes"][0]["config_refused"] is None


@pytest.mark.req("CONF-2", "REG-1")
@async_test()
async def test_a_node_that_is_gone_leaves_after_its_last_request_and_a_new_one_may_come(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        client = await live.send(stream=True)
        call = await live.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        live.providers, live.models = {}, {"e": "e"}
        live.other_nodes = [
            {"id": "n2", "token_env": "IOP_OTHER_TOKEN", "providers": [{"id": "e", "kind": "echo"}]},
        ]
        await live.reload()
        other = live.start_node("IOP_OTHER_TOKEN", "other")
        await asyncio.to_thread(live.edge.wait_event, "node_connected", node="n2")
        assert (await (await live.send("e")).answer()).status == 200
        assert [n["id"] for n in (await live.status())["nodes"] if n["connected"]] == ["n1", "n2"]
        assert not [line for line in live.edge.lines if line.get("event") == "node_removed"]
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()
        assert (await client.body()).endswith(DONE)
        await asyncio.to_thread(live.edge.wait_event, "node_removed", node="n1")
        line = await asyncio.to_thread(live.node.wait_event, "edge_lost")
        assert line["detail"] == "removed"
        assert await asyncio.to_thread(live.node.wait) == 3, "its token is unknown from now on"
        assert [n["id"] for n in (await live.status())["nodes"]] == ["n2"]
        assert other.process.poll() is None


@pytest.mark.req("CONF-2")
@async_test()
async def test_the_drain_time_bounds_how_long_a_removed_node_stays(tmp_path: Path) -> None:
    async with living(tmp_path, edge={"drain_timeout_sec": 0.5}) as live:
        client = await live.send()
        await live.provider.call()
        live.providers, live.models = {}, {}
        await live.reload()
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "node_disconnected")
        await asyncio.to_thread(live.edge.wait_event, "node_removed")


@pytest.mark.req("CONF-2", "REG-1")
@async_test()
async def test_a_new_token_is_asked_for_at_the_next_connection(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        live.token_env = "IOP_OTHER_TOKEN"
        assert (await live.reload())["changed"] == ["nodes[n1].token_env"]
        await live.serves()
        stranger = live.start_node("IOP_NODE_TOKEN", "old")
        assert await asyncio.to_thread(stranger.wait) == 3
        await asyncio.to_thread(live.node.close)
        await asyncio.to_thread(live.edge.wait_event, "node_disconnected")
        seen = len(live.edge.lines)
        live.start_node("IOP_OTHER_TOKEN", "new")
        await asyncio.to_thread(live.edge.wait_event, "node_connected", after=seen, node="n1")
        await live.serves()


@pytest.mark.req("CONF-2", "EXEC-4")
@async_test()
async def test_the_built_in_provider_comes_and_goes(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        live.providers["e"] = {"kind": "echo"}
        live.models["e"] = "e"
        await live.reload()
        client = await live.send("e", stream=True)  # waits for the node, if need be
        await client.head()
        await client.piece()
        del live.providers["e"], live.models["e"]
        await live.reload()
        await live.settled()
        assert (await client.body()).endswith(DONE)
        await live.serves()


@pytest.mark.req("CONF-2", "SUP-5")
@pytest.mark.skipif(sys.platform != "linux", reason="how a terminal goes differs between systems")
def test_an_edge_whose_terminal_is_closed_ends_and_does_not_linger(tmp_path: Path) -> None:
    """SIGHUP, too: it would hold its ports, and nobody would see what it says."""
    file = tmp_path / "edge.yaml"
    file.write_text(json.dumps(edge_config()))
    terminal, inner = os.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command("iop-edge", "serve", "-c", str(file), "--log-format", "json"),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        preexec_fn=own_terminal,  # noqa: PLW1509 - two system calls, no lock
    )
    os.close(inner)
    seen = b""
    while seen.count(b'"listening"') < 3:
        seen += os.read(terminal, 4096)
    # With a terminal SIGHUP is a word about the file.
    process.send_signal(signal.SIGHUP)
    while b"config_reloaded" not in seen:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    assert process.wait(20) == 0
