"""No network in tests: only unix sockets and the loopback interface."""

import socket
import sys
from ipaddress import ip_address
from typing import Any, Final

__all__ = ["NetworkError", "forbid_network"]

_ADDRESSED: Final = frozenset({"socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"})
_RESOLVING: Final = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})


class NetworkError(RuntimeError):
    """A test tried to use the network. Not an OSError, so that no code under test handles it as a failed connection."""


def forbid_network() -> None:
    """Make connecting, sending, binding and resolving beyond this machine raise NetworkError from now on.

    An audit hook sees every socket that Python code opens, whatever library wraps it, and stays for the process's life.
    """
    sys.addaudithook(_audit)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in _ADDRESSED:
        sock, address = args
        if sock.family in {socket.AF_INET, socket.AF_INET6} and address:
            _require_local(event, address[0])
    elif event in _RESOLVING and args[0]:
        _require_local(event, args[0])


def _require_local(event: str, host: str | bytes) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if not _is_local(name):
        raise NetworkError(f"{event}: {name!r} is not on this machine")


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
