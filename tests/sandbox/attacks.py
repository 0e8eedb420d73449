"""Programs that try to get out of the sandbox, or to use up the machine.

An escape is an expression, evaluated inside: that it returns a value at all is the escape, an
exception or the end of the process is the containment. `outside` holds what the test prepared on
this machine: a canary file, a listener, another process. `works_unsafe` says that the attack
succeeds where only resources are limited, which shows that it is an attack.

An exhaustion is a program that uses a resource without end; `statuses` are the ways in which it may
end.
"""

from typing import NamedTuple

PRELUDE = '''
import array, ctypes, errno, fcntl, os, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def system_call(number, *arguments):
    """Call the kernel directly. Raises OSError."""
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def c_call(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def read(path, mode="rb"):
    with open(path, mode) as file:
        return file.read(64)

def connect(family, kind, address, data=b"x"):
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        s.connect(address)
        s.send(data)
        return "connected"

def run_machine_code(code):
    """Run bytes as a function."""
    import mmap
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
'''


class Escape(NamedTuple):
    name: str
    expression: str
    works_unsafe: bool = True


FILES = [
    Escape("read a file of the host", "read(outside['canary'])"),
    Escape("read it by way of parent folders", "read('../' * 20 + outside['canary'].lstrip('/'))"),
    Escape("read it by a link", "(os.symlink(outside['canary'], 'link'), read('link'))"),
    Escape(
        "read it by a hard link",
        "(os.link(outside['canary'], outside['folder'] + '/hard'), read(outside['folder'] + '/hard'))",
    ),
    Escape("list its folder", "os.listdir(outside['folder'])"),
    Escape("see whether it exists", "os.stat(outside['canary'])"),
    Escape("read passwords", "read('/etc/shadow')", works_unsafe=False),
    Escape("read users", "read('/etc/passwd')"),
    Escape(
        "list the home folder",
        "[f for f in os.listdir(outside['home']) if not sys.base_prefix.startswith(os.path.join(outside['home'], f))][0]",
    ),
    Escape(
        "read it through /proc/1/root",
        "read('/proc/1/root' + outside['canary'])",
        works_unsafe=False,
    ),
    Escape(
        "read it through the parent's root",
        "read(f'/proc/{outside[\"victim\"]}/root' + outside['canary'])",
    ),
    Escape(
        "read the environment of another process", "read(f'/proc/{outside[\"victim\"]}/environ')"
    ),
    Escape("read its memory", "open(f'/proc/{outside[\"victim\"]}/mem', 'rb')"),
    Escape("list processes", "[p for p in os.listdir('/proc') if p.isdigit()][0]"),
    Escape("list devices of the host", "os.listdir('/sys/class')"),
    Escape("read the memory of the machine", "open('/dev/mem', 'rb')", works_unsafe=False),
    Escape("read messages of the kernel", "open('/dev/kmsg', 'rb')", works_unsafe=False),
    Escape("write into the host's folder", "open(outside['folder'] + '/written', 'w')"),
    Escape("write into /usr", "open('/usr/redraft-written', 'w')", works_unsafe=False),
    Escape(
        "write into the interpreter",
        "open(os.path.join(os.path.dirname(os.__file__), 'redraft_written.py'), 'w')",
        works_unsafe=False,
    ),
    Escape("change the interpreter's files", "os.utime(os.__file__)", works_unsafe=False),
    Escape("create a folder in the root", "os.mkdir('/redraft-written')", works_unsafe=False),
    Escape("write into /dev", "open('/dev/redraft-written', 'w')", works_unsafe=False),
    Escape("write into shared memory", "open('/dev/shm/redraft-written', 'w')", works_unsafe=False),
    Escape("create a device", "os.mknod('device', 0o020666, os.makedev(1, 1))", works_unsafe=False),
    Escape(
        "open a file by its handle",
        "system_call(303, -100, b'/usr', ctypes.create_string_buffer(200), ctypes.byref(ctypes.c_int()), 0)",
        works_unsafe=False,
    ),
    Escape("set an attribute", "os.setxattr('.', 'user.a', b'x' * 1000)", works_unsafe=False),
    Escape("open a terminal", "open('/dev/tty')", works_unsafe=False),
    Escape("change the rights of a device", "os.chmod('/dev/null', 0o666)", works_unsafe=False),
    Escape("change the times of a device", "os.utime('/dev/zero')", works_unsafe=False),
    Escape(
        "change the rights of a device by its descriptor",
        "os.fchmod(os.open('/dev/urandom', os.O_RDONLY), 0o666)",
        works_unsafe=False,
    ),
    Escape("read inherited descriptors", "os.readlink('/proc/self/fd/0')"),
    Escape(
        "use an inherited descriptor",
        "[os.pread(n, 8, 0) for n in range(3, 200) if _is_file(n)][0]",
        works_unsafe=False,
    ),
]

NETWORK = [
    Escape(
        "connect over IPv4",
        "connect(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', outside['port']))",
    ),
    Escape(
        "connect over IPv6",
        "connect(socket.AF_INET6, socket.SOCK_STREAM, ('::1', outside['port6']))",
        works_unsafe=False,
    ),
    Escape(
        "send a datagram",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', outside['port']))",
    ),
    Escape(
        "connect to a UNIX socket",
        "connect(socket.AF_UNIX, socket.SOCK_STREAM, outside['folder'] + '/socket')",
    ),
    Escape(
        "connect to an abstract UNIX socket",
        "connect(socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + outside['abstract'])",
    ),
    Escape(
        "connect a pair again",
        "socket.socketpair()[0].connect('\\0' + outside['abstract'])",
        works_unsafe=False,
    ),
    Escape(
        "address a datagram of a pair",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '\\0' + outside['abstract'] + 'd')",
    ),
    Escape(
        "address a packet of a stream pair",
        "socket.socketpair()[0].sendto(b'x', '\\0' + outside['abstract'] + 'd')",
        works_unsafe=False,
    ),
    Escape("bind and listen", "(s := socket.socket(), s.bind(('127.0.0.1', 0)), s.listen())"),
    Escape("open netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    Escape(
        "open raw packets",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))",
        works_unsafe=False,
    ),
    Escape(
        "open raw IP",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
        works_unsafe=False,
    ),
    Escape("open vsock", "socket.socket(40, socket.SOCK_STREAM)", works_unsafe=False),
    Escape("open Bluetooth", "socket.socket(31, socket.SOCK_RAW, 1)", works_unsafe=False),
    Escape("open CAN", "socket.socket(29, socket.SOCK_RAW, 1)", works_unsafe=False),
    Escape(
        "open the kernel's ciphers",
        "socket.socket(38, socket.SOCK_SEQPACKET, 0)",
        works_unsafe=False,
    ),
    Escape("open XDP", "socket.socket(44, socket.SOCK_RAW, 0)", works_unsafe=False),
    Escape("resolve a name", "socket.getaddrinfo('example.invalid.', 80)", works_unsafe=False),
    Escape("open a socket by a raw call", "system_call(41, 2, 1, 0)"),
    Escape(
        "open a socket by io_uring",
        "system_call(425, 8, ctypes.create_string_buffer(120))",
        works_unsafe=False,
    ),
]

PROCESSES = [
    Escape("kill a process", "os.kill(outside['victim'], 9)"),
    Escape("kill every process", "os.kill(-1, 0)"),
    Escape("kill a thread by its number", "system_call(200, outside['victim'], 0)"),
    Escape(
        "queue a signal",
        "system_call(129, outside['victim'], 0, ctypes.create_string_buffer(128))",
        works_unsafe=False,
    ),
    Escape("open a process", "os.pidfd_open(outside['victim'])"),
    Escape("trace a process", "system_call(101, 16, outside['victim'], 0, 0)", works_unsafe=False),
    Escape("trace itself", "system_call(101, 0, 0, 0, 0)"),
    Escape("read the memory of a process", "system_call(310, outside['victim'], 0, 0, 0, 0, 0)"),
    Escape("write the memory of a process", "system_call(311, outside['victim'], 0, 0, 0, 0, 0)"),
    Escape(
        "change the limits of a process",
        "resource.prlimit(outside['victim'], resource.RLIMIT_CORE)",
    ),
    Escape("change the CPUs of a process", "os.sched_setaffinity(outside['victim'], {0})"),
    Escape("signal by a descriptor's owner", "fcntl.fcntl(0, 8, os.getpid())", works_unsafe=False),
    Escape("fork", "os.fork() and 1"),
    Escape("fork by a raw call", "system_call(57)"),
    Escape("clone by a raw call", "system_call(56, 17, 0, 0, 0, 0)"),
    Escape(
        "clone3 by a raw call",
        "system_call(435, struct.pack('QQQQQQQQ', 0, 0, 0, 0, 17, 0, 0, 0), 64)",
    ),
    Escape(
        "vfork by a raw call",
        "run_machine_code(bytes.fromhex('b83a0000000f05c3')) in range(1, 1 << 22) or 1 / 0",
        works_unsafe=False,
    ),
    Escape("run a program", "subprocess.run(['/bin/true'], check=True)"),
    Escape("run a shell", "1 if os.system('true') == 0 else 1 / 0"),
    Escape("spawn a program", "os.posix_spawn('/bin/true', ['true'], {})"),
    Escape("become another program", "os.execv('/usr/bin/printf', ['printf', 'succeeded'])"),
    Escape(
        "become a program with its owner's rights",
        "os.execv('/usr/bin/su', ['su', '-c', 'true'])",
        works_unsafe=False,
    ),
    Escape(
        "become a program by its descriptor",
        "os.execve(os.open('/usr/bin/printf', os.O_RDONLY), ['printf', 'succeeded'], {})",
    ),
    Escape("become a program in memory", "os.memfd_create('x')"),
    Escape(
        "run processes of multiprocessing",
        "__import__('multiprocessing').get_context('fork').Process(target=int).start()",
    ),
    Escape("outlive its parent", "c_call('prctl', 1, 0, 0, 0, 0)"),
]

PRIVILEGES = [
    Escape("become root", "os.setuid(0) or os.geteuid() == 0 or 1 / 0", works_unsafe=False),
    Escape("be root", "os.geteuid() == 0 or 1 / 0", works_unsafe=False),
    Escape(
        "have a capability",
        "[line for line in open('/proc/self/status') if line.startswith('CapEff') and int(line.split()[1], 16)][0]",
        works_unsafe=False,
    ),
    Escape("create a user namespace", "c_call('unshare', 0x10000000)", works_unsafe=False),
    Escape("create a mount namespace", "c_call('unshare', 0x20000)", works_unsafe=False),
    Escape("enter a namespace", "c_call('setns', 0, 0)", works_unsafe=False),
    Escape("mount", "c_call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)", works_unsafe=False),
    Escape(
        "mount again, writable",
        "c_call('mount', None, b'/usr', None, 32, None)",
        works_unsafe=False,
    ),
    Escape("unmount", "c_call('umount2', b'/usr', 2)", works_unsafe=False),
    Escape("unmount its folder", "c_call('umount2', b'/tmp', 2)", works_unsafe=False),
    Escape("mount by the new calls", "system_call(430, b'tmpfs', 0)", works_unsafe=False),
    Escape("change the root", "os.chroot('.')", works_unsafe=False),
    Escape("pivot the root", "system_call(155, b'.', b'.')", works_unsafe=False),
    Escape("change the host's name", "c_call('sethostname', b'x', 1)", works_unsafe=False),
    Escape(
        "set the clock", "time.clock_settime(time.CLOCK_REALTIME, time.time())", works_unsafe=False
    ),
    Escape(
        "raise the CPU limit",
        "resource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))",
        works_unsafe=False,
    ),
    Escape(
        "raise the memory limit",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        works_unsafe=False,
    ),
    Escape(
        "raise the limit of files",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999))",
        works_unsafe=False,
    ),
    Escape("raise its priority", "os.setpriority(os.PRIO_PROCESS, 0, -5)", works_unsafe=False),
    Escape(
        "become a real-time process",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        works_unsafe=False,
    ),
    Escape("lock memory", "c_call('mlockall', 3)", works_unsafe=False),
]

KERNEL = [
    Escape("type into the terminal", "fcntl.ioctl(0, 0x5412, b'x')", works_unsafe=False),
    Escape("paste into the console", "fcntl.ioctl(0, 0x541C, b'\\x03')", works_unsafe=False),
    Escape("read keys of the kernel", "system_call(250, 0, -3, 1)", works_unsafe=False),
    Escape("add a key", "system_call(248, b'user', b'a', b'b', 1, -1)", works_unsafe=False),
    Escape(
        "load a BPF program",
        "system_call(321, 0, ctypes.create_string_buffer(120), 120)",
        works_unsafe=False,
    ),
    Escape(
        "measure the kernel",
        "system_call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0)",
        works_unsafe=False,
    ),
    Escape("handle page faults", "system_call(323, 1)", works_unsafe=False),
    Escape(
        "use io_uring", "system_call(425, 1, ctypes.create_string_buffer(120))", works_unsafe=False
    ),
    Escape("change its personality", "system_call(135, 0x0040000)"),
    Escape("change its segments", "system_call(154, 0, ctypes.create_string_buffer(64), 64)"),
    Escape("set a filter of its own", "c_call('prctl', 22, 2, None, 0, 0)", works_unsafe=False),
    Escape("load a module", "system_call(313, 0, b'', 0)", works_unsafe=False),
    Escape("load a kernel", "system_call(246, 0, 0, None, 0)", works_unsafe=False),
    Escape("read the kernel's log", "system_call(103, 10, None, 0)", works_unsafe=False),
    Escape("watch the file system", "system_call(300, 0, 0)", works_unsafe=False),
    Escape("share memory", "system_call(29, 0, 4096, 0o1666)"),
    Escape("share a message queue", "system_call(68, 0, 0o1666)"),
    Escape("share semaphores", "system_call(64, 0, 1, 0o1666)"),
    Escape(
        "open a named queue", "system_call(240, b'redraft', 0o102, 0o600, None)", works_unsafe=False
    ),
    Escape("create secret memory", "system_call(447, 0)", works_unsafe=False),
    Escape("call by the numbers of x32", "system_call(0x40000000 + 39)", works_unsafe=False),
    Escape(
        "call by the numbers of 32 bits",
        "run_machine_code(bytes.fromhex('b814000000cd80c3')) > 0 or 1 / 0",
        works_unsafe=False,
    ),
    Escape("call a number that does not exist", "system_call(100_000)", works_unsafe=False),
]

SECRETS = [
    Escape(
        "read a variable of the environment", "os.environ['REDRAFT_CANARY']", works_unsafe=False
    ),
    Escape(
        "find the canary in the environment",
        "[v for v in os.environ.values() if 'canary' in v][0]",
        works_unsafe=False,
    ),
    Escape(
        "read the environment by its pointer",
        "ctypes.cast(libc.getenv, ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_char_p))(b'REDRAFT_CANARY').decode()",
        works_unsafe=False,
    ),
    Escape(
        "read the host's name",
        "socket.gethostname() == outside['host'] or 1 / 0",
        works_unsafe=False,
    ),
]

ESCAPES = [*FILES, *NETWORK, *PROCESSES, *PRIVILEGES, *KERNEL, *SECRETS]

ESCAPE_RUNNER = (
    PRELUDE
    + """
import stat

def _is_file(descriptor):
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False

def main(outside, channel):
    while (expression := channel.receive()) is not None:
        try:
            value = eval(expression, {**globals(), "outside": outside})
        except BaseException as error:
            channel.send(["refused", type(error).__name__, getattr(error, "errno", None), str(error)[:200]])
        else:
            channel.send(["succeeded", str(value)[:200]])
"""
)


class Exhaustion(NamedTuple):
    name: str
    program: str
    statuses: tuple[str, ...]
    says: str = ""  # what it prints, where the sandbox refuses and the program goes on


EXHAUSTIONS = [
    Exhaustion("loop", "while True: pass", ("cpu",)),
    Exhaustion(
        "loop with every signal ignored",
        "import signal\nfor s in range(1, 64):\n try: signal.signal(s, signal.SIG_IGN)\n except (OSError, ValueError): pass\nwhile True: pass",
        ("cpu",),
    ),
    Exhaustion(
        "loop in threads",
        "import threading\nfor _ in range(3): threading.Thread(target=lambda: sum(iter(int, 1))).start()\nsum(iter(int, 1))",
        ("cpu",),
    ),
    Exhaustion("sleep", "import time\ntime.sleep(1000)", ("wall",)),
    Exhaustion(
        "sleep with descriptors closed",
        "import os, time\nos.closerange(0, 100)\ntime.sleep(1000)",
        ("wall", "protocol"),
    ),
    Exhaustion("pause in native code", "import ctypes\nctypes.PyDLL(None).pause()", ("wall",)),
    Exhaustion("memory by a list", "x = []\nwhile True: x.append(bytearray(10**6))", ("memory",)),
    Exhaustion("memory at once", "bytearray(10**12)", ("memory",)),
    Exhaustion(
        "memory by mmap",
        "import mmap\nx = []\ntry:\n while True:\n  m = mmap.mmap(-1, 16 * 2**20)\n  m.write(b'x' * (16 * 2**20))\n  x.append(m)\nexcept OSError as e: print(len(x) < 40)",
        ("exited",),
        "True",
    ),
    Exhaustion(
        "threads",
        "import threading, time\nthreading.stack_size(32768)\nfor _ in range(100_000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        ("threads", "exited", "crashed"),
    ),
    Exhaustion(
        "forks",
        "import os\nfor _ in range(3):\n try: os.fork()\n except OSError: print('refused')",
        ("exited",),
        "refused",
    ),
    Exhaustion(
        "a flood of output", "import sys\nwhile True: sys.stdout.write('x' * 10**6)", ("output",)
    ),
    Exhaustion(
        "a flood of errors", "import os\nwhile True: os.write(2, b'x' * 10**6)", ("output",)
    ),
    Exhaustion(
        "a large file",
        "with open('big', 'wb') as f:\n try:\n  while True: f.write(b'x' * 10**6)\n except OSError as e: print(e.errno)\n finally: os_size = f.seek(0, 2); print(os_size <= 2**20)",
        ("exited", "crashed"),
    ),
    Exhaustion(
        "many large files",
        "n = 0\ntry:\n for n in range(1000):\n  with open(str(n), 'wb') as f: f.write(b'x' * 2**19)\nexcept OSError: print(n < 20)",
        ("exited",),
        "True",
    ),
    Exhaustion(
        "many small files",
        "n = 0\ntry:\n for n in range(10**6): open(str(n), 'w').close()\nexcept OSError: print(n <= 100)",
        ("exited",),
        "True",
    ),
    Exhaustion(
        "many folders",
        "import os\nn = 0\ntry:\n for n in range(10**6): os.mkdir(str(n))\nexcept OSError: print(n <= 100)",
        ("exited",),
        "True",
    ),
    Exhaustion(
        "many links",
        "import os\nn = 0\ntry:\n for n in range(10**6): os.symlink('x' * 4000, str(n))\nexcept OSError: print(n <= 100)",
        ("exited",),
        "True",
    ),
    Exhaustion(
        "deleted files",
        "import os\nf = []\ntry:\n for n in range(1000):\n  f.append(open('x', 'wb')); f[-1].write(b'x' * 2**19); f[-1].flush(); os.unlink('x')\nexcept OSError: print(len(f) < 20)",
        ("exited",),
        "True",
    ),
    Exhaustion(
        "descriptors",
        "import os\nn = 0\ntry:\n for n in range(10**6): os.dup(1)\nexcept OSError: print(n < 64)",
        ("exited",),
        "True",
    ),
    Exhaustion(
        "deep recursion",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        ("cpu", "crashed", "memory", "exited"),
    ),
    Exhaustion(
        "deep recursion in C",
        "x = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        ("cpu", "crashed", "exited", "memory"),
    ),
    Exhaustion("a huge power", "9 ** 9 ** 9", ("cpu", "memory")),
    Exhaustion("a huge text", "'x' * 10**13", ("memory",)),
    Exhaustion("a regular expression", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')", ("cpu",)),
    Exhaustion(
        "exit and go on", "import atexit, time\natexit.register(time.sleep, 1000)", ("wall",)
    ),
]
