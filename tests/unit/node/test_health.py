"""What a connection tells of its providers' health: one count of observations, and reports by itself."""

from __future__ import annotations

import pytest

from iop.node.providers.health import MOST_REPORTS, REST_S
from iop.wire import messages as m
from tests.simulation.virtual import DELTA, JSON_HEAD, SSE_HEAD, Served, VirtualNode, chunk

LISTS = b'{"data":[{"id":"t"}]}'
SHORT = {"response_stall_timeout_ms": 2000}


def well(served: Served) -> None:
    served.answer(200, LISTS)


def numbers(world: VirtualNode) -> list[int]:
    """All that the edge was told, in no order."""
    found = [seen.health_observation_seq for seen in world.observations]
    found += [answer.health_observation_seq for answer in world.heard(m.NodeCommandResponse)]
    found += [end.health_observation_seq for call in world.calls.values() for end in call.terminals if end is not None]
    return [number for number in found if number]


@pytest.mark.req("LIVE-8")
def test_stalls_commands_and_reports_count_together_from_one() -> None:
    with VirtualNode(capacity=64) as world:
        world.probe = well
        for _ in range(5):
            world.open(**SHORT)
            world.run(**SHORT)
        lost = world.open()
        world.pass_s(1.95)
        lost.served.transport.peer.reset()
        for number in range(1, 6):
            world.ask(number=number)
        world.pass_s(3)
        for number in range(6, 11):
            world.ask(number=number)
        world.pass_s(3)
        assert {call.code for call in world.calls.values()} == {"response_stalled", "provider_connection_lost"}
        assert sorted(numbers(world)) == list(range(1, 22))
        answers = world.heard(m.NodeCommandResponse)
        assert min(a.health_observation_seq for a in answers[5:]) > max(a.health_observation_seq for a in answers[:5])


@pytest.mark.req("LIVE-8")
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_call_without_a_lease_has_no_number_and_takes_none(how: str) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = getattr(world, how)(lease=m.LeaseBinding(0), **SHORT)
        world.pass_s(3)
        assert (call.failure.provider_health.name, call.failure.health_observation_seq) == ("AVAILABLE", 0)
        world.ask()
        world.pass_s(1)
        assert numbers(world) == [1]


@pytest.mark.req("LIVE-5", "LIVE-8")
def test_calls_that_stall_together_share_a_probe_and_no_number() -> None:
    with VirtualNode(capacity=9) as world:
        calls = [world.open(**SHORT) for _ in range(8)]
        other = world.open(target="other", **SHORT)
        world.pass_s(6)
        assert {call.failure.liveness_classification.name for call in calls} == {"PROVIDER_UNHEALTHY"}
        assert len(world.probes) == 2
        assert sorted(numbers(world)) == list(range(1, 10))
        assert other.code == "response_stalled"


@pytest.mark.req("LIVE-8")
def test_a_probe_may_outlive_one_that_began_later() -> None:
    """Each asks for itself, and the number is that of the end: what was seen last counts."""
    with VirtualNode() as world:
        call = world.open(**SHORT)
        world.pass_s(2.5)  # its probe hangs
        world.probe = well
        world.ask()
        world.pass_s(0.5)
        (answer,) = world.heard(m.NodeCommandResponse)
        assert (answer.provider_health.name, answer.health_observation_seq) == ("AVAILABLE", 1)
        world.pass_s(3)
        assert (call.failure.provider_health.name, call.failure.health_observation_seq) == ("UNAVAILABLE", 2)


@pytest.mark.req("HEALTH-6")
@pytest.mark.parametrize("how", ["open", "run"])
@pytest.mark.parametrize(
    ("loss", "code"),
    [
        ("refused", "provider_unreachable"),
        ("silent", "provider_unreachable"),
        ("before the head", "provider_connection_lost"),
        ("in the answer", "provider_connection_lost"),
    ],
)
def test_a_provider_that_is_lost_is_looked_at_and_reported(how: str, loss: str, code: str) -> None:
    with VirtualNode() as world:
        world.probe = well
        open_call = getattr(world, how)
        if loss == "refused":
            world.refuse()
            call = open_call(wait=False)
        elif loss == "silent":
            world.network.unreachable.add(9001)
            call = open_call(wait=False)
            world.pass_s(1.0)
        else:
            call = open_call()
            if loss == "in the answer":
                call.served.send(SSE_HEAD + chunk(DELTA))
            call.served.transport.peer.reset()
        world.pass_s(0.2)
        assert call.code == code
        assert call.failure.provider_health is m.ProviderHealth.UNSPECIFIED
        world.pass_s(3.5)
        (seen,) = world.observations
        there = "p", "openai_compat", "t"
        if loss in ("refused", "silent"):
            assert seen == m.HealthObservation(*there, m.ProviderHealth.UNAVAILABLE, 1, m.HealthReason.REFUSED)
        else:
            assert seen == m.HealthObservation(*there, m.ProviderHealth.AVAILABLE, 1)


@pytest.mark.req("HEALTH-6")
def test_a_report_delays_no_terminal() -> None:
    with VirtualNode() as world:
        call = world.open()
        call.served.transport.peer.reset()
        world.pass_s(0.05)
        assert (call.code, world.observations) == ("provider_connection_lost", [])
        world.pass_s(3.1)
        assert [seen.provider_health.name for seen in world.observations] == ["UNAVAILABLE"]


@pytest.mark.req("HEALTH-6", "EXEC-7")
def test_what_we_end_ourselves_is_no_loss() -> None:
    with VirtualNode() as world:
        world.probe = well
        cancelled, late, short, whole, broken = (world.open(**more) for more in ({}, {"deadline_ms": 500}, {}, {}, {}))
        world.cancel(cancelled)
        short.served.send(SSE_HEAD + b"0\r\n\r\n")
        whole.served.send(JSON_HEAD + chunk(b"{}") + b"0\r\n\r\n")
        broken.served.send(b"HTTP/1.1 nonsense\r\n\r\n")
        world.pass_s(5)
        codes = [call.code for call in (cancelled, late, short, whole, broken)]
        assert codes == ["cancelled", "deadline_exceeded", "provider_truncated", "ok", "provider_protocol_error"]
        assert (world.probes, world.observations) == ([], [])


@pytest.mark.req("HEALTH-6")
def test_many_losses_are_one_look_at_a_time_and_the_last_one_is_looked_into() -> None:
    """A dead provider is asked about once a second, however many calls it takes with it; and what dies just behind a
    good answer is noticed."""
    with VirtualNode(capacity=100) as world:
        world.probe = well
        calls = [world.open() for _ in range(50)]
        for call in calls:
            call.served.transport.peer.reset()
        world.pass_s(0.5)
        assert {call.code for call in calls} == {"provider_connection_lost"}
        assert [seen.provider_health.name for seen in world.observations] == ["AVAILABLE"]
        world.refuse()
        for _ in range(50):
            world.open(wait=False)
        assert len(world.observations) == 1
        world.pass_s(REST_S)
        assert [seen.provider_health.name for seen in world.observations] == ["AVAILABLE", "UNAVAILABLE"]
        world.pass_s(10)
        assert len(world.observations) == 2, "nothing more was lost"


@pytest.mark.req("HEALTH-6")
def test_so_many_targets_are_looked_at_at_a_time_and_no_more() -> None:
    with VirtualNode(capacity=1000) as world:
        world.refuse()
        for number in range(MOST_REPORTS + 20):
            world.open(wait=False, target=f"t{number}")
        world.pass_s(0.5)
        assert len(world.observations) == MOST_REPORTS
        world.pass_s(2)
        world.open(wait=False, target="late")
        world.pass_s(0.5)
        assert world.observations[-1].target == "late"


@pytest.mark.req("HEALTH-6", "EXEC-7")
def test_a_look_ends_with_its_session_and_with_its_provider() -> None:
    with VirtualNode() as world:
        world.open().served.transport.peer.reset()
        world.pass_s(0.1)
        assert len(world.probes) == 1
        assert not world.probes[0].gone
        world.disconnect()
        world.pass_s(0.1)
        assert world.probes[0].gone
    with VirtualNode() as world:
        call = world.open()
        world.refresh(connect_timeout_ms=7)
        world.pass_s(0.1)
        call.served.transport.peer.reset()
        world.pass_s(2)
        assert call.code == "provider_connection_lost"
        assert world.probes == [], "what was lost is configured no more"


# ---- a target that is gone (HEALTH-7) --------------------------------------------------------------------------------

LACKS = b'{"data":[{"id":"other"}]}'
NOT_FOUND = b'{"error":{"message":"no such model","code":404}}'


def told_404(world: VirtualNode, how: str = "open", **more: object) -> None:
    """A request that its provider answers with 404."""
    call = getattr(world, how)(**more)
    call.served.answer(404, NOT_FOUND)
    call.served.transport.close()
    world.pass_s(0.3)
    assert call.code


@pytest.mark.req("HEALTH-7")
@pytest.mark.parametrize("how", ["open", "run"])
def test_a_404_makes_the_node_look_and_a_target_that_was_listed_is_reported_alone(how: str) -> None:
    with VirtualNode() as world:
        world.probe = well
        world.ask()
        world.pass_s(0.1)
        world.probe = lambda served: served.answer(200, LACKS)
        told_404(world, how)
        (seen,) = world.observations
        assert (seen.target, seen.provider_health) == ("t", m.ProviderHealth.UNAVAILABLE)
        assert (seen.reason, seen.scope) == (m.HealthReason.NOT_LISTED, m.HealthScope.TARGET)


@pytest.mark.req("HEALTH-7")
def test_a_404_for_what_was_never_listed_is_no_evidence() -> None:
    with VirtualNode() as world:
        world.probe = lambda served: served.answer(200, LACKS)
        told_404(world)
        assert [seen.provider_health.name for seen in world.observations] == ["AVAILABLE"]


@pytest.mark.req("HEALTH-7")
def test_a_thousand_404s_are_one_look_in_ten_seconds_for_each_target() -> None:
    with VirtualNode(capacity=64) as world:
        world.probe = well
        for _ in range(9):
            told_404(world)
            told_404(world, target="u")
        assert len(world.probes) == 2
        world.pass_s(10)
        told_404(world)
        assert len(world.probes) == 3


@pytest.mark.req("HEALTH-7")
@pytest.mark.parametrize(
    ("path", "status"), [(b"/files", 404), (b"/chat/completions", 400), (b"/chat/completions", 500)]
)
def test_no_other_answer_makes_the_node_look(path: bytes, status: int) -> None:
    with VirtualNode() as world:
        world.probe = well
        call = world.open(path=path)
        call.served.answer(status, NOT_FOUND)
        world.pass_s(1)
        assert call.code == "ok"
        assert world.probes == []


@pytest.mark.req("HEALTH-7", "LIVE-7")
def test_a_stall_of_a_target_that_is_no_longer_listed_reports_the_target_and_knows_nothing_of_the_provider() -> None:
    with VirtualNode() as world:
        world.probe = well
        world.ask()
        world.pass_s(0.1)
        world.probe = lambda served: served.answer(200, LACKS)
        call = world.open(**SHORT)
        world.pass_s(3)
        assert call.failure.provider_health is m.ProviderHealth.UNKNOWN
        (seen,) = world.observations
        assert (seen.reason, seen.scope) == (m.HealthReason.NOT_LISTED, m.HealthScope.TARGET)
        assert seen.health_observation_seq < call.failure.health_observation_seq
