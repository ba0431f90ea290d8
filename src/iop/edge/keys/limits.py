"""What a client's key may do, and how much of it (API-4, API-11): decisions without I/O. The caller gives the time.

A key that has limits lets a request in with a :class:`Permit`. It holds the request's place under the cap of concurrent
requests and the tokens that it may take, and gives both back when the request is over, whatever ended it. A key without
limits gives none, and costs a request nothing but the look-up of its hash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iop.errors import ConcurrencyLimited, RateLimited, RequestOverTokenLimit, TokenRateLimited
from iop.patterns import Patterns

if TYPE_CHECKING:
    from iop._fast.relay import Tokens

__all__ = ["ANONYMOUS", "Key", "KeySpec", "Keyring", "Permit", "Window"]

PERIOD_S = 60.0
SPAN_S = 0.2  # what comes within it leaves together, so a window has 300 entries at most and loses 0.4 % at worst
DEBT_PERIODS = 60
DECIDED = 64  # models that a key remembers whether it may use: more than a client asks for, and little for many keys

_RATES = re.compile(rb"^x-ratelimit-[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _whole(wait_s: float) -> int:
    """Seconds to wait, as ``Retry-After`` takes them; a microsecond more, since instants are rounded."""
    return max(1, math.ceil(wait_s + 1e-6))


class _Entry:
    """Counts that were added between two instants, and that leave together."""

    __slots__ = ("count", "first", "last")

    def __init__(self, at: float, count: int) -> None:
        self.first = self.last = at
        self.count = count


class Window:
    """How much there was in the last minute.

    What was added leaves it between 60 and 60.2 s later, so in no minute is there more than a limit that is asked for
    before each addition. ``total`` is in the window, ``debt`` waits to come in: tokens are known when they are spent,
    and what is then over the limit fills the following minutes instead, for an hour at most.
    """

    __slots__ = ("_entries", "debt", "total")

    def __init__(self) -> None:
        self._entries: list[_Entry] = []  # a few hundred at most, so the first is taken out cheaply
        self.total = 0
        self.debt = 0

    def held(self, now: float) -> int:
        """What counts at this instant, debt included."""
        entries = self._entries
        while entries and entries[0].last + PERIOD_S <= now:
            if self.debt >= self.total > 0 and entries[-1].last + PERIOD_S <= now:
                # All of it leaves and as much comes in behind it, once or more often.
                turns = min(int((now - entries[-1].last) / PERIOD_S), self.debt // self.total)
                self.debt -= turns * self.total
                for entry in entries:
                    entry.first += turns * PERIOD_S
                    entry.last += turns * PERIOD_S
                continue
            entry = entries.pop(0)
            count, entry.count = entry.count, 0
            self.total -= count
            if self.debt:
                entry.count = min(count, self.debt)
                self.debt -= entry.count
                self.total += entry.count
                entry.first += PERIOD_S
                entry.last += PERIOD_S
                entries.append(entry)
        return self.total + self.debt

    def add(self, now: float, count: int) -> _Entry:
        """Count from here on; :meth:`take_back` wants what this returns."""
        self.held(now)
        return self._put(now, count)

    def take_back(self, entry: _Entry, count: int) -> None:
        """Undo an addition, as far as it still counts."""
        count = min(count, entry.count)
        entry.count -= count
        self.total -= count

    def spend(self, now: float, count: int, limit: int) -> None:
        """Count what was used without asking: up to the limit now, the rest as debt."""
        room = max(0, limit - self.held(now))
        if room:
            self._put(now, min(count, room))
        self.debt = min(self.debt + max(0, count - room), DEBT_PERIODS * limit)

    def wait_s(self, now: float, count: int, limit: int) -> float:
        """How long until ``count`` more fit, if nothing else is added; 0 if they do. More than the limit never fits:
        then it is the time until the window is empty, or a minute if it is."""
        held = self.held(now)
        excess = held + count - limit
        if excess <= 0:
            return 0.0
        if excess > held:
            return max(PERIOD_S, self.wait_s(now, limit, limit) if held else 0.0)
        # Debt comes in as counts leave, so the window repeats itself from minute to minute until the debt is gone.
        turns, rest = divmod(excess - 1, self.total)
        at = now
        for entry in self._entries:
            rest -= entry.count
            if rest < 0:
                at = entry.last
                break
        return at + (turns + 1) * PERIOD_S - now

    def _put(self, at: float, count: int) -> _Entry:
        entries = self._entries
        self.total += count
        if entries and at < entries[-1].first + SPAN_S:
            entry = entries[-1]
            entry.count += count
            entry.last = max(entry.last, at)
        else:
            entry = _Entry(at, count)
            entries.append(entry)
        return entry


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What a configuration says of a key. ``models`` are names, where ``*`` stands for any text; None is no limit, of
    whatever it is. ``weight`` is the key's part in the queue's turns (POOL-5). ``expires_at`` counts seconds since
    1970."""

    principal: str
    models: tuple[str, ...] | None = None
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    weight: int = 1
    expires_at: float | None = None


class Counters:
    """What a key has used. They outlive its specification: a reload gives a key new limits and no new minute."""

    __slots__ = ("in_flight", "requests", "reserved", "tokens")

    def __init__(self) -> None:
        self.in_flight = 0  # requests that hold a place
        self.reserved = 0  # tokens that these have let in, by estimate
        self.requests = Window()
        self.tokens = Window()


class Key:
    """A good key. ``limited``: its requests need a permit; ``restricted``: it may not use every model."""

    __slots__ = (
        "_decided",
        "_patterns",
        "counters",
        "expires_at",
        "limited",
        "principal",
        "restricted",
        "spec",
        "weight",
    )

    def __init__(self, spec: KeySpec, counters: Counters | None = None) -> None:
        self.spec = spec
        self.principal = spec.principal
        self.weight = spec.weight
        self.expires_at = spec.expires_at
        self.restricted = spec.models is not None
        limits = (spec.max_concurrent_requests, spec.requests_per_minute, spec.tokens_per_minute)
        self.limited = limits != (None, None, None)
        self.counters = counters or Counters()
        self._patterns: Patterns | None = None  # made for the first request: a file may have thousands of keys
        self._decided: dict[tuple[str, str], bool] = {}

    def may_use(self, name: str, group_id: str) -> bool:
        """Whether a model may be asked for by this name. A key that may use a model may use its aliases."""
        if self.spec.models is None:
            return True
        decided = self._decided
        may = decided.get((name, group_id))
        if may is None:
            patterns = self._patterns
            if patterns is None:
                patterns = self._patterns = Patterns(self.spec.models)
            may = patterns.fit(name) or (group_id != name and patterns.fit(group_id))
            if len(decided) >= DECIDED:
                decided.clear()
            decided[name, group_id] = may
        return may

    def admit(self, now: float) -> Permit:
        """Let one request in, and count it. Raises RateLimited, TokenRateLimited or ConcurrencyLimited, and counts
        nothing then."""
        spec, used = self.spec, self.counters
        rate, tokens, places = spec.requests_per_minute, spec.tokens_per_minute, spec.max_concurrent_requests
        if rate is not None:
            wait_s = used.requests.wait_s(now, 1, rate)
            if wait_s:
                raise RateLimited(
                    f"this key may make {_requests(rate)} a minute", _whole(wait_s), self.rate_fields(now)
                )
        if tokens is not None:
            self._tokens_left(now, 1, tokens)
        if places is not None and used.in_flight >= places:
            raise ConcurrencyLimited(f"this key may have {_requests(places)} at a time", 1, self.rate_fields(now))
        used.in_flight += 1
        return Permit(self, used.requests.add(now, 1) if rate is not None else None)

    def _tokens_left(self, now: float, count: int, limit: int) -> None:
        """Raise TokenRateLimited unless so many tokens may be let in. Those that running requests have let in count as
        if they were spent now."""
        used = self.counters
        wait_s = used.tokens.wait_s(now, count + used.reserved, limit)
        if wait_s:
            raise TokenRateLimited(
                f"this key may use {limit} tokens a minute, of prompts and answers together",
                _whole(wait_s),
                self.rate_fields(now),
            )

    def rate_fields(self, now: float) -> bytes:
        """The ``x-ratelimit-*`` field lines of an answer, for the rates that this key has; ``reset`` is when all of the
        limit is there again."""
        spec, used = self.spec, self.counters
        block = b""
        for name, limit, window, reserved in (
            (b"requests", spec.requests_per_minute, used.requests, 0),
            (b"tokens", spec.tokens_per_minute, used.tokens, used.reserved),
        ):
            if limit is not None:
                left = max(0, limit - window.held(now) - reserved)
                block += b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\n" % (name, limit, name, left)
                block += b"x-ratelimit-reset-%b: %.3fs\r\n" % (name, window.wait_s(now, limit, limit))
        return block


class Permit:
    """One request's leave to run. Both :meth:`free` and :meth:`end` may be called again, without effect."""

    __slots__ = ("_entry", "_holds", "_key", "_reserved")

    def __init__(self, key: Key, entry: _Entry | None) -> None:
        self._key = key
        self._entry = entry
        self._holds = True
        self._reserved = 0

    def reserve(self, tokens: int, now: float) -> None:
        """Let in the request's own tokens, which are estimated. Raises TokenRateLimited, or RequestOverTokenLimit for
        more than a minute's; the request is not counted then."""
        key = self._key
        limit = key.spec.tokens_per_minute
        if limit is None:
            return
        try:
            if tokens > limit:
                raise RequestOverTokenLimit(
                    f"this request has about {tokens} tokens, and its key may use {limit} a minute; shorten it",
                    fields=key.rate_fields(now),
                )
            key._tokens_left(now, tokens, limit)
        except RateLimited:
            if self._entry is not None:
                key.counters.requests.take_back(self._entry, 1)
            raise
        self._reserved = tokens
        key.counters.reserved += tokens

    def free(self) -> None:
        """The client has all that it asked for: its next request does not have to wait for this one."""
        if self._holds:
            self._holds = False
            self._key.counters.in_flight -= 1

    def end(self, now: float, usage: Tokens | None = None) -> None:
        """The request is over; ``usage`` is what the provider reported, and what it did not report is not counted."""
        self.free()
        key, used = self._key, self._key.counters
        used.reserved -= self._reserved
        self._reserved = 0
        limit = key.spec.tokens_per_minute
        if usage is not None and limit is not None and self._entry is not _OVER:
            spent = (usage[0] or 0) + (usage[1] or 0)
            if spent:
                used.tokens.spend(now, spent, limit)
        self._entry = _OVER

    def fields(self, now: float) -> bytes:
        """As :meth:`Key.rate_fields`."""
        return self._key.rate_fields(now)

    @staticmethod
    def without_rates(block: bytes) -> bytes:
        """A provider's field lines without those on rates of its own, which the client would take for its key's."""
        return _RATES.sub(b"", block) if b"x-ratelimit-" in block.lower() else block


_OVER = _Entry(0.0, 0)  # of a permit that has ended


class Keyring:
    """All good keys by the SHA-256 of each. Keys that stay keep what they have used."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Key] = {}

    def configure(self, specs: Mapping[bytes, KeySpec]) -> None:
        """From here on these are the keys."""
        old = self.keys
        self.keys = keys = {}
        for digest, spec in specs.items():
            key = old.get(digest)
            if key is None or (key.spec is not spec and key.spec != spec):
                key = Key(spec, key.counters if key is not None else None)
            keys[digest] = key


ANONYMOUS = Key(KeySpec("anonymous"))
