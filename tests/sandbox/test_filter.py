"""The filter of system calls: what it allows on each machine, by a simulation of the kernel's interpreter."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import SandboxUnavailableError
from redraft.sandbox.seccomp import OWN_PID, filter_program

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, ENOTTY = 0x50001, 0x50026, 0x50019
CALLS = {  # numbers on x86_64 and aarch64
    "read": (0, 63), "openat": (257, 56), "futex": (202, 98), "exit_group": (231, 94), "getrandom": (318, 278),
    "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221), "execveat": (322, 281), "socket": (41, 198),
    "socketpair": (53, 199), "connect": (42, 203), "sendto": (44, 206), "kill": (62, 129), "tgkill": (234, 131),
    "prctl": (157, 167), "prlimit64": (302, 261), "ioctl": (16, 29), "fcntl": (72, 25), "ptrace": (101, 117),
    "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "keyctl": (250, 219),
    "io_uring_setup": (425, 425), "memfd_create": (319, 279), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "chroot": (161, 51), "setuid": (105, 146), "pidfd_open": (434, 434), "process_vm_readv": (310, 270), "openat2": (437, 437),
}  # fmt: skip
THREAD = 0x3D0F00  # what the C library passes for a thread
CASES = [  # a call, its arguments, the verdict for programs, and that for tools
    ("read", (), ALLOW, ALLOW), ("openat", (), ALLOW, ALLOW), ("futex", (), ALLOW, ALLOW), ("exit_group", (), ALLOW, ALLOW), ("getrandom", (), ALLOW, ALLOW),
    ("clone", (THREAD,), ALLOW, ALLOW), ("clone", (17,), EPERM, ALLOW), ("clone", (THREAD & ~0x10000,), EPERM, ALLOW),
    ("clone", (THREAD | 0x10000000,), EPERM, EPERM), ("clone", (0x20000 | 17,), EPERM, EPERM), ("clone3", (), ENOSYS, ENOSYS),
    ("execve", (), EPERM, ALLOW), ("execveat", (), EPERM, EPERM), ("socket", (2, 1), EPERM, EPERM), ("connect", (), EPERM, EPERM),
    ("socketpair", (1, 1), ALLOW, ALLOW), ("socketpair", (1, 0x80801), ALLOW, ALLOW), ("socketpair", (1, 5), ALLOW, ALLOW),
    ("socketpair", (1, 2), EPERM, EPERM), ("socketpair", (2, 1), EPERM, EPERM),
    ("sendto", (3, 0, 0, 0, 0), ALLOW, ALLOW), ("sendto", (3, 0, 0, 0, 1), EPERM, EPERM), ("sendto", (3, 0, 0, 0, 1 << 40), EPERM, EPERM),
    ("kill", (OWN_PID, 9), ALLOW, ALLOW), ("kill", (1, 9), EPERM, EPERM), ("kill", (0xFFFFFFFF, 9), EPERM, EPERM), ("kill", (0, 9), EPERM, EPERM),
    ("tgkill", (OWN_PID,), ALLOW, ALLOW), ("tgkill", (2,), EPERM, EPERM), ("prlimit64", (0,), ALLOW, ALLOW), ("prlimit64", (77,), EPERM, EPERM),
    ("prctl", (15,), ALLOW, ALLOW), ("prctl", (1,), EPERM, EPERM), ("prctl", (22,), EPERM, EPERM),
    ("ioctl", (0, 0x5401), ALLOW, ALLOW), ("ioctl", (0, 0x5412), ENOTTY, ENOTTY), ("ioctl", (0, 1 << 32 | 0x5412), ENOTTY, ENOTTY),
    ("fcntl", (0, 3), ALLOW, ALLOW), ("fcntl", (0, 8), EPERM, EPERM), ("openat2", (), ENOSYS, ENOSYS),
    *[(name, (), EPERM, EPERM) for name in ("ptrace", "mount", "unshare", "setns", "bpf", "keyctl", "io_uring_setup", "memfd_create", "userfaultfd", "perf_event_open", "chroot", "setuid", "pidfd_open", "process_vm_readv")],
]  # fmt: skip


def verdict(program, architecture, number, arguments=()):
    """What a classic BPF program returns for a system call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number if number < 2**31 else number - 2**32, architecture, 0, *(a & (2**64 - 1) for a in padded))
    code, at, accumulator = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x06:
            return operand
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x25: accumulator > operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(("name", "arguments", "for_programs", "for_tools"), CASES)
def test_verdicts(machine, name, arguments, for_programs, for_tools):
    """What programs and tools may call, on each machine."""
    number = CALLS[name][list(ARCHITECTURES).index(machine)]
    for is_tool, expected in ((False, for_programs), (True, for_tools)):
        assert verdict(filter_program(is_tool=is_tool, machine=machine), ARCHITECTURES[machine], number, arguments) == expected


@given(
    machine=st.sampled_from([*ARCHITECTURES]),
    architecture=st.integers(0, 2**32 - 1) | st.sampled_from([*ARCHITECTURES.values(), 0x40000003, 0x40000028]),
    number=st.integers(0, 600) | st.integers(0x40000000, 0x40000000 + 600) | st.integers(0, 2**32 - 1),
    arguments=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20), max_size=6),
)
def test_every_call_gets_a_verdict(machine, architecture, number, arguments):
    """Calls of another architecture, and those of x32, end the process; numbers that do not exist are refused."""
    result = verdict(filter_program(is_tool=False, machine=machine), architecture, number, arguments)
    if architecture != ARCHITECTURES[machine] or (machine == "x86_64" and number >= 0x40000000):
        assert result == KILL
    else:
        assert result in (ALLOW, EPERM, ENOSYS, ENOTTY)
        assert result != ALLOW or number < 450


def test_other_machines_are_refused():
    """There are no numbers for other machines, so nothing runs there without a filter."""
    with pytest.raises(SandboxUnavailableError, match="x86_64 and aarch64, and this is riscv64"):
        filter_program(is_tool=False, machine="riscv64")
