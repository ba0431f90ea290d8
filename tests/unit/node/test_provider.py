"""What a node lets its edge ask of a provider (TUN-6, TUN-7)."""

from __future__ import annotations

import pytest

from iop.errors import Forbidden, InvalidArgument
from iop.net.http.client import Origin
from iop.node.provider import Allowance, check_path


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
        with pytest.raises(Forbidden, match="allow_upstreams"):
            Allowance().check_origin(origin)


@pytest.mark.req("TUN-7")
def test_with_a_list_only_what_is_on_it() -> None:
    allowance = Allowance(upstreams=[("10.0.0.1", 8000)])
    allowance.check_origin(Origin.parse("http://10.0.0.1:8000/v1"))
    for url in ("http://10.0.0.1:8001/v1", "http://127.0.0.1:8000/v1"):
        with pytest.raises(Forbidden):
            allowance.check_origin(Origin.parse(url))


@pytest.mark.req("TUN-6")
def test_a_credential_needs_the_owners_word_and_a_sound_value() -> None:
    allowance = Allowance(
        credentials=frozenset({"KEY", "BAD", "EMPTY"}), environment={"KEY": "k", "BAD": "a\nb", "X": "x"}
    )
    assert allowance.credential("") == b""
    assert allowance.credential("KEY") == b"k"
    with pytest.raises(Forbidden):
        allowance.credential("X")
    for name in ("BAD", "EMPTY"):
        with pytest.raises(InvalidArgument) as caught:
            allowance.credential(name)
        assert "a\nb" not in caught.value.message


@pytest.mark.parametrize(
    "url", ["ftp://a/", "http:///v1", "http://u:p@a/v1", "http://a:99999/", "http://a/v1?x=1", "nonsense"]
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
