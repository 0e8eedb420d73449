"""The filter of system calls: a program for the kernel's seccomp that allows what an interpreter
needs, and refuses the rest.

A call that is not listed fails with EPERM, so most programs see an ordinary error. A call by the
numbers of another architecture (32-bit calls, x32) ends the process. The numbers stand in
`asm/unistd_64.h` and `asm-generic/unistd.h` of Linux.

The instructions are classic BPF; see `Documentation/userspace-api/seccomp_filter.rst` of
Linux.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ..errors import SandboxUnavailableError

OWN_PID = 0x7FFFFF01  # stands for the process ID of the program, which the bootstrap inserts

_FILES = """
read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; preadv 295 69; pwritev 296 70;
preadv2 327 286; pwritev2 328 287; close 3 57; close_range 436 436; lseek 8 62;
access 21 -; faccessat 269 48; faccessat2 439 439; stat 4 -; lstat 6 -; fstat 5 80; newfstatat 262 79; statx 332 291;
statfs 137 43; fstatfs 138 44; getdents 78 -; getdents64 217 61; getcwd 79 17; chdir 80 49; fchdir 81 50; readlink 89 -;
readlinkat 267 78; ftruncate 77 46; fallocate 285 47; fsync 74 82; fdatasync 75 83; fadvise64 221 223; readahead 187 213;
umask 95 166; copy_file_range 326 285; sendfile 40 71; dup 32 23; dup2 33 -; dup3 292 24; pipe 22 -; pipe2 293 59
"""
_OWN_FILES = """
getxattr 191 8; lgetxattr 192 9; fgetxattr 193 10; listxattr 194 11; llistxattr 195 12; flistxattr 196 13;
mkdir 83 -; mkdirat 258 34; rmdir 84 -; unlink 87 -; unlinkat 263 35; rename 82 -; renameat 264 38; renameat2 316 276;
link 86 -; linkat 265 37; symlink 88 -; symlinkat 266 36; truncate 76 45; chmod 90 -; fchmod 91 52; fchmodat 268 53;
creat 85 -; utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88
"""
_WAITING = """
poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create 213 -; epoll_create1 291 20; epoll_ctl 233 21;
epoll_wait 232 -; epoll_pwait 281 22; epoll_pwait2 441 441; eventfd 284 -; eventfd2 290 19; timerfd_create 283 85;
timerfd_settime 286 86; timerfd_gettime 287 87; signalfd 282 -; signalfd4 289 74; pause 34 -; nanosleep 35 101;
clock_nanosleep 230 115; restart_syscall 219 128; wait4 61 260; waitid 247 95
"""
_SOCKETS = """
sendmsg 46 211; recvmsg 47 212; recvfrom 45 207; recvmmsg 299 243; sendmmsg 307 269; getsockopt 55 209;
getsockname 51 204; getpeername 52 205; shutdown 48 210
"""
_MEMORY = (
    "mmap 9 222; mprotect 10 226; munmap 11 215; mremap 25 216; madvise 28 233; brk 12 214; msync "
    "26 227; membarrier 324 283"
)
_THREADS = """
futex 202 98; set_robust_list 273 99; set_tid_address 218 96; rseq 334 293; sched_yield 24 124; sched_getaffinity 204 123;
sched_getparam 143 121; sched_getscheduler 145 120; sched_get_priority_max 146 125; sched_get_priority_min 147 126;
getcpu 309 168; exit 60 93; exit_group 231 94; arch_prctl 158 -; gettid 186 178
"""
_SIGNALS = """
rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigpending 127 136; rt_sigsuspend 130 133; rt_sigtimedwait 128 137;
rt_sigreturn 15 139; sigaltstack 131 132; alarm 37 -; setitimer 38 103; getitimer 36 102
"""
_FACTS = """
getpid 39 172; getppid 110 173; getpgrp 111 -; getpgid 121 155; getsid 124 156; getuid 102 174; geteuid 107 175; getgid 104 176;
getegid 108 177; getresuid 118 148; getresgid 120 150; getgroups 115 158; getrlimit 97 163; setrlimit 160 164; getrusage 98 165;
getpriority 140 141; times 100 153; time 201 -; gettimeofday 96 169; clock_gettime 228 113; clock_getres 229 114; sysinfo 99 179;
uname 63 160; getrandom 318 278; get_mempolicy 239 236
"""
_TOOLS = """
fork 57 -; vfork 58 -; execve 59 221; setpgid 109 154; setsid 112 157; sched_setaffinity 203 122; timer_create 222 107;
timer_settime 223 110; timer_gettime 224 108; timer_delete 226 111; timer_getoverrun 225 109; inotify_init1 294 26;
inotify_add_watch 254 27; inotify_rm_watch 255 28; capget 125 90
"""
_CHECKED = """
clone 56 220; clone3 435 435; socketpair 53 199; sendto 44 206; kill 62 129; tgkill 234 131; tkill 200 130; prctl 157 167;
prlimit64 302 261; ioctl 16 29; fcntl 72 25; open 2 -; openat 257 56; openat2 437 437
"""

# BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_RET|BPF_K
_LOAD, _AND, _RETURN = (0x20, 0x54, 0x06)
# BPF_JMP|BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET
_IF_EQUAL, _IF_GREATER, _IF_AT_LEAST, _IF_ANY_BIT = (0x15, 0x25, 0x35, 0x45)
# SECCOMP_RET_ALLOW, _KILL_PROCESS, _ERRNO
_ALLOW, _KILL, _ERROR = (0x7FFF0000, 0x80000000, 0x00050000)
_EPERM, _ENOSYS, _ENOTTY = 1, 38, 25
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_X32_BIT = 0x40000000

_THREAD_FLAGS = 0x00010F00  # CLONE_THREAD, CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND
_NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEW*
_O_TRUNC = 0x200  # of <asm-generic/fcntl.h>
# descriptors, flags, locks; no owners, signals or leases
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_PRCTL_OPTIONS = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA

Writing = Literal["files", "existing files", "untruncated files"]

# code, targets of a jump if true and if false, operand
_Instruction = tuple[int, int | str, int | str, int]


@dataclass(frozen=True, slots=True)
class _Machine:
    architecture: int  # AUDIT_ARCH_* of <linux/audit.h>
    column: int  # of the tables above
    has_x32: bool


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 1, has_x32=True),
    "amd64": _Machine(0xC000003E, 1, has_x32=True),
    "aarch64": _Machine(0xC00000B7, 2, has_x32=False),
    "arm64": _Machine(0xC00000B7, 2, has_x32=False),
}


@lru_cache(maxsize=4)
def filter_program(*, is_tool: bool, writing: Writing = "files", machine: str = "") -> bytes:
    """Return the filter for a program; `is_tool`: for one of our own tools, which may start
    processes and programs.

    `writing` says what the program may do to files that another part of the sandbox lets it see:
    everything ("files"), nothing but open them and write ("existing files"), or that without
    cutting them when it opens them ("untruncated files"). Without "files" it cannot read extended
    attributes, either, since Landlock does not hide the attributes of other files.

    Raises SandboxUnavailableError for another machine than x86_64 and aarch64.
    """
    name = machine or platform.machine().lower()
    if name not in _MACHINES:
        raise SandboxUnavailableError(
            f"the filter of system calls exists for x86_64 and aarch64, and this is {name}"
        )
    target = _MACHINES[name]
    program = [*_check_architecture(target)]
    numbers = _numbers(_CHECKED, target.column)
    for call, body in _checked_calls(
        is_tool=is_tool, may_truncate=writing != "untruncated files"
    ).items():
        if call in numbers:
            program += [(_IF_EQUAL, 0, len(body), numbers[call]), *body]
    tables = [_FILES, _WAITING, _SOCKETS, _MEMORY, _THREADS, _SIGNALS, _FACTS]
    allowed = "; ".join(
        (*tables, *([_TOOLS] if is_tool else []), *([_OWN_FILES] if writing == "files" else []))
    )
    for first, last in _ranges(sorted(_numbers(allowed, target.column).values())):
        program += [(_IF_AT_LEAST, 0, 2, first), (_IF_GREATER, 1, 0, last), (_RETURN, 0, 0, _ALLOW)]
    program.append((_RETURN, 0, 0, _ERROR | _EPERM))
    return b"".join(
        struct.pack("=HBBI", code, if_true, if_false, operand)
        for code, if_true, if_false, operand in program
    )


def _numbers(table: str, column: int) -> dict[str, int]:
    """Return the numbers of the calls of a table that the machine of a column has."""
    entries = (entry.split() for entry in table.split(";"))
    return {entry[0]: int(entry[column]) for entry in entries if entry and entry[column] != "-"}


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive numbers."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def _check_architecture(machine: _Machine) -> Iterator[_Instruction]:
    """Yield the instructions that end a process which calls by other numbers, and load the number
    of the call.
    """
    yield (_LOAD, 0, 0, _ARCHITECTURE)
    yield (_IF_EQUAL, 1, 0, machine.architecture)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER)
    if machine.has_x32:
        yield (_IF_AT_LEAST, 0, 1, _X32_BIT)
        yield (_RETURN, 0, 0, _KILL)


def _checked_calls(*, is_tool: bool, may_truncate: bool) -> dict[str, list[_Instruction]]:
    """Return the instructions for each call that depends on its arguments; each list ends in a
    verdict.
    """
    own = (OWN_PID,)
    # SOCK_STREAM, SOCK_SEQPACKET: without addresses
    stream_or_packets = [(_AND, 0, 0, 0xF), *_one_of((1, 5))]
    return {
        "clone": _verdict(
            [_argument(0), *(_not_any(_NAMESPACE_FLAGS) if is_tool else _all_bits(_THREAD_FLAGS))]
        ),
        # its flags are in memory; the C library falls back to `clone`
        "clone3": [(_RETURN, 0, 0, _ERROR | _ENOSYS)],
        "open": _verdict([_argument(1), *_not_any(0 if may_truncate else _O_TRUNC)]),
        "openat": _verdict([_argument(2), *_not_any(0 if may_truncate else _O_TRUNC)]),
        "openat2": [(_RETURN, 0, 0, _ERROR | _ENOSYS)],
        "socketpair": _verdict(
            [_argument(0), (_IF_EQUAL, 0, "deny", 1), _argument(1), *stream_or_packets]
        ),
        "sendto": _verdict(
            [_argument(4), (_IF_EQUAL, 0, "deny", 0), _argument(4, high=True), *_one_of((0,))]
        ),
        "kill": _verdict([_argument(0), *_one_of(own)]),
        "tgkill": _verdict([_argument(0), *_one_of(own)]),
        "tkill": _verdict([_argument(0), *_one_of(own)]),
        "prctl": _verdict([_argument(0), *_one_of(_PRCTL_OPTIONS)]),
        "prlimit64": _verdict([_argument(0), *_one_of((0, *own))]),
        "ioctl": _verdict([_argument(1), *_one_of(_IOCTL_REQUESTS)], _ENOTTY),
        "fcntl": _verdict([_argument(1), *_one_of(_FCNTL_COMMANDS)]),
    }


def _argument(index: int, *, high: bool = False) -> _Instruction:
    """Return the instruction that loads the lower or the higher half of an argument of the call."""
    return (_LOAD, 0, 0, 16 + 8 * index + 4 * high)


def _one_of(values: Sequence[int]) -> list[_Instruction]:
    return [
        *((_IF_EQUAL, "allow", 0, value) for value in values[:-1]),
        (_IF_EQUAL, "allow", "deny", values[-1]),
    ]


def _all_bits(mask: int) -> list[_Instruction]:
    return [
        (_IF_ANY_BIT, "deny", 0, _NAMESPACE_FLAGS),
        (_AND, 0, 0, mask),
        (_IF_EQUAL, "allow", "deny", mask),
    ]


def _not_any(mask: int) -> list[_Instruction]:
    return [(_IF_ANY_BIT, "deny", "allow", mask)]


def _verdict(body: list[_Instruction], error: int = _EPERM) -> list[_Instruction]:
    """Return the instructions with their two verdicts at the end, and the jumps to them as
    distances.
    """
    targets = {"allow": len(body), "deny": len(body) + 1}

    def distance(index: int, target: int | str) -> int:
        return target if isinstance(target, int) else targets[target] - index - 1

    resolved: list[_Instruction] = [
        (code, distance(index, if_true), distance(index, if_false), operand)
        for index, (code, if_true, if_false, operand) in enumerate(body)
    ]
    return [*resolved, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | error)]
