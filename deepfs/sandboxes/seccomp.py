"""The filter of system calls for commands: a table of rules, and the BPF program that the kernel runs for each call.

The rules refuse what commands do not need and what has let programs out of boxes before: modes with set-id bits, which
would make programs of the workspace run as its owner on the host; namespaces, mounts and keyrings; and the parts of
the kernel that had most holes. All other calls are allowed, up to the last one that was known when the table was
written. The profiles of Docker and Codex were the models.

Sources: seccomp(2); linux/seccomp.h, linux/filter.h, linux/audit.h; the tables of system calls in
arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl of Linux 6.18.
"""

import errno
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, TypeAlias

from msgspec import Struct

__all__ = [
    "ARCHITECTURES",
    "RULES",
    "SHARED",
    "SHARED_NETWORK",
    "AnyBit",
    "Architecture",
    "NoneOf",
    "OneOf",
    "Rule",
    "program",
]


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

    If `error` is 0, the call does nothing, and says that it did.
    """

    error: int
    tests: tuple[Test, ...] = ()
    only: bool = False


_SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000
"""O_CREAT and the bit of O_TMPFILE: without them, `open` has no mode."""
_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_OF_TERMINALS = (0x5412, 0x541C, 0x5423)
"""TIOCSTI and TIOCLINUX, which type into terminals, and TIOCSETD, which loads modules of the kernel."""
_LEASES = (1024, 1040)
"""F_SETLEASE and F_SETDELEG, by which the owner of a file holds up who opens it, also where he may only read it."""
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""PER_LINUX, PER_LINUX32, with and without UNAME26, and the question for the present one."""
_SET_DUMPABLE = 4
"""PR_SET_DUMPABLE."""

_PROHIBITED: Final = (
    # Keyrings, which no namespace separates.
    *("add_key", "keyctl", "request_key"),
    # Interfaces of the kernel that had most holes.
    *("bpf", "io_uring_enter", "io_uring_register", "io_uring_setup", "perf_event_open", "userfaultfd"),
    # Namespaces and mounts.
    *("chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree"),
    *("open_tree_attr", "pivot_root", "setns", "umount2"),
    # Other processes.
    *("kcmp", "move_pages", "migrate_pages", "pidfd_getfd", "process_madvise", "process_vm_readv"),
    "process_vm_writev",
    # The machine itself.
    *("acct", "clock_adjtime", "clock_settime", "settimeofday", "delete_module", "finit_module", "init_module"),
    *("ioperm", "iopl", "kexec_file_load", "kexec_load", "modify_ldt", "quotactl", "quotactl_fd", "reboot"),
    *("setdomainname", "sethostname", "swapoff", "swapon", "syslog", "vhangup"),
    # Handles open files past the path of mounts; watches of whole file systems.
    *("fanotify_init", "open_by_handle_at"),
    # Memory of other nodes, and calls that nothing needs any more.
    *("get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"),
    *("_sysctl", "create_module", "get_kernel_syms", "lookup_dcookie", "nfsservctl", "query_module", "sysfs"),
    *("uselib", "ustat"),
    # Attributes of security modules.
    *("lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr"),
)

RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(_PROHIBITED, Rule(errno.EPERM)),
    "ptrace": Rule(errno.EPERM),
    # Their arguments lie in memory, which a filter cannot read. Libraries then use the calls before them.
    "clone3": Rule(errno.ENOSYS),
    "openat2": Rule(errno.ENOSYS),
    "clone": Rule(errno.EPERM, (AnyBit(0, _NAMESPACES),)),
    "unshare": Rule(errno.EPERM, (AnyBit(0, _NAMESPACES),)),
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
    "ioctl": Rule(errno.EPERM, (OneOf(1, _OF_TERMINALS),)),
    "fcntl": Rule(errno.EPERM, (OneOf(1, _LEASES),)),
    "personality": Rule(errno.EPERM, (NoneOf(0, _PERSONALITIES),)),
    # A process that cannot be traced hides its open files, also from the limit of the workspace. Agents for keys end if
    # they cannot do it.
    "prctl": Rule(0, (OneOf(0, (_SET_DUMPABLE,)), OneOf(1, (0,)))),
}
"""The rules, by the names of calls. A name that an architecture does not have is passed by there."""

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
    # What Landlock does not look at, where a path names the file: owners, and attributes, such as access lists.
    **dict.fromkeys(("chown", "fchownat", "lchown"), Rule(errno.EPERM)),
    **dict.fromkeys(("file_setattr", "lremovexattr", "lsetxattr", "removexattr"), Rule(errno.EOPNOTSUPP)),
    **dict.fromkeys(("removexattrat", "setxattr", "setxattrat"), Rule(errno.EOPNOTSUPP)),
    **dict.fromkeys(("getxattr", "getxattrat", "lgetxattr"), Rule(errno.EOPNOTSUPP)),
    **dict.fromkeys(("listxattr", "listxattrat", "llistxattr"), Rule(errno.EOPNOTSUPP)),
    # Landlock does not keep the names of changed files from those who watch a directory.
    **dict.fromkeys(("inotify_init", "inotify_init1"), Rule(errno.EPERM)),
    # A socket could reach the services of this machine, which start programs for their clients. Pairs of connected
    # sockets cannot; those of datagrams could be connected anew.
    "socket": Rule(errno.EAFNOSUPPORT),
    "socketpair": Rule(errno.EAFNOSUPPORT, (OneOf(0, (1,)), OneOf(1, _STREAMS)), only=True),
}
"""Further rules, in place of those of the same names, for commands that share the namespaces of this machine."""
SHARED_NETWORK: Final[dict[str, Rule]] = {**SHARED, "socket": Rule(errno.EAFNOSUPPORT, (NoneOf(0, _FAMILIES[1:]),))}
"""As `SHARED`, for commands that may use the network; they still have no Unix sockets."""

_LAST_KNOWN: Final = 469
"""`file_setattr` of Linux 6.17. Later calls fail with ENOSYS, as on a kernel that does not have them."""


class Architecture(Struct, frozen=True):
    """How a machine identifies itself to filters, and the numbers of its system calls."""

    audit: int
    """Its constant AUDIT_ARCH."""
    numbers: dict[str, int]
    foreign: int | None = None
    """Numbers from here on belong to another calling convention (x32)."""


_NUMBERS: Final[dict[str, tuple[int, int | None]]] = {
    "open": (2, None),
    "ioctl": (16, 29),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "fcntl": (72, 25),
    "mkdir": (83, None),
    "creat": (85, None),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "chown": (92, None),
    "lchown": (94, None),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "mknod": (133, None),
    "uselib": (134, None),
    "personality": (135, 92),
    "ustat": (136, None),
    "sysfs": (139, None),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "vhangup": (153, 58),
    "modify_ldt": (154, None),
    "pivot_root": (155, 41),
    "_sysctl": (156, None),
    "prctl": (157, 167),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "create_module": (174, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "nfsservctl": (180, 42),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "sched_setaffinity": (203, 122),
    "lookup_dcookie": (212, 18),
    "semtimedop": (220, 192),
    "clock_settime": (227, 112),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "get_mempolicy": (239, 236),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ioprio_set": (251, 30),
    "inotify_init": (253, None),
    "migrate_pages": (256, 238),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "mknodat": (259, 33),
    "fchownat": (260, 54),
    "fchmodat": (268, 53),
    "unshare": (272, 97),
    "move_pages": (279, 239),
    "inotify_init1": (294, 26),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "prlimit64": (302, 261),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "sched_setattr": (314, 274),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "set_mempolicy_home_node": (450, 450),
    "fchmodat2": (452, 452),
    "lsm_get_self_attr": (459, 459),
    "lsm_set_self_attr": (460, 460),
    "lsm_list_modules": (461, 461),
    "setxattrat": (463, 463),
    "getxattrat": (464, 464),
    "listxattrat": (465, 465),
    "removexattrat": (466, 466),
    "open_tree_attr": (467, 467),
    "file_setattr": (469, 469),
}
"""The numbers of the calls on x86-64 and on arm64, which lacks some."""
ARCHITECTURES: Final = {
    "x86_64": Architecture(0xC000003E, {name: numbers[0] for name, numbers in _NUMBERS.items()}, 0x40000000),
    "aarch64": Architecture(
        0xC00000B7, {name: numbers[1] for name, numbers in _NUMBERS.items() if numbers[1] is not None}
    ),
}
"""The machines that have a filter, by the name that `os.uname` gives them."""

# --- the program ---

_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where `struct seccomp_data` has the number of the call, the architecture, and the six arguments of 8 bytes each."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
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
        shared: Whether commands share the namespaces of this machine; `SHARED` or `SHARED_NETWORK` then applies too.
        network: Whether commands that share them may use the network.

    Raises:
        KeyError: For another machine.
    """
    architecture = ARCHITECTURES[machine]
    further = (SHARED_NETWORK if network else SHARED) if shared else {}
    rules = RULES | further | (_DEBUGGING if debugging else {})
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in _instructions(architecture, rules))


def _instructions(architecture: Architecture, rules: dict[str, Rule]) -> Iterator[_Instruction]:
    yield from ((_LOAD, 0, 0, _ARCHITECTURE), (_IF_EQUAL, 1, 0, architecture.audit), (_RETURN, 0, 0, _KILL))
    yield from ((_LOAD, 0, 0, _NUMBER), (_IF_EQUAL, 0, 1, _NO_CALL), (_RETURN, 0, 0, _ALLOW))
    if architecture.foreign is not None:
        yield from ((_IF_AT_LEAST, 0, 1, architecture.foreign), (_RETURN, 0, 0, _KILL))
    yield from ((_IF_AT_LEAST, 0, 1, _LAST_KNOWN + 1), (_RETURN, 0, 0, _FAIL | errno.ENOSYS))
    for name, rule in rules.items():
        if name in architecture.numbers:
            yield from _rule(architecture.numbers[name], rule)
    yield (_RETURN, 0, 0, _ALLOW)


def _rule(number: int, rule: Rule) -> Iterator[_Instruction]:
    """If the call is `number`, decide about it; else go on behind."""
    refuse, allow = (_RETURN, 0, 0, _FAIL | rule.error), (_RETURN, 0, 0, _ALLOW)
    decision = [refuse]
    if rule.tests:
        decision = [*_tests(rule.tests), *((allow, refuse) if rule.only else (refuse, allow))]
    yield (_IF_EQUAL, 0, len(decision), number)
    yield from decision


def _tests(tests: Iterable[Test]) -> list[_Instruction]:
    """Go on behind if all tests hold; else skip the next instruction as well."""
    done: list[_Instruction] = []
    for test in reversed(tuple(tests)):
        done = [*_test(test, len(done) + 1), *done]
    return done


def _test(test: Test, otherwise: int) -> list[_Instruction]:
    """Go on behind if the test holds; else skip `otherwise` instructions."""
    load = (_LOAD, 0, 0, _ARGUMENTS + 8 * test.argument)
    if isinstance(test, AnyBit):
        return [load, (_IF_ANY_BIT, 0, otherwise, test.mask)]
    last = len(test.values) - 1
    if isinstance(test, OneOf):
        skips = [(last - at, otherwise if at == last else 0) for at in range(len(test.values))]
    else:
        skips = [(last - at + otherwise, 0) for at in range(len(test.values))]
    return [load, *((_IF_EQUAL, yes, no, value) for (yes, no), value in zip(skips, test.values, strict=True))]
