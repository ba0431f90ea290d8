"""A cancel on a whole node under a virtual clock: how soon the provider's socket is closed (EXEC-7)."""

from __future__ import annotations

import pytest

from iop._fast import frame
from iop.wire import messages as m
from tests.simulation.virtual import BODY, DELTA, JSON_HEAD, SSE_HEAD, VirtualNode, chunk

WITHIN_S = 0.1
STATES = {
    "before the answer": [],
    "behind a head": [JSON_HEAD],
    "in an event stream": [SSE_HEAD, chunk(DELTA)],
    "inside an event": [SSE_HEAD, chunk(DELTA[:20])],
}


@pytest.mark.req("EXEC-7")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["open", "run"])
def test_the_providers_socket_is_closed_within_100_ms_of_a_cancel(how: str, state: str) -> None:
    with VirtualNode() as world:
        call, other = getattr(world, how)(), world.open()
        for said in STATES[state]:
            call.served.send(said)
        world.cancel(call)
        world.pass_s(WITHIN_S)
        assert call.served.gone
        assert call.code == "cancelled"
        assert call.failure.close_confirmed
        assert not other.served.gone
        assert other.code == "", "a cancel is for one stream"


@pytest.mark.req("EXEC-7")
def test_a_cancel_while_the_body_is_still_coming_closes_the_socket_within_100_ms() -> None:
    with VirtualNode() as world:
        call = world.open(body=b"", body_bytes=len(BODY), body_follows=True)
        world.raw(frame.encode_tunnel_body(call.stream_id, BODY[:3]))
        world.pass_s(0.01)
        assert call.served.heard.endswith(BODY[:3])
        world.cancel(call)
        world.pass_s(WITHIN_S)
        assert (call.served.gone, call.code) == (True, "cancelled")


@pytest.mark.req("EXEC-7")
@pytest.mark.parametrize("how", ["open", "run"])
def test_all_calls_of_a_lost_session_are_closed_within_100_ms(how: str) -> None:
    with VirtualNode() as world:
        calls = [getattr(world, how)() for _ in range(3)]
        world.disconnect()
        world.pass_s(WITHIN_S)
        assert [call.served.gone for call in calls] == [True] * 3
        assert [call.code for call in calls] == [""] * 3, "nothing is said on a connection that is gone"


@pytest.mark.req("EXEC-7")
def test_ids_that_are_unknown_or_finished_are_ignored() -> None:
    with VirtualNode() as world:
        done, open_call = world.open(), world.open()
        done.served.answer(200)
        world.pass_s(0.1)
        assert done.code == "ok"
        world.cancel(done)
        world.tell(m.CancelRequest(77, "r77", m.CancelReason.CLIENT_GONE))
        world.pass_s(1)
        assert (done.code, open_call.code) == ("ok", "")
        world.cancel(open_call)
