"""What goes wrong in a world, and when: drawn from its seed, one fault every quarter of a second.

Each method does one thing to the system, as its environment would: it cuts cables, kills programs, edits the
configuration. What really happened is counted by :meth:`World.say`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from iop.execution.gate import Slot
from iop.wire import messages as m
from iop.wire.session import State
from tests.simulation.actors import Upstream
from tests.simulation.programs import MODELS, NODES, PROVIDERS, EdgeProgram, NodeProgram

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Faults"]

FAULT_EVERY_S = 0.25
TARGETS = {name: [f"{model}@{name}" for model, ways in MODELS.items() if name in dict(ways)] for name in PROVIDERS}


class Faults:
    """The faults of one world. :meth:`happen` goes on until the world heals."""

    def __init__(self, world: World) -> None:
        self.world = world
        kinds: dict[Callable[[], None], float] = {
            self._link_breaks: 6,
            self._link_cut: 4,
            self._duplicate: 3,
            self._node_dies: 6,
            self._edge_dies: 1.2,
            self._refresh: 12,
            self._provider_dies: 6,
            self._seam: 8,
            self._bypass: 6,
            self._engine: 9,
            self._observe: 6,
            self._rest: 3,
            self._burst: 6,
        }
        self._kinds, self._weights = list(kinds), list(kinds.values())

    def happen(self) -> None:
        if self.world.healing:
            return
        self.world.outside.call_later(self.world.rng.expovariate(1 / FAULT_EVERY_S), self.happen)
        self.world.rng.choices(self._kinds, self._weights)[0]()

    def _cables(self, *kinds: str) -> list[Any]:
        return [c for c in self.world.network.cables if c.kind in kinds and not any(end.closed for end in c.ends)]

    def _link_breaks(self) -> None:
        cables = self._cables("link")
        if cables:
            cable = self.world.rng.choice(cables)
            end = self.world.rng.choice(cable.ends)
            if self.world.rng.random() < 0.5:
                self.world.say("link reset", end.loop.name)
                end.reset()
            else:
                self.world.say("link closed", end.loop.name)
                end.close()

    def _link_cut(self) -> None:
        cables = self._cables("link")
        if cables:
            cable = self.world.rng.choice(cables)
            cable.cut = True
            if self.world.rng.random() < 0.7:
                self.world.say("link cut")
                self.world.outside.call_later(self.world.rng.random() * 3, self.mend, cable)
            else:
                self.world.say("link cut for good")

    def mend(self, cable: Any) -> None:
        cable.cut = False
        for end in cable.ends:
            end._moving = False
            end._move()

    def _duplicate(self) -> None:
        if len(self.world.twins) < 1:
            node_id = self.world.rng.choice(NODES)
            self.world.say("duplicate connect", node_id)
            twin = NodeProgram(self.world, node_id, twin=True)
            self.world.twins.append(twin)
            self.world.outside.call_later(self.world.rng.random() * 4, self.end_twin, twin)

    def end_twin(self, twin: NodeProgram) -> None:
        if twin in self.world.twins:
            self.world.twins.remove(twin)
            self.world.network.kill(twin.loop)

    def _node_dies(self) -> None:
        node_id = self.world.rng.choice(NODES)
        node = self.world.nodes[node_id]
        if node is None:
            return
        draw = self.world.rng.random()
        if draw < 0.35:
            self.world.say("node drain", node_id)
            node.loop.call_soon(node.supervisor.stop)
            if self.world.rng.random() < 0.3:
                node.loop.call_later(self.world.rng.random() * 0.5, node.supervisor.stop)
            return
        silent = draw > 0.8
        self.world.say("node power loss" if silent else "node crash", node_id)
        self.world.nodes[node_id] = None
        self.world.network.kill(node.loop, silent=silent)
        self.world.outside.call_later(self.world.rng.random(), self.world.restart_node, node_id)

    def _edge_dies(self) -> None:
        edge = self.world.edge
        if edge is None:
            return
        if self.world.rng.random() < 0.5:
            self.world.say("edge crash")
            self.world.edge = None
            self.world.network.kill(edge.loop)
            self.world.edge_gone()
            self.world.outside.call_later(0.05 + self.world.rng.random() * 0.5, self.world.restart_edge)
        elif not edge.edge._draining:
            self.world.say("edge drain")
            edge.loop.create_task(self.drain_edge(edge, hurry=self.world.rng.random() < 0.3))

    async def drain_edge(self, edge: EdgeProgram, *, hurry: bool) -> None:
        if hurry:
            edge.loop.call_later(0.2, edge.edge.hurry)
        await edge.edge.drain()
        edge.edge.close()
        edge.loop.call_later(0.2, self._edge_ended, edge)

    def _edge_ended(self, edge: EdgeProgram) -> None:
        if edge.edge.dispatcher.live and not any(link.session.state is State.READY for link in edge.edge.nodes.links):
            self.world.violation("a drained edge ends with live requests")
        if self.world.edge is edge:
            self.world.edge = None
            self.world.outside.call_later(0.05 + self.world.rng.random() * 0.5, self.world.restart_edge)
        self.world.outside.call_soon(self._bury_edge, edge)

    def _bury_edge(self, edge: EdgeProgram) -> None:
        self.world.network.kill(edge.loop, orderly=True)
        self.world.edge_gone()

    def _refresh(self) -> None:
        rng = self.world.rng
        for _ in range(rng.choice((1, 1, 2, 4))):
            name = rng.choice(tuple(PROVIDERS))
            provider = self.world.config[name]
            draw = rng.random()
            if draw < 0.6:
                capacity = rng.choice((1, 2, 3, 5))
                self.world.seen["shrink" if capacity < provider["capacity"] else "grow"] += 1
                provider["capacity"] = capacity
                if "long_capacity" in provider:
                    provider["long_capacity"] = rng.randint(0, capacity)
            elif draw < 0.8:
                present = provider.get("present", True)
                self.world.seen["provider removed" if present else "provider added"] += 1
                provider["present"] = not present
            else:
                provider["enabled"] = not provider.get("enabled", True)
                self.world.seen["provider disabled"] += not provider["enabled"]
        self.publish()

    def publish(self) -> None:
        self.world.say("refresh")
        if self.world.edge is not None:
            edge = self.world.edge
            edge.loop.call_soon(edge.refresh, self.world.tree)

    def _provider_dies(self) -> None:
        name = self.world.rng.choice(tuple(PROVIDERS))
        port = PROVIDERS[name]["port"]
        if port not in self.world.network.listeners:
            return
        self.world.network.listeners[port].close()
        if self.world.rng.random() < 0.3:
            self.world.say("provider unreachable", name)
            self.world.network.unreachable.add(port)
        else:
            self.world.say("provider death", name)
        for upstream in [u for u in self.world.upstreams if u.provider_id == name]:
            upstream.die()
        self.world.outside.call_later(self.world.rng.random() * 1.5, self.provider_up, name)

    def provider_up(self, name: str) -> None:
        port = PROVIDERS[name]["port"]
        self.world.network.unreachable.discard(port)
        self.world.network.listen(self.world.outside, lambda: Upstream(self.world, name), port)

    def _seam(self) -> None:
        if self.world.edge is not None:
            if self.world.rng.random() < 0.5:
                self.world.edge.failing += self.world.rng.randint(1, 3)
            else:
                self.world.edge.staling += self.world.rng.randint(1, 3)

    def _bypass(self) -> None:
        """Slots that no lease of this edge explains, as a run of somebody else takes them (POOL-14)."""
        node = self.world.nodes[self.world.rng.choice(NODES)]
        if node is None:
            return
        for provider_id in list(node.backends.providers):
            slot = node.backends.gate.try_acquire(provider_id, leased=False)
            if slot is not None:
                self.world.say("slots held by others", provider_id)
                node.bypass.append(slot)
                node.loop.call_later(self.world.rng.random() * 0.8, self._bypass_over, node, slot)

    @staticmethod
    def _bypass_over(node: NodeProgram, slot: Slot) -> None:
        node.bypass.remove(slot)
        if slot.release():
            node.backends.call_closed(slot.provider_id, 0)

    def _engine(self) -> None:
        """The engine behind a provider fails its probes, or hangs altogether, for a while; mostly its node says so."""
        name = self.world.rng.choice(tuple(PROVIDERS))
        self.world.engines[name] = state = self.world.rng.choice(("failing", "failing", "hung"))
        self.world.say(f"engine {state}", name)
        self.world.outside.call_later(self.world.rng.choice((0.3, 2.0, 4.0)), self._engine_well, name)
        if self.world.rng.random() < 0.9:
            self._have_told(name, "dead")

    def _engine_well(self, name: str) -> None:
        self.world.engines[name] = "well"

    def _observe(self) -> None:
        """A node says how a provider is, in one of the ways that count or that do not (HEALTH-6)."""
        rng = self.world.rng
        self._have_told(
            rng.choice(tuple(PROVIDERS)),
            rng.choice(("dead", "dead", "well", "gone", "gone", "old", "foreign", "malformed")),
        )

    def _rest(self) -> None:
        """A provider has asked for a pause with one of its targets (HEALTH-9)."""
        edge = self.world.edge
        if edge is not None and edge.pool.ledger.out:
            lease = self.world.rng.choice(sorted(edge.pool.ledger.out.items()))[1]
            edge.loop.call_soon(self._let_rest, edge, lease, self.world.rng.choice((0.5, 1.0, 3.0, 90.0)))

    def _let_rest(self, edge: Any, lease: Any, seconds: float) -> None:
        dispatcher = edge.edge.dispatcher
        dispatcher.perform(edge.pool.rest(lease, seconds, dispatcher.now))
        dispatcher.watch_queue()

    def _have_told(self, name: str, told: str) -> None:
        node = self.world.nodes[PROVIDERS[name]["node"]]
        agents = [] if node is None else [a for a in node.agents if a.session.state is State.READY]
        if node is not None and agents:
            node.loop.call_soon(self._tell, agents[-1], name, self.world.rng.choice(TARGETS[name]), told)

    def _tell(self, agent: Any, name: str, target: str, told: str) -> None:
        if agent.session.state is not State.READY:
            return
        self.world.say(f"observation {told}", name)
        seq = agent.health.number()  # from the one source of these that its node has (LIVE-8)
        seen = m.HealthObservation(name, "openai_compat", target, m.ProviderHealth.UNAVAILABLE, seq)
        if told == "well":
            seen.provider_health = m.ProviderHealth.AVAILABLE
        elif told == "gone":
            seen.reason, seen.scope = m.HealthReason.NOT_LISTED, m.HealthScope.TARGET
        elif told == "old":
            seen.health_observation_seq = self.world.rng.randrange(max(1, seen.health_observation_seq - 1))
        elif told == "foreign":
            seen.target = "nobody's"
        elif told == "malformed":
            seen.provider_health = m.ProviderHealth.UNSPECIFIED
        agent.session.send(m.EdgeNodeEvent(health_observation=seen))

    def _burst(self) -> None:
        self.world.say("burst")
        for _ in range(self.world.rng.randint(5, 30)):
            self.world.ask()
