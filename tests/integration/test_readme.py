"""What the documents say is so: commands run, examples load, tables are complete, names exist."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from iop.cli.program import Exit
from iop.config.load import load_edge, load_node, parse_edge
from iop.edge.api.routes import ROUTES
from iop.errors import IopError
from iop.node.uplink.reconnect import EXIT_CODES
from iop.observability.metrics import EdgeMetrics, NodeMetrics
from tests.support.aio import async_test
from tests.support.http import Client, chat, post
from tests.support.programs import Program, command
from tests.support.rules import contract_rules

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks/README.md"]
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "src/iop").rglob("*.py")))


def blocks(text: str) -> list[str]:
    """The indented blocks of a document, without their indentation."""
    found = re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.MULTILINE)
    return [re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip("\n") for block in found if block.strip()]


def cells(text: str, head: str) -> list[list[str]]:
    """The rows of the table with this first cell in its head."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# ---- README -------------------------------------------------------------------------------------------------------


def test_the_two_commands_are_targets() -> None:
    assert "make run\nmake test" in blocks(README)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test"} <= set(targets)
    everything = "\n".join(path.read_text() for path in DOCUMENTS)
    assert set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", everything, re.MULTILINE)) <= set(targets)


@async_test()
async def test_what_init_writes_serves_as_the_readme_says(tmp_path: Path) -> None:
    """Only the ports are not those that were written: a test takes free ones."""
    with Program(command("iop-edge", "init", "my-iop"), cwd=tmp_path) as init:
        assert init.wait() == 0
    lines = [line.removeprefix("  $ ").split() for line in init.output.splitlines() if line.startswith("  $ ")]
    assert [line[1:] for line in lines[:2]] == [["serve", "-c", f"my-iop/{name}.yaml"] for name in ("edge", "node")]
    edge_file, node_file = tmp_path / "my-iop/edge.yaml", tmp_path / "my-iop/node.yaml"
    written = edge_file.read_text() + "admin: {listen: '127.0.0.1:9090'}\n"
    edge_file.write_text(re.sub(r"(127\.0\.0\.1|0\.0\.0\.0):\d+", "127.0.0.1:0", written))
    with Program(command("iop-edge", *lines[0][1:], "--log-format", "json"), cwd=tmp_path) as edge:
        host, port = edge.address("nodes")
        node_file.write_text(node_file.read_text().replace("127.0.0.1:7443", f"{host}:{port}"))
        with Program(command("iop-node", *lines[1][1:], "--log-format", "json"), cwd=tmp_path) as node:
            node.wait_event("edge_connected")
            client = await Client.connect(edge.address("http"))
            client.send(post("/v1/chat/completions", chat("echo", text="good day")))
            answer = await client.answer()
            assert answer.json["choices"][0]["message"]["content"] == "echo: good day"
            await client.close()


def test_the_example_of_a_real_server_loads(tmp_path: Path) -> None:
    (example,) = [block for block in re.findall(r"(?:^ {7}.*\n)+", README, re.MULTILINE) if "nodes:" in block]
    config = parse_edge(example.replace("…", "0" * 64))
    assert config.models[0].candidates[0].provider == config.nodes[0].providers[0].id
    (plaintext,) = re.findall(r"`(transport: \{.*?\})`", README)
    assert parse_edge(plaintext).transport.allow_plaintext


def test_the_samples_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOP_TOKEN_GPU_1", "t")
    monkeypatch.setenv("IOP_NODE_TOKEN", "t")
    load_edge(ROOT / "configs/edge.yaml")
    load_node(ROOT / "configs/node.yaml")


def test_the_api_table_lists_every_path() -> None:
    listed = {path for row in cells(README, "path") for cell in names(row[0]) for path in cell.split(" ")[-1:]}
    assert {path.decode() for path in ROUTES} <= listed
    assert {"/v1/models", "/healthz", "/health", "/readyz", "/metrics", "/admin/status"} <= listed


# ---- docs/operations.md -------------------------------------------------------------------------------------------


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"(iop-(?:edge|node)) ([a-z]+)", "\n".join(path.read_text() for path in DOCUMENTS)))
    named -= {("iop-node", "runs"), ("iop-edge", "sees"), ("iop-node", "process")}
    assert {("iop-edge", "serve"), ("iop-edge", "status"), ("iop-node", "join")} <= named
    for program in ("iop-edge", "iop-node"):
        ran = subprocess.run(command(program, "--help"), capture_output=True, text=True, check=True)
        there = set(re.findall(r"^    (\w+) ", ran.stdout, re.MULTILINE))
        assert {name for owner, name in named if owner == program} == there


def test_exit_codes_are_complete() -> None:
    codes = {int(row[0]) for row in cells(OPERATIONS, "exit code")}
    assert codes == {int(code) for code in Exit} == {0, 1, *EXIT_CODES.values()}


def codes_of(kind: type[IopError]) -> set[tuple[str, int]]:
    return {(kind.code, kind.status)}.union(*map(codes_of, kind.__subclasses__()))


#: Never sent to a client by this version: reported between node and edge, or of parts that do not exist yet.
UNSEEN = {
    "adapter_no_terminal",
    "capacity_exceeded",
    "config_error",
    "config_rejected",
    "credential_rejected",
    "invalid_argument",
    "protocol_error",
    "unsupported_command",
    "workspace_unsupported",
}


def test_error_codes_are_complete_and_their_status_right() -> None:
    listed = {(name, int(row[1][:3])) for row in cells(OPERATIONS, "code") for name in names(row[0])}
    there = {(code, status) for code, status in codes_of(IopError) if code not in UNSEEN}
    assert listed == there


@pytest.mark.parametrize("metrics", [EdgeMetrics(), NodeMetrics()], ids=["edge", "node"])
def test_metrics_are_complete_and_their_labels_right(metrics: EdgeMetrics | NodeMetrics) -> None:
    program = metrics.prefix.split("_")[1]
    listed = {name: row[1] for row in cells(OPERATIONS, f"metric of the {program}") for name in names(row[0])}
    there = {family.name: ", ".join(family.labels) for family in metrics.families}
    assert listed == there


@pytest.mark.parametrize("metrics", [EdgeMetrics(), NodeMetrics()], ids=["edge", "node"])
def test_no_metric_is_there_that_nobody_feeds(metrics: EdgeMetrics | NodeMetrics) -> None:
    fed = set(re.findall(r"metrics\.(\w+)", SOURCES)) | {"build"}
    assert [name for name, family in vars(metrics).items() if family in metrics.families and name not in fed] == []


def test_log_events_exist() -> None:
    events = [name for row in cells(OPERATIONS, "other events") for name in names(row[0])]
    assert len(events) > 10
    assert [event for event in events if f'"{event}"' not in SOURCES] == []


# ---- ARCHITECTURE.md ----------------------------------------------------------------------------------------------


def test_every_module_has_its_place() -> None:
    places = {
        row[0].strip("`"): set(re.findall(r"[a-z_]+", " ".join(names(row[1])))) for row in cells(ARCHITECTURE, "room")
    }
    for path in sorted((ROOT / "src/iop").rglob("*.py*")):
        parts = path.relative_to(ROOT / "src/iop").with_suffix("").parts
        depth = next((n for n in (2, 1) if len(parts) > n and "/".join(parts[:n]) in places), 0)
        if path.suffix in {".py", ".pyx"} and depth and parts[-1] != "__init__":
            assert places["/".join(parts[:depth])] & set(parts[depth:]), f"{path} is not in ARCHITECTURE.md"


def test_the_rooms_are_those_that_lint_enforces() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in contracts if one.get("containers") == ["iop"]]
    (drawn,) = [block for block in re.findall(r"```\n(.*?)```", ARCHITECTURE, re.DOTALL) if block.startswith("cli ")]
    assert [re.split(r" {2,}", line)[0] for line in drawn.splitlines()] == layers


@pytest.mark.parametrize(("table", "group"), [("runtime", "dependencies"), ("development", "dev")])
def test_every_dependency_has_its_reason(table: str, group: str) -> None:
    project = PROJECT["project"]
    wanted = project["dependencies"] if group == "dependencies" else project["optional-dependencies"][group]
    listed = [name.strip() for row in cells(ARCHITECTURE, table) for name in row[0].split(",")]
    assert sorted(map(str.lower, listed)) == sorted(re.split(r"[><=]", one)[0].lower() for one in wanted)


# ---- all of them --------------------------------------------------------------------------------------------------


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} -> {target}"


def test_rules_that_are_named_exist() -> None:
    rule = r"\b(?:WIRE|REG|SUP|EXEC|TUN|POOL|LIVE|API|CONF|SEC|OBS)-\d+[a-z]?\b"
    for document in DOCUMENTS:
        assert set(re.findall(rule, document.read_text())) <= set(contract_rules()), document.name
