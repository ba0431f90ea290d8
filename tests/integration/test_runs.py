"""What a node remembers of its requests, in the file beside its own."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.programs import edge_config, edge_program, node_config, node_program
from tests.support.provider import ScriptedProvider, chat_answer, listening_socket
from tests.support.stack import TOKEN_ENV, model


def rows(folder: Path) -> list[dict[str, Any]]:
    db = sqlite3.connect(f"file:{folder / 'iop.db'}?mode=ro", uri=True)
    try:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM runs ORDER BY id")]
    except sqlite3.OperationalError:  # not there yet
        return []
    finally:
        db.close()


def modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.glob("iop.db*")}


def left_in(folder: Path) -> bytes:
    """The database's files, whatever is in them."""
    return b"".join(file.read_bytes() for file in folder.glob("iop.db*"))


@pytest.mark.req("EXEC-9", "SEC-4")
@async_test(timeout_s=60)
async def test_requests_leave_a_row_each_and_a_killed_node_tells_what_it_broke_off(tmp_path: Path) -> None:
    with listening_socket() as sock:
        row = {"id": "p", "kind": "openai_compat", "base_url": f"http://127.0.0.1:{sock.getsockname()[1]}/p/v1"}
        nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [{**row, "capacity": 4}]}]
        with edge_program(tmp_path, edge_config(nodes=nodes, models=[model("p")]), env=TOKEN_ENV) as edge:
            dialling = node_config(edge.address("nodes"))
            async with ScriptedProvider(sock) as provider:
                with node_program(tmp_path, dialling, env=TOKEN_ENV) as node:
                    await asyncio.to_thread(edge.wait_event, "node_connected")
                    client, gone, cut = [await Client.connect(edge.address("http")) for _ in range(3)]
                    client.send(post("/v1/chat/completions", chat("p", text="a secret prompt")))
                    (await provider.call()).respond(chat_answer("a secret answer"))
                    request_id = (await client.answer()).get("x-request-id")
                    await until(lambda: [r["status"] for r in rows(tmp_path)] == ["complete"])
                    assert modes(tmp_path) == dict.fromkeys(("iop.db", "iop.db-wal", "iop.db-shm"), 0o600)
                    (done,) = rows(tmp_path)
                    assert (done["run_id"], done["kind"], done["adapter"]) == (request_id, "tunnel", "openai_compat")
                    assert (done["provider"], done["target"], done["attempt"]) == ("p", "real-p", 1)
                    gone.send(post("/v1/chat/completions", chat("p")))
                    await provider.call()
                    gone.leave()
                    await until(lambda: [r["status"] for r in rows(tmp_path)] == ["complete", "cancelled"])
                    cut.send(post("/v1/chat/completions", chat("p")))
                    await provider.call()
                    await until(lambda: [r["status"] for r in rows(tmp_path)][2:] == ["running"])
                    node.kill()
                assert (await cut.answer()).json["error"]["code"] == "node_disconnected"
                with node_program(tmp_path, dialling, env=TOKEN_ENV) as again:
                    await asyncio.to_thread(again.wait_event, "edge_connected")
                    await until(lambda: [r["status"] for r in rows(tmp_path)][2:] == ["interrupted"])
                for one in (client, gone, cut):
                    await one.close()
    assert b"secret" not in left_in(tmp_path)


@pytest.mark.req("EXEC-9")
@async_test(timeout_s=60)
async def test_a_store_that_cannot_be_opened_fails_no_request(tmp_path: Path) -> None:
    with listening_socket() as sock:
        row = {"id": "p", "kind": "openai_compat", "base_url": f"http://127.0.0.1:{sock.getsockname()[1]}/p/v1"}
        nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [row]}]
        with edge_program(tmp_path, edge_config(nodes=nodes, models=[model("p")]), env=TOKEN_ENV) as edge:
            dialling = node_config(edge.address("nodes"), store={"url": "file:nowhere/iop.db?mode=rwc"})
            async with ScriptedProvider(sock) as provider:
                with node_program(tmp_path, dialling, env=TOKEN_ENV) as node:
                    await asyncio.to_thread(edge.wait_event, "node_connected")
                    await asyncio.to_thread(node.wait_event, "store_failing")
                    client = await Client.connect(edge.address("http"))
                    client.send(post("/v1/chat/completions", chat("p")))
                    (await provider.call()).respond(chat_answer("hello"))
                    assert (await client.answer()).status == 200
                    await client.close()
                    assert node.close() == 0
