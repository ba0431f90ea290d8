"""Look whether this machine has the addresses of listeners: a part of ``check`` (CONF-1).

``serve`` does not ask: an address may come after the program's start, with a VPN, DHCP or DNS. There the attempt to
listen tells, and the program ends with exit code 1, so that a service manager tries again (SUP-3).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from pathlib import Path

from iop.config.fields import HostPort
from iop.errors import ConfigError

__all__ = ["check_listeners"]


def check_listeners(file: Path, listeners: Mapping[str, HostPort | None]) -> None:
    """Try each address, and give it back at once. A port that is taken is no fault here: the program may be running.

    Args:
        file: The configuration file, for the text of faults.
        listeners: Addresses by setting; None is a listener that is switched off.

    Raises:
        ConfigError: With every address that this machine does not have or may not use.
    """
    faults = []
    for setting, address in listeners.items():
        fault = _fault(address) if address is not None else ""
        if fault:
            faults.append(f"{file}: {setting}: {address}: {fault}")
    if faults:
        raise ConfigError(faults)


def _fault(address: HostPort) -> str:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return "this name has no address; write an address of this machine"
    lacking = ""
    usable = False
    for family, kind, protocol, _, where in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # as a kernel without IPv6 says of one of a name's families: listeners leave it out
            lacking = error.strerror or str(error)
            continue
        usable = True
        try:
            with sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            if error.errno == errno.EADDRNOTAVAIL:
                return "this machine does not have this address"
            if error.errno == errno.EACCES:
                return "this user may not listen on this port; use one above 1023"
            return error.strerror or str(error)
    return "" if usable else lacking
