"""The filter of system calls for commands: which calls pass, and the BPF program that the kernel runs for each call.

A call passes if Docker's profile allows it and no rule here refuses it. The rules refuse what commands do not need and
what has let programs out of boxes before: modes with set-id bits, which would make programs of the workspace run as its
owner on the host; sockets of other families than a few; requests to devices and file systems. A call that is newer than
the profile fails with ENOSYS, as on a kernel that does not have it, so that programs use an older one; the others that
the profile does not allow fail with EPERM.

Sources: seccomp(2); linux/seccomp.h, linux/filter.h, linux/audit.h. The numbers of calls are those of Linux 6.18:
arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl. Docker's profile is seccomp/default.json of
https://github.com/moby/profiles at commit 02e898b137aed1024e232d59bcb05e6179b72177, read on 2026-11-26, for a container
without further capabilities. Names that neither x86-64 nor arm64 has are left out.
"""

import errno
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, TypeAlias

from msgspec import Struct

# --- the data: numbers of calls, and what Docker lets the programs of a container make --------------------------------

_X86_64 = """
    read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
    rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise
    shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept
    sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt
    clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock
    fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink
    readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid
    syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups setgroups
    setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending
    rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs
    sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup
    modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2
    swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module
    get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead
    setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr
    lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup
    io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old
    epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create
    timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres
    clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open
    mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl
    ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat
    fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll
    unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait
    signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2
    epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init
    fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu
    process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
    memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2
    pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe
"""
"""The calls by their numbers, from 0 on."""

_ARM64 = """
    io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
    listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2
    epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl
    ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root
    nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat
    fchown openat close vhangup pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv
    pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync fdatasync
    sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct capget capset personality exit
    exit_group waitid set_tid_address unshare futex set_robust_list get_robust_list nanosleep getitimer setitimer
    kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun timer_settime timer_delete
    clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler
    sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend
    rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority
    reboot setregid setgid setreuid setuid setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid
    getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit setrlimit getrusage umask
    prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget semctl
    semtimedop semop shmget shmctl shmat shmdt socket socketpair bind listen accept connect getsockname getpeername
    sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk munmap mremap add_key request_key
    keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock mlockall munlockall mincore
    madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo
    perf_event_open accept4 recvmmsg - - - - - - - - - - - - - - - - wait4 prlimit64 fanotify_init fanotify_mark
    name_to_handle_at open_by_handle_at clock_adjtime syncfs setns sendmmsg process_vm_readv process_vm_writev kcmp
    finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd
    membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq
    kexec_file_load
"""
"""The calls by their numbers, from 0 on; `-` stands for a number without a call."""

_COMMON = """
    pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount
    fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
    quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease
    futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
    statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat
    removexattrat open_tree_attr file_getattr file_setattr
"""
"""The calls of every architecture by their numbers, from 424 on."""


def _numbers(own: str) -> dict[str, int]:
    tables = (enumerate(own.split()), enumerate(_COMMON.split(), 424))
    return {name: number for table in tables for number, name in table if name != "-"}


NUMBERS: Final = {"x86_64": _numbers(_X86_64), "aarch64": _numbers(_ARM64)}
"""The numbers of calls by their names, by the name that `os.uname` gives the machine."""

_ALLOWED = """
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_adjtime
    clock_getres clock_gettime clock_nanosleep clone close close_range connect copy_file_range creat dup dup2 dup3
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod
    fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat
    fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list
    get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
    getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname
    getsockopt gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set
    kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen
    listmount listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack
    membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt
    mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget
    msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause
    personality pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64
    preadv preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev
    pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr
    removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
    rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop
    semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid
    setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt
    setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socket socketpair
    splice stat statfs statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate umask uname unlink unlinkat uretprobe utime utimensat utimes vfork vmsplice
    wait4 waitid write writev
"""
PASSED_BY_DOCKER: Final = frozenset(_ALLOWED.split())
"""What Docker allows, some of it for some arguments only. A call with a rule below is decided there."""


# --- the rules --------------------------------------------------------------------------------------------------------


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

# --- the program ------------------------------------------------------------------------------------------------------

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
