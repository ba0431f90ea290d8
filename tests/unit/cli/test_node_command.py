"""``iop-node`` as it is typed."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from iop.cli.node import main
from iop.config.node import NodeConfig
from tests.support.certificates import Certificates

ROOT = Path(__file__).parents[3]
JOIN_TOKEN = f"iop-join.{'sek' * 14}A.{'0a' * 32}"


def call(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as error:
        return int(error.code or 0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NodeConfig, str]]:
    """Stands in for the program, and records what the command started it with."""
    runs: list[tuple[NodeConfig, str]] = []

    def run(config: NodeConfig, *, log_format: str) -> int:
        runs.append((config, log_format))
        return 4

    app = types.ModuleType("iop.node.app")
    app.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "iop.node.app", app)
    return runs


def test_check_accepts_the_sample(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOP_NODE_TOKEN", "t")
    assert call(["check", "-c", str(ROOT / "configs/node.yaml")]) == 0
    assert "ok; dials 127.0.0.1:7443" in capsys.readouterr().out


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize(
    ("edge", "tls", "said"),
    [
        ("edge.example:7443", "{}", "over TLS"),
        ("edge.example:7443", "null", "without TLS: who sees the network sees token and prompts"),
        ("127.0.0.1:7443", "null", "without TLS"),
    ],
)
def test_check_says_who_can_read_along(
    edge: str, tls: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").write_text("tok\n")
    (tmp_path / "node.yaml").write_text(f"node: {{edge: '{edge}', token_file: t, tls: {tls}}}")
    assert call(["check", "-c", str(tmp_path / "node.yaml")]) == 0
    assert capsys.readouterr().out.endswith(f"ok; dials {edge} {said}\n")


@pytest.mark.req("SUP-3")
def test_serve_returns_the_exit_code_of_the_program(tmp_path: Path, started: list[tuple[NodeConfig, str]]) -> None:
    (tmp_path / "t").write_text("tok\n")
    (tmp_path / "node.yaml").write_text("node: {edge: 'edge.example:7443', token_file: t}")
    assert call(["serve", "-c", str(tmp_path / "node.yaml"), "--log-format", "json"]) == 4
    ((config, log_format),) = started
    assert (config.node.edge.host, log_format) == ("edge.example", "json")


@pytest.mark.req("SUP-3", "CONF-1")
def test_a_bad_file_starts_nothing_and_exits_2(
    tmp_path: Path, started: list[tuple[NodeConfig, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.yaml").write_text("node: {edge: x}")
    assert call(["serve", "-c", str(tmp_path / "node.yaml")]) == 2
    assert started == []
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("source", ["argument", "environment"])
def test_join_needs_no_file(
    source: str, started: list[tuple[NodeConfig, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IOP_NODE_TOKEN", raising=False)
    argv = ["join", "[::1]:7443"]
    if source == "argument":
        argv += ["--token", "sekret"]
    else:
        monkeypatch.setenv("IOP_NODE_TOKEN", "sekret")
    assert call(argv) == 4
    ((config, _),) = started
    assert str(config.node.edge) == "[::1]:7443"
    assert config.node.token.get_secret_value() == "sekret"


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize(
    ("argv", "tls"),
    [
        (["join", "edge:7443", "--token", JOIN_TOKEN], {"ca_sha256": "0a" * 32}),
        (["join", "127.0.0.1:7443", "--token", JOIN_TOKEN], {"ca_sha256": "0a" * 32}),
        (["join", "edge:7443", "--token", "t", "--tls"], {}),
        (["join", "edge:7443", "--token", "t", "--ca", "ca.pem"], {"ca": "ca.pem"}),
        (["join", "edge:7443", "--token", "t", "--plaintext"], None),
        (["join", "localhost:7443", "--token", "t"], None),
    ],
)
def test_join_decides_how_the_edge_is_known(
    argv: list[str],
    tls: dict[str, str] | None,
    started: list[tuple[NodeConfig, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Certificates(tmp_path)
    assert call(argv) == 4
    ((config, _),) = started
    if tls is None:
        assert config.node.tls is None
    else:
        assert config.node.tls is not None
        assert config.node.tls.model_dump(exclude_defaults=True, mode="json") == {
            name: str(tmp_path / value) if name == "ca" else value for name, value in tls.items()
        }
    assert config.node.token.get_secret_value() == argv[3]


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["join", "edge:7443"], "needs the node's token"),
        (["join", "edge", "--token", "sekret"], "HOST:PORT"),
        (["join", "edge:7443", "--tls", "--token", "sek ret "], "one line of up to 1024"),
        (["join", "edge:7443", "--token", "sekret"], "in the clear"),
        (["join", "10.0.0.1:7443", "--token", "sekret"], "--plaintext on a network that you trust"),
        (["join", "edge:7443", "--token", JOIN_TOKEN[:-1]], "damaged"),
        (["join", "edge:7443", "--token", JOIN_TOKEN, "--plaintext"], "leave --plaintext out"),
        (["join", "edge:7443", "--token", "sekret", "--plaintext", "--tls"], "not allowed with"),
        (["join", "edge:7443", "--token", "sekret", "--ca", "/nowhere/ca.pem"], "cannot read /nowhere/ca.pem"),
    ],
)
def test_join_that_cannot_work_is_one_line(
    argv: list[str],
    text: str,
    started: list[tuple[NodeConfig, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("IOP_NODE_TOKEN", raising=False)
    assert call(argv) == 2
    err = capsys.readouterr().err
    assert text in err
    assert "sek" not in err
    assert len(err.splitlines()) == 1
    assert started == []
