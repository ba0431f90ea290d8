"""Addresses of listeners: what ``check`` says of them, and how ``serve`` ends (CONF-1)."""

from __future__ import annotations

import errno
import json
import os
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


def run(program: str, action: str, file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    line = command(program, action, "-c", str(file), *more)
    return subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)


def write_edge(file: Path, addresses: dict[str, str]) -> None:
    """The file of an edge with these addresses, and any port of loopback for its other listeners."""
    listeners = {f"{name}.listen": "127.0.0.1:0" for name in ("http", "transport", "admin")} | addresses
    more = {"http": ", allow_anonymous: true", "transport": ", allow_plaintext: true"}
    sections = {name.partition(".")[0]: at for name, at in listeners.items()}
    file.write_text("".join(f'{name}: {{listen: "{at}"{more.get(name, "")}}}\n' for name, at in sections.items()))


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
def test_a_port_in_use_is_no_fault_of_the_file() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        check_listeners(FILE, {"http.listen": HostPort(*sock.getsockname()), "admin.listen": None})


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(("unusable", "fault"), [(1, ""), (2, "Address family not supported by protocol")])
def test_a_family_of_addresses_that_the_kernel_lacks_is_no_fault_if_another_one_works(
    monkeypatch: pytest.MonkeyPatch, unusable: int, fault: str
) -> None:
    families = (socket.AF_INET6, socket.AF_INET)

    class Socket(socket.socket):
        def __init__(self, family: int, *more: int) -> None:
            if family in families[:unusable]:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *more)

    found = [
        (family, socket.SOCK_STREAM, 0, "", (host, 0))
        for family, host in zip(families, ("::1", "127.0.0.1"), strict=True)
    ]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr("socket.socket", Socket)
    listeners = {"http.listen": HostPort("edge.example", 0)}
    if not fault:
        check_listeners(FILE, listeners)
        return
    with pytest.raises(ConfigError, match=fault):
        check_listeners(FILE, listeners)


@pytest.mark.req("CONF-1")
def test_check_refuses_it_with_all_faults(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 40)
    (tmp_path / "token").chmod(0o600)
    file = tmp_path / "node.yaml"
    file.write_text(f'node: {{edge: "127.0.0.1:9", token_file: token}}\nmetrics: {{listen: "{FOREIGN}"}}\n')
    ran = run("iop-node", "check", file)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"{file}: metrics.listen: {FOREIGN}: this machine does not have this address\n"


@pytest.mark.req("CONF-1", "SUP-3", "OBS-2")
@pytest.mark.parametrize(
    ("program", "setting", "address", "reason"),
    [
        ("iop-edge", "http.listen", FOREIGN, os.strerror(errno.EADDRNOTAVAIL)),
        ("iop-edge", "transport.listen", "no-such-host.invalid:7443", ""),
        ("iop-node", "metrics.listen", FOREIGN, os.strerror(errno.EADDRNOTAVAIL)),
        ("iop-node", "metrics.listen", "no-such-host.invalid:7443", ""),
    ],
)
def test_a_service_manager_tries_again_what_may_change_without_an_edit_of_the_file(
    tmp_path: Path, program: str, setting: str, address: str, reason: str
) -> None:
    """An address that comes with a VPN, DHCP or DNS after the program's start."""
    file = tmp_path / "file.yaml"
    if program == "iop-node":
        (tmp_path / "token").write_text("t" * 40)
        (tmp_path / "token").chmod(0o600)
        file.write_text(f'node: {{edge: "127.0.0.1:9", token_file: token}}\nmetrics: {{listen: "{address}"}}\n')
    else:
        write_edge(file, {setting: address})
    ran = run(program, "serve", file, "--log-format", "json")
    assert ran.returncode == 1, "the code that the units of deploy/systemd start again"
    (said,) = [one for one in map(json.loads, ran.stderr.splitlines()) if one["event"] == "cannot_listen"]
    assert (said["setting"], said["address"]) == (setting, address)
    assert said["reason"] == reason or (not reason and "unknown" not in said["reason"].lower())


@pytest.mark.req("CONF-1", "SUP-3")
@pytest.mark.parametrize("action", ["check", "serve"])
def test_what_takes_an_edit_of_the_file_is_for_a_person(tmp_path: Path, action: str) -> None:
    file = tmp_path / "edge.yaml"
    write_edge(file, {"http.listen": "127.0.0.1:8080", "admin.listen": "127.0.0.1:8080"})
    ran = run("iop-edge", action, file)
    assert ran.returncode == 2
    assert "admin.listen: 127.0.0.1:8080 is http.listen already" in ran.stderr


@pytest.mark.req("CONF-1", "OBS-2")
@pytest.mark.parametrize("setting", ["http.listen", "transport.listen", "admin.listen"])
def test_a_port_that_is_taken_ends_the_edge_with_the_setting(tmp_path: Path, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file = tmp_path / "edge.yaml"
        write_edge(file, {setting: address})
        ran = run("iop-edge", "serve", file, "--log-format", "json")
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
    ran = run("iop-node", "check", file)
    assert ran.returncode == 0
    first, second = ran.stderr.splitlines()
    assert "node.credentials: IOP_TEST_UNSET is not set here" in first
    assert f"store.url: {tmp_path / 'nowhere'} is not a folder" in second
