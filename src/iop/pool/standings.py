"""How the candidates of a request stand, for its trace (OBS-7). No choice needs it."""

from __future__ import annotations

from typing import NamedTuple

from iop.pool.lane import Group, Lane
from iop.pool.lease import Ticket
from iop.pool.resource import Resource

__all__ = ["SHOWN", "Standing", "Standings", "Stood", "picture_of", "spelled_out", "standings", "stood"]

SHOWN = 8  # candidates of one request


class Standing(NamedTuple):
    """What speaks against one candidate for one request (OBS-7). ``standing``: open, or why not: avoided, disabled,
    drained, draining, full, long_full, lowered, missing, no_long_slots, offline, pending, refused, removed, resting."""

    node: str
    provider: str
    priority: int
    standing: str
    in_use: int
    capacity: int


#: The fields of :class:`Standing` of the preferred candidates, and how many candidates there are.
Standings = tuple[list[tuple[str, str, int, str, int, int]], int]

#: What :func:`stood` returns: rows and number of candidates of a :data:`Picture`, and the units in use, one number per
#: row; in a lane where some requests are long, the long units in use follow.
Stood = tuple[tuple["list[_Row]", int], list[int]]

#: What changes only with a provider or a target: who is read for units in use, and what is said of each.
Picture = tuple[list[Resource], tuple["list[_Row]", int]]

#: Node, provider, priority, what speaks against it ("": nothing), capacity, and that for long requests if this is one.
_Row = tuple[str, str, int, str, int, "int | None"]


def standings(group: Group, ticket: Ticket, most: int) -> Standings:
    """Return the first candidates of ``ticket``'s group as they stand now, in the order of preference. Changes nothing.
    Requests that wait are noted with it, so it is kept quick."""
    tokens = ticket.estimated_tokens
    avoided = None if ticket.allow_avoided_fallback else ticket.avoid_provider_id
    found = []
    for candidate, r in group.candidates(most):
        threshold = r.long_threshold_tokens
        long = threshold is not None and tokens >= threshold
        odd = r.rests or r.lowered_targets or ticket.refused
        lasting = ""
        if not r.open or r.awaited or long or odd or avoided == r.provider_id:
            refused = not ticket.refused.isdisjoint({(r.provider_id, candidate.target), (r.provider_id, None)})
            lasting = _lasting(r, candidate.target, long, avoided == r.provider_id, refused)
        standing = lasting or _passing(r.busy, r.capacity, r.long_busy, r.long_capacity if long else None)
        found.append((r.node_id, r.provider_id, candidate.priority, standing, r.busy, r.capacity))
    return found, group.size


def stood(lane: Lane) -> Stood:
    """Return how the first candidates of a new request in ``lane`` stand now, for :func:`spelled_out`. Every request
    pays for this, so only the units in use are read; the rest is kept with the lane until it changes."""
    picture = lane.picture
    if picture is None:
        picture = lane.picture = picture_of(lane)
    resources, told = picture
    in_use = []
    for r in resources:  # a comprehension is a call, which costs more than the few turns of this loop
        in_use.append(r.busy)
    if lane.long:
        in_use += [r.long_busy for r in resources]
    return told, in_use


def picture_of(lane: Lane) -> Picture:
    """Return what :func:`stood` needs of a lane beside the units in use."""
    resources, rows = [], []
    for seat in lane.seats[:SHOWN]:
        r = seat.resource
        lasting = _lasting(r, seat.target, seat.long, avoided=False, refused=False)
        long_capacity = r.long_capacity if seat.long else None
        rows.append((r.node_id, r.provider_id, seat.priority, lasting, r.capacity, long_capacity))
        resources.append(r)
    return resources, (rows, len(lane.seats))


def spelled_out(then: Stood) -> Standings:
    """Return the standings that :func:`standings` would have found then."""
    (rows, total), in_use = then
    found = []
    for i, (node_id, provider_id, priority, lasting, capacity, long_capacity) in enumerate(rows):
        long_busy = 0 if long_capacity is None else in_use[len(rows) + i]
        standing = lasting or _passing(in_use[i], capacity, long_busy, long_capacity)
        found.append((node_id, provider_id, priority, standing, in_use[i], capacity))
    return found, total


def _lasting(r: Resource, target: str, long: bool, avoided: bool, refused: bool) -> str:
    """The first reason that holds, of those that no end of a call lifts; those that last longest come first."""
    reasons = (
        (not r.enabled, "disabled"),
        (r.generation == 0, "offline"),
        (r.removed, "removed"),
        (r.draining, "draining"),
        (r.drained, "drained"),
        (r.lowered or target in r.lowered_targets, "lowered"),
        (r.missing and not r.awaited, "missing"),
        (refused, "refused"),
        (avoided, "avoided"),
        (r.awaited, "pending"),
        (target in r.rests, "resting"),
        (long and r.long_capacity <= 0, "no_long_slots"),
    )
    return next((name for holds, name in reasons if holds), "")


def _passing(busy: int, capacity: int, long_busy: int, long_capacity: int | None) -> str:
    """Whether units are free; ``long_capacity`` is None for a request that is not long."""
    if busy >= capacity:
        return "full"
    return "open" if long_capacity is None or long_busy < long_capacity else "long_full"
