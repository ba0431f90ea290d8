"""What a node lets its edge ask of a provider (TUN-6, TUN-7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from iop.errors import Forbidden, InvalidArgument, IopError
from iop.net.http.client import Origin
from iop.net.loop import Runtime
from iop.node.providers.allowance import Allowance, ProviderRejected
from iop.node.providers.provider import Provider, check_path
from iop.wire import messages as m
from tests.support.aio import async_test


@pytest.mark.req("TUN-7")
@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"chat",
        b"/../admin",
        b"/a/../../b",
        b"/a/..",
        b"/./a",
        b"/%2e%2e/a",
        b"/a/%2E%2e",
        b"//evil",
        b"/a//b",
        b"/a%2f%2fb",
        b"/a\\b",
        b"/a%5cb",
        b"/a b",
        b"/a\r\nx: y",
        b"/a%0d%0ax",
        b"/a%00",
        b"/a?b",
        b"/a#b",
        b"/\xff",
    ],
)
def test_a_path_outside_the_base_url_is_refused(path: bytes) -> None:
    with pytest.raises(Forbidden):
        check_path(path)


@pytest.mark.parametrize("path", [b"/chat/completions", b"/a.b/c", b"/...", b"/a%20b", b"/%252e%252e/a"])
def test_an_ordinary_path_passes_after_one_decode(path: bytes) -> None:
    check_path(path)


@pytest.mark.req("TUN-7")
@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://localhost:1/v1", True),
        ("http://[::1]:8000/v1", True),
        ("unix:/run/a.sock:/v1", True),
        ("http://10.0.0.1:8000/v1", False),
        ("http://localhost.evil.example/v1", False),
        ("http://0.0.0.0:80/v1", False),
    ],
)
def test_without_a_list_a_tunnel_reaches_loopback_and_unix_sockets_only(url: str, allowed: bool) -> None:
    origin = Origin.parse(url)
    if allowed:
        Allowance().check_origin(origin)
    else:
        with pytest.raises(ProviderRejected, match="allow_upstreams") as caught:
            Allowance().check_origin(origin)
        assert caught.value.reason == "upstream_not_allowed"


@pytest.mark.req("TUN-7")
def test_with_a_list_only_what_is_on_it() -> None:
    allowance = Allowance(upstreams=[("10.0.0.1", 8000)])
    allowance.check_origin(Origin.parse("http://10.0.0.1:8000/v1"))
    for url in ("http://10.0.0.1:8001/v1", "http://127.0.0.1:8000/v1", "unix:/run/docker.sock:/v1"):
        with pytest.raises(ProviderRejected):
            allowance.check_origin(Origin.parse(url))


@pytest.mark.req("TUN-7")
def test_no_entry_of_a_list_stands_for_a_unix_socket() -> None:
    unix = Origin.parse("unix:/run/docker.sock:/v1")
    with pytest.raises(ProviderRejected):
        Allowance(upstreams=[(unix.host, unix.port)]).check_origin(unix)


@pytest.mark.req("TUN-6")
def test_a_credential_needs_the_owners_word_and_a_sound_value() -> None:
    allowance = Allowance(
        credentials=frozenset({"KEY", "BAD", "EMPTY"}), environment={"KEY": "k", "BAD": "a\nb", "X": "x"}
    )
    assert allowance.credential("") == b""
    assert allowance.credential("KEY") == b"k"
    with pytest.raises(ProviderRejected) as refused:
        allowance.credential("X")
    assert refused.value.reason == "credential_not_listed"
    for name in ("BAD", "EMPTY"):
        with pytest.raises(ProviderRejected) as caught:
            allowance.credential(name)
        assert caught.value.reason == "credential_not_set"
        assert "a\nb" not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/a b HTTP/1.0",
        "http://127.0.0.1:1/v1#x",
        "unix:/s:/x HTTP/1.0\r\ny: z",
        "unix:/s\x00:/v1",
        "ftp://a/",
        "http:///v1",
        "http://u:p@a/v1",
        "http://a:99999/",
        "http://a/v1?x=1",
        "nonsense",
    ],
)
def test_a_base_url_that_names_no_server_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Origin.parse(url)
    assert url not in caught.value.message


def test_host_lines() -> None:
    assert Origin.parse("http://a:80/v1").host_line == b"host: a\r\n"
    assert Origin.parse("http://a:8000/v1").host_line == b"host: a:8000\r\n"
    assert Origin.parse("https://a/v1").host_line == b"host: a\r\n"
    assert Origin.parse("http://[::1]:8000/v1").host_line == b"host: [::1]:8000\r\n"
    assert Origin.parse("unix:/s:/v1").host_line == b"host: localhost\r\n"


# ---- an edge that is not what it should be --------------------------------------------------------------------------


def opening(**fields: Any) -> m.ProviderTunnelRequest:
    usual: dict[str, Any] = {
        "stream_id": 1,
        "run_id": "r",
        "adapter": "vllm",
        "provider_id": "p",
        "target": "t",
        "window_bytes": 65536,
        "deadline_ms": 0,
        "response_stall_timeout_ms": 0,
        "lease": m.LeaseBinding(),
        "method": b"POST",
        "path": b"/chat/completions",
        "header_block": b"x-kept: 1\r\n",
        "body": b"{}",
        "body_bytes": 2,
    }
    return m.ProviderTunnelRequest(**{**usual, **fields})


def head_of(request: m.ProviderTunnelRequest, **config: Any) -> bytes:
    """What a node with this provider would put on the provider's socket."""
    found: list[bytes] = []

    @async_test()
    async def body() -> None:
        usual: dict[str, Any] = {"id": "p", "kind": "vllm", "base_url": "http://127.0.0.1:9/v1", "max_concurrency": 1}
        entry = m.ProviderConfig(**{**usual, **config})
        provider = Provider(Runtime(asyncio.get_running_loop()), entry, Allowance(), entry.base_url)
        try:
            found.append(provider.request_head(request))
        finally:
            provider.close()

    body()
    return found[0]


def test_an_ordinary_request_is_framed_by_the_node() -> None:
    assert head_of(opening(query=b"a=1")) == (
        b"POST /v1/chat/completions?a=1 HTTP/1.1\r\nhost: 127.0.0.1:9\r\nx-kept: 1\r\ncontent-length: 2\r\n\r\n"
    )
    assert b"content-length" not in head_of(opening(method=b"GET", body=b"", body_bytes=0))


@pytest.mark.req("TUN-7", "TUN-6", "TUN-9")
@pytest.mark.parametrize(
    "block",
    [
        b"x: 1\r\n\r\nPOST /admin/evil HTTP/1.0\r\ny: z\r\n",
        b"x: 1\rtransfer-encoding: chunked\r\n",
        b"x: 1\r\n transfer-encoding: chunked\r\n",
        b"x: 1\ny: 2\r\n",
        b"x: \x00\r\n",
        b"Transfer-Encoding\x0b: chunked\r\n",
        b"x: 1",
        b"Transfer-Encoding: chunked\r\n",
        b"content-length: 9\r\n",
        b"HOST: evil\r\n",
        b"authorization: Bearer k\r\n",
        b"cookie: a=b\r\n",
        b"connection: close\r\n",
    ],
)
def test_a_header_block_that_could_be_more_than_fields_is_refused(block: bytes) -> None:
    with pytest.raises(Forbidden):
        head_of(opening(header_block=block))


@pytest.mark.req("TUN-7", "LIVE-1")
@pytest.mark.parametrize(
    "fields",
    [
        {"body": b"{}POST /admin/evil HTTP/1.0\r\n\r\n"},
        {"body": b"{", "body_bytes": 2},
        {"method": b"GET"},
        {"body": b"", "body_bytes": 0, "body_follows": True},
        {"body": b"", "body_bytes": 2**64 - 1, "body_follows": True},
        {"response_stall_timeout_ms": 86_400_001},
        {"first_response_timeout_ms": 2**32 - 1},
    ],
)
def test_a_body_that_is_not_as_announced_and_clocks_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        head_of(opening(**fields))


@pytest.mark.parametrize("query", [b"a b", b"a\r\nx: y", b"\x7f", b"\xff", b"\x00"])
def test_a_query_that_ends_the_line_is_refused(query: bytes) -> None:
    with pytest.raises(IopError):
        head_of(opening(query=query))


def test_a_built_in_provider_needs_no_allowance_and_an_unknown_kind_is_refused() -> None:
    listed = Allowance(upstreams=[("10.0.0.1", 8000)])

    @async_test()
    async def body() -> None:
        runtime = Runtime(asyncio.get_running_loop())
        echo = m.ProviderConfig("e", "echo", "", 1)
        Provider(runtime, echo, listed, "http://127.0.0.1:9/v1").close()
        with pytest.raises(ProviderRejected):
            Provider(runtime, m.ProviderConfig("v", "vllm", "", 1), listed, "http://127.0.0.1:9/v1")
        with pytest.raises(ProviderRejected):
            Provider(runtime, m.ProviderConfig("x", "telepathy", "", 1), listed, "http://10.0.0.1:8000/v1")

    body()
