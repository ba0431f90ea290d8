"""A model that thinks for longer than a link may be silent: a stream, a whole answer and a run, side by side.

What times the silence is what the streaming client hears meanwhile: a sign of life every ``stream_keepalive_sec``.
"""

from __future__ import annotations

import asyncio

from tests.support.http import chat, post
from tests.support.provider import DONE, Call, chat_answer, chat_delta, chat_event, chat_stream
from tests.support.stack import Scene, run_of

__all__ = ["a_long_silence"]

CHAT = "/v1/chat/completions"
COMMENT = b": keepalive prefilling\n\n"
STREAM = (chat_event({"role": "assistant", "content": ""}), chat_delta("at "), chat_delta("last"),
          chat_event({}, "stop"), DONE)  # fmt: skip
WHOLE = chat_answer("at last")
LINK_LOST = frozenset({"node_disconnected", "node_connection_closed", "node_connected", "edge_lost", "edge_connected"})
STALLED = frozenset({"node_response_stall_observation", "edge_provider_health_observation"})


async def a_long_silence(scene: Scene, model: str, beats: int, at_least_s: float) -> str:
    """Waits for so many signs of life, which take longer than ``at_least_s``, before the provider says a word. Raises
    AssertionError unless everybody then gets all of it over the connection that there was. Returns a line of figures.
    """
    edge, node, loop = scene.stack.edge, scene.stack.node, asyncio.get_running_loop()
    before = len(edge.lines), len(node.lines)
    evidence = await scene.samples("iop_edge_provider_health_evidence_total")
    stream = await scene.send(post(CHAT, chat(model, stream=True, text="stream")))
    whole = await scene.send(post(CHAT, chat(model, text="whole")))
    run = await scene.run(model=model, prompt="run")
    calls: dict[str, Call] = {}
    for _ in range(3):
        call = await scene.provider.call()
        calls[call.json["messages"][0]["content"]] = call
    began_at = loop.time()
    head = await stream.head()
    assert (head.status, head.get("content-type")) == (200, "text/event-stream")
    for _ in range(beats):
        assert await stream.piece() == COMMENT
    silence_s = loop.time() - began_at
    assert silence_s > at_least_s
    await scene.in_use(3)

    calls["stream"].stream(*STREAM)
    calls["whole"].respond(WHOLE)
    calls["run"].stream(chat_stream("at ", "last"))
    assert (await stream.body()).replace(COMMENT, b"") == b"".join(STREAM)
    answer = await whole.answer()
    assert (answer.status, answer.body) == (200, WHOLE)
    run_id, text = run_of(await run.answer())
    assert text == "at last"
    for request_id in (head.get("x-request-id"), answer.get("x-request-id"), run_id):
        line = await scene.outcome(request_id)
        assert (line["outcome"], line["attempts"], line["node"]) == ("ok", 1, "n1")
        assert line["duration_ms"] > at_least_s * 1000
    await scene.settled()

    said = {line.get("event") for line in edge.lines[before[0] :] + node.lines[before[1] :]}
    assert said & LINK_LOST == set(), "the connection is another one"
    assert said & STALLED == set(), "it was taken for a stall"
    assert await scene.samples("iop_edge_provider_health_evidence_total") == evidence
    assert len(scene.provider.calls) == 3
    return f"silent for {silence_s:.1f} s, {beats} signs of life"
