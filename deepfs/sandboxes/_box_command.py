"""The command line that puts a command into its box."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from deepfs.sandboxes._bubblewrap_limits import Limits

__all__ = ["WORKSPACE", "Box", "arguments"]

WORKSPACE: Final = "/workspace"

_NOBODY = "65534"
_LINKED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
)
"""What programs need of /etc, and nothing that tells of this host."""
_FOR_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")

_ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"'
"""Joins control groups, then becomes what follows."""


class Box(Struct, frozen=True):
    """What the box of a sandbox is made of."""

    workspace: str
    env: Mapping[str, str]
    read_only: Sequence[str]
    network: bool
    limits: Limits
    bubblewrap: str
    devices: Mapping[str, str]
    """Files to use instead of the devices of the host, by the name in /dev."""


def arguments(box: Box, command: str, groups: Sequence[str] = (), *, counts_memory: bool = False) -> list[str]:
    """The command line that runs `command` in the box, as a member of the control groups with these files.

    Where they do not count memory, each process has a limit of its own.
    """
    entering = ["/bin/sh", "-c", _ENTER, "sh", *groups, "--"] if groups else []
    return [
        *entering,
        box.bubblewrap,
        *_options(box),
        "--",
        *_limited(box.limits, counts_memory=counts_memory),
        command,
    ]


def _options(box: Box) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent")
    # Whoever starts it: within, nobody is root, and the names of users tell nothing.
    yield from ("--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox")
    if box.network:
        yield "--share-net"
    yield from _system()
    yield from _visible((*_SETTINGS, *(_FOR_NETWORK if box.network else ())))
    yield from ("--proc", "/proc", "--dev", "/dev")
    for directory in ("/dev/shm", "/tmp"):
        yield from ("--size", str(box.limits.temporary // 2), "--tmpfs", directory)
    yield from _visible(box.read_only)
    yield from ("--bind", box.workspace, WORKSPACE, "--chdir", WORKSPACE)
    for name, device in box.devices.items():
        yield from ("--dev-bind", device, f"/dev/{name}")
    # Root outside owns what is in /proc, without any capability: it could set what the kernel runs on a crash.
    for mounted in ("/proc", "/dev", "/"):
        yield from ("--remount-ro", mounted)
    yield "--clearenv"
    for name, value in box.env.items():
        yield from ("--setenv", name, value)


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for path in _LINKED:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)


def _visible(wanted: Sequence[str]) -> Iterator[str]:
    for path in wanted:
        yield from ("--ro-bind-try", os.path.realpath(path), path)


def _limited(limits: Limits, *, counts_memory: bool) -> Iterator[str]:
    yield from ("/usr/bin/prlimit", "--core=0", f"--cpu={limits.cpu_seconds}", f"--fsize={limits.file_size}")
    yield from (f"--nofile={limits.open_files}", f"--nproc={limits.processes}")
    if not counts_memory:
        yield f"--data={limits.memory}"
    yield from ("--", "/bin/sh", "-c")
