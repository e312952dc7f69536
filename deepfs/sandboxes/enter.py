"""The program that runs a command of a `LandlockSandbox`; it is started by its source, for every command.

Its first process waits for the command. When the command ends, when it is told to stop (SIGTERM), or when the process
that started it ends, it kills all that the command started. Its second process confines itself and becomes the command.

That all are killed rests on two nested domains of Landlock. The first process is in the outer one, the command in the
inner one. No process can signal another outside of its domain. So "kill all processes" from the first process reaches
what the command started, in other sessions too, and nothing else; and the command cannot signal the first process.

The argument is the descriptor of a marshalled `dict`. Few modules are imported: each costs time with every command.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` itself makes enumerations, which takes longer.
import ctypes
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]

_SET_DEATH_SIGNAL, _SET_SECCOMP, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES, _SET_AMBIENT = 1, 22, 36, 38, 47
_FILTER, _NO_CAPABILITIES = 2, 4
_RESTRICT_SELF = 446
"""The number of `landlock_restrict_self` on every architecture."""
_JOIN_SESSION_KEYRING = 1
_KILLED, _NOT_STARTED = 137, 126
"""The exit statuses that shells have for a killed command, and for one that cannot be run."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_libc.syscall.argtypes = (ctypes.c_long,) * 3


class _Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _call(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _restrict(ruleset: int) -> None:
    """Restrict this process, and what it starts, by a ruleset of Landlock, besides the rulesets that hold already."""
    _call(_libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _call(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


# --- the first process ---


def main(given: "dict[str, Any]") -> int:
    """Run the command; return its exit status when it has ended with all that it started."""
    # SIGTERM waits until there is a command to kill. What this process inherited must not hold it back for longer.
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, lambda *_: _kill_all())
    _call(_libc.prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0))
    _call(_libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0))
    _restrict(given["outer"])
    _check_domain(given["parent"])
    command = os.fork()
    if command == 0:
        _become_command(given)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return _status_of(command)
    finally:
        _end_all()


def _check_domain(parent: int) -> None:
    """Raise an error unless signals stay in the domain, and the process that started this one is there."""
    if os.getppid() != parent:
        raise OSError("the process that started this one has ended")
    try:
        os.kill(parent, 0)
    except PermissionError:
        return
    raise OSError("Landlock does not hold back signals")


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # There is none.
        pass


def _status_of(command: int) -> int:
    """Wait for the command and for orphans of it, which become children of this process."""
    while True:
        process, status = os.waitpid(-1, 0)
        if process == command and not os.WIFSTOPPED(status):  # A command may have let this process trace it.
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_all() -> None:
    try:
        while True:
            _kill_all()
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


# --- the second process ---


def _become_command(given: "dict[str, Any]") -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _confine(given)
        os.execve(given["arguments"][0], given["arguments"], given["env"])
    except BaseException as error:
        os.write(2, f"The command cannot be started: {error}\n".encode())
    finally:
        os._exit(_NOT_STARTED)


def _confine(given: "dict[str, Any]") -> None:
    for group in given["groups"]:
        with open(group, "w") as members:
            members.write("0")
    for limit, value in given["limits"].items():
        _limit(limit, value)
    _libc.syscall(given["keyctl"], _JOIN_SESSION_KEYRING, 0)  # Fails where the kernel has no keyrings.
    _call(_libc.prctl(_SET_AMBIENT, _NO_CAPABILITIES, 0, 0, 0))
    _restrict(given["inner"])
    rules = _Filter(len(given["filter"]) // 8, given["filter"])
    _call(_libc.prctl(_SET_SECCOMP, _FILTER, ctypes.addressof(rules), 0, 0))


def _limit(limit: int, value: int) -> None:
    most = resource.getrlimit(limit)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb") as _file:
        _given = marshal.load(_file)
    os._exit(main(_given))
