"""Addresses of listeners are tried by ``check`` and ``serve`` alike (CONF-1)."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from iop.cli.listeners import check_listeners
from iop.config.fields import HostPort
from iop.errors import ConfigError
from tests.support.programs import command

FILE = Path("edge.yaml")
#: Reserved for documentation (RFC 5737): no machine has it.
FOREIGN = "192.0.2.1:8080"


def iop_node(action: str, file: Path) -> subprocess.CompletedProcess[str]:
    line = command("iop-node", action, "-c", str(file))
    return subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.req("CONF-1")
def test_every_address_that_cannot_be_had_is_told_at_once() -> None:
    listeners = {
        "http.listen": HostPort.parse(FOREIGN),
        "transport.listen": HostPort.parse("no-such-host.invalid:7443"),
        "admin.listen": HostPort.parse("127.0.0.1:0"),
    }
    with pytest.raises(ConfigError) as caught:
        check_listeners(FILE, listeners)
    first, second = caught.value.faults
    assert first == f"edge.yaml: http.listen: {FOREIGN}: this machine does not have this address"
    assert second.startswith("edge.yaml: transport.listen: no-such-host.invalid:7443: this name has no address")


@pytest.mark.req("CONF-1")
def test_one_address_for_two_listeners_is_a_fault_and_a_port_in_use_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = HostPort("127.0.0.1", sock.getsockname()[1])
        check_listeners(FILE, {"http.listen": taken, "admin.listen": None})
        with pytest.raises(ConfigError, match=r"admin\.listen: .*: the same address as http\.listen"):
            check_listeners(FILE, {"http.listen": taken, "admin.listen": taken})


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize("action", ["check", "serve"])
def test_both_programs_refuse_it_with_all_faults(tmp_path: Path, action: str) -> None:
    (tmp_path / "token").write_text("t" * 40)
    (tmp_path / "token").chmod(0o600)
    file = tmp_path / "node.yaml"
    file.write_text(f'node: {{edge: "127.0.0.1:9", token_file: token}}\nmetrics: {{listen: "{FOREIGN}"}}\n')
    ran = iop_node(action, file)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"{file}: metrics.listen: {FOREIGN}: this machine does not have this address\n"


@pytest.mark.req("CONF-1", "OBS-2")
@pytest.mark.parametrize("setting", ["http.listen", "transport.listen", "admin.listen"])
def test_a_port_that_is_taken_ends_the_edge_with_the_setting(tmp_path: Path, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        rooms = {"http.listen": "127.0.0.1:0", "transport.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0"}
        rooms[setting] = address
        file = tmp_path / "edge.yaml"
        file.write_text("".join(f'{name.partition(".")[0]}: {{listen: "{at}"}}\n' for name, at in rooms.items()))
        line = command("iop-edge", "serve", "--log-format", "json", "-c", str(file))
        ran = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 1
    (said,) = [one for one in map(json.loads, ran.stderr.splitlines()) if one["event"] == "cannot_listen"]
    assert (said["setting"], said["address"], said["reason"]) == (setting, address, "Address already in use")


@pytest.mark.req("CONF-1")
def test_what_a_node_would_do_without_is_said_by_check(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 40)
    (tmp_path / "token").chmod(0o600)
    file = tmp_path / "node.yaml"
    file.write_text(
        'node: {edge: "127.0.0.1:9", token_file: token, credentials: [IOP_TEST_UNSET]}\n'
        'store: {url: "file:nowhere/runs.db?mode=rwc"}\n'
    )
    ran = iop_node("check", file)
    assert ran.returncode == 0
    first, second = ran.stderr.splitlines()
    assert "node.credentials: IOP_TEST_UNSET is not set here" in first
    assert f"store.url: {tmp_path / 'nowhere'} is not a folder" in second
