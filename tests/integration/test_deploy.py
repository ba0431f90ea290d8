"""deploy/systemd, deploy/docker and deploy/compose say nothing that the programs do not do."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import iop
from iop.cli.program import Exit
from iop.config.edge import EdgeConfig, without_effect
from iop.node.uplink.reconnect import EXIT_CODES
from tests.support.aio import async_test
from tests.support.deploy import (
    DEPLOY,
    PREFIX,
    PROGRAMS,
    config_file_of,
    edge_of,
    node_of,
    options,
    secret_paths,
    tool,
    with_secrets_in,
)
from tests.support.http import Client, chat, post
from tests.support.programs import Program, command

BOTH = pytest.mark.parametrize("program", sorted(PROGRAMS))
SECRETIVE = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def drain_s(program: str, text: str, folder: Path) -> float:
    if program == "iop-edge":
        return edge_of(text, folder).edge.drain_timeout_sec
    return node_of(text, folder).node.drain_timeout_sec


def written_paths(program: str, text: str, folder: Path) -> list[str]:
    """Where the program writes with this configuration."""
    if program == "iop-edge":
        return []  # an edge writes nothing
    url = node_of(text, folder).store.url
    assert url is not None
    return [url.removeprefix("file:").partition("?")[0]]


# ---- systemd --------------------------------------------------------------------------------------------------------


def unit(program: str) -> dict[str, list[str]]:
    settings = defaultdict(list)
    for line in (DEPLOY / f"systemd/{program}.service").read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            settings[name].append(value)
    return settings


def example(program: str) -> str:
    return (DEPLOY / f"systemd/{program.removeprefix('iop-')}.yaml").read_text()


@BOTH
def test_a_unit_starts_what_there_is(program: str) -> None:
    (line,) = unit(program)["ExecStart"]
    path, *arguments = shlex.split(line)
    assert path == PREFIX + program
    file = config_file_of(program, arguments)
    assert example(program).startswith(f"# To {file} (root:{program}, 0640).")
    assert unit(program)["User"] == [program]
    assert f"\nu {program} - " in (DEPLOY / "systemd/iop.sysusers").read_text()


def test_reloading_checks_the_file_before_it_sends_the_signal() -> None:
    check, send = unit("iop-edge")["ExecReload"]
    assert config_file_of("iop-edge", shlex.split(check)[1:]) == "/etc/iop/edge.yaml"
    assert shlex.split(check)[1] == "check"
    assert send == "/bin/kill -HUP $MAINPID"
    assert "ExecReload" not in unit("iop-node")  # a node has no handler, and SIGHUP would end it


@BOTH
def test_stopping_leaves_time_to_drain(program: str, tmp_path: Path) -> None:
    assert unit(program)["KillSignal"] == ["SIGTERM"]
    assert float(unit(program)["TimeoutStopSec"][0]) >= drain_s(program, example(program), tmp_path) + 10


@BOTH
def test_what_is_for_a_person_is_not_tried_again(program: str) -> None:
    assert unit(program)["Restart"] == ["on-failure"]
    left = {int(code) for code in unit(program)["RestartPreventExitStatus"][0].split()}
    assert left == {Exit.USAGE, Exit.IDENTITY}
    assert left < {int(code) for code in Exit} | set(EXIT_CODES.values())


def test_no_deployed_file_has_a_setting_without_effect(tmp_path: Path) -> None:
    for text in (example("iop-edge"), with_secrets_in(tmp_path, composed("iop-edge"))):
        assert without_effect(edge_of(text, tmp_path)) == []


@BOTH
def test_a_unit_writes_only_below_its_state_directory(program: str, tmp_path: Path) -> None:
    (state,) = unit(program)["StateDirectory"]
    assert all(path.startswith(f"/var/lib/{state}") for path in written_paths(program, example(program), tmp_path))
    wanted = {
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "MemoryDenyWriteExecute": "yes",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
        "UMask": "0077",
    }
    assert {name: unit(program)[name] for name in wanted} == {name: [value] for name, value in wanted.items()}
    assert unit(program)["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert "ReadWritePaths" not in unit(program)


@BOTH
def test_no_unit_holds_a_secret(program: str) -> None:
    assert "Environment" not in unit(program)
    assert all(file.startswith("-/etc/iop/") for file in unit(program)["EnvironmentFile"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@BOTH
def test_systemd_finds_no_fault_in_a_unit(program: str, tmp_path: Path) -> None:
    """The program's place is another here, since systemd looks whether it is there."""
    stand_in = tmp_path / program
    stand_in.write_text("#!/bin/sh\n")
    stand_in.chmod(0o755)
    copy = tmp_path / f"{program}.service"
    copy.write_text((DEPLOY / f"systemd/{program}.service").read_text().replace(PREFIX, f"{tmp_path}/"))
    exposure = "--threshold=20"  # of 100: 2.0 as it is printed
    for arguments in (["verify", "--man=no"], ["security", "--offline=true", "--no-pager", exposure]):
        ran = subprocess.run(["systemd-analyze", *arguments, str(copy)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert program not in ran.stderr


# ---- images ---------------------------------------------------------------------------------------------------------


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile, those of the stage that it is made from before its own."""
    text = (DEPLOY / "docker/Dockerfile").read_text()
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            current = found[name] = list(found.get(base, []))
        else:
            current.append((word, rest.strip()))
    return found


def values(stage: str, word: str) -> list[str]:
    return [rest for instruction, rest in stages()[stage] if instruction == word]


@BOTH
def test_an_image_runs_its_program_as_nobody_in_particular(program: str) -> None:
    (entry,) = values(program, "ENTRYPOINT")
    (arguments,) = values(program, "CMD")
    assert yaml.safe_load(entry) == [PREFIX + program]
    assert config_file_of(program, yaml.safe_load(arguments)) == f"/etc/iop/{program.removeprefix('iop-')}.yaml"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", values(program, "USER")[-1])
    assert values(program, "STOPSIGNAL") == ["SIGTERM"]
    assert not re.search(r"gcc|python3-dev|pip", " ".join(values(program, "RUN")))


def test_ports_of_the_edge_image_are_those_of_the_edge() -> None:
    config = EdgeConfig()
    (ports,) = values("iop-edge", "EXPOSE")
    assert ports.split() == [str(config.http.listen.port), str(config.transport.listen.port)]
    assert values("iop-node", "EXPOSE") == []


def test_only_the_sources_get_into_an_image() -> None:
    copied = {source for stage in stages() for rest in values(stage, "COPY") for source in rest.split()[:-1]}
    assert copied == {"pyproject.toml", "setup.py", "README.md", "LICENSE", "src", "--from=build", "/opt/iop"}
    assert not any(values(stage, "ADD") for stage in stages())
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in ignored if line and not line.startswith("#")]
    assert patterns[0] == "*"
    let_in = {line[1:] for line in patterns if line.startswith("!")}
    assert let_in == {"pyproject.toml", "setup.py", "README.md", "LICENSE", "src"}


def test_no_secret_is_built_into_an_image() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    set_here = re.findall(r"^(?:ARG|ENV|LABEL) .*|--mount=\S+", text, re.MULTILINE)
    assert len(set_here) >= 2
    assert [one for one in set_here if SECRETIVE.search(one)] == []


@pytest.mark.skipif(not tool("hadolint"), reason="hadolint is not installed")
def test_hadolint_finds_no_fault_in_the_images() -> None:
    lint = [tool("hadolint"), str(DEPLOY / "docker/Dockerfile")]
    ran = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


# ---- compose --------------------------------------------------------------------------------------------------------

COMPOSE_TEXT = (DEPLOY / "compose/compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)


def service(program: str) -> dict[str, Any]:
    return COMPOSE["services"][program.removeprefix("iop-")]


def composed(program: str) -> str:
    name = program.removeprefix("iop-")
    return (DEPLOY / f"compose/{name}/{name}.yaml").read_text()


@BOTH
def test_a_service_is_built_from_the_stage_of_its_program(program: str) -> None:
    build = service(program)["build"]
    context = (DEPLOY / "compose" / build["context"]).resolve()
    assert (context / build["dockerfile"]) == DEPLOY / "docker/Dockerfile"
    assert build["target"] == program
    assert service(program)["image"] == f"{program}:{iop.__version__}"
    name = program.removeprefix("iop-")
    assert f"./{name}:/etc/iop:ro" in service(program)["volumes"]


@BOTH
def test_a_service_gets_the_secrets_that_its_file_names_and_no_other(program: str) -> None:
    assert secret_paths(composed(program)) == {f"/run/secrets/{name}" for name in service(program)["secrets"]}
    assert "environment" not in service(program)
    assert "env_file" not in service(program)


def test_secrets_are_files_that_git_and_a_source_archive_leave_out() -> None:
    for name, source in COMPOSE["secrets"].items():
        assert source == {"file": f"./secrets/{name}"}
    (made,) = re.findall(r"^#   docker run .*-v \S+ (\S+) (.*)$", COMPOSE_TEXT, re.MULTILINE)
    assert made[0] == service("iop-edge")["image"]
    assert shlex.split(made[1])[:2] == ["init", "/secrets"]
    assert set(shlex.split(made[1])[2::2]) <= options("iop-edge", "init")
    assert "secrets/" in (DEPLOY / "compose/.gitignore").read_text().splitlines()
    assert "prune deploy/compose/secrets" in (DEPLOY.parent / "MANIFEST.in").read_text()


@BOTH
def test_a_service_has_time_to_drain_and_nothing_to_spare(program: str, tmp_path: Path) -> None:
    grace = service(program)["stop_grace_period"]
    assert float(grace.removesuffix("s")) >= drain_s(program, composed(program), tmp_path) + 10
    assert service(program)["read_only"] is True
    assert service(program)["cap_drop"] == ["ALL"]
    assert service(program)["security_opt"] == ["no-new-privileges:true"]
    if program == "iop-node":
        mounts = [volume.split(":")[1] for volume in service(program)["volumes"] if not volume.endswith(":ro")]
        assert all(path.startswith(tuple(mounts)) for path in written_paths(program, composed(program), tmp_path))


def test_only_clients_of_this_machine_reach_the_edge_and_the_node_port_is_not_published(tmp_path: Path) -> None:
    edge, node = edge_of(composed("iop-edge"), tmp_path), node_of(composed("iop-node"), tmp_path)
    assert service("iop-edge")["ports"] == [f"127.0.0.1:8080:{edge.http.listen.port}"]
    assert "ports" not in service("iop-node")
    assert (node.node.edge.host, node.node.edge.port) == ("edge", edge.transport.listen.port)
    (between,) = set(service("iop-edge")["networks"]) & set(service("iop-node")["networks"])
    assert COMPOSE["networks"][between] == {"internal": True}
    assert edge.admin.listen is not None
    assert edge.admin.listen.is_loopback
    assert edge.transport.tls is not None
    assert node.node.tls is not None
    (probe,) = re.findall(r"http://[^']+", " ".join(service("iop-edge")["healthcheck"]["test"]))
    assert probe == f"http://127.0.0.1:{edge.http.listen.port}/readyz"


@async_test()
async def test_the_composed_pair_answers_reloads_and_stops_in_time(tmp_path: Path) -> None:
    """As processes here, with the files of the example: only ports, the run store and where secrets lie differ."""
    edge_file, node_file = tmp_path / "edge.yaml", tmp_path / "node.yaml"
    text = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", with_secrets_in(tmp_path, composed("iop-edge")))
    edge_file.write_text(text + "admin: null\n")
    serve = yaml.safe_load(values("iop-edge", "CMD")[0])[:-1]
    with Program(command("iop-edge", *serve, str(edge_file))) as edge:
        host, port = edge.address("nodes")
        text = with_secrets_in(tmp_path, composed("iop-node")).replace("/var/lib/iop", str(tmp_path))
        node_file.write_text(text.replace("edge:7443", f"{host}:{port}"))
        with Program(command("iop-node", *serve, str(node_file))) as node:
            node.wait_event("edge_connected")
            client = await Client.connect(edge.address("http"))
            asked = chat("echo", text="good day")
            client.send(post("/v1/chat/completions", asked, {"Authorization": "Bearer secret-of-client_key"}))
            answer = await client.answer()
            assert answer.json["choices"][0]["message"]["content"] == "echo: good day"
            await client.close()
            edge_file.write_text(edge_file.read_text().replace("capacity: 4", "capacity: 5"))
            edge.signal(signal.SIGHUP)
            assert edge.wait_event("config_reloaded")["changed"]
            node.wait_event("config_applied")
            stop = signal.Signals[values("iop-edge", "STOPSIGNAL")[0]]
            node.signal(stop)
            assert node.wait(timeout_s=10) == 0
        edge.signal(stop)
        assert edge.wait(timeout_s=10) == 0
    assert (tmp_path / "iop.db").exists()


def test_every_command_in_a_deployment_exists() -> None:
    """Also those in comments."""
    for path in DEPLOY.rglob("*"):
        if path.is_file() and "secrets" not in path.parts:
            for program, name in re.findall(r"\b(iop-edge|iop-node) ([a-z]+)\b", path.read_text()):
                assert options(program, name), path
