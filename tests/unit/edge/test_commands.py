"""Commands to a node, and the poll of its engines, as the edge keeps them."""

from __future__ import annotations

import pytest

from iop.edge.nodes.commands import MAX_OUTSTANDING, Commands
from iop.edge.nodes.engine_load import ANSWER_S, OLD_S, POLL_S, EnginePoll, drift, engine_fields, running
from iop.errors import CapacityExceeded, IopError, NodeDisconnected
from iop.wire import messages as m

Answer = m.NodeCommandResponse | IopError
CAPABILITIES, STATUS = m.NodeCommand.CAPABILITIES, m.NodeCommand.TRANSPORT_STATUS


class Node:
    """A node's link with a test in its place."""

    def __init__(self) -> None:
        self.sent: list[m.NodeCommandRequest] = []
        self.heard: list[Answer] = []
        self.broken = False
        self.commands = Commands(self._send)

    def _send(self, request: m.NodeCommandRequest) -> None:
        if self.broken:
            raise ConnectionResetError
        self.sent.append(request)

    def start(self, now: float = 0.0, timeout_s: float = 5.0, provider_id: str = "p") -> int:
        return self.commands.start(CAPABILITIES, self.heard.append, now, timeout_s=timeout_s, provider_id=provider_id)

    @property
    def codes(self) -> list[str]:
        return [answer.code if isinstance(answer, IopError) else "ok" for answer in self.heard]


@pytest.mark.req("EXEC-8")
def test_answers_find_their_commands_in_any_order_and_once() -> None:
    node = Node()
    first, second = node.start(provider_id="a"), node.start(provider_id="b")
    assert [(r.command_id, r.provider_id, r.timeout_ms, r.cancel) for r in node.sent] == [
        (first, "a", 5000, False),
        (second, "b", 5000, False),
    ]
    for _ in range(2):
        node.commands.answered(m.NodeCommandResponse(second, provider_id="b", result=b"2"))
        node.commands.answered(m.NodeCommandResponse(first, provider_id="a", result=b"1"))
    assert [answer.result for answer in node.heard if isinstance(answer, m.NodeCommandResponse)] == [b"2", b"1"]
    assert len(node.heard) == 2
    assert node.commands.outstanding == 0


@pytest.mark.req("EXEC-8")
def test_the_node_s_code_becomes_the_error_without_its_words() -> None:
    node = Node()
    command = node.start()
    node.commands.answered(m.NodeCommandResponse(command, m.ErrorCode.UNSUPPORTED_COMMAND, message=b"a secret"))
    (error,) = node.heard
    assert isinstance(error, IopError)
    assert (error.code, "secret" in error.message) == ("unsupported_command", False)


def test_an_answer_for_another_provider_is_none() -> None:
    node = Node()
    asked = node.commands.start(STATUS, node.heard.append, 0.0, timeout_s=5.0, provider_id="a")
    node.commands.answered(m.NodeCommandResponse(asked, provider_id="b"))
    assert node.codes == ["internal"]


@pytest.mark.req("HEALTH-5")
def test_an_answer_to_capabilities_comes_whole_to_who_judges_it() -> None:
    node = Node()
    answer = m.NodeCommandResponse(node.start(provider_id="a"), provider_id="b")
    node.commands.answered(answer)
    assert node.heard == [answer]


@pytest.mark.req("EXEC-8")
def test_each_way_to_end_is_typed_and_the_node_is_told() -> None:
    node = Node()
    late, cancelled, lost = node.start(timeout_s=2.0), node.start(), node.start(timeout_s=9.0)
    node.commands.tick(1.9)
    assert node.codes == []
    node.commands.tick(2.0)
    node.commands.cancel(cancelled)
    node.commands.cancel(cancelled)
    assert node.codes == ["deadline_exceeded", "cancelled"]
    assert [r.command_id for r in node.sent if r.cancel] == [late, cancelled]
    node.commands.close()
    assert node.codes == ["deadline_exceeded", "cancelled", "node_disconnected"]
    node.commands.answered(m.NodeCommandResponse(lost, provider_id="p"))
    assert len(node.heard) == 3
    with pytest.raises(NodeDisconnected):
        node.start()


@pytest.mark.req("EXEC-8")
def test_their_number_is_bounded_and_a_broken_link_takes_none() -> None:
    node = Node()
    for _ in range(MAX_OUTSTANDING):
        node.start()
    with pytest.raises(CapacityExceeded):
        node.start()
    node.commands.cancel(1)
    node.start()
    node.commands.cancel(2)
    node.broken = True
    with pytest.raises(NodeDisconnected):
        node.start()
    assert node.commands.outstanding == MAX_OUTSTANDING - 1
    node.commands.cancel(3)
    assert node.codes == ["cancelled"] * 3


class Poll(Node):
    def __init__(self, leased: dict[str, int]) -> None:
        super().__init__()
        self.leased = leased
        self.poll = EnginePoll(self.commands, self.leased.get)

    def answer(self, *transports: m.ProviderTransport) -> None:
        self.commands.answered(m.NodeCommandResponse(self.sent[-1].command_id, transports=list(transports)))


@pytest.mark.req("POOL-13")
def test_engines_are_asked_again_and_again_and_their_figures_stand_beside_the_leases() -> None:
    node = Poll({"v": 4, "o": 0})
    node.poll.tick(100.0)
    assert [(r.command, r.provider_id) for r in node.sent] == [(STATUS, "")]
    node.poll.tick(100.0 + 2 * POLL_S)
    assert len(node.sent) == 1  # one question at a time
    node.answer(
        m.ProviderTransport("v", 4, 8, 1, True, 6, 2, True),
        m.ProviderTransport("o", 0, 8, 1, True, 3, None, False),
        m.ProviderTransport("foreign", engine_tells=True, engine_running=9, engine_counts_requests=True),
        m.ProviderTransport("silent", engine_tells=True),
    )
    figures = node.poll.figures
    assert {name: engine_fields(figures.get(name)) for name in ("v", "o", "foreign", "silent")} == {
        "v": {"engine_running": 6, "engine_waiting": 2},
        "o": {"engine_running": 3, "engine_waiting": None},
        "foreign": {"engine_running": None, "engine_waiting": None},
        "silent": {"engine_running": None, "engine_waiting": None},
    }
    # Models in memory are no requests: they are shown, and neither counted nor compared.
    assert (running(figures), drift(figures)) == ({("v",): 6}, {("engine",): 2, ("lease",): 0})
    node.leased["v"] = 9
    node.poll.tick(200.0)
    node.answer(m.ProviderTransport("v", 9, 8, 1, True, 6, 2, True))
    assert drift(node.poll.figures) == {("engine",): 0, ("lease",): 3}


@pytest.mark.req("POOL-13")
def test_figures_go_with_their_age_and_with_the_connection() -> None:
    node = Poll({"v": 0})
    node.poll.tick(100.0)
    node.answer(m.ProviderTransport("v", engine_tells=True, engine_running=1, engine_counts_requests=True))
    node.poll.tick(110.0)
    node.commands.tick(110.0 + ANSWER_S)
    assert node.codes == []  # the poll keeps its failures to itself
    assert "v" in node.poll.figures
    node.poll.tick(100.0 + OLD_S + 0.1)
    assert node.poll.figures == {}
    node.poll.tick(200.0)
    node.answer(m.ProviderTransport("v", engine_tells=True, engine_running=1, engine_counts_requests=True))
    assert "v" in node.poll.figures
    node.poll.close()
    assert node.poll.figures == {}


def test_a_node_that_has_nothing_to_tell_is_asked_once_until_its_configuration_changes() -> None:
    for silent in (m.NodeCommandResponse(1), m.NodeCommandResponse(1, m.ErrorCode.UNSUPPORTED_COMMAND)):
        node = Poll({})
        node.poll.tick(100.0)
        node.commands.answered(silent)
        node.poll.tick(1000.0)
        assert len(node.sent) == 1
        node.poll.refresh()
        node.poll.tick(1001.0)
        assert len(node.sent) == 2
