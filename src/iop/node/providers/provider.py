"""One configured backend as this node runs it: what it may be asked, where it is, how its connections are kept.

The edge proposes (``ProviderConfig``); what the node's owner did not allow is refused here, once, when the
configuration is applied (TUN-6, TUN-7). Messages name the provider id, never its URL.
"""

from __future__ import annotations

import functools
import logging
import re
from urllib.parse import unquote_to_bytes

from iop._fast.fields import Fields
from iop.errors import Forbidden, HeadError, InvalidArgument
from iop.net.http.client import Origin, ProviderPool
from iop.net.http.fetch import fetch
from iop.net.http.head import HOP_BY_HOP, ResponseHead
from iop.net.loop import Runtime
from iop.node.providers.allowance import Allowance, ProviderRejected
from iop.node.providers.kind import Adapter
from iop.node.providers.kinds import ADAPTERS
from iop.node.providers.questions import Listing, Reading, Said, well
from iop.wire import messages as m

__all__ = ["Provider", "check_path"]

log = logging.getLogger("iop.node.providers.provider")

# What a field block may not carry (TUN-6, TUN-9): the node frames the request and names the host itself, and a client's
# credentials never leave the edge, so an edge that sends them is not to be trusted with this request.
_RESERVED_FIELDS = HOP_BY_HOP | {
    b"content-length",
    b"host",
    b"expect",
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"cookie",
}
_PATH = re.compile(rb"/[!-~]{0,1023}")
MAX_FIELDS = 128
MAX_BODY_BYTES = 1 << 40
REDIRECT_LOG_S = 10.0
MAX_LOCATION_BYTES = 512
STALL_MS_MAX = 86_400_000  # LIVE-1


class Provider:
    """One backend. ``retire`` lets running calls end on their own connections. ``questions`` are what a probe asks: the
    paths, from the root of the server, and how to read what comes back. ``listing`` is what the server has listed."""

    __slots__ = ("_fixed_lines", "_redirect_logged_at", "adapter", "config", "listing", "origin", "pool", "questions")

    def __init__(self, runtime: Runtime, config: m.ProviderConfig, allowance: Allowance, base_url: str) -> None:
        """``base_url`` is the configured one, or where the node serves a built-in adapter. Raises ProviderRejected."""
        adapter = ADAPTERS.get(config.kind)
        if adapter is None:
            raise ProviderRejected("unknown_kind", f"this node has no adapter {config.kind!r}")
        try:
            self.origin = Origin.parse(base_url)
        except InvalidArgument as exc:
            raise ProviderRejected("bad_address", exc.message) from None
        if not adapter.built_in:
            allowance.check_origin(self.origin)
        key = allowance.credential(config.api_key_env)
        credential = b"authorization: Bearer %b\r\n" % key if key else b""
        self._fixed_lines = self.origin.host_line + credential
        self.adapter: Adapter = adapter
        self.config = config
        self._redirect_logged_at = -REDIRECT_LOG_S
        self.listing = Listing()
        self.questions = _questions(adapter, config, self.origin.base_path)
        self.pool = ProviderPool(
            runtime, self.origin, connect_timeout_s=config.connect_timeout_ms / 1000, idle_s=config.idle_ms / 1000
        )

    @property
    def engine_path(self) -> bytes:
        """Where its engine is asked what it is doing, from the root of the server; empty if it cannot be asked."""
        engine = self.adapter.engine
        return self.beside(engine.path) if engine is not None else b""

    def beside(self, path: bytes) -> bytes:
        """A path of the server's own API, from the root of the server: it stands beside ``/v1``."""
        return _beside(self.origin.base_path) + path

    @property
    def rest_s(self) -> float:
        """How long a connection rests after a streamed answer (TUN-5)."""
        return self.config.reuse_delay_ms / 1000 if self.adapter.rest_after_stream else 0.0

    def request_head(self, request: m.ProviderTunnelRequest) -> bytes:
        """The request's head, blank line included, with the provider's credential added (TUN-6).

        Raises Forbidden for what a tunnel may not ask (TUN-7).
        """
        if request.method not in self.adapter.methods:
            raise Forbidden("this method is not tunnelled")
        check_path(request.path)
        if request.query and any(c <= 0x20 or c >= 0x7F for c in request.query):
            raise Forbidden("the query has characters that no query has")
        _check_fields(request.header_block)
        self._check_body(request)
        _check_stalls(request)
        method, path = request.method, request.path
        if request.query:
            path += b"?" + request.query
        end = b"\r\n" if method == b"GET" else b"content-length: %d\r\n\r\n" % request.body_bytes
        parts = (
            method,
            b" ",
            self.origin.base_path,
            path,
            b" HTTP/1.1\r\n",
            self._fixed_lines,
            request.header_block,
            end,
        )
        return b"".join(parts)

    def run_call(self, request: m.RunRequest, given: bytes) -> tuple[bytes, bytes]:
        """Head and body of the request that a normalized run is, with the provider's credential added (EXEC-1, TUN-6).

        Raises InvalidArgument for bad input, and where the provider has no normalized form.
        """
        form = self.adapter.normal
        if form is None:
            raise InvalidArgument("this kind of provider takes no normalized runs")
        _check_stalls(request)
        body = form.request_body(request.target, given, request.options)
        head = (
            b"POST %b%b HTTP/1.1\r\n%bcontent-type: application/json\r\naccept: text/event-stream\r\n"
            b"accept-encoding: identity\r\ncontent-length: %d\r\n\r\n"
        )
        return head % (self.origin.base_path, form.path, self._fixed_lines, len(body)), body

    def log_redirect(self, head: ResponseHead, now: float) -> None:
        """Say where a redirect leads, at most once in ``REDIRECT_LOG_S``: this log alone says it (TUN-9)."""
        if now - self._redirect_logged_at < REDIRECT_LOG_S:
            return
        self._redirect_logged_at = now
        location = (head.get(b"location") or b"")[:MAX_LOCATION_BYTES].decode("ascii", "backslashreplace")
        fields = {"provider": self.config.id, "status": head.status, "location": location}
        log.warning("provider_redirected", extra={"fields": fields})

    async def ask(self, method: bytes, path: bytes, body: bytes = b"", *, max_bytes: int) -> tuple[int, bytes]:
        """Status and body of one question to the server itself: ``path`` counts from its root, not from the base URL.
        On a connection of its own, with the provider's credential. Raises as ``net.http.fetch`` does; the caller bounds
        the time."""
        return await fetch(
            self.origin, method, path, fields=self._fixed_lines, body=body, max_bytes=max_bytes, ssl=self.pool.ssl
        )

    @staticmethod
    def _check_body(request: m.ProviderTunnelRequest) -> None:
        """What is written behind the head is exactly what the head announces. Raises InvalidArgument."""
        here, announced = len(request.body), request.body_bytes
        sound = here == 0 < announced <= MAX_BODY_BYTES if request.body_follows else here == announced
        if not sound or (announced and request.method == b"GET"):
            raise InvalidArgument("the body is not as long as announced")

    def retire(self) -> None:
        """Another takes its place: running calls, those that are still connecting included, go on to their end."""
        self.pool.retire()

    def close(self) -> None:
        self.pool.close()


def _questions(adapter: Adapter, config: m.ProviderConfig, base_path: bytes) -> tuple[tuple[bytes, Reading], ...]:
    """Raises ProviderRejected for a configured path that is none: it is about to stand in a request line."""
    if config.health_path:
        path = config.health_path.encode()
        if _PATH.fullmatch(path) is None:
            raise ProviderRejected("bad_address", "its health.path is not a path")
        return ((path, well(Said.WELL)),)
    beside = _beside(base_path)
    return tuple(((base_path if q.on_base else beside) + q.path, q.read) for q in adapter.questions)


def _beside(base_path: bytes) -> bytes:
    """Where servers have what is not OpenAI's."""
    return base_path.removesuffix(b"/v1")


def _check_stalls(request: m.ProviderTunnelRequest | m.RunRequest) -> None:
    if request.response_stall_timeout_ms > STALL_MS_MAX or (request.first_response_timeout_ms or 0) > STALL_MS_MAX:
        raise InvalidArgument(f"a stall timeout is at most {STALL_MS_MAX} ms")


@functools.lru_cache(maxsize=64)  # a client sends the same ones with all its requests: their length is not among them
def _check_fields(block: bytes) -> None:
    """Raises Forbidden unless ``block`` is header fields and nothing else, none of them the node's own. Read strictly
    before it is put on a socket: one odd byte in it could be the end of this request and the start of another, outside
    the base URL."""
    fields = Fields()
    try:
        fields.read_block(block, MAX_FIELDS)
    except HeadError:
        raise Forbidden("the header block is malformed") from None
    if not _RESERVED_FIELDS.isdisjoint(fields.first):
        raise Forbidden("the header block carries fields that the node sets itself")


@functools.lru_cache(maxsize=256)  # there are a handful, and each is looked at for every request
def check_path(path: bytes) -> None:
    """Raises Forbidden unless ``path`` stays inside the base URL, after one decode (TUN-7)."""
    plain = unquote_to_bytes(path)
    if (
        not path.startswith(b"/")
        or b"//" in plain
        or b"\\" in plain
        or b"?" in path
        or b"#" in path
        or any(c <= 0x20 or c >= 0x7F for c in path)
        or any(c < 0x20 or c == 0x7F for c in plain)
        or any(segment in (b".", b"..") for segment in plain.split(b"/"))
    ):
        raise Forbidden("the path leaves the provider's base URL")
