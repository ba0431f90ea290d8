"""Load whose every request is accounted for: one complete answer or one typed error each, nothing twice, nothing cut
that looks whole.

    answers = Answers(provider, capacity=8)
    load = Load(address, clients=16, typed={"node_disconnected", "unavailable"})
    load.start()
    await load.served()                     # seconds until a request sent from now on is complete
    await load.stop()
    load.counts                             # Counter({"complete": …, "unavailable": …, "broken": …})

Clients ask without a pause, whole and streamed, each request with a number of its own; the provider's answer repeats
the number, so a wrong, mixed or doubled answer shows. The provider's side counts what it has at work at a time.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.support.http import Address, Broken, Client, chat, post
from tests.support.provider import (
    DONE,
    ENGINE_PATHS,
    Call,
    ScriptedProvider,
    chat_answer,
    chat_delta,
    chat_event,
)

__all__ = ["Answers", "Ledger", "Load", "whole_stream"]

CHAT = "/v1/chat/completions"
EVENTS = 8
GAP_S = 0.004  # between two events: a stream takes its time, or there is nothing to kill
PAUSE_S = 0.05  # of a client that was told an error
FORGET_EVERY = 500

T = TypeVar("T")


class Ledger:
    """One entry for each request that was sent."""

    def __init__(self) -> None:
        self.entries: dict[int, str] = {}
        self.counts: Counter[str] = Counter()

    def enter(self, number: int, outcome: str) -> None:
        assert number not in self.entries, f"request {number} ended twice: {self.entries[number]}, {outcome}"
        self.entries[number] = outcome
        self.counts[outcome] += 1


def whole_stream(number: int) -> bytes:
    words = [chat_delta(f"{number}:{i} ") for i in range(EVENTS)]
    return b"".join([*words, chat_event({}, "stop"), DONE])


class Answers:
    """The provider's side. ``faults`` has every moment at which there was more at work than ``capacity``.

    A call is at work until its last bytes leave, since from then on its slot may be somebody else's, or until the node
    has closed its connection.
    """

    def __init__(self, provider: ScriptedProvider, capacity: int, seed: int = 1) -> None:
        self.capacity = capacity
        self.peak = 0
        self.asked = 0
        self.faults: list[str] = []
        self.at_work: set[Call] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._provider = provider
        self._random = random.Random(seed)
        provider.answer = self._arrived

    def busy(self) -> int:
        return sum(not call.gone.is_set() for call in self.at_work)

    async def rest(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _arrived(self, call: Call) -> None:
        if call.target in ENGINE_PATHS:
            call.respond(b"{}", 404)
            return
        self.asked += 1
        if self.asked % FORGET_EVERY == 0:
            self._provider.forget()
        self.at_work.add(call)
        busy = self.busy()
        self.peak = max(self.peak, busy)
        if busy > self.capacity:
            self.faults.append(f"{busy} calls at a time, the capacity is {self.capacity}")
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call) -> None:
        number = int(call.json["messages"][0]["content"])
        stream = call.json.get("stream")
        try:
            if stream:
                call.start_stream()
                for i in range(EVENTS):
                    if call.gone.is_set():
                        return
                    call.event(chat_delta(f"{number}:{i} "))
                    await asyncio.sleep(GAP_S)  # a model at work, here and below
            else:
                await asyncio.sleep(self._random.uniform(0.0, 2 * GAP_S))
        finally:
            self.at_work.discard(call)
        if call.gone.is_set():
            return
        if stream:
            call.event(chat_event({}, "stop") + DONE)
            call.end_stream()
        else:
            call.respond(chat_answer(str(number)))


class Load:
    """Clients that ask without a pause, and the ledger of what became of it.

    ``typed`` are the codes that a client may be told while something is broken; anything else fails the run.
    ``edge_dies``: connections may end at any moment, and nobody may be listening.
    """

    def __init__(
        self, address: Callable[[], Address], *, clients: int, typed: frozenset[str], edge_dies: bool = False
    ) -> None:
        self.typed = typed
        self.ledger = Ledger()
        self.connected = 0  # clients that have a connection now
        self.unconnected = 0  # attempts to connect that found nobody: no request was sent
        self._address = address
        self._clients = clients
        self._edge_dies = edge_dies
        self._numbers = iter(range(1, 1 << 40))
        self._stopping = False
        self._running: asyncio.Task[None] | None = None
        self._waits: list[tuple[float, float, int, list[int], asyncio.Future[float]]] = []

    @property
    def counts(self) -> Counter[str]:
        return self.ledger.counts

    @property
    def broken(self) -> int:
        """Answers that ended before their end, visibly."""
        return sum(n for outcome, n in self.counts.items() if outcome.startswith(("broken", "cut")))

    @property
    def answered(self) -> int:
        """Requests that got a status line."""
        return sum(self.counts.values()) - self.counts["cut"]

    def start(self) -> None:
        assert self._running is None
        self._stopping = False
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Lets what was sent come to its end. Raises what went wrong at a client."""
        running, self._running = self._running, None
        self._stopping = True
        if running is not None:
            await running

    async def abandon(self) -> None:
        """Ends all clients at once, after a failure."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
            if not running.cancelled():
                running.exception()

    async def served(self, count: int = 1, *, since: float | None = None, timeout_s: float, what: str) -> float:
        """Seconds from ``since`` (the loop's time; now) until ``count`` requests sent after this call are complete."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[float] = loop.create_future()
        now = loop.time()
        self._waits.append((now if since is None else since, now, count, [0], done))
        return await self.within(done, timeout_s, what)

    async def within(self, wanted: Awaitable[T], timeout_s: float, what: str) -> T:
        """Waits for it, as long as the clients are content."""
        assert self._running is not None
        future = asyncio.ensure_future(wanted)
        await asyncio.wait({future, self._running}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        if self._running.done():
            self._running.result()
        future.cancel()
        raise AssertionError(f"not within {timeout_s} s: {what}; so far {dict(self.counts)}")

    # ---- clients -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._clients):
                group.create_task(self._client())

    async def _client(self) -> None:
        while not self._stopping:
            client = await self._connect()
            if client is None:
                continue
            self.connected += 1
            try:
                await self._ask(client)
            finally:
                await client.close()
                self.connected -= 1

    async def _ask(self, client: Client) -> None:
        """One request after the other, as long as the connection may be used."""
        loop = asyncio.get_running_loop()
        usable = True
        while usable and not self._stopping:
            number = next(self._numbers)
            sent_at = loop.time()
            outcome = await self._request(client, number)
            self.ledger.enter(number, outcome)
            if outcome == "complete":
                self._completed(sent_at)
            elif outcome in self.typed:
                await asyncio.sleep(PAUSE_S)  # as a client would, on a 502 or 503
            usable = not (outcome.startswith(("broken", "cut")) or client.last)

    async def _connect(self) -> Client | None:
        try:
            return await Client.connect(self._address())
        except OSError:
            assert self._edge_dies, "nobody listens"
            self.unconnected += 1
            await asyncio.sleep(PAUSE_S)
            return None

    def _completed(self, sent_at: float) -> None:
        now = asyncio.get_running_loop().time()
        for wait in list(self._waits):
            since, asked_at, count, seen, done = wait
            if done.done():
                self._waits.remove(wait)
            elif sent_at >= asked_at:
                seen[0] += 1
                if seen[0] >= count:
                    self._waits.remove(wait)
                    done.set_result(now - since)

    async def _request(self, client: Client, number: int) -> str:
        """Sends request ``number`` and tells how it ended; every byte of the answer is checked here."""
        stream = number % 3 != 0
        client.send(post(CHAT, chat("m", stream=stream, text=str(number))))
        try:
            head = await client.head()
            if head.status != 200:
                assert head.get("x-request-id"), head
                return self._typed(await client.body())
        except (Broken, ConnectionError):
            if not self._edge_dies:
                raise
            return "cut"
        try:
            body = await client.body()
        except Broken as broken:
            return self._broken(number, stream, broken.body)
        except ConnectionError:
            if not self._edge_dies:
                raise
            return "broken"
        expected = whole_stream(number) if stream else chat_answer(str(number))
        assert body == expected, f"request {number} ended cleanly with {body!r}"
        return "complete"

    def _broken(self, number: int, stream: bool, body: bytes) -> str:
        """An answer that visibly did not end: the provider's bytes up to some point, perhaps an error event."""
        if not stream:
            assert self._edge_dies, "a whole answer was cut"
            assert chat_answer(str(number)).startswith(body), "bytes that the provider did not send"
            return "broken"
        sent, mark, tail = body.partition(b'data: {"error"')
        assert whole_stream(number).startswith(sent), "bytes that the provider did not send"
        if not mark:
            return "broken"
        if self._edge_dies and not tail.endswith(b"\n\n"):
            return "broken"  # in the middle of the event
        code = self._typed(b'{"error"' + tail)
        return f"broken, {code}"

    def _typed(self, body: bytes) -> str:
        error = json.loads(body)["error"]
        assert error["code"] in self.typed, error
        return str(error["code"])
