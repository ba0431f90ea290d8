"""How a node reaches its providers: with whose key, at which address, over what, and for how long it keeps a connection
(TUN-6, TUN-7, TUN-8)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.http import chat, post
from tests.support.programs import Program, command, edge_config, edge_program, node_config
from tests.support.provider import ScriptedProvider, chat_answer, unix_listening_socket
from tests.support.stack import TOKEN_ENV, Stack, model, running_stack

CHAT = "/v1/chat/completions"


@pytest.mark.req("TUN-6", "SEC-4")
@async_test()
async def test_the_node_adds_the_providers_key_and_nobody_prints_it(tmp_path: Path) -> None:
    env = {"IOP_PROVIDER_KEY": "node-secret"}
    provider = {"api_key_env": "IOP_PROVIDER_KEY"}
    credentials = {"credentials": ["IOP_PROVIDER_KEY"]}
    with running_stack(tmp_path, {"m": provider}, [model("m")], env=env, node=credentials) as stack:
        async with stack.scene() as scene:
            client = await scene.send(post(CHAT, chat("m"), {"Authorization": "Bearer client-secret"}))
            call = await scene.provider.call()
            assert call.header(b"authorization") == b"Bearer node-secret"
            assert b"client-secret" not in call.head
            call.respond(chat_answer("x"))
            assert (await client.answer()).status == 200
            said = json.dumps([stack.edge.lines, stack.node.lines, await scene.status()]) + await scene.metrics()
            assert "secret" not in said


@pytest.mark.req("TUN-6", "TUN-7", "SUP-3")
@pytest.mark.parametrize(
    ("provider", "word"),
    [
        ({"base_url": "http://192.0.2.1:8000/v1"}, "allow_upstreams"),
        ({"base_url": "http://127.0.0.1:1/v1", "api_key_env": "IOP_TOKEN"}, "IOP_TOKEN"),
    ],
)
def test_an_edge_cannot_make_a_node_do_what_its_owner_did_not_allow(
    tmp_path: Path, provider: dict[str, str], word: str
) -> None:
    """Neither call an address nor read a variable: the node says why in one line, and serves whatever else there is."""
    entry = {"id": "p", "kind": "openai_compat", **provider}
    nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [entry]}]
    config = edge_config(nodes=nodes, models=[model("m", "p")])
    with edge_program(tmp_path, config, env=TOKEN_ENV) as edge:
        file = tmp_path / "node.yaml"
        file.write_text(json.dumps(node_config(edge.address("nodes"))))
        arguments = command("iop-node", "serve", "-c", str(file), "--log-format", "json")
        with Program(arguments, env=TOKEN_ENV) as node:
            line = node.wait_event("provider_rejected", provider="p")
            assert word in str(line["detail"])
            assert "192.0.2.1" not in str(line)
            line = edge.wait_event("provider_rejected", provider="p")
            assert word in str(line["detail"])
            edge.wait_event("node_connected")


@pytest.mark.req("TUN-1")
@async_test()
async def test_a_provider_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    url = f"unix:{path}:/base/v1"
    with (
        unix_listening_socket(path) as sock,
        running_stack(tmp_path, {"m": {"base_url": url}}, [model("m")]) as stack,
    ):
        async with stack.scene() as scene, ScriptedProvider(sock) as provider:
            client = await scene.send(post(CHAT, chat("m")))
            call = await provider.call()
            assert call.target == b"/base/v1/chat/completions"
            assert call.header(b"host") == b"localhost"
            call.respond(chat_answer("x"))
            assert (await client.answer()).body == chat_answer("x")


@pytest.mark.req("TUN-8")
@async_test()
async def test_a_kept_connection_is_closed_before_the_provider_would(hasty: Stack) -> None:
    """``idle_sec`` is 0.3 there."""
    async with hasty.scene() as scene:
        client = await scene.send(post(CHAT, chat("brief")))
        call = await scene.provider.call()
        call.respond(chat_answer("x"))
        answered_at = asyncio.get_running_loop().time()
        assert (await client.answer()).status == 200
        async with asyncio.timeout(3):
            await call.gone.wait()
        assert call.gone_at - answered_at >= 0.25
