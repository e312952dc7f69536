"""The filter of system calls for commands: which calls pass, and the BPF program that the kernel runs for each call.

A call passes if Docker's profile allows it and no rule here refuses it. The rules refuse what commands do not need and
what has let programs out of boxes before: modes with set-id bits, which would make programs of the workspace run as its
owner on the host; sockets of other families than a few; requests to devices and file systems. A call that is newer than
the profile fails with ENOSYS, as on a kernel that does not have it, so that programs use an older one; the others that
the profile does not allow fail with EPERM.

Sources: seccomp(2); linux/seccomp.h, linux/filter.h, linux/audit.h; `system_calls.py` says where the profile is from.
"""

import errno
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, TypeAlias

from msgspec import Struct

from deepfs.sandboxes.system_calls import NUMBERS, PASSED_BY_DOCKER


class AnyBit(Struct, frozen=True):
    """Whether an argument has one of the bits of a mask. Arguments are counted from 0; their low 32 bits count."""

    argument: int
    mask: int


class OneOf(Struct, frozen=True):
    """Whether an argument is one of some values."""

    argument: int
    values: tuple[int, ...]


class NoneOf(Struct, frozen=True):
    """Whether an argument is none of some values."""

    argument: int
    values: tuple[int, ...]


Test: TypeAlias = AnyBit | OneOf | NoneOf


class Rule(Struct, frozen=True):
    """A system call that fails with `error`: always, or if all `tests` hold; with `only`, unless all of them hold.

    If `error` is 0, the call does nothing and reports success.
    """

    error: int
    tests: tuple[Test, ...] = ()
    only: bool = False


_SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000
"""O_CREAT and the bit of O_TMPFILE: without them, `open` has no mode."""
_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_OF_IP = (2, 10)
"""AF_INET and AF_INET6."""
_FAMILIES = (1, *_OF_IP, 16)
"""These, AF_UNIX and AF_NETLINK."""
_REQUESTS = (
    # Terminals, but not TIOCSTI and TIOCLINUX, which type into them, and TIOCSETD, which loads modules of the kernel.
    *(0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5406, 0x5407, 0x5408, 0x5409, 0x540A, 0x540B, 0x540C, 0x540D, 0x540E),
    *(0x540F, 0x5410, 0x5411, 0x5413, 0x5414, 0x5420, 0x5422, 0x5424, 0x5425, 0x5429, 0x5441),
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D, 0x80045430, 0x40045431, 0x80045432, 0x80045438, 0x80045439),
    # Every descriptor: FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE.
    *(0x541B, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460),
    # Sockets and network interfaces: what can be asked.
    *(0x8905, 0x8906, 0x8907, 0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933),
    0x8942,
    # Files: what can be asked (FIGETBSZ, FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_GETVERSION, FS_IOC_FIEMAP,
    # RNDGETENTCNT), and copies that share their blocks (FICLONE, FICLONERANGE).
    *(0x2, 0x80086601, 0x801C581F, 0x80087601, 0xC020660B, 0x80045200, 0x40049409, 0x4020940D),
)
"""The requests of `ioctl` that programs make. File systems have others that change files which are only read."""
_LEASES = (1024, 1040)
"""F_SETLEASE and F_SETDELEG, by which the owner of a file holds up who opens it, also where he may only read it."""
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""PER_LINUX, PER_LINUX32, with and without UNAME26, and the question for the present one."""
_SET_DUMPABLE = 4
"""PR_SET_DUMPABLE."""

RULES: Final[dict[str, Rule]] = {
    # Other processes, the clock, and what nothing needs any more.
    **dict.fromkeys(("process_vm_readv", "process_vm_writev", "ptrace"), Rule(errno.EPERM)),
    **dict.fromkeys(("clock_adjtime", "modify_ldt"), Rule(errno.EPERM)),
    # Their arguments lie in memory, which a filter cannot read. Libraries then use the calls before them.
    "clone3": Rule(errno.ENOSYS),
    "openat2": Rule(errno.ENOSYS),
    "clone": Rule(errno.EPERM, (AnyBit(0, _NAMESPACES),)),
    "chmod": Rule(errno.EPERM, (AnyBit(1, _SET_ID),)),
    "fchmod": Rule(errno.EPERM, (AnyBit(1, _SET_ID),)),
    "fchmodat": Rule(errno.EPERM, (AnyBit(2, _SET_ID),)),
    "fchmodat2": Rule(errno.EPERM, (AnyBit(2, _SET_ID),)),
    "open": Rule(errno.EPERM, (AnyBit(1, _CREATES), AnyBit(2, _SET_ID))),
    "openat": Rule(errno.EPERM, (AnyBit(2, _CREATES), AnyBit(3, _SET_ID))),
    "creat": Rule(errno.EPERM, (AnyBit(1, _SET_ID),)),
    "mkdir": Rule(errno.EPERM, (AnyBit(1, _SET_ID),)),
    "mkdirat": Rule(errno.EPERM, (AnyBit(2, _SET_ID),)),
    "mknod": Rule(errno.EPERM, (AnyBit(1, _SET_ID),)),
    "mknodat": Rule(errno.EPERM, (AnyBit(2, _SET_ID),)),
    "socket": Rule(errno.EAFNOSUPPORT, (NoneOf(0, _FAMILIES),)),
    "socketpair": Rule(errno.EAFNOSUPPORT, (NoneOf(0, _FAMILIES),)),
    "ioctl": Rule(errno.EPERM, (OneOf(1, _REQUESTS),), only=True),
    "fcntl": Rule(errno.EPERM, (OneOf(1, _LEASES),)),
    "personality": Rule(errno.EPERM, (NoneOf(0, _PERSONALITIES),)),
    # A process that cannot be traced hides its open files, also from the limit of the workspace. Agents for keys end if
    # they cannot do it.
    "prctl": Rule(0, (OneOf(0, (_SET_DUMPABLE,)), OneOf(1, (0,)))),
}
"""The rules over the profile, by the names of calls. A name that an architecture does not have is passed by there."""

_DEBUGGING: Final = {"ptrace": Rule(errno.EPERM, (OneOf(1, (1,)),))}
"""The first process of a box must not be traced: it ends all others when the box ends, and could be told not to."""
_STREAMS = tuple(kind | flags for kind in (1, 5) for flags in (0, 0o4000, 0o2000000, 0o2004000))
"""SOCK_STREAM and SOCK_SEQPACKET, with and without SOCK_NONBLOCK and SOCK_CLOEXEC."""
_OF_ITSELF = Rule(errno.EPERM, (OneOf(0, (0,)),), only=True)
_ITS_PRIORITY = (OneOf(0, (0,)), OneOf(1, (0,)))
_ITS_IO_PRIORITY = (OneOf(0, (1,)), OneOf(1, (0,)))

SHARED: Final[dict[str, Rule]] = {
    # Other processes of the same user: what may be done to them besides signals and tracing.
    **dict.fromkeys(("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"), _OF_ITSELF),
    "prlimit64": _OF_ITSELF,
    "setpriority": Rule(errno.EPERM, _ITS_PRIORITY, only=True),
    "ioprio_set": Rule(errno.EPERM, _ITS_IO_PRIORITY, only=True),
    # Memory, semaphores and queues that are found by number or name, and stay when their processes end.
    **dict.fromkeys(("shmat", "shmctl", "shmget", "semctl", "semget", "semop", "semtimedop"), Rule(errno.EPERM)),
    **dict.fromkeys(("mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd"), Rule(errno.EPERM)),
    # What Landlock does not look at: owners, and attributes, such as access lists. A descriptor that only reads is
    # enough to change them, and a path to see them.
    **dict.fromkeys(("chown", "fchown", "fchownat", "lchown"), Rule(errno.EPERM)),
    **dict.fromkeys(("fremovexattr", "lremovexattr", "removexattr", "removexattrat"), Rule(errno.EOPNOTSUPP)),
    **dict.fromkeys(("fsetxattr", "lsetxattr", "setxattr", "setxattrat"), Rule(errno.EOPNOTSUPP)),
    **dict.fromkeys(("getxattr", "getxattrat", "lgetxattr"), Rule(errno.EOPNOTSUPP)),
    **dict.fromkeys(("listxattr", "listxattrat", "llistxattr"), Rule(errno.EOPNOTSUPP)),
    # The mounts of this machine.
    **dict.fromkeys(("listmount", "statmount"), Rule(errno.ENOSYS)),
    # Landlock does not keep the names of changed files from those who watch a directory.
    **dict.fromkeys(("inotify_init", "inotify_init1"), Rule(errno.EPERM)),
    # A socket could reach the services of this machine, which start programs for their clients. Pairs of connected
    # sockets cannot; those of datagrams could be connected anew.
    "socket": Rule(errno.EAFNOSUPPORT),
    "socketpair": Rule(errno.EAFNOSUPPORT, (OneOf(0, (1,)), OneOf(1, _STREAMS)), only=True),
}
"""Further rules, in place of those of the same names, for commands that share the namespaces of this machine."""
SHARED_NETWORK: Final[dict[str, Rule]] = {**SHARED, "socket": Rule(errno.EAFNOSUPPORT, (NoneOf(0, _OF_IP),))}
"""As `SHARED`, for commands that may use the network.

They have no Unix sockets, and none of netlink, which tells about the processes and sockets of the whole machine.
"""
CHANGES_OF_MODES: Final[dict[str, tuple[int | None, ...]]] = {
    "chmod": (None, 0, 1, None),
    "fchmod": (0, None, 1, None),
    "fchmodat": (0, 1, 2, None),
    "fchmodat2": (0, 1, 2, 3),
}
"""Which arguments these calls have: a descriptor, a path, the mode, and flags."""


class Architecture(Struct, frozen=True):
    """How a machine identifies itself to filters, and the numbers of its system calls."""

    audit: int
    """Its constant AUDIT_ARCH."""
    numbers: dict[str, int]
    foreign: int | None = None
    """Numbers from here on belong to another calling convention (x32)."""


ARCHITECTURES: Final = {
    "x86_64": Architecture(0xC000003E, NUMBERS["x86_64"], 0x40000000),
    "aarch64": Architecture(0xC00000B7, NUMBERS["aarch64"]),
}
"""The machines that have a filter, by the name that `os.uname` gives them."""

# --- the program ---

_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where `struct seccomp_data` has the number of the call, the architecture, and the six arguments of 8 bytes each."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ASK, _FAIL, _KILL = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
_NO_CALL = 0xFFFFFFFF
"""The number by which a tracer, or a restarted call, says that there is no call."""

_Instruction: TypeAlias = tuple[int, int, int, int]
"""The operation, how many instructions to skip if it is true and if it is false, and its constant."""


@cache
def program(machine: str, *, debugging: bool = False, shared: bool = False, network: bool = True) -> bytes:
    """The filter for a machine, in the form that the kernel and `bwrap --seccomp` take.

    Args:
        machine: A key of `ARCHITECTURES`.
        debugging: Whether commands may trace other processes of theirs, all but the first of the box.
        shared: Whether commands share the namespaces of this machine; `SHARED` or `SHARED_NETWORK` then applies too,
            and another process is asked to make the `CHANGES_OF_MODES` that pass.
        network: Whether commands that share them may use the network.

    Raises:
        KeyError: For another machine.
    """
    architecture = ARCHITECTURES[machine]
    further = (SHARED_NETWORK if network else SHARED) if shared else {}
    rules = RULES | further | (_DEBUGGING if debugging else {})
    instructions = _instructions(architecture, rules, asks=shared)
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)


def _instructions(architecture: Architecture, rules: dict[str, Rule], *, asks: bool) -> Iterator[_Instruction]:
    yield from ((_LOAD, 0, 0, _ARCHITECTURE), (_IF_EQUAL, 1, 0, architecture.audit), (_RETURN, 0, 0, _KILL))
    yield from ((_LOAD, 0, 0, _NUMBER), (_IF_EQUAL, 0, 1, _NO_CALL), (_RETURN, 0, 0, _ALLOW))
    if architecture.foreign is not None:
        yield from ((_IF_AT_LEAST, 0, 1, architecture.foreign), (_RETURN, 0, 0, _KILL))
    for name, rule in rules.items():
        if name in architecture.numbers:
            allow = _ASK if asks and name in CHANGES_OF_MODES else _ALLOW
            yield from _rule(architecture.numbers[name], rule, allow)
    passing = {architecture.numbers[name] for name in PASSED_BY_DOCKER if name in architecture.numbers}
    # Of each range of numbers in turn that all pass or all fail, the first number after it.
    for number in range(max(passing) + 1):
        if (number in passing) != (number + 1 in passing):
            outcome = _ALLOW if number in passing else _FAIL | errno.EPERM
            yield from ((_IF_AT_LEAST, 1, 0, number + 1), (_RETURN, 0, 0, outcome))
    yield (_RETURN, 0, 0, _FAIL | errno.ENOSYS)


def _rule(number: int, rule: Rule, passing: int) -> Iterator[_Instruction]:
    """If the call is `number`, decide about it, with the action `passing` if it is not refused; else go on behind."""
    refuse, allow = (_RETURN, 0, 0, _FAIL | rule.error), (_RETURN, 0, 0, passing)
    decision = [refuse]
    if rule.tests:
        decision = [*_tests(rule.tests), *((allow, refuse) if rule.only else (refuse, allow))]
    yield (_IF_EQUAL, 0, len(decision), number)
    yield from decision


def _tests(tests: Iterable[Test]) -> list[_Instruction]:
    """Continue after these instructions if all tests hold; else skip the next one as well."""
    done: list[_Instruction] = []
    for test in reversed(tuple(tests)):
        done = [*_test(test, len(done) + 1), *done]
    return done


def _test(test: Test, otherwise: int) -> list[_Instruction]:
    """Continue after these instructions if the test holds; else skip `otherwise` more."""
    load = (_LOAD, 0, 0, _ARGUMENTS + 8 * test.argument)
    if isinstance(test, AnyBit):
        return [load, (_IF_ANY_BIT, 0, otherwise, test.mask)]
    last = len(test.values) - 1
    if isinstance(test, OneOf):
        skips = [(last - at, otherwise if at == last else 0) for at in range(len(test.values))]
    else:
        skips = [(last - at + otherwise, 0) for at in range(len(test.values))]
    return [load, *((_IF_EQUAL, yes, no, value) for (yes, no), value in zip(skips, test.values, strict=True))]
