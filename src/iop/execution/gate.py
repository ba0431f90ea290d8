"""The capacity gate of a node: the provider's limit, held whatever the edge believes (EXEC-3, LIVE-9, POOL-12).

One gate per node; it outlives sessions and config refreshes. A slot is taken before a provider is called and ends when
that call has really ended, once::

    free ──try_acquire──► held ──release──► free                     (the terminal said close_confirmed=true)
                           │
                           └── linger ──► owed ──release──► free, and the edge must be sent a call_closed

A slot is *owed* when the edge counts it as a lingering unit and learns of its end only by EdgeNodeEvent(call_closed):
after a terminal with ``close_confirmed=false`` (:meth:`Slot.linger`), when a new session reported it as still held
(:meth:`CapacityGate.carry_over`), and when ``capacity_exceeded`` reported it to a request with a lease although none
explains it (:meth:`CapacityGate.report_full`). So every unit that the edge may count as lingering has its end
announced.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from iop.errors import UnknownProvider
from iop.machine import Step, Transitions

__all__ = ["TRANSITIONS", "CapacityGate", "Slot", "SlotState"]


class SlotState(enum.StrEnum):
    HELD = "held"
    OWED = "owed"
    FREE = "free"


class _SlotEvent(enum.StrEnum):
    LINGERED = "lingered"
    RELEASED = "released"


# By their bare names: looking a member up on its Enum class takes five times as long as a global.
HELD, OWED, FREE = SlotState

TRANSITIONS = Transitions(
    "slot",
    (HELD,),
    {
        (HELD, _SlotEvent.LINGERED): OWED,
        (HELD, _SlotEvent.RELEASED): FREE,
        (OWED, _SlotEvent.LINGERED): OWED,
        (OWED, _SlotEvent.RELEASED): FREE,
    },
)
LINGERED, RELEASED = map(TRANSITIONS.step, _SlotEvent)


class Slot:
    """One unit of a provider's concurrency on this node, from before its call until that call has ended."""

    __slots__ = ("_gate", "backend", "leased", "provider_id", "state")

    def __init__(self, gate: CapacityGate, provider_id: str, leased: bool, backend: object) -> None:
        self._gate = gate
        self.backend = backend
        self.provider_id = provider_id
        self.leased = leased
        self.state = HELD

    def linger(self) -> None:
        """A terminal with ``close_confirmed=false`` goes out while the call still runs. InvalidTransition once free."""
        self._move(LINGERED)

    def release(self) -> bool:
        """The call has ended. True if the edge is owed a call_closed now; a second release is a counted no-op."""
        if self.state is FREE:
            self._gate.released_twice += 1
            return False
        owed = self.state is OWED
        self._move(RELEASED)
        self._gate.forget(self)
        return owed

    def _move(self, step: Step[SlotState]) -> None:
        self.state = step[self.state]


class CapacityGate:
    """Counts the slots of every provider against its limit. Never queues (EXEC-3)."""

    __slots__ = ("_held", "_limits", "released_twice")

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self._limits: dict[str, int] = {}
        self._held: dict[str, set[Slot]] = {}
        self.released_twice = 0
        self.configure(limits or {})

    def configure(self, limits: Mapping[str, int]) -> None:
        """The providers and limits of the present configuration. Slots that are held stay held, above a lowered limit
        and at removed providers too."""
        self._limits = dict(limits)
        for provider_id in self._limits:
            self._held.setdefault(provider_id, set())
        for provider_id in [p for p, slots in self._held.items() if not slots and p not in self._limits]:
            del self._held[provider_id]

    def try_acquire(self, provider_id: str, *, leased: bool = True, backend: object = None) -> Slot | None:
        """A slot, or None if the provider is full: then answer ``capacity_exceeded``; if leased, with what
        :meth:`report_full` says.

        ``leased`` says that the request came with a lease of the edge's pool; a direct run has none (POOL-14).
        ``backend`` is the server that is called: a refresh may put another one under the same id (:meth:`held_at`).
        Raises UnknownProvider.
        """
        limit = self._limits.get(provider_id)
        if limit is None:
            raise UnknownProvider
        slots = self._held[provider_id]
        if len(slots) >= limit:
            return None
        slot = Slot(self, provider_id, leased, backend)
        slots.add(slot)
        return slot

    def held(self, provider_id: str) -> int:
        """Slots of a provider that are not free, whoever took them."""
        return len(self._held.get(provider_id, ()))

    def held_at(self, provider_id: str, backend: object) -> int:
        """Those of them whose calls went to this server."""
        return sum(slot.backend == backend for slot in self._held.get(provider_id, ()))

    def report_full(self, provider_id: str) -> int:
        """What ``capacity_exceeded`` reports as held. The edge takes what its leases do not explain as lingering."""
        slots = self._held.get(provider_id, ())
        for slot in slots:
            if not slot.leased:
                slot.linger()
        return len(slots)

    def carry_over(self) -> dict[str, int]:
        """What a new session reports as still held (NodeReadyRequest), providers with none left out. From then on the
        edge is owed the end of each."""
        for slots in self._held.values():
            for slot in slots:
                slot.linger()
        return {provider_id: len(slots) for provider_id, slots in self._held.items() if slots}

    def forget(self, slot: Slot) -> None:
        """Called by the slot itself, once."""
        slots = self._held[slot.provider_id]
        slots.remove(slot)
        if not slots and slot.provider_id not in self._limits:
            del self._held[slot.provider_id]

    def validate(self) -> None:
        """Assert what must hold between any two calls."""
        for provider_id, slots in self._held.items():
            assert slots or provider_id in self._limits
            for slot in slots:
                assert slot.state is not FREE
                assert slot.provider_id == provider_id
