"""The programs that exchanges go through: edges and nodes, plain and behind TLS, with a provider of either kind."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from iop.tls.contexts import served
from tests.oracle.compare import difference
from tests.oracle.visits import Exchange, Visit, direct_bytes, request_bytes, visit
from tests.oracle.wire import Got, Wire, play
from tests.support.certificates import Certificates
from tests.support.provider import Call, ScriptedProvider, listening_socket
from tests.support.stack import Stack, model, running_stack

VISIT_S = 40.0
AT_ONCE = 24
RESTORED_S = 30.0  # within which HEALTH-8 brings a provider back
ENOUGH = 10  # differences, after which nothing more is drawn


class Kind(NamedTuple):
    """How a stand is made: TLS for clients, TLS on the link, and the keepalive interval."""

    clients: bool
    link: bool
    keepalive_s: float


STANDS = (Kind(False, False, 0.1), Kind(True, True, 0.1), Kind(True, False, 0.0), Kind(False, True, 0.05))


@dataclass
class Difference:
    """A visit that went otherwise than its twin. ``seed`` is its number."""

    seed: int
    what: str

    def __str__(self) -> str:
        return f"visit {self.seed}: {self.what}\n    python -m tests.oracle --visit {self.seed}"


@contextmanager
def stand(folder: Path, number: int) -> Iterator[Stand]:
    """The stand of this number, running."""
    kind = STANDS[number]
    made = Certificates(folder / "tls")
    files = made.edge()
    secure = listening_socket()
    http: dict[str, Any] = {"stream_keepalive_sec": kind.keepalive_s, "client_idle_timeout_sec": 20}
    if kind.clients:
        http["tls"] = files
    transport = {"tls": files} if kind.link else {}
    node = {"tls": {"ca": made.ca}} if kind.link else {}
    with secure:
        port = secure.getsockname()[1]
        with running_stack(
            folder,
            {"p": {"idle_sec": 30}, "s": {"base_url": f"https://127.0.0.1:{port}/s/v1", "idle_sec": 30}},
            [model("p"), model("s")],
            http=http,
            transport=transport,
            node=node,
            env={"SSL_CERT_FILE": made.ca},
        ) as stack:
            yield Stand(stack, secure, made, files)


class Stand:
    """A running edge and node, and the two providers behind them once ``open`` is entered."""

    def __init__(self, stack: Stack, secure: Any, made: Certificates, files: dict[str, str]) -> None:
        self.stack = stack
        self._secure = secure
        self._trust = ssl.create_default_context(cafile=made.ca)
        self._tls = served(Path(files["cert"]), Path(files["key"])).context
        self._cases: dict[str, Exchange] = {}
        self._playing: set[asyncio.Task[None]] = set()
        self.secure_clients = False

    @asynccontextmanager
    async def open(self, kind: Kind) -> AsyncIterator[None]:
        self.secure_clients = kind.clients
        async with self.stack.scene() as scene, ScriptedProvider(self._secure, tls=self._tls) as secure:
            self._plain_address, self._secure_address = scene.provider.address, secure.address
            for provider in (scene.provider, secure):
                provider.answer = lambda call, provider=provider: self._answer(call, provider)
            # A node looks at its providers when it is ready, and there was nobody behind TLS then (HEALTH-10).
            await scene.healthy(also=("s",), timeout_s=RESTORED_S)
            yield
            for task in list(self._playing):
                task.cancel()

    def _answer(self, call: Call, provider: ScriptedProvider) -> None:
        provider.forget()
        case = call.header(b"x-case")
        if case is None:
            call.respond(b"{}", 404)  # figures and health
            return
        exchange = self._cases.get(case.decode())
        if exchange is None:
            call.connection.transport.abort()  # of a visit that has ended
            return
        task = asyncio.get_running_loop().create_task(play(call, exchange.answer, exchange.plain))
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)

    async def run(self, one: Visit) -> str:
        """What was different; empty if nothing was."""
        try:
            async with asyncio.timeout(VISIT_S):
                return await self._run(one)
        except TimeoutError:
            return f"no end within {VISIT_S:g} s"

    async def _run(self, one: Visit) -> str:
        provider = "s" if one.secure_provider else "p"
        cases = [f"{one.seed}-{number}" for number in range(len(one.exchanges))]
        for case, exchange in zip(cases, one.exchanges, strict=True):
            self._cases[case] = exchange
        directly = [
            asyncio.ensure_future(self._direct(c, e, provider)) for c, e in zip(cases, one.exchanges, strict=True)
        ]
        try:
            told = await self._through(one, cases, provider, directly)
        finally:
            for task in directly:
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task
            for case in cases:
                del self._cases[case]
        return told

    async def _through(self, one: Visit, cases: list[str], provider: str, directly: list[asyncio.Future[Got]]) -> str:
        wire = await Wire.connect(self.stack.http, self._trust if self.secure_clients else None, slow=one.slow)
        try:
            requests = [
                request_bytes(exchange, case, provider, http10=one.http10, keep=one.keep)
                for exchange, case in zip(one.exchanges, cases, strict=True)
            ]
            if one.pipelined:
                wire.writer.write(b"".join(requests))
            for number, exchange in enumerate(one.exchanges):
                if not one.pipelined:
                    wire.writer.write(requests[number])
                got = await wire.answer()
                told = difference(exchange, await directly[number], got)
                if told:
                    return f"exchange {number + 1} of {len(cases)} ({_outline(one, exchange)}): {told}"
                ends = got.fault or b"close" in got.all(b"connection") or not one.keep
                if ends:
                    if not got.fault and not await wire.ended():
                        return f"exchange {number + 1}: more bytes behind the last answer"
                    break
        finally:
            await wire.close()
        return ""

    async def _direct(self, case: str, exchange: Exchange, provider: str) -> Got:
        secure = provider == "s"
        wire = await Wire.connect(
            self._secure_address if secure else self._plain_address, self._trust if secure else None
        )
        try:
            wire.writer.write(direct_bytes(exchange, case, provider, f"real-{provider}"))
            return await wire.answer()
        finally:
            await wire.close()


def _outline(one: Visit, exchange: Exchange) -> str:
    a = exchange.answer
    words = [
        exchange.api, "stream" if exchange.stream else "whole", f"HTTP/1.{0 if one.http10 else 1}",
        "keep" if one.keep else "close", "slow" if one.slow else "quick", "pipelined" if one.pipelined else "",
        f"stand {STANDS[one.stand]}", f"status {a.status}", a.framing, "provider closes" if a.close else "",
        f"head after {a.head_after_s}", f"pieces {[p if isinstance(p, float) else len(p) for p in a.pieces][:8]}",
        f"fields {exchange.fields}",
    ]  # fmt: skip
    return ", ".join(word for word in words if word)


@dataclass
class Report:
    visits: int = 0
    exchanges: int = 0
    body_bytes: int = 0
    differences: list[Difference] = field(default_factory=list)


async def run(stands: dict[int, Stand], seed: int, exchanges: int) -> Report:
    """Draws visits from ``seed`` on until there were so many exchanges, at those stands that are there."""
    report = Report()
    numbers = random.Random(seed)

    async def worker() -> None:
        while report.exchanges < exchanges and len(report.differences) < ENOUGH:
            one = visit(numbers.getrandbits(40), len(STANDS))
            report.visits += 1
            report.exchanges += len(one.exchanges)
            report.body_bytes += sum(len(exchange.answer.body) for exchange in one.exchanges)
            if told := await stands[one.stand].run(one):
                report.differences.append(Difference(one.seed, told))

    await _opened(stands, [worker] * AT_ONCE)
    return report


async def replay(stands: dict[int, Stand], one: Visit) -> str:
    told: list[str] = []

    async def alone() -> None:
        told.append(await stands[one.stand].run(one))

    await _opened(stands, [alone])
    return told[0]


async def _opened(stands: dict[int, Stand], workers: list[Any]) -> None:
    async with AsyncExitStack() as opened:
        for number, one in stands.items():
            await opened.enter_async_context(one.open(STANDS[number]))
        await asyncio.gather(*(worker() for worker in workers))
