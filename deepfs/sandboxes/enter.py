"""The program that runs a command of a `LandlockSandbox`; it is started by its source, for every command.

Its first process waits for the command. When the command ends, when it is told to stop (SIGTERM), or when the process
that started it ends, it kills all that the command started. Its second process confines itself and becomes the command.

That all are killed rests on two nested domains of Landlock. The first process is in the outer one, the command in the
inner one. No process can signal another outside of its domain. So "kill all processes" from the first process reaches
what the command started, in other sessions too, and nothing else; and the command cannot signal the first process.

Landlock does not look at who changes modes, and the account owns more than the workspace. So the filter of system calls
hands these calls to the first process, which makes them if the file lies where the command may change files.

The argument is the descriptor of a marshalled `dict`. Few modules are imported: each costs time with every command.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` itself makes enumerations, which takes longer.
import _socket
import _thread
import ctypes
import errno
import marshal
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SET_DEATH_SIGNAL, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES, _SET_AMBIENT = 1, 36, 38, 47
_NO_CAPABILITIES = 4
_SET_FILTER, _WITH_LISTENER = 1, 8 | 32
"""The second also lets only fatal signals interrupt a call that waits for its answer."""
_RECEIVE, _IS_WAITING, _ANSWER = 0xC0502100, 0x40082102, 0xC0182101
"""The requests of `ioctl` about such calls: SECCOMP_IOCTL_NOTIF_RECV, _ID_VALID and _SEND."""
_REQUEST_SIZE, _PAGE, _LONGEST_PATH = 80, 4096, 4096
_WORKING_DIRECTORY, _NO_FOLLOW, _EMPTY_PATH = 0xFFFFFF9C, 0x100, 0x1000
"""AT_FDCWD as 32 bits, AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH."""
_RESTRICT_SELF = 446
"""The number of `landlock_restrict_self` on every architecture."""
_JOIN_SESSION_KEYRING = 1
_KILLED, _NOT_STARTED = 137, 126
"""The exit statuses that shells have for a killed command, and for one that cannot be run."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_libc.syscall.argtypes = (ctypes.c_long,) * 4
_libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)


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
    _call(_libc.syscall(_RESTRICT_SELF, ruleset, 0, 0))
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
    ours, theirs = _socket.socketpair()
    command = os.fork()
    if command == 0:
        _become_command(given, theirs)
    theirs.close()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _, sent, _, _ = ours.recvmsg(1, _socket.CMSG_SPACE(4))
        for _, _, listener in sent:  # There is none if the command could not be started.
            _thread.start_new_thread(_change_modes, (int.from_bytes(listener, sys.byteorder), given))
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


# --- the changes of modes ---


def _change_modes(listener: int, given: "dict[str, Any]") -> None:
    """Make the calls that the filter hands over, until no process is left that has the filter."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while all(event & select.POLLIN for _, event in waiting.poll()):
        request = ctypes.create_string_buffer(_REQUEST_SIZE)
        if _libc.ioctl(listener, _RECEIVE, request) < 0:  # The process has been killed.
            continue
        try:
            error = _change_mode(listener, request.raw, given)
        except OSError as failure:
            error = failure.errno or errno.EPERM
        except Exception:
            error = errno.EPERM
        answer = request.raw[:8] + bytes(8) + (-error).to_bytes(4, sys.byteorder, signed=True) + bytes(4)
        _libc.ioctl(listener, _ANSWER, answer)


def _change_mode(listener: int, request: bytes, given: "dict[str, Any]") -> int:
    """Make one call; return the number of its error, or 0."""
    process = _number(request, 8, 4)
    values: list[Any] = [
        argument if argument is None else _number(request, 32 + 8 * argument, 8)
        for argument in given["modes"][_number(request, 16, 4)]
    ]
    directory, path, mode, flags = values
    opened: list[int] = []
    try:
        start = _WORKING_DIRECTORY if directory is None else directory & 0xFFFFFFFF
        try:
            link = "cwd" if start == _WORKING_DIRECTORY else f"fd/{start}"
            opened.append(os.open(f"/proc/{process}/{link}", os.O_PATH))
        except FileNotFoundError:
            return errno.EBADF
        name = b"" if path is None else _own_name(process, _text(process, path))
        # What was read is of the process that waits, and not of another one that has got its number.
        if _libc.ioctl(listener, _IS_WAITING, request[:8]) < 0:
            return errno.EPERM
        if name:
            follow = os.O_NOFOLLOW if flags and flags & _NO_FOLLOW else 0
            opened.append(os.open(name, os.O_PATH | follow, dir_fd=opened[0]))
        elif path is not None and not (flags and flags & _EMPTY_PATH):
            return errno.ENOENT
        place = f"/proc/self/fd/{opened[-1]}"
        real = os.readlink(place)
        if not any(real == top or real.startswith(f"{top}/") for top in given["changed"]):
            return errno.EPERM
        os.chmod(place, mode & 0o1777)
        return 0
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _own_name(process: int, name: bytes) -> bytes:
    """A path as this process has to write it: some lead to the descriptors of the process that uses them.

    The C library makes such a path for `fchmodat` with AT_SYMLINK_NOFOLLOW.
    """
    for start, place in ((b"/proc/self/", b""), (b"/proc/thread-self/", b""), (b"/dev/fd/", b"fd/")):
        if name.startswith(start):
            return b"/proc/%d/%b%b" % (process, place, name[len(start) :])
    return name


def _number(request: bytes, start: int, size: int) -> int:
    return int.from_bytes(request[start : start + size], sys.byteorder)


def _text(process: int, address: int) -> bytes:
    """The text at an address of a process, up to its NUL."""
    memory, text = os.open(f"/proc/{process}/mem", os.O_RDONLY), b""
    try:
        while len(text) < _LONGEST_PATH:
            piece, end, _ = os.pread(memory, _PAGE - address % _PAGE, address).partition(b"\0")
            text += piece
            if end:
                return text
            address += len(piece)
    finally:
        os.close(memory)
    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


# --- the second process ---


def _become_command(given: "dict[str, Any]", channel: "_socket.socket") -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _confine(given, channel)
        os.execve(given["arguments"][0], given["arguments"], given["env"])
    except BaseException as error:
        os.write(2, f"The command cannot be started: {error}\n".encode())
    finally:
        os._exit(_NOT_STARTED)


def _confine(given: "dict[str, Any]", channel: "_socket.socket") -> None:
    for group in given["groups"]:
        with open(group, "w") as members:
            members.write("0")
    for limit, value in given["limits"].items():
        _limit(limit, value)
    _libc.syscall(given["keyctl"], _JOIN_SESSION_KEYRING, 0, 0)  # Fails where the kernel has no keyrings.
    _call(_libc.prctl(_SET_AMBIENT, _NO_CAPABILITIES, 0, 0, 0))
    _restrict(given["inner"])
    rules = _Filter(len(given["filter"]) // 8, given["filter"])
    listener = _libc.syscall(given["seccomp"], _SET_FILTER, _WITH_LISTENER, ctypes.addressof(rules))
    _call(listener)
    sent = listener.to_bytes(4, sys.byteorder)
    channel.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, sent)])


def _limit(limit: int, value: int) -> None:
    most = resource.getrlimit(limit)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb") as _file:
        _given = marshal.load(_file)
    os._exit(main(_given))
