"""Slots of calls that are closed and that their engine goes on with: how long they are held (TUN-5d)."""

from __future__ import annotations

import pytest

from iop.node.providers.lingering import ASK_S, BOUND_S
from iop.wire import messages as m
from tests.simulation.virtual import DELTA, JSON_HEAD, SSE_HEAD, Served, VirtualNode, chunk

SLOW = {"streaming": False, "first_response_timeout_ms": 0}


class Slots:
    """A llama.cpp server that works on ``running`` requests. ``asked_at`` is when it was asked for its slots."""

    def __init__(self, world: VirtualNode, running: int = 0) -> None:
        self.world = world
        self.running = running
        self.asked_at: list[float] = []
        self.status = 200
        world.probe = self._answer

    def _answer(self, served: Served) -> None:
        if served.path != b"/slots":  # of a probe or a look
            served.answer(200)
            return
        self.asked_at.append(self.world.now)
        served.answer(self.status, b"[" + b",".join([b'{"is_processing":true}'] * self.running) + b"]")


def lingering(world: VirtualNode) -> tuple[int, int]:
    """Slots held at the node's gate, and units whose end the edge was told."""
    return world.backends.gate.held("p"), len(world.closed_calls)


@pytest.mark.req("TUN-5d", "POOL-12", "EXEC-7")
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("head", [b"", SSE_HEAD])
def test_a_call_that_its_engine_goes_on_with_is_closed_and_keeps_its_slot(streaming: bool, head: bytes) -> None:
    with VirtualNode("llama_cpp") as world:
        slots = Slots(world, running=1)
        call = world.open(streaming=streaming)
        if head:
            call.served.send(head)
        world.cancel(call)
        world.pass_s(0.2)
        assert call.code == "cancelled"
        assert (call.failure.close_confirmed, call.failure.engine_lingers) == (True, True)
        world.pass_s(3 * ASK_S + 0.3)
        assert lingering(world) == (1, 0)
        slots.running = 0
        world.pass_s(ASK_S + 0.1)
        assert lingering(world) == (0, 1)
        assert all(later - sooner >= ASK_S for sooner, later in zip(slots.asked_at, slots.asked_at[1:], strict=False))
        world.pass_s(10)
        assert len(slots.asked_at) == 4, "nobody is asked when nothing lingers"


@pytest.mark.req("TUN-5d")
@pytest.mark.parametrize(
    ("kind", "said"), [("llama_cpp", SSE_HEAD + chunk(DELTA)), ("vllm", b""), ("openai_compat", b""), ("ollama", b"")]
)
def test_no_other_call_lingers(kind: str, said: bytes) -> None:
    """A stream whose first token was out is noticed, and other engines notice anyhow."""
    with VirtualNode(kind) as world:
        call = world.open()
        if said:
            call.served.send(said)
        world.cancel(call)
        world.pass_s(0.2)
        assert (call.code, call.failure.engine_lingers, lingering(world)) == ("cancelled", False, (0, 0))


@pytest.mark.req("TUN-5d")
@pytest.mark.parametrize("status", [302, 400, 404, 429, 500, 503])
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_call_that_its_engine_refused_does_not_linger(how: str, status: int) -> None:
    """The head is final: an engine that refuses a request does not work on it. The slot is free for the next call."""
    with VirtualNode("llama_cpp", capacity=1) as world:
        slots = Slots(world)
        call = getattr(world, how)()
        call.served.send(b"HTTP/1.1 %d X\r\nlocation: /x\r\ncontent-length: 12\r\n\r\n" % status)
        world.cancel(call)
        world.pass_s(0.2)
        assert (call.failure.engine_lingers, lingering(world)) == (False, (0, 0))
        world.pass_s(2 * ASK_S)
        assert len(slots.asked_at) == (status == 404), "the probe that a 404 leads to, and nobody else"


@pytest.mark.req("TUN-5d", "CONF-2")
@pytest.mark.parametrize(
    ("config", "held"),
    [({"base_url": "http://127.0.0.1:9001/other/v1"}, 2), ({"idle_ms": 2000}, 1)],
    ids=["another server", "the same server"],
)
def test_after_a_refresh_only_calls_at_the_same_server_explain_what_it_runs(
    config: dict[str, object], held: int
) -> None:
    """A refresh gives the provider's id to another server: calls that are open there are none of the old engine's."""
    with VirtualNode("llama_cpp", capacity=4) as world:
        slots = Slots(world, running=1)
        world.cancel(world.open(**SLOW))
        world.pass_s(0.2)
        world.refresh(**config)
        world.pass_s(0.2)
        world.open()
        world.pass_s(2 * ASK_S + 0.5)
        assert lingering(world)[0] == held
        slots.running = 0
        world.pass_s(ASK_S + 0.5)
        assert lingering(world)[0] == 1


@pytest.mark.req("TUN-5d")
def test_a_call_that_never_reached_its_engine_does_not_linger() -> None:
    with VirtualNode("llama_cpp") as world:
        world.network.unreachable.add(9001)
        call = world.open(wait=False)
        world.cancel(call)
        world.pass_s(0.2)
        assert (call.failure.engine_lingers, lingering(world)) == (False, (0, 0))


@pytest.mark.req("TUN-5d", "LIVE-2b")
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_stall_and_a_deadline_linger_too(how: str) -> None:
    with VirtualNode("llama_cpp") as world:
        world.probe = lambda served: served.answer(200, b'[{"is_processing":true}]')
        stalled = getattr(world, how)(response_stall_timeout_ms=2000)
        late = getattr(world, how)(deadline_ms=1000)
        world.pass_s(3)
        assert (stalled.code, late.code) == ("response_stalled", "deadline_exceeded")
        assert stalled.failure.engine_lingers
        assert late.failure.engine_lingers
        assert stalled.failure.engine_busy
        assert stalled.failure.retryable
        world.probe = lambda served: served.answer(200, b"[]")
        world.pass_s(2 * ASK_S)
        assert lingering(world) == (0, 2)


@pytest.mark.req("TUN-5d", "EXEC-3")
def test_the_calls_that_are_open_are_not_taken_for_abandoned_ones() -> None:
    """Four of two: what the engine runs beyond the open calls is what still lingers, however many they are."""
    with VirtualNode("llama_cpp", capacity=4) as world:
        slots = Slots(world, running=4)
        calls = [world.open(**SLOW) for _ in range(4)]
        for call in calls[:3]:
            world.cancel(call)
        world.pass_s(ASK_S + 0.3)
        assert lingering(world) == (4, 0)
        world.pass_s(0.1)
        slots.running = 3
        world.pass_s(ASK_S)
        assert lingering(world) == (3, 1), "one of them is done"
        slots.running = 1
        world.pass_s(ASK_S)
        assert lingering(world) == (1, 3)
        calls[3].served.send(JSON_HEAD + chunk(b"{}") + b"0\r\n\r\n")
        world.pass_s(0.1)
        assert calls[3].code == "ok"


@pytest.mark.req("TUN-5d", "POOL-12")
def test_after_two_minutes_a_slot_comes_back_whatever_its_engine_says() -> None:
    with VirtualNode("llama_cpp") as world:
        Slots(world, running=5)
        world.cancel(world.open(**SLOW))
        world.pass_s(BOUND_S - 1)
        assert lingering(world) == (1, 0)
        world.pass_s(ASK_S + 1.5)
        assert lingering(world) == (0, 1)
        assert (world.backends.lingering.ended, world.backends.lingering.expired) == (0, 1)


@pytest.mark.req("TUN-5d")
@pytest.mark.parametrize(
    ("status", "held"), [(404, 0), (501, 0), (500, 1), (503, 1)], ids=["no list", "switched off", "fault", "busy"]
)
def test_an_engine_that_has_no_list_of_slots_holds_none_and_one_that_fails_does(status: int, held: int) -> None:
    with VirtualNode("llama_cpp") as world:
        slots = Slots(world)
        slots.status = status
        world.cancel(world.open(**SLOW))
        world.pass_s(ASK_S + 0.3)
        assert lingering(world)[0] == held
        slots.status = 200
        world.pass_s(ASK_S)
        assert lingering(world) == (0, 1)


@pytest.mark.req("TUN-5d")
def test_a_server_that_is_gone_runs_nothing() -> None:
    with VirtualNode("llama_cpp") as world:
        world.cancel(world.open(**SLOW))
        world.pass_s(0.1)
        world.refuse()
        world.pass_s(ASK_S)
        assert lingering(world) == (0, 1)


@pytest.mark.req("TUN-5d", "POOL-13")
def test_however_many_ask_an_engine_is_asked_every_two_seconds_at_most() -> None:
    with VirtualNode("llama_cpp", capacity=64) as world:
        slots = Slots(world, running=9)
        for number in range(20):
            world.cancel(world.open(**SLOW))
            status = m.NodeCommandRequest(100 + number, m.NodeCommand.TRANSPORT_STATUS, timeout_ms=5000)
            world.tell(status)
            world.pass_s(0.15)
        world.pass_s(6)
        answers = [a for a in world.heard(m.NodeCommandResponse) if a.transports]
        assert len(answers) == 20
        assert {a.transports[0].engine_running for a in answers} == {9}
        assert all(
            later - sooner >= ASK_S - 0.1 for sooner, later in zip(slots.asked_at, slots.asked_at[1:], strict=False)
        )
        slots.running = 0
        world.pass_s(3)
        assert lingering(world) == (0, 20)


@pytest.mark.req("TUN-5d", "HEALTH-5", "LIVE-5")
@pytest.mark.parametrize("config", [{}, {"health_path": "/slots"}], ids=["own", "configured"])
@pytest.mark.parametrize("answer_s", [0.0, 0.5])
def test_whatever_asks_an_engine_asks_it_every_two_seconds_at_most(config: dict[str, str], answer_s: float) -> None:
    """Probes of stalls, of lost calls and of the edge, looks, the load and what lingers: one question serves all."""
    with VirtualNode("llama_cpp", capacity=64, **config) as world:
        slots = Slots(world, running=3)
        at_once = world.probe
        assert at_once is not None
        world.probe = lambda served: world.outside.call_later(answer_s, at_once, served)  # type: ignore[assignment,return-value]
        numbers = iter(range(1, 1000))
        for turn in range(20):
            world.cancel(world.open(**SLOW))
            world.open(response_stall_timeout_ms=700)
            world.run(response_stall_timeout_ms=400)
            world.open().served.transport.peer.reset()
            world.ask(number=next(numbers))
            world.ask(number=next(numbers), reason=m.HealthReason.FAILING)
            world.ask(number=next(numbers), targets=["t"])
            world.tell(m.NodeCommandRequest(next(numbers), m.NodeCommand.TRANSPORT_STATUS, timeout_ms=5000))
            world.pass_s(0.21 + turn / 100)
        world.pass_s(6)
        assert len(slots.asked_at) > 4
        assert all(
            later - sooner >= ASK_S - 0.1 for sooner, later in zip(slots.asked_at, slots.asked_at[1:], strict=False)
        ), slots.asked_at
        answers = world.heard(m.NodeCommandResponse)
        assert len(answers) == 80
        assert {a.provider_health.name for a in answers if not a.transports} == {"AVAILABLE"}
        assert {o.provider_health.name for o in world.observations} <= {"AVAILABLE"}
        slots.running = 0
        world.pass_s(5)


@pytest.mark.req("TUN-5d", "POOL-12", "EXEC-7")
def test_a_lingering_slot_outlives_its_connection_to_the_edge() -> None:
    with VirtualNode("llama_cpp") as world:
        slots = Slots(world, running=1)
        world.open(**SLOW)
        world.disconnect()
        world.pass_s(3 * ASK_S)
        assert world.backends.gate.carry_over() == {"p": 1}, "the next connection is told"
        slots.running = 0
        world.pass_s(ASK_S)
        assert lingering(world)[0] == 0


@pytest.mark.req("TUN-5d", "POOL-14")
def test_a_direct_run_owes_the_edge_no_word() -> None:
    with VirtualNode("llama_cpp") as world:
        Slots(world)
        call = world.run(lease=m.LeaseBinding(0))
        world.cancel(call)
        world.pass_s(0.2)
        assert call.failure.engine_lingers
        world.pass_s(ASK_S)
        assert lingering(world) == (0, 0)


@pytest.mark.req("LIVE-2b", "TUN-5d")
@pytest.mark.parametrize("asked_before_s", [0.1, 0.6, 1.5])
def test_figures_from_before_a_call_say_nothing_of_it(asked_before_s: float) -> None:
    """The engine was idle when it was asked last, and may not be asked again so soon."""
    with VirtualNode("llama_cpp") as world:
        slots = Slots(world)
        world.tell(m.NodeCommandRequest(100, m.NodeCommand.TRANSPORT_STATUS, timeout_ms=5000))
        world.pass_s(asked_before_s)
        slots.running = 1
        call = world.open(response_stall_timeout_ms=300)
        world.pass_s(3.5)
        assert (call.code, call.failure.engine_busy) == ("response_stalled", True)
        slots.running = 0
        world.pass_s(3)
