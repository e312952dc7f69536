"""The filter of system calls: each rule on each architecture, and every call that has none."""

import errno
from collections.abc import Sequence

import pytest

from deepfs.sandboxes.seccomp import (
    ARCHITECTURES,
    PASSED_BY_DOCKER,
    RULES,
    SHARED,
    SHARED_NETWORK,
    AnyBit,
    NoneOf,
    OneOf,
    Rule,
    program,
)
from support.bpf import decision

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NOT_PERMITTED, MISSING = FAIL | errno.EPERM, FAIL | errno.ENOSYS

CASES = [
    (machine, name) for machine, architecture in ARCHITECTURES.items() for name in RULES if name in architecture.numbers
]
machines = pytest.mark.parametrize("machine", ARCHITECTURES)


def decided(machine: str, number: int, arguments: Sequence[int] = (), **options: bool) -> int:
    filter_ = program(machine, **options)
    return decision(filter_, ARCHITECTURES[machine].audit, number, arguments)


def outcome(machine: str, name: str, *arguments: int, **options: bool) -> int:
    return decided(machine, ARCHITECTURES[machine].numbers[name], arguments, **options)


# --- rules ---


def matching(rule: Rule) -> list[int]:
    """Arguments of which each test of the rule holds, with the highest bits set where they do not count."""
    given = [0] * 6
    for test in rule.tests:
        match test:
            case AnyBit(argument, mask):
                given[argument] = (mask & -mask) | 0xDEADBEEF << 32
            case OneOf(argument, values):
                given[argument] = values[-1] | 1 << 32
            case NoneOf(argument, values):
                given[argument] = next(value for value in range(1000) if value not in values) | 1 << 63
    return given


def failing(rule: Rule) -> list[list[int]]:
    """Arguments that pass by the rule: for each of its tests, some of which this one does not hold."""
    found = []
    for test in rule.tests:
        given = matching(rule)
        match test:
            case AnyBit(argument, mask):
                given[argument] = ~mask & 2**32 - 1
            case OneOf(argument, values):
                given[argument] = max(values) + 1
            case NoneOf(argument, values):
                given[argument] = values[0]
        found.append(given)
    return found


def test_each_rule_refuses_its_calls_and_no_others(subtests: pytest.Subtests) -> None:
    for machine, name in CASES:
        with subtests.test(machine=machine, name=name):
            rule = RULES[name]
            hold, fail = (ALLOW, FAIL | rule.error) if rule.only else (FAIL | rule.error, ALLOW)
            assert outcome(machine, name, *matching(rule)) == hold
            for arguments in failing(rule):
                assert outcome(machine, name, *arguments) == fail


FURTHER = [
    (machine, name, network)
    for machine, architecture in ARCHITECTURES.items()
    for network, rules in ((False, SHARED), (True, SHARED_NETWORK))
    for name in rules
    if name in architecture.numbers
]


def test_commands_that_share_namespaces_are_refused_more(subtests: pytest.Subtests) -> None:
    for machine, name, network in FURTHER:
        with subtests.test(machine=machine, name=name, network=network):
            rule = (SHARED_NETWORK if network else SHARED)[name]
            hold, fail = (ALLOW, FAIL | rule.error) if rule.only else (FAIL | rule.error, ALLOW)
            assert outcome(machine, name, *matching(rule), shared=True, network=network) == hold
            for arguments in failing(rule):
                assert outcome(machine, name, *arguments, shared=True, network=network) == fail


@machines
def test_only_pairs_of_connected_sockets_can_be_made_without_a_network(machine: str) -> None:
    unix, stream, datagram, raw, sequence = 1, 1, 2, 3, 5
    for flags in (0, 0o4000, 0o2000000, 0o2004000):
        for kind, decision_ in ((stream, ALLOW), (sequence, ALLOW), (datagram, None), (raw, None)):
            expected = decision_ or FAIL | errno.EAFNOSUPPORT
            assert outcome(machine, "socketpair", unix, kind | flags, shared=True) == expected
    for family in range(50):
        alone = outcome(machine, "socket", family, stream, shared=True, network=False)
        assert alone == FAIL | errno.EAFNOSUPPORT
        connected = outcome(machine, "socket", family, stream, shared=True, network=True)
        assert (connected == ALLOW) == (family in (2, 10)), family
        pair = outcome(machine, "socketpair", family, stream, shared=True)
        assert (pair == ALLOW) == (family == unix), family


@machines
def test_every_bit_of_a_set_id_mode_is_refused(machine: str) -> None:
    positions = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1}
    positions |= {"mkdir": 1, "mkdirat": 2, "mknod": 1, "mknodat": 2}
    for name, position in positions.items():
        if name in ARCHITECTURES[machine].numbers:
            for mode in range(0o10000):
                refused = outcome(machine, name, *[0] * position, mode) == NOT_PERMITTED
                assert refused == bool(mode & 0o6000), (name, oct(mode))


@machines
def test_a_mode_counts_only_where_a_file_is_made(machine: str) -> None:
    for name, flags in (("open", 1), ("openat", 2)):
        if name in ARCHITECTURES[machine].numbers:
            before = [0] * flags
            assert outcome(machine, name, *before, 0o101, 0o4755) == NOT_PERMITTED
            assert outcome(machine, name, *before, 0o20200002, 0o2755) == NOT_PERMITTED
            assert outcome(machine, name, *before, 0o1, 0o4755) == ALLOW
            assert outcome(machine, name, *before, 0o101, 0o1777) == ALLOW


# --- other calls and architectures ---


@machines
def test_a_call_without_a_rule_passes_if_the_profile_allows_it(machine: str) -> None:
    names = {number: name for name, number in ARCHITECTURES[machine].numbers.items()}
    last = max(number for number, name in names.items() if name in PASSED_BY_DOCKER)
    for number in range(last + 1):
        if (name := names.get(number, "")) not in RULES:
            expected = ALLOW if name in PASSED_BY_DOCKER else NOT_PERMITTED
            assert decided(machine, number, [2**64 - 1] * 6) == expected, name
    for number in (last + 1, 470, 1000, 0x3FFFFFFF):
        assert decided(machine, number) == MISSING


@machines
def test_what_has_let_programs_out_of_boxes_is_refused(machine: str) -> None:
    numbers = ARCHITECTURES[machine].numbers
    for name in (each for each in _REFUSED.split() if each in numbers):
        for shared in (False, True):
            assert outcome(machine, name, shared=shared) in (NOT_PERMITTED, MISSING), name


_REFUSED = """
    add_key keyctl request_key bpf io_uring_enter io_uring_register io_uring_setup perf_event_open userfaultfd
    chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree open_tree_attr pivot_root setns
    umount2 unshare kcmp move_pages migrate_pages pidfd_getfd process_madvise process_vm_readv process_vm_writev
    acct clock_adjtime clock_settime settimeofday delete_module finit_module init_module ioperm iopl kexec_file_load
    kexec_load modify_ldt quotactl quotactl_fd reboot setdomainname sethostname swapoff swapon syslog vhangup
    fanotify_init open_by_handle_at get_mempolicy mbind set_mempolicy set_mempolicy_home_node _sysctl create_module
    get_kernel_syms lookup_dcookie nfsservctl query_module sysfs uselib ustat afs_syscall vserver security
    lsm_get_self_attr lsm_list_modules lsm_set_self_attr file_getattr file_setattr
"""


@machines
def test_files_that_are_only_read_cannot_be_changed_by_requests(machine: str) -> None:
    """FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION, EXT4_IOC_MIGRATE, BTRFS_IOC_SUBVOL_CREATE, and others."""
    for request in (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x6609, 0x5000940E, 0x5000940F, 0x40806685):
        assert outcome(machine, "ioctl", 3, request, shared=True) == NOT_PERMITTED
    for request in (0x5401, 0x5413, 0x541B, 0x80086601):
        assert outcome(machine, "ioctl", 3, request, shared=True) == ALLOW


@machines
def test_other_architectures_are_killed(machine: str) -> None:
    i386, arm = 0x40000003, 0x40000028
    others = {each.audit for each in ARCHITECTURES.values()} - {ARCHITECTURES[machine].audit}
    for architecture in (i386, arm, 0, *others):
        assert decision(program(machine), architecture, 1) == KILL


def test_calls_of_x32_are_killed() -> None:
    for number in (0, 1, 90, 300, 547):
        assert decided("x86_64", 0x40000000 | number) == KILL


@machines
def test_debuggers_may_trace_if_that_is_asked_for(machine: str) -> None:
    number = ARCHITECTURES[machine].numbers["ptrace"]
    assert decided(machine, number) == NOT_PERMITTED
    assert decided(machine, number, debugging=True) == ALLOW
    for process in (1, 1 | 1 << 32):  # The kernel takes 32 bits of it.
        assert decided(machine, number, [16, process], debugging=True) == NOT_PERMITTED
    assert decided(machine, number, [16, 2], debugging=True) == ALLOW
    assert decided(machine, ARCHITECTURES[machine].numbers["kcmp"], debugging=True) == NOT_PERMITTED
