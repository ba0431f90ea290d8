"""SIGTERM of the edge or of the node under many live streams, for tests/chaos and tests/integration."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Literal

from tests.support.aio import until
from tests.support.http import Broken, Client, chat, post
from tests.support.provider import DONE, Call, chat_delta, chat_event
from tests.support.site import LOST, Site

__all__ = ["terminated_under_streams"]

CHAT = "/v1/chat/completions"
FIRST, SECOND = chat_delta("first"), chat_delta("second")
LAST = chat_event({}, "stop") + DONE
EXIT_S = 5.0  # on top of the drain time, for goodbyes and the end of the process
AGAIN_S = 15.0

#: What a client is told whose stream had not ended in time.
TOLD = {"edge": "shutting_down", "node": "node_draining"}


async def terminated_under_streams(
    folder: Path, whom: Literal["edge", "node"], streams: int, *, endless: int, drain_s: float
) -> str:
    """SUP-4, SUP-5: what ends within the drain time ends whole, the ``endless`` rest ends typed, exit 0, and service
    comes back: a new node serves, and the old node finds a new edge. Returns a line of figures."""
    typed = LOST | set(TOLD.values())
    async with Site(folder, capacity=streams, typed=typed, edge_dies=whom == "edge", drain_s=drain_s) as site:
        program = site.edge if whom == "edge" else site.node
        kept, site.provider.answer = site.provider.answer, None
        live = await _streams(site, streams)
        loop = asyncio.get_running_loop()
        since = loop.time()
        exiting = asyncio.ensure_future(site.terminate(program))
        await asyncio.to_thread(program.wait_event, "draining")
        await _nothing_new(site, whom)

        finishing, waiting = live[endless:], live[:endless]
        for _, call in finishing:
            if not call.gone.is_set():
                call.event(SECOND)
                call.event(LAST)
                call.end_stream()
        ends = Counter(await asyncio.gather(*(_end(client) for client, _ in finishing)))
        finished_s = loop.time() - since
        assert ends == {"complete": streams - endless}, f"of those that had all the time to finish: {ends}"
        late = Counter(await asyncio.gather(*(_end(client) for client, _ in waiting)))
        ended_s = loop.time() - since
        assert set(late) <= {TOLD[whom]}, f"of those that did not finish: {late}"
        assert not endless or ended_s >= drain_s, f"cut after {ended_s:.2f} s of {drain_s} s"
        code = await exiting
        exit_s = loop.time() - since
        assert code == 0, f"exit code {code}"
        bound_s = (drain_s if endless else 0.0) + EXIT_S
        assert exit_s <= bound_s, f"the {whom} took {exit_s:.1f} s to leave"
        for client, _ in live:
            await client.close()
        await until(lambda: all(call.gone.is_set() for _, call in waiting), what="the provider's calls were ended")

        site.provider.answer = kept
        site.load.start()
        started = loop.time()
        await (site.start_edge() if whom == "edge" else site.start_node())
        again_s = await site.load.served(since=started, timeout_s=AGAIN_S, what=f"served after a new {whom} came")
        await site.rest(whole_book=False)
    return (
        f"SIGTERM of the {whom} under {streams} streams: {dict(ends + late)}; all finished after {finished_s:.2f} s, "
        f"exit {code} after {exit_s:.2f} s (drain {drain_s:g} s); served again {again_s:.2f} s after a new {whom}"
    )


async def _streams(site: Site, streams: int) -> list[tuple[Client, Call]]:
    """Streams whose first event has been read, each with its call."""
    clients = [await Client.connect(site.http) for _ in range(streams)]
    for number, client in enumerate(clients):
        client.send(post(CHAT, chat("m", stream=True, text=str(number))))
    live = []
    for _ in clients:
        call = await site.provider.call()
        call.start_stream()
        call.event(FIRST)
        live.append((clients[int(call.json["messages"][0]["content"])], call))
    for client, _ in live:
        head = await client.head()
        assert head.status == 200, head
        assert await client.read_through(b"first") == FIRST
    return live


async def _nothing_new(site: Site, whom: str) -> None:
    """Nobody listens at an edge that leaves; one whose only node leaves says so."""
    if whom == "edge":
        try:
            client = await Client.connect(site.http)
        except ConnectionRefusedError:
            return
        await client.close()
        raise AssertionError("an edge that leaves accepts a connection")
    await asyncio.to_thread(site.edge.wait_event, "node_draining")
    client = await Client.connect(site.http)
    client.send(post(CHAT, chat("m")))
    answer = await client.answer()
    await client.close()
    assert answer.status == 503, answer
    assert answer.get("retry-after"), answer


async def _end(client: Client) -> str:
    """How the rest of a stream ended: complete, the code of its error event, or broken without one."""
    try:
        body = await client.body()
    except Broken as broken:
        sent, mark, tail = broken.body.partition(b'data: {"error"')
        if not (SECOND + LAST).startswith(sent):
            raise
        return str(json.loads(b'{"error"' + tail)["error"]["code"]) if mark else "broken"
    assert body == SECOND + LAST, body
    return "complete"
