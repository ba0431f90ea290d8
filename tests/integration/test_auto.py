"""``providers: auto`` and ``models: auto`` with a real edge, a real node and servers that answer ``/v1/models``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Address, Answer, Client, chat, post
from tests.support.programs import Program, edge_config, edge_program, node_config, node_program
from tests.support.provider import Call, ScriptedProvider, listening_socket
from tests.support.stack import TOKEN_ENV

CHAT = "/v1/chat/completions"


def serving(provider: ScriptedProvider, *models: str, owner: str = "someone", slots: int | None = None) -> None:
    """Answers as a model server does: lists ``models``, and echoes the model that a chat names."""

    def answer(call: Call) -> None:
        if call.path == b"/v1/models":
            rows = [{"id": name, "object": "model", "owned_by": owner} for name in models]
            call.respond(json.dumps({"object": "list", "data": rows}).encode())
        elif call.path == b"/props" and slots is not None:
            call.respond(json.dumps({"total_slots": slots, "prompt": "x"}).encode())
        elif call.path == b"/v1/chat/completions":
            call.respond(json.dumps({"served": call.json["model"]}).encode())
        else:
            call.respond(b"{}", 404)

    provider.answer = answer


@contextmanager
def edge_of(tmp_path: Path, providers: Any, models: Any) -> Iterator[Program]:
    nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": providers}]
    with edge_program(tmp_path, edge_config(nodes=nodes, models=models), env=TOKEN_ENV) as edge:
        yield edge


@contextmanager
def node_of(tmp_path: Path, edge: Program, *ports: int, **node: Any) -> Iterator[Program]:
    file = node_config(edge.address("nodes"), node={"detect_ports": list(ports), **node})
    with node_program(tmp_path, file, env=TOKEN_ENV) as running:
        yield running


async def ask(address: Address, request: bytes) -> Answer:
    client = await Client.connect(address)
    client.send(request)
    try:
        return await client.answer()
    finally:
        await client.close()


async def get(address: Address, path: str) -> Any:
    answer = await ask(address, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert answer.status == 200
    return answer.json


async def listed(edge: Program, wanted: Callable[[list[str]], bool]) -> list[str]:
    """The ids of /v1/models, once they are as wanted."""
    async with asyncio.timeout(15):
        while True:
            names = [row["id"] for row in (await get(edge.address("http"), "/v1/models"))["data"]]
            if wanted(names):
                return names


@pytest.mark.req("CONF-1", "EXEC-4")
@async_test(timeout_s=60)
async def test_local_servers_and_their_models_need_no_line_in_a_file(tmp_path: Path) -> None:
    socks = [listening_socket() for _ in range(3)]
    ports = [sock.getsockname()[1] for sock in socks]
    async with (
        ScriptedProvider(socks[0]) as plain,
        ScriptedProvider(socks[1]) as llama,
        ScriptedProvider(socks[2]) as iop,
    ):
        serving(plain, "qwen3:8b", "shared")
        serving(llama, "/models/a.gguf", "shared", owner="llamacpp", slots=3)
        serving(iop, "not-a-model-server", owner="iop")
        with ExitStack() as programs:
            edge = await asyncio.to_thread(programs.enter_context, edge_of(tmp_path, "auto", "auto"))
            http = edge.address("http")
            early = await ask(http, post(CHAT, chat("qwen3:8b")))
            assert (early.status, early.json["error"]["code"], early.get("retry-after")) == (503, "unavailable", "5")
            node = await asyncio.to_thread(programs.enter_context, node_of(tmp_path, edge, *ports, 1))
            names = await listed(edge, lambda names: len(names) == 3)
            assert sorted(names) == ["/models/a.gguf", "qwen3:8b", "shared"]
            for name in names:  # also the one whose provider the node has yet to acknowledge: it waits
                answer = await ask(http, post(CHAT, chat(name)))
                assert (answer.status, answer.json) == (200, {"served": name})
            unknown = await ask(http, post(CHAT, chat("nobody-lists-this")))
            assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")

            status = await get(edge.address("admin"), "/admin/status")
            rows = {p["id"]: (p["kind"], p["capacity"], p["status"]) for p in status["nodes"][0]["providers"]}
            assert rows == {
                f"n1-server-{ports[0]}": ("openai_compat", 4, "available"),
                f"n1-llama-cpp-{ports[1]}": ("llama_cpp", 3, "available"),
            }
            assert len(next(m for m in status["models"] if m["id"] == "shared")["candidates"]) == 2

            await asyncio.to_thread(node.close)
            await asyncio.to_thread(edge.wait_event, "node_disconnected")
            assert sorted(await listed(edge, bool)) == sorted(names)  # nothing vanishes with its node
            away = await ask(http, post(CHAT, chat("qwen3:8b")))
            assert (away.status, away.json["error"]["code"]) == (503, "unavailable")
            await asyncio.to_thread(programs.close)
    for sock in socks:
        sock.close()


ODD_ROWS = ({"id": None}, {"id": 7}, {"id": {"a": 1}}, {}, None, 1, "qwen3", [], {"id": "a\nb"}, {"id": "x" * 513})


@pytest.mark.req("CONF-1")
@async_test(timeout_s=60)
async def test_an_odd_row_hides_nothing_but_itself_and_a_list_that_is_none_is_told_once(tmp_path: Path) -> None:
    socks = [listening_socket() for _ in range(2)]
    ports = [sock.getsockname()[1] for sock in socks]
    async with ScriptedProvider(socks[0]) as odd, ScriptedProvider(socks[1]) as none:
        rows = [*ODD_ROWS, {"id": "good", "owned_by": {"a": []}}, {"id": "better", "owned_by": "vllm"}]
        odd.answer = lambda call: call.respond(json.dumps({"data": rows}).encode())
        none.answer = lambda call: call.respond(b'{"models": []}')
        mine = {"id": "p", "kind": "openai_compat", "base_url": f"http://127.0.0.1:{ports[1]}/v1"}
        with ExitStack() as programs:
            auto = {"id": "n1", "kind": "auto"}
            edge = await asyncio.to_thread(programs.enter_context, edge_of(tmp_path, [mine, auto], "auto"))
            node = await asyncio.to_thread(programs.enter_context, node_of(tmp_path, edge, *ports))
            assert sorted(await listed(edge, lambda names: len(names) == 2)) == ["better", "good"]
            told = await asyncio.to_thread(node.wait_event, "models_unreadable", server="p")
            assert told["level"] == "warning"
            await asyncio.to_thread(programs.close)
            assert [line.get("server") for line in node.lines if line.get("event") == "models_unreadable"].count(
                "p"
            ) == 1
            assert not [line for line in node.lines if line.get("event") == "inventory_broken"]
    for sock in socks:
        sock.close()


@pytest.mark.req("CONF-1", "POOL-1")
@async_test(timeout_s=60)
async def test_a_name_of_ones_own_for_whatever_fits_a_pattern(tmp_path: Path) -> None:
    sock = listening_socket()
    port = sock.getsockname()[1]
    async with ScriptedProvider(sock) as provider:
        serving(provider, "llama3", "qwen3:8b")
        mine = {"id": "p", "kind": "vllm", "base_url": f"http://127.0.0.1:{port}/v1", "capacity": 2}
        models = [{"id": "coder", "aliases": ["gpt-4o-mini"], "candidates": "auto", "target": "qwen*"}, {"id": "ll*"}]
        with ExitStack() as programs:
            edge = await asyncio.to_thread(programs.enter_context, edge_of(tmp_path, [mine], models))
            await asyncio.to_thread(programs.enter_context, node_of(tmp_path, edge, port))
            assert await listed(edge, lambda names: len(names) == 3) == ["coder", "gpt-4o-mini", "llama3"]
            answer = await ask(edge.address("http"), post(CHAT, chat("gpt-4o-mini")))
            assert answer.json == {"served": "qwen3:8b"}
            await asyncio.to_thread(programs.close)
    sock.close()


@pytest.mark.req("CONF-1", "TUN-7")
@pytest.mark.parametrize(
    "refused", ["the file leaves nothing open", "the owner lists no ports", "the owner's upstreams"]
)
@async_test(timeout_s=60)
async def test_a_node_looks_only_where_it_is_asked_and_allowed_to(tmp_path: Path, refused: str) -> None:
    sock = listening_socket()
    port = sock.getsockname()[1]
    async with ScriptedProvider(sock) as provider:
        serving(provider, "m")
        echo = [{"id": "e", "kind": "echo"}]
        providers = echo if "file" in refused else [*echo, {"id": "n1", "kind": "auto"}]
        fixed = [{"id": "m", "candidates": [{"node": "n1", "provider": "e", "target": "t"}]}]
        node: dict[str, Any] = {"allow_upstreams": ["other:1"]} if "upstreams" in refused else {}
        with ExitStack() as programs:
            models = fixed if "file" in refused else "auto"
            edge = await asyncio.to_thread(programs.enter_context, edge_of(tmp_path, providers, models))
            ports = [] if "ports" in refused else [port]
            await asyncio.to_thread(programs.enter_context, node_of(tmp_path, edge, *ports, **node))
            await asyncio.to_thread(edge.wait_event, "node_connected")
            if models == "auto":
                assert await listed(edge, bool) == ["echo"]  # so it has looked
            assert [call.target for call in provider.calls] == []
            await asyncio.to_thread(programs.close)
    sock.close()


@pytest.mark.req("CONF-2")
@async_test(timeout_s=60)
async def test_a_reload_opens_and_closes_places(tmp_path: Path) -> None:
    sock = listening_socket()
    port = sock.getsockname()[1]
    async with ScriptedProvider(sock) as provider:
        serving(provider, "m")
        with ExitStack() as programs:
            edge = await asyncio.to_thread(programs.enter_context, edge_of(tmp_path, [], []))
            await asyncio.to_thread(programs.enter_context, node_of(tmp_path, edge, port))
            await asyncio.to_thread(edge.wait_event, "node_connected")
            file = json.loads((tmp_path / "edge.yaml").read_text())
            opened = {**file, "models": "auto", "nodes": [{**file["nodes"][0], "providers": "auto"}]}
            for content, names in ((opened, ["m"]), (file, []), (opened, ["m"])):
                (tmp_path / "edge.yaml").write_text(json.dumps(content))
                reloaded = await ask(
                    edge.address("admin"),
                    b"POST /admin/reload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n",
                )
                assert (reloaded.status, reloaded.json["result"]) == (200, "applied")
                await listed(edge, lambda found, names=names: found == names)
            answer = await ask(edge.address("http"), post(CHAT, chat("m")))
            assert answer.json == {"served": "m"}
            await asyncio.to_thread(programs.close)
    sock.close()
