"""The filter of system calls: each rule on each architecture, and the same decisions as a filter of libseccomp."""

import errno
from collections.abc import Sequence

import pytest

from deepfs.sandboxes.seccomp import ARCHITECTURES, RULES, SHARED, SHARED_NETWORK, AnyBit, NoneOf, OneOf, Rule, program
from support.bpf import decision

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NOT_PERMITTED, MISSING = FAIL | errno.EPERM, FAIL | errno.ENOSYS

CASES = [
    pytest.param(machine, name, id=f"{name}-{machine}")
    for machine, architecture in ARCHITECTURES.items()
    for name in RULES
    if name in architecture.numbers
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


@pytest.mark.parametrize(("machine", "name"), CASES)
def test_each_rule_refuses_its_calls_and_no_others(machine: str, name: str) -> None:
    rule = RULES[name]
    assert outcome(machine, name, *matching(rule)) == FAIL | rule.error
    for arguments in failing(rule):
        assert outcome(machine, name, *arguments) == ALLOW


FURTHER = [
    pytest.param(machine, name, network, id=f"{name}-{machine}{'-network' * network}")
    for machine, architecture in ARCHITECTURES.items()
    for network, rules in ((False, SHARED), (True, SHARED_NETWORK))
    for name in rules
    if name in architecture.numbers
]


@pytest.mark.parametrize(("machine", "name", "network"), FURTHER)
def test_commands_that_share_namespaces_are_refused_more(machine: str, name: str, network: bool) -> None:
    rule = (SHARED_NETWORK if network else SHARED)[name]
    hold, fail = (ALLOW, FAIL | rule.error) if rule.only else (FAIL | rule.error, ALLOW)
    assert outcome(machine, name, *matching(rule), shared=True, network=network) == hold
    for arguments in failing(rule):
        assert outcome(machine, name, *arguments, shared=True, network=network) == fail


@machines
def test_the_other_rules_hold_for_them_too(machine: str) -> None:
    for name in (RULES.keys() - SHARED.keys()) & ARCHITECTURES[machine].numbers.keys():
        assert outcome(machine, name, *matching(RULES[name]), shared=True) == FAIL | RULES[name].error


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
        assert (connected == ALLOW) == (family in (2, 10, 16)), family
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
def test_all_other_calls_are_allowed_up_to_the_last_known_one(machine: str) -> None:
    ruled = {number for name, number in ARCHITECTURES[machine].numbers.items() if name in RULES}
    for number in range(470):
        if number not in ruled:
            assert decided(machine, number, [2**64 - 1] * 6) == ALLOW, number
    for number in (470, 1000, 0x3FFFFFFF):
        assert decided(machine, number) == MISSING


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
def test_no_call_at_all_is_allowed(machine: str) -> None:
    assert decided(machine, 0xFFFFFFFF) == ALLOW


@machines
def test_debuggers_may_trace_if_that_is_asked_for(machine: str) -> None:
    number = ARCHITECTURES[machine].numbers["ptrace"]
    assert decided(machine, number) == NOT_PERMITTED
    assert decided(machine, number, debugging=True) == ALLOW
    for process in (1, 1 | 1 << 32):  # The kernel takes 32 bits of it.
        assert decided(machine, number, [16, process], debugging=True) == NOT_PERMITTED
    assert decided(machine, number, [16, 2], debugging=True) == ALLOW
    assert decided(machine, ARCHITECTURES[machine].numbers["kcmp"], debugging=True) == NOT_PERMITTED


def test_rules_name_calls_of_some_architecture() -> None:
    known = {name for architecture in ARCHITECTURES.values() for name in architecture.numbers}
    assert known == set(RULES) | set(SHARED)
    assert set(SHARED) == set(SHARED_NETWORK)
