"""A pool with ready nodes, for tests that look at one rule each."""

from __future__ import annotations

from collections.abc import Sequence

from iop.pool import Candidate, Claim, GroupSpec, Lease, Pool, ProviderSpec, QueueLimits, ReleaseCause, Ticket


def provider(provider_id: str, node_id: str = "n1", capacity: int = 1, **rest: object) -> ProviderSpec:
    return ProviderSpec(node_id, provider_id, "vllm", capacity, **rest)  # type: ignore[arg-type]


def group(group_id: str, *providers: ProviderSpec, priorities: Sequence[int] = (), **rest: object) -> GroupSpec:
    ranks = [*priorities, *[0] * len(providers)]
    candidates = [Candidate(p.node_id, p.provider_id, f"t-{p.provider_id}", ranks[i]) for i, p in enumerate(providers)]
    return GroupSpec(group_id, candidates, **rest)  # type: ignore[arg-type]


class PoolWorld:
    """A configured pool. Unless told otherwise every node is ready, and it is 100 seconds past zero."""

    def __init__(
        self,
        providers: Sequence[ProviderSpec],
        groups: Sequence[GroupSpec],
        limits: QueueLimits | None = None,
        *,
        ready: bool = True,
    ) -> None:
        self.pool = Pool()
        self.now = 100.0
        self.providers = list(providers)
        self.groups = list(groups)
        self.limits = limits or QueueLimits()
        self.count = 0
        self.generations: dict[str, int] = {}
        self.configure()
        if ready:
            for node_id in dict.fromkeys(p.node_id for p in providers):
                self.connect(node_id)

    def configure(self) -> list[object]:
        return list(
            self.pool.configure(
                nodes=dict.fromkeys(p.node_id for p in self.providers),
                providers=self.providers,
                groups=self.groups,
                limits=self.limits,
                now=self.now,
            )
        )

    def claim(self, node_id: str = "n1") -> int:
        answer = self.pool.claim(node_id, self.now)
        assert isinstance(answer, Claim)
        self.generations[node_id] = answer.generation
        return answer.generation

    def connect(self, node_id: str = "n1", held: dict[str, int] | None = None) -> list[object]:
        generation = self.claim(node_id)
        return list(self.pool.ready(node_id, generation, held or {}, self.now).actions)

    def lose(self, node_id: str = "n1") -> list[object]:
        return list(self.pool.lost(node_id, self.generations[node_id], self.now).actions)

    def ticket(self, group_id: str = "g", tokens: int = 0, **rest: object) -> Ticket:
        self.count += 1
        principal = str(rest.pop("principal", "alice"))
        return Ticket(f"r{self.count}", principal, group_id, tokens, **rest)  # type: ignore[arg-type]

    def lease(self, group_id: str = "g", tokens: int = 0, **rest: object) -> Lease:
        """Submit a request that must be served at once."""
        lease = self.pool.submit(self.ticket(group_id, tokens, **rest), self.now)
        assert lease is not None
        self.pool.validate()
        return lease

    def wait(self, group_id: str = "g", tokens: int = 0, **rest: object) -> Ticket:
        """Submit a request that must wait."""
        ticket = self.ticket(group_id, tokens, **rest)
        assert self.pool.submit(ticket, self.now) is None
        self.pool.validate()
        return ticket

    def release(self, lease: Lease, **rest: object) -> list[object]:
        actions = list(self.pool.release(lease, ReleaseCause.TERMINAL, self.now, **rest))  # type: ignore[arg-type]
        self.pool.validate()
        return actions

    def row(self, provider_id: str) -> dict[str, object]:
        """The provider's line in the snapshot."""
        rows = [p for node in self.pool.snapshot(self.now)["nodes"] for p in node["providers"]]
        return next(dict(p) for p in rows if p["id"] == provider_id)
