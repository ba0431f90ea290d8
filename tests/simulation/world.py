"""The whole system in one world without sockets, threads or real time; everything that happens is drawn from a seed.

    world = World(seed, lifecycles)
    world.run()        # requests and faults, invariants after every step; then all heals, and must come to rest

The edge, its pool, its HTTP server, the nodes with their supervisors, agents, gates and tunnels, sessions and
multiplexers are the real ones. Only loop, sockets, clients and providers are not.

The file is long because what may be asserted after a step depends on everything that the step may have touched.
"""

from __future__ import annotations

import hashlib
import logging
import random
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from iop.edge.requests.client_request import ClientRequest
from iop.execution.gate import SlotState
from iop.pool.registry import NodeState
from tests.simulation.actors import Client, Plan, RunClient, Upstream
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Loop
from tests.simulation.network import Network
from tests.simulation.programs import (
    EDGE_PORT,
    HTTP_PORT,
    MODELS,
    NODES,
    PROVIDERS,
    EdgeProgram,
    NodeProgram,
    running,
    watched_agents,
)

__all__ = ["MUST_SEE", "Violation", "World", "listen_to_logs"]

NAMES = {EDGE_PORT: "link", HTTP_PORT: "client", **{p["port"]: name for name, p in PROVIDERS.items()}}
RATES = (10.0, 40.0, 80.0, 250.0)  # requests per second, while a phase lasts
LINGER_S = 1.5  # until the end of a call is known on the edge, at the latest
REST_S = 60.0  # by when a healed system is at rest

#: What enough seeds, together, must have come across: otherwise they prove nothing.
MUST_SEE = (
    "split", "delay", "link reset", "link closed", "link cut", "link cut for good", "duplicate connect", "node crash",
    "node power loss", "node drain", "node restart", "edge crash", "edge drain", "edge restart", "cancel waiting",
    "cancel sent", "cancel open", "refresh", "shrink", "grow", "provider removed", "provider added",
    "provider disabled", "provider death", "provider unreachable", "provider reset", "provider cut", "provider stall",
    "provider silent", "kept connection lost", "failed send", "stale grant", "slow close", "close not confirmed",
    "call closed", "held over", "readmit capacity_exceeded", "readmit send_failed", "readmit stale_grant",
    "slots held by others", "engine failing", "engine hung", "probe of an engine that is well",
    "probe of an engine that is failing", "probe of an engine that is hung", "observation dead", "observation well",
    "observation gone", "target lowered", "target restored", "rest", "refused providers_resting", "observation old",
    "observation foreign", "observation malformed", "overlay lowered", "overlay restored", "revoked",
    "queue timeout", "refused unavailable", "slow client", "burst", "queued run", "direct run", "cancel run",
    "run sent again",
)  # fmt: skip


class Violation(AssertionError):
    """Something that must hold does not."""


class World:
    """See the module."""

    def __init__(self, seed: int, lifecycles: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        random.seed(seed)  # the supervisor's jitter
        self.seen: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.kernel = Kernel()
        self.kernel.after = self._after
        self.kernel.failed = self._failed
        self._trace = trace
        self.note: Callable[[str], None] | None = self._note if trace is not None else None
        self.network = Network(self.kernel, random.Random(self.rng.random()), self.seen, NAMES)
        self.outside = Loop(self.kernel, "outside", self.network)
        self.wanted = lifecycles
        self.plans: dict[int, Plan] = {}
        self.open: dict[int, Plan] = {}  # asked, and without an outcome yet
        self.clients: dict[Client, None] = {}
        self.runs: dict[str, Plan] = {}  # normalized runs, by id
        self.upstreams: dict[Upstream, None] = {}
        self.config = {name: dict(provider) for name, provider in PROVIDERS.items()}
        self.engines = dict.fromkeys(PROVIDERS, "well")  # or failing (its probes), or hung
        self.edges = 0
        self.lives = 0
        self.rate = RATES[1]
        self._lingers: dict[tuple[str, int], float] = {}
        self.healing = False
        self.ending = False
        self.done = 0  # lifecycles
        self.nodes: dict[str, NodeProgram | None] = dict.fromkeys(NODES)
        self.twins: list[NodeProgram] = []
        self.edge: EdgeProgram | None = None
        self.faults = Faults(self)

    # ---- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Violation."""
        with watched_agents():
            self._run()

    def _run(self) -> None:
        _LINES.world = self
        try:
            for name in PROVIDERS:
                self.faults.provider_up(name)
            self._start_edge()
            for node_id in NODES:
                self._start_node(node_id)
            self._advance(0.5)
            self.outside.call_later(0.0, self._arrive)
            self.outside.call_later(0.0, self.faults.happen)
            self.outside.call_later(0.0, self._phase)
            self.outside.call_later(0.0, self._watch_lingering)
            while self.done < self.wanted:
                self._advance(1.0)
            self._rest()
        except AssertionError as exc:
            raise exc if isinstance(exc, Violation) else self._violated(exc) from exc
        finally:
            _LINES.world = None
            for loop in self.network.loops:
                loop.end()

    def _advance(self, seconds: float) -> None:
        self.kernel.run_until(self.kernel.now + seconds)

    def _after(self, loop: Loop) -> None:
        program = loop.program
        if program is not None:
            program.check()

    def _failed(self, loop: Loop, error: BaseException | str) -> None:
        if isinstance(error, Violation):
            raise error
        if isinstance(error, BaseException):
            raise self._violated(error) from error
        raise Violation(f"{loop.name}: {error}")

    def _violated(self, error: BaseException) -> Violation:
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
        line = frames[-1].line if frames and not str(error) else ""
        return Violation(f"{type(error).__name__}: {error or line} ({where}) at {self.kernel.now - 1000:.4f} s")

    def violation(self, text: str) -> None:
        raise Violation(f"{text} at {self.kernel.now - 1000:.4f} s")

    def _note(self, text: str) -> None:
        assert self._trace is not None
        self._trace(f"{self.kernel.now - 1000:10.4f}  {text}")

    def say(self, fault: str, detail: str = "") -> None:
        self.seen[fault] += 1
        if self.note:
            self.note(f"** {fault} {detail}")

    # ---- programs ---------------------------------------------------------------------------------------------------

    @property
    def tree(self) -> dict[str, Any]:
        """The edge's configuration file."""
        present = {name: p for name, p in self.config.items() if p.get("present", True)}
        nodes = []
        for node_id in NODES:
            providers = [
                {
                    "id": name,
                    "kind": "openai_compat",
                    "base_url": f"http://127.0.0.1:{p['port']}/v1",
                    "connect_timeout_ms": 500,
                    "response_stall_timeout_ms": 1500,
                    "first_response_timeout_ms": 2000,
                    "idle_sec": 1.0,
                    **{k: v for k, v in p.items() if k not in ("node", "port", "present")},
                }
                for name, p in present.items()
                if p["node"] == node_id
            ]
            token = hashlib.sha256(f"token-{node_id}".encode()).hexdigest()
            nodes.append({"id": node_id, "token_sha256": token, "providers": providers})
        models = []
        for model, ways in MODELS.items():
            candidates = [
                {"node": PROVIDERS[p]["node"], "provider": p, "target": f"{model}@{p}", "priority": priority}
                for p, priority in ways
                if p in present
            ]
            if candidates:
                models.append({"id": model, "request_timeout_ms": 5000, "candidates": candidates})
        return {
            "edge": {"drain_timeout_sec": 1.0},
            "http": {"max_body_bytes": 1_000_000, "client_idle_timeout_sec": 3.0},
            "transport": {"stream_window_bytes": 16_384},
            "admin": {"listen": None},
            "queue": {"timeout_ms": 1500, "max_waiters": 20, "max_waiters_per_principal": 60},
            "nodes": nodes,
            "models": models,
        }

    def _start_edge(self) -> None:
        if self.edge is None:
            self.edges += 1
            self.edge = EdgeProgram(self)

    def _start_node(self, node_id: str) -> None:
        if self.nodes[node_id] is None:
            self.nodes[node_id] = NodeProgram(self, node_id)

    def node_left(self, node: NodeProgram) -> None:
        """A node program came to its own end."""
        if node.code != 0 and not node.twin:
            self.violation(f"{node.loop.name} gave up with code {node.code}")
        if node.agents and any(map(running, node.agents)):
            self.seen["left with calls"] += 1
        self.outside.call_soon(self._bury, node)

    def _bury(self, node: NodeProgram) -> None:
        self.network.kill(node.loop, orderly=True)
        if self.nodes[node.node_id] is node:
            self.nodes[node.node_id] = None
            if not self.ending:
                self.outside.call_later(self.rng.random(), self.restart_node, node.node_id)
        elif node in self.twins:
            self.twins.remove(node)

    def restart_node(self, node_id: str) -> None:
        if self.nodes[node_id] is None:
            self.say("node restart", node_id)
            self._start_node(node_id)

    def restart_edge(self) -> None:
        if self.edge is None:
            self.say("edge restart")
            self._start_edge()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if self.healing:
            return
        self.outside.call_later(self.rng.expovariate(self.rate), self._arrive)
        self.ask()

    def _phase(self) -> None:
        self.rate = self.rng.choice(RATES)
        self.network.weather.latency_s = self.rng.choice((0.0005, 0.002, 0.02))
        if not self.healing:
            self.outside.call_later(0.5 + self.rng.random() * 2, self._phase)

    def _watch_lingering(self) -> None:
        """A unit lingers while its node holds a slot whose end it owes, and not much longer (POOL-12)."""
        if self.healing or self.edge is None:
            self._lingers.clear()
        if not self.healing:
            self.outside.call_later(0.25, self._watch_lingering)
        if self.edge is None:
            return
        now, seen = self.kernel.now, self._lingers
        for node_id, link in self.edge.edge.nodes.owners.items():
            transport = link.link.transport
            node = transport.peer.loop.program if transport is not None and not transport.cable.cut else None
            for resource in self.edge.pool._nodes.get(node_id, {}).values():
                key = resource.provider_id, link.generation
                slots = [] if node is None else list(node.backends.gate._held.get(resource.provider_id, ()))
                owed = sum(slot.state is SlotState.OWED for slot in slots)
                # What direct runs hold may or may not be explained by leases; the rest is counted on both sides.
                low = owed if all(slot.leased for slot in slots) else 0
                if node is None or low <= resource.lingering <= owed:
                    seen.pop(key, None)
                elif now - seen.setdefault(key, now) > LINGER_S:
                    self.violation(
                        f"{resource.lingering} units of {resource.provider_id} linger, {node.loop.name} owes {owed}"
                    )

    def ask(self) -> None:
        if self.rng.random() < 0.1:
            self._ask_for_run()
        else:
            self._ask_as_client()

    def _ask_for_run(self) -> None:
        edge = self.edge
        if edge is None:
            self.seen["edge not there"] += 1
            return
        direct = self.rng.random() < 0.3
        plan = self._plan(run=True)
        runner = RunClient(self, plan)
        edge.loop.call_soon(runner.start, edge, self.rng.choice(MODELS[plan.model])[0] if direct else "")
        self.seen["direct run" if direct else "queued run"] += 1

    def _plan(self, *, run: bool = False) -> Plan:
        number = len(self.plans) + 1
        plan = self.plans[number] = self.open[number] = Plan.draw(self.rng, number, tuple(MODELS), run=run)
        if self.note:
            self.note(f"c{number} {'runs' if run else 'asks'} {plan.model}: {plan.kind}")
        return plan

    def edge_gone(self) -> None:
        """The edge was killed, and with it the runs that were started in it."""
        for plan in [plan for plan in self.open.values() if plan.run]:
            self.answered(plan, "run lost with the edge")

    def _ask_as_client(self) -> None:
        client = next((c for c in self.clients if c.idle), None) if self.rng.random() < 0.9 else None
        if client is None:
            client = Client(self)
            try:
                self.network.connect(self.outside, client, HTTP_PORT)
            except ConnectionRefusedError:
                self.seen["edge not there"] += 1
                return
            self.clients[client] = None
        client.ask(self._plan())

    def answered(self, plan: Plan, outcome: str) -> None:
        if plan.outcome:
            self.violation(f"c{plan.number} was answered twice: {plan.outcome}, {outcome}")
        if outcome in ("error internal", "run internal"):
            self.violation(f"c{plan.number} met a fault of the edge's own")
        if self.note:
            self.note(f"c{plan.number} {outcome}")
        plan.outcome = outcome
        self.outcomes[outcome] += 1
        del self.open[plan.number]
        self.done += 1

    def client_leaves(self, plan: Plan) -> None:
        name = f"c{plan.number}"
        state = "unknown"
        if self.edge is not None:
            for request in self.edge.edge.dispatcher.live:
                if isinstance(request, ClientRequest) and request.intake.client_request_id == name:
                    state = request.state.value
        self.say(f"cancel {state}", name)

    def recorded(self, record: Any) -> None:
        """The edge's outcome line."""
        number = record.client_request_id
        plan = self.plans[int(number[1:])] if number else self.runs.get(record.request_id)
        if plan is None:
            return  # a run that ended before it was known
        plan.records += 1
        plan.record = record.outcome
        if self.note:
            self.note(f"c{plan.number} is recorded: {record.outcome} {record.status}")
        if plan.records > 1:
            self.violation(f"c{plan.number} ended twice")

    def served(self, plan: Plan, provider_id: str, target: str) -> None:
        """A provider has the whole request."""
        if self.note:
            self.note(f"c{plan.number} is with {provider_id}")
        plan.served += 1
        if plan.run and plan.served > 1:
            self.seen["run sent again"] += 1
        if plan.served > plan.times or plan.shown:
            self.violation(f"c{plan.number} was sent again although it was answered, or too often")
        if target != f"{plan.model}@{provider_id}":
            self.violation(f"c{plan.number} for {plan.model} came to {provider_id} as {target}")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Everything heals; then nobody may wait for ever, and nothing may be left over."""
        self.healing = True
        if self.note:
            self.note("** all heals")
        for cable in list(self.network.cables):
            if cable.cut and not any(end.closed for end in cable.ends):
                self.faults.mend(cable)
        for twin in list(self.twins):
            self.faults.end_twin(twin)
        for name, provider in PROVIDERS.items():
            self.config[name] = dict(provider)
            self.engines[name] = "well"
        self.faults.publish()
        until = self.kernel.now + REST_S
        while not self._quiet():
            if self.kernel.now > until:
                self.violation(f"no rest: {self._unrest()}")
            self._advance(0.5)
        for client in list(self.clients):
            if client.transport is not None:
                client.transport.close()
        self._advance(8.0)  # kept connections are given up, the last clocks fire
        if not self._quiet():
            self.violation(f"unrest again: {self._unrest()}")
        self._check_rest()
        self._check_answers()
        self._take_down()

    def _quiet(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> str:
        """What is still going on."""
        if self.open:
            return f"requests without an answer: {sorted(self.open)[:10]}"
        edge = self.edge
        if edge is None:
            return "no edge"
        pool = edge.pool
        for node_id in NODES:
            node, record = self.nodes[node_id], pool.registry.nodes.get(node_id)
            if node is None or record is None or record.state is not NodeState.READY:
                return f"{node_id} is not ready"
            if any(map(running, node.agents)):
                return f"{node_id} has calls"
            if node.bypass:
                return f"{node_id} is in use by others"
        if edge.edge.dispatcher.live:
            return "live requests"
        if pool.leases_in_use or pool.waiting:
            return f"{pool.leases_in_use} leases, {pool.waiting} waiting"
        for node_id, resources in pool._nodes.items():
            for resource in resources.values():
                if resource.busy or resource.lingering:
                    return (
                        f"{node_id}/{resource.provider_id} has {resource.lingering} lingering of {resource.busy} busy"
                    )
                if resource.removed or resource.capacity != PROVIDERS[resource.provider_id]["capacity"]:
                    return f"{resource.provider_id} has not its configured capacity"
                if not resource.open:
                    return f"{resource.provider_id} is no candidate"
        return ""

    def _check_rest(self) -> None:
        """All counters 0, all tables empty."""
        program = self.edge
        assert program is not None
        edge = program.edge
        assert edge.runtime.hub.buffered_bytes == 0, "the edge counts buffered bytes"
        assert edge.http.stats.buffered_body_bytes == 0, "request bodies are counted as buffered"
        assert not edge.http.connections, "client connections are left"
        assert len(edge.nodes.links) == len(NODES) == len(edge.nodes.owners), "links are left"
        assert edge.dispatcher.direct_runs == 0, "direct runs are counted"
        assert program.pool.queue.next_at is None, "a deadline without a waiter"
        assert not program.pool.queue._principals, "principals are counted and nobody waits"
        assert edge.dispatcher._todo == type(edge.dispatcher._todo)(), "actions are left undone"
        for link in edge.nodes.links:
            mux = link.session.mux
            assert mux.stream_count == 0, f"{mux.stream_count} streams are left in the edge's table"
            assert mux.queued_bytes == 0, "bytes are queued"
        for node in self.nodes.values():
            assert node is not None
            name = node.loop.name
            assert node.runtime.hub.buffered_bytes == 0, f"{name} counts buffered bytes"
            gate = node.backends.gate
            gate.validate()
            assert sum(map(gate.held, gate._held)) == 0, f"{name}: slots are held"
            for agent in node.agents:
                if not agent.done.done():
                    assert agent.session.mux.stream_count == 0, f"{name}: streams are left"
            for provider in node.backends.providers.values():
                assert not provider.pool.connections, f"{name}: provider connections are left"
                assert not provider.pool._tasks, f"{name}: connects are left"
            assert len(node.loop.tasks) <= 3, f"{name}: tasks are left: {list(node.loop.tasks)}"
        assert not self.upstreams, "providers have connections"
        timers = sum(map(len, edge.runtime.wheel._slots))
        assert timers <= 8, f"{timers} timers are left on the edge's wheel"

    def _check_answers(self) -> None:
        """What the edge wrote down is what the clients saw."""
        for plan in self.plans.values():
            name, outcome, record = f"c{plan.number}", plan.outcome, plan.record
            # A body of known length is complete for its client before the edge hears of the end.
            if outcome == "complete" and record != "ok" and (plan.stream or not (record or self.edges > 1)):
                self.violation(f"{name} got its answer, and is recorded as {record or 'nothing'}")
            if plan.run and record and outcome not in (f"run {record}", "run complete" if record == "ok" else ""):
                self.violation(f"{name} was told {outcome}, and is recorded as {record}")
            if outcome.startswith("error ") and record and record != outcome[6:]:
                self.violation(f"{name} was told {outcome}, and is recorded as {record}")
            if outcome == "cut" and record == "ok" and self.edges == 1:
                self.violation(f"{name} was cut, and is recorded as ok")

    def _take_down(self) -> None:
        """Both programs end in order, and nothing of them stays."""
        self.ending = True
        programs = [node for node in self.nodes.values() if node is not None]
        for node in programs:
            node.loop.call_soon(node.supervisor.stop)
        self._advance(3.0)
        for node in programs:
            assert node.code == 0, f"{node.loop.name} did not leave"
        edge = self.edge
        assert edge is not None
        assert not edge.edge.nodes.links, "links outlive their nodes"
        edge.loop.create_task(self.faults.drain_edge(edge, hurry=False))
        self._advance(0.15)
        assert not [c for c in self.network.cables if c.kind == "client"], "connections outlive the edge"


# ---- log lines of the programs --------------------------------------------------------------------------------------


class _Lines(logging.Handler):
    """An error line of a program is a violation; the others belong to the trace."""

    world: World | None = None

    def emit(self, record: logging.LogRecord) -> None:
        world = self.world
        if world is None:
            return
        fields = getattr(record, "fields", {})
        if world.note:
            world.note(f"log {record.name}: {record.getMessage()} {fields}")
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            raise (
                world._violated(error)
                if error is not None
                else Violation(f"{record.name}: {record.getMessage()} {fields}")
            )


_LINES = _Lines()


def listen_to_logs(level: int) -> Callable[[], None]:
    """Hears the programs' lines from now on; the answer undoes it."""
    logger = logging.getLogger("iop")
    before = logger.level, logger.propagate
    logger.addHandler(_LINES)
    logger.setLevel(level)
    logger.propagate = False

    def undo() -> None:
        logger.removeHandler(_LINES)
        logger.setLevel(before[0])
        logger.propagate = before[1]

    return undo
