"""The filter of system calls: what it allows on each machine, by a simulation of the kernel's
interpreter.
"""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each_row import each_row
from redraft.errors import SandboxUnavailableError
from redraft.workers.seccomp import OWN_PID, filter_program

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
    data = struct.pack(
        "<iIQ6Q",
        number if number < 2**31 else number - 2**32,
        architecture,
        0,
        *(a & (2**64 - 1) for a in padded),
    )
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


@each_row("machine", ARCHITECTURES)
@each_row(("name", "arguments", "for_programs", "for_tools"), CASES)
def test_verdicts(machine, name, arguments, for_programs, for_tools):
    """What programs and tools may call, on each machine."""
    number = CALLS[name][list(ARCHITECTURES).index(machine)]
    for is_tool, expected in ((False, for_programs), (True, for_tools)):
        assert (
            verdict(
                filter_program(is_tool=is_tool, machine=machine),
                ARCHITECTURES[machine],
                number,
                arguments,
            )
            == expected
        )


# Numbers of the calls that are allowed whatever their arguments (of <asm/unistd_64.h> and
# <asm-generic/unistd.h>), as ranges.
ALLOWED = {
    ("x86_64", "program"): (
        "0-15 17-26 28 32-40 45-48 51-52 55 60-61 63 74-91 95-100 102 104 107-108 110-111 115 118 120-121 124 127-128 "
        "130-132 137-138 140 143 145-147 158 160 186-187 191-196 201-202 204 213 217-219 221 228-233 235 239 247 "
        "257-258 261-271 273 280-287 289-293 295-296 299 307 309 316 318 324 326-328 332 334 436 439 441"
    ),
    ("x86_64", "tool"): (
        "0-15 17-26 28 32-40 45-48 51-52 55 57-61 63 74-91 95-100 102 104 107-112 115 118 120-121 124-125 127-128 "
        "130-132 137-138 140 143 145-147 158 160 186-187 191-196 201-204 213 217-219 221-226 228-233 235 239 247 "
        "254-255 257-258 261-271 273 280-287 289-296 299 307 309 316 318 324 326-328 332 334 436 439 441"
    ),
    ("aarch64", "program"): (
        "8-13 17 19-24 34-38 43-50 52-53 56-57 59 61-74 78-80 82-83 85-88 93-96 98-99 101-103 113-115 120-121 123-126 "
        "128 132-137 139 141 148 150 153 155-156 158 160 163-166 168-169 172-179 204-205 207 209-216 222-223 226-227 "
        "233 236 243 260 269 276 278 283 285-287 291 293 436 439 441"
    ),
    ("aarch64", "tool"): (
        "8-13 17 19-24 26-28 34-38 43-50 52-53 56-57 59 61-74 78-80 82-83 85-88 90 93-96 98-99 101-103 107-111 113-115 "
        "120-126 128 132-137 139 141 148 150 153-158 160 163-166 168-169 172-179 204-205 207 209-216 221-223 226-227 "
        "233 236 243 260 269 276 278 283 285-287 291 293 436 439 441"
    ),
}
# calls of programs that may write, but not change more than that; flags are those of open with
# O_TRUNC or without
WRITING = {
    "files": {
        "rename": ALLOW,
        "chmod": ALLOW,
        "unlink": ALLOW,
        "getxattr": ALLOW,
        "truncate": ALLOW,
        "O_TRUNC": ALLOW,
    },
    "existing files": {
        "rename": EPERM,
        "chmod": EPERM,
        "unlink": EPERM,
        "getxattr": EPERM,
        "truncate": EPERM,
        "O_TRUNC": ALLOW,
    },
    "untruncated files": {
        "rename": EPERM,
        "chmod": EPERM,
        "unlink": EPERM,
        "getxattr": EPERM,
        "truncate": EPERM,
        "O_TRUNC": EPERM,
    },
}
FOREIGN = sorted(
    {
        0,
        2**30,
        2**31,
        2**32 - 1,
        0x40000003,
        0x40000028,
        0xC0000015,
        0x80000016,
        *ARCHITECTURES.values(),
    }
)
"""Values of AUDIT_ARCH_*: those of both machines, of their 32-bit calls, and of other machines."""


def verdicts_by_number(program, architecture):
    """The numbers up to 1023 by their verdict, for arguments that no checked call allows."""
    numbers = {}
    for number in range(1024):
        numbers.setdefault(verdict(program, architecture, number, (2**32 - 1,) * 6), []).append(
            number
        )
    return numbers


@pytest.mark.parametrize(("machine", "kind"), ALLOWED)
def test_every_number_has_its_verdict(machine, kind):
    """All calls that exist, and those that do not: allowed, refused, or said not to exist."""
    numbers = verdicts_by_number(
        filter_program(is_tool=kind == "tool", machine=machine), ARCHITECTURES[machine]
    )
    checked = {
        name: CALLS[name][list(ARCHITECTURES).index(machine)]
        for name in ("ioctl", "clone3", "openat2")
    }
    assert numbers.pop(ENOTTY) == [checked["ioctl"]] and numbers.pop(ENOSYS) == sorted(
        [checked["clone3"], checked["openat2"]]
    )
    assert ranges(numbers.pop(ALLOW)) == ALLOWED[machine, kind]
    assert set(numbers) == {EPERM}


@pytest.mark.parametrize("writing", WRITING)
def test_what_may_be_written(writing):
    """Of files that another part of the sandbox shows."""
    numbers = {"rename": 82, "chmod": 90, "unlink": 87, "getxattr": 191, "truncate": 76}
    for is_tool in (False, True):
        program = filter_program(is_tool=is_tool, writing=writing, machine="x86_64")
        found = {
            name: verdict(program, ARCHITECTURES["x86_64"], number)
            for name, number in numbers.items()
        }
        assert {**found, "O_TRUNC": WRITING[writing]["O_TRUNC"]} == WRITING[writing]
        for machine, (opened, with_flags) in {"x86_64": (2, 257), "aarch64": (None, 56)}.items():
            program, own = (
                filter_program(is_tool=is_tool, writing=writing, machine=machine),
                ARCHITECTURES[machine],
            )
            for flags, expected in ((0x241, WRITING[writing]["O_TRUNC"]), (0x41, ALLOW)):
                assert opened is None or verdict(program, own, opened, (0, flags)) == expected
                assert verdict(program, own, with_flags, (0, 0, flags)) == expected


def ranges(numbers):
    ends = [n for n in numbers if n + 1 not in numbers]
    return " ".join(
        f"{n}" if n == m else f"{n}-{m}"
        for n, m in zip([n for n in numbers if n - 1 not in numbers], ends)
    )


@pytest.mark.parametrize("is_tool", [False, True])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_by_other_numbers_end_the_process(machine, is_tool):
    """Those of every other architecture, and those of x32 (with bit 30), among them calls that are
    allowed by their own numbers.
    """
    program, own = filter_program(is_tool=is_tool, machine=machine), ARCHITECTURES[machine]
    numbers = [
        0,
        1,
        2,
        39,
        59,
        63,
        93,
        221,
        231,
        435,
        1023,
        2**30 - 1,
        2**30,
        2**31 - 1,
        2**31,
        2**32 - 1,
    ]
    for architecture in FOREIGN:
        if architecture != own:
            assert {verdict(program, architecture, number) for number in numbers} == {KILL}, hex(
                architecture
            )
    x32 = [
        2**30,
        *(2**30 + number for number in range(600)),
        2**31 - 1,
        2**31,
        2**31 + 2**30 + 39,
        2**32 - 1,
    ]
    assert {verdict(program, own, number) for number in x32} == (
        {KILL} if machine == "x86_64" else {EPERM}
    )
    assert verdict(program, own, 2**30 - 1) == EPERM


@given(
    machine=st.sampled_from([*ARCHITECTURES]),
    architecture=st.integers(0, 2**32 - 1) | st.sampled_from(FOREIGN),
    number=st.integers(0, 600)
    | st.integers(0x40000000, 0x40000000 + 600)
    | st.integers(0, 2**32 - 1),
    arguments=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20), max_size=6),
)
@example(machine="x86_64", architecture=ARCHITECTURES["x86_64"], number=2**30, arguments=[])
@example(machine="x86_64", architecture=ARCHITECTURES["x86_64"], number=2**30 + 39, arguments=[])
@example(machine="x86_64", architecture=ARCHITECTURES["x86_64"], number=2**30 - 1, arguments=[])
@example(machine="x86_64", architecture=0x40000003, number=1, arguments=[])
@example(machine="aarch64", architecture=0x40000028, number=1, arguments=[])
@example(machine="aarch64", architecture=ARCHITECTURES["aarch64"], number=2**30 + 93, arguments=[])
def test_every_call_gets_a_verdict(machine, architecture, number, arguments):
    """Calls of another architecture, and those of x32, end the process; numbers that do not exist
    are refused.
    """
    result = verdict(
        filter_program(is_tool=False, machine=machine), architecture, number, arguments
    )
    if architecture != ARCHITECTURES[machine] or (machine == "x86_64" and number >= 0x40000000):
        assert result == KILL
    else:
        assert result in (ALLOW, EPERM, ENOSYS, ENOTTY)
        assert result != ALLOW or number < 450


def test_other_machines_are_refused():
    """There are no numbers for other machines, so nothing runs there without a filter."""
    with pytest.raises(SandboxUnavailableError, match="x86_64 and aarch64, and this is riscv64"):
        filter_program(is_tool=False, machine="riscv64")
