"""How a call ends that is being cancelled: requests and runs write down the same (EXEC-7, OBS-1b, OBS-7)."""

from __future__ import annotations

from typing import Any

import pytest

from iop._fast import frame
from iop.edge.requests.normalized_run import RunSpec, submit_run
from iop.errors import RequestCancelled
from iop.pool.lease import ReleaseCause
from iop.wire import messages as m
from tests.integration.test_cancel_in_time import HEAD, decisions
from tests.integration.test_provider_health import Scene, scene
from tests.integration.test_run_recovery import Hears, K, failed, say
from tests.support.aio import async_test, until

LOST, CANCELLED = m.ErrorCode.PROVIDER_CONNECTION_LOST, m.ErrorCode.CANCELLED


def tunnel_ends(at: Scene, request: m.ProviderTunnelRequest, how: str) -> None:
    number = request.stream_id
    if how in {"cancelled", "lost"}:
        at.end(at.one, request, code=CANCELLED if how == "cancelled" else LOST)
        return
    status = 503 if how == "refused" else 200
    block = b"content-type: application/json\r\nretry-after: 9\r\n"
    at.one.send(frame.encode_tunnel_frame(number, 0, HEAD, status=status, header_block=block))
    at.one.send(frame.encode_tunnel_frame(number, 1, int(m.TunnelFrameKind.END)))


def run_ends(at: Scene, request: m.RunRequest, how: str) -> None:
    ends = {
        "complete": [K.START, K.COMPLETE],
        "refused": [failed(m.ErrorCode.PROVIDER_PROTOCOL_ERROR, provider_status=503, retry_after=b"9")],
        "cancelled": [K.CANCELLED],
        "lost": [K.START, failed(LOST)],
    }
    say(at.one, request, *ends[how])


@pytest.mark.req("EXEC-7", "OBS-1b", "OBS-7", "API-8")
@pytest.mark.parametrize(
    ("how", "noted", "decided"),
    [
        ("complete", [], []),
        ("refused", [], []),
        ("cancelled", ["cancelled"], []),
        ("lost", ["provider_connection_lost"], ["cancelled"]),
    ],
)
@pytest.mark.parametrize("kind", ["request", "run"])
def test_a_call_that_ends_while_it_is_cancelled(kind: str, how: str, noted: list[str], decided: list[str]) -> None:
    """A whole answer that comes too late is no failure, whatever its status."""

    @async_test()
    async def body() -> None:
        async with scene() as at:
            hears = Hears()
            if kind == "run":
                submit_run(at.edge.dispatcher, RunSpec(b'{"prompt":1}', model="alone"), hears, "operator")
                client = None
            else:
                client = await at.ask("alone")
            request: Any = await at.one.message()
            (live,) = at.edge.dispatcher.live
            live.stop(RequestCancelled())
            assert isinstance(await at.one.message(), m.CancelRequest)
            assert at.edge.pool.leases_in_use == 1
            (run_ends if kind == "run" else tunnel_ends)(at, request, how)
            await until(lambda: not at.edge.dispatcher.live)
            notes = live.notes or []
            assert [said["code"] for _, what, said in notes if what == "failed"] == noted
            assert [what for _, what, _ in notes if what not in {"failed", "cancelling", "waiting"}] == []
            assert [labels.rpartition("/")[2] for labels in decisions(at)] == decided
            assert live.released is ReleaseCause.CANCEL_CONFIRMED
            if client is not None:
                assert (await client.answer()).status == RequestCancelled.status
            else:
                assert hears.heard == [RequestCancelled.code]

    body()
