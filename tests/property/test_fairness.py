"""Principals that wait for the same providers get grants in proportion to their weights (POOL-5).

Each seed makes a pool: providers, capacities, groups that all have the same candidates, principals with weights. Every
principal always has requests waiting, each a number of its own, from one to dozens. Leases end in any order; meanwhile
requests are cancelled, grants fail to be sent, the configuration is read again, and a node is lost and comes back. Once
the principal with the lowest weight was due 100 grants, nobody's count may be off its share by more than a tenth.

    python -m tests.property.test_fairness --seeds 10000
"""

from __future__ import annotations

import argparse
import random
from collections import Counter

import pytest

from iop.pool import (
    Action,
    Candidate,
    Claim,
    Granted,
    GroupSpec,
    Lease,
    Pool,
    ProviderSpec,
    QueueLimits,
    ReleaseCause,
    Revoked,
    Ticket,
)

MANY = QueueLimits(timeout_s=1e9, max_waiters=10**6, max_waiters_per_principal=10**6)
DUE = 100
TOLERANCE = 0.1
NOW = 1.0
MOST_SLOTS = 15


class Contest:
    """Principals that compete for the providers of one pool."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.pool = Pool()
        self.nodes = [f"n{i}" for i in range(rng.randint(1, 2))]
        self.providers = [
            ProviderSpec(rng.choice(self.nodes), f"p{i}", "vllm", rng.randint(1, MOST_SLOTS // 3))
            for i in range(rng.randint(1, 3))
        ]
        self.groups = [
            GroupSpec(f"g{i}", [Candidate(p.node_id, p.provider_id, "t", rng.randint(0, 1)) for p in self.providers])
            for i in range(rng.randint(1, 3))
        ]
        self.weights = {f"u{i}": rng.choice([0.5, 1, 1, 1, 2, 3]) for i in range(rng.randint(2, 5))}
        backlogs = rng.choice([(1, 2, 10, 40), (20, 40)])
        self.backlog = {who: rng.choice(backlogs) for who in self.weights}
        # A node that comes back hands out all its slots at once, and nobody can take more of them than it has waiting.
        self.may_lose = len({p.node_id for p in self.providers}) > 1 and min(self.backlog.values()) > MOST_SLOTS
        self.grants: Counter[str] = Counter()
        self.leases: list[tuple[Ticket, Lease]] = []
        self.waiting: dict[str, list[Ticket]] = {who: [] for who in self.weights}
        self.generations: dict[str, int] = {}
        self.count = 0
        self.configure()
        for node_id in self.nodes:
            self.connect(node_id)

    def configure(self) -> None:
        actions = self.pool.configure(
            nodes=self.nodes, providers=self.providers, groups=self.groups, limits=MANY, now=NOW, acked=self.nodes
        )
        self.obey(actions)

    def connect(self, node_id: str) -> None:
        claim = self.pool.claim(node_id, NOW)
        assert isinstance(claim, Claim)
        self.generations[node_id] = claim.generation
        self.obey(self.pool.ready(node_id, claim.generation, {}, NOW).actions)

    def lose(self, node_id: str) -> None:
        actions = self.pool.lost(node_id, self.generations[node_id], NOW).actions
        self.connect(node_id)
        self.obey(actions)

    def submit(self, who: str) -> None:
        self.count += 1
        group = self.rng.choice(self.groups).group_id
        ticket = Ticket(f"r{self.count}", who, group, weight=self.weights[who])
        lease = self.pool.submit(ticket, NOW)
        if lease is None:
            self.waiting[who].append(ticket)
        else:
            self.leases.append((ticket, lease))

    def obey(self, actions: object) -> None:
        assert isinstance(actions, list | tuple)
        for action in actions:
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        ticket = action.ticket
        if isinstance(action, Granted):
            self.waiting[ticket.principal].remove(ticket)
            self.leases.append((ticket, action.lease))
            self.grants[ticket.principal] += 1
            self.fill(ticket.principal)
        else:
            assert isinstance(action, Revoked)
            self.leases.remove((ticket, action.lease))
            self.again(ticket, action.lease)

    def fill(self, who: str) -> None:
        while len(self.waiting[who]) < self.backlog[who]:
            self.submit(who)

    def again(self, ticket: Ticket, lease: Lease) -> None:
        """The grant came to nothing."""
        who = ticket.principal
        self.grants[who] -= 1
        self.waiting[who].append(ticket)
        self.obey(self.pool.readmit(ticket, lease, NOW, cause=ReleaseCause.SEND_FAILED))

    def end_one(self) -> None:
        ticket, lease = self.leases.pop(self.rng.randrange(len(self.leases)))
        if self.rng.random() < 0.1:
            self.again(ticket, lease)
        else:
            self.obey(self.pool.release(lease, ReleaseCause.TERMINAL, NOW))

    def cancel_one(self) -> None:
        who = self.rng.choice([who for who, tickets in self.waiting.items() if len(tickets) > 1] or [""])
        if who:
            ticket = self.waiting[who].pop(self.rng.randrange(len(self.waiting[who])))
            assert self.pool.cancel(ticket, NOW)
            self.fill(who)

    def run(self) -> None:
        """Raises AssertionError if somebody gets less or more than its share."""
        for who in self.rng.sample(sorted(self.weights), len(self.weights)):
            self.fill(who)
        self.grants.clear()
        total = int(DUE * sum(self.weights.values()) / min(self.weights.values()))
        while self.grants.total() < total:
            self.end_one()
            event = self.rng.random()
            if event < 0.05:
                self.cancel_one()
            elif event < 0.06:
                self.configure()
            elif event < 0.065 and self.may_lose:
                self.lose(self.rng.choice(self.nodes))
        self.pool.validate()
        whole = sum(self.weights.values())
        for who, weight in self.weights.items():
            due = self.grants.total() * weight / whole
            got = self.grants[who]
            assert abs(got - due) <= TOLERANCE * due, f"{who} is due {due:.0f} of {total} and got {got}: {self.grants}"


def check(seed: int) -> None:
    try:
        Contest(seed).run()
    except BaseException:
        print(f"seed {seed}: Contest({seed}).run() replays it")
        raise


@pytest.mark.req("POOL-5")
@pytest.mark.parametrize("block", range(4))
def test_principals_get_their_shares(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        check(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs seeded contests between principals.")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        check(seed)
    print(f"{arguments.seeds} seeds, every share within {TOLERANCE:.0%}")


if __name__ == "__main__":
    main()
