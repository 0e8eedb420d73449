"""What a sandboxed interpreter runs first: it sets the limits and filters, then calls the runner.

The interpreter gets this file as the argument of `-c`, so no file of Redraft is visible inside. It
imports nothing of Redraft, and nothing that takes long to import. The parent sends one frame with
the settings; everything is locked down before the runner is compiled, and the frame "ready" tells
the parent so. A frame is 4 bytes with its length, big-endian, and JSON in UTF-8.

A runner is Python source with `main(settings, channel)`; `channel.receive()` returns the next
message of the parent, None at the end, and `channel.send(message)` answers it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` takes as long as starting the interpreter
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

EXIT_SETUP = 125  # the sandbox could not be set up
EXIT_MEMORY = 124  # the runner raised MemoryError

# of <linux/prctl.h>
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = (1, 24, 38, 22)
SECCOMP_MODE_FILTER, CLONE_NEWNS = 2, 0x20000
# of <linux/mount.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = (1, 2, 4, 8, 32, 4096)
CAPABILITY_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
SIGKILL = 9


def _codec() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """Return a function that writes JSON and one that reads it: those in C, since importing `json`
    takes as long as all else.
    """
    try:
        return _encoder(), _decoder()
    except (ImportError, TypeError):
        import json

        return json.dumps, json.loads


def _encoder() -> Callable[[Any], str]:
    from _json import encode_basestring, make_encoder

    constants = {None: "null", True: "true", False: "false"}

    def unknown(value: Any) -> Any:
        raise TypeError(f"{type(value).__name__} is not a JSON value")

    def encode(value: Any) -> str:
        if value is None or value is True or value is False:
            return constants[value]
        if isinstance(value, str):
            return encode_basestring(value)
        return "".join(
            make_encoder({}, unknown, encode_basestring, None, ":", ",", False, False, True)(
                [value], 0
            )
        )[1:-1]

    return encode


def _decoder() -> Callable[[str], Any]:
    from _json import make_scanner

    class Context:
        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int = float, int
        parse_constant = {
            "NaN": float("nan"),
            "Infinity": float("inf"),
            "-Infinity": float("-inf"),
        }.__getitem__

    scan = make_scanner(Context())  # type: ignore[arg-type]
    return lambda text: scan(text, 0)[0]


class Channel:
    """The messages to and from the parent. Each answer repeats the number of its request, which
    cannot be guessed.
    """

    def __init__(
        self, source: int, target: int, encode: Callable[[Any], str], decode: Callable[[str], Any]
    ) -> None:
        self._source, self._target, self._encode, self._decode = source, target, encode, decode
        self._number: Any = None

    def receive(self) -> Any:
        """Return the next message of the parent; None if there are no more."""
        frame = self.read_frame()
        if frame is None:
            return None
        self._number = frame["number"]
        return frame["message"]

    def send(self, message: Any) -> None:
        """Answer the last message with a JSON value. Raises TypeError for other values."""
        self.write_frame({"number": self._number, "message": message})

    def read_frame(self) -> Any:
        """Return the value of the next frame; None at the end."""
        head = self._read(4)
        body = head and self._read(int.from_bytes(head, "big"))
        return self._decode(body.decode("utf-8", "surrogatepass")) if body else None

    def write_frame(self, value: Any) -> None:
        """Write a value as a frame."""
        body = self._encode(value).encode("utf-8", "surrogatepass")
        data = memoryview(len(body).to_bytes(4, "big") + body)
        while data:
            data = data[os.write(self._target, data) :]

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._source, min(size, 1 << 20))
            if not part:
                return b""
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _claim_descriptors(target: int) -> tuple[int, int]:
    """Return copies of the descriptors of both directions; standard input becomes empty, everything
    else is closed.
    """
    source, empty = os.dup(0), os.open("/dev/null", os.O_RDONLY)
    os.dup2(empty, 0)
    first, second = sorted((source, target))
    os.closerange(3, first)
    os.closerange(first + 1, second)
    os.closerange(second + 1, 4096)
    os.set_inheritable(target, False)
    return source, target


def _call(function: Any, *arguments: Any) -> None:
    """Call a function of the C library. Raises OSError."""
    if function(*arguments) < 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, f"{function.__name__}: {os.strerror(code)}")


def _lock_down(setup: dict[str, Any]) -> None:
    """Set everything that the settings ask for; nothing of it can be undone from inside."""
    sys.path += setup["packages"]
    libc = _c_library() if setup.get("restrict") else None
    extensions = [_extension(source) for source in setup.get("extensions", ())]
    if sys.platform == "linux":
        end_with_parent(libc or _c_library())
    for extension in extensions:
        extension["prepare"](libc, setup)
    if libc and "mount" in setup:
        _mount(libc, setup)
    for path in setup.get("shown", ()):
        os.stat(path)  # noqa: PTH116  (raises if something hides it; pathlib takes long to import)
    os.chdir(setup["directory"])
    _write_files(setup.get("files", {}))
    limit_resources(setup["resources"])
    if libc:
        _restrict(libc, extensions, setup)


def _mount(libc: Any, setup: dict[str, Any]) -> None:
    """Mount the working folder in memory, and the devices read-only."""
    _call(libc.unshare, CLONE_NEWNS)
    _call(
        libc.mount,
        b"tmpfs",
        setup["directory"].encode(),
        b"tmpfs",
        MS_NOSUID | MS_NODEV,
        setup["mount"].encode(),
    )
    # this machine's own: their owner could change their rights and times
    for device in setup["devices"]:
        flags = os.statvfs(device).f_flag & (MS_NOSUID | MS_NOEXEC)
        _call(
            libc.mount, None, device.encode(), None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, None
        )


def _restrict(libc: Any, extensions: list[dict[str, Any]], setup: dict[str, Any]) -> None:
    """Drop all rights, apply the restrictions of the extensions, and set the filter of system
    calls.
    """
    _drop_capabilities(libc)
    for extension in extensions:
        extension["restrict"](libc, setup)
    if "filter" in setup:
        set_filter(libc, setup["filter"], setup["own_pid"])


def _c_library() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _extension(source: str) -> dict[str, Any]:
    """Return the names of a module with more restrictions: `prepare` runs first, `restrict` last,
    both with libc and the setup.
    """
    names: dict[str, Any] = {"__name__": "restrictions"}
    exec(compile(source, "<restrictions>", "exec"), names)  # noqa: S102  (our own source)
    return names


def _write_files(files: dict[str, str]) -> None:
    """Write files, by their paths in the working folder; their content is in hexadecimal digits."""
    for name, data in files.items():
        os.makedirs(os.path.dirname(f"./{name}"), exist_ok=True)  # noqa: PTH103, PTH120  (pathlib takes long to import)
        with open(name, "wb") as file:  # noqa: PTH123
            file.write(bytes.fromhex(data))


def limit_resources(limits: dict[str, int]) -> None:
    """Set the limits that the kernel enforces, by their names in `resource`."""
    import resource

    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            hard = resource.getrlimit(kind)[1]
            lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (lower, lower))


def _drop_capabilities(libc: Any) -> None:
    """Drop every capability, also those that a program could regain."""
    import ctypes

    for capability in range(64):
        # fails for those that do not exist, and without privileges
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _call(libc.capset, header, (ctypes.c_uint32 * 6)())


def end_with_parent(libc: Any) -> None:
    """Have the kernel end this process with the thread that started it."""
    _call(libc.prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def set_filter(libc: Any, filter: str, own_pid: int) -> None:
    """Set the filter of system calls, given in hexadecimal digits, with the ID of this process in
    place of `own_pid`.
    """
    import ctypes

    program = bytes.fromhex(filter).replace(
        own_pid.to_bytes(4, sys.byteorder), os.getpid().to_bytes(4, sys.byteorder)
    )

    class FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    _call(libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call(
        libc.prctl,
        PR_SET_SECCOMP,
        SECCOMP_MODE_FILTER,
        ctypes.byref(FilterProgram(len(program) // 8, program)),
        0,
        0,
    )


def _add_builtins() -> None:
    """Add what `site` would: programs end with exit() and quit()."""
    import builtins
    from _sitebuiltins import Quitter

    builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D"), Quitter("quit", "Ctrl-D")


def _main() -> None:
    codec = _codec()
    target = int(sys.argv[1])
    head = Channel(0, target, *codec)
    try:
        setup = head.read_frame()
        if setup is None:
            os._exit(EXIT_SETUP)
        source, target = _claim_descriptors(target) if "command" not in setup else (0, target)
        _lock_down(setup)
        head.write_frame("ready")
        if "command" in setup:
            os.close(target)
            os.execvpe(setup["command"][0], setup["command"], setup["environment"])  # noqa: S606
    except Exception as error:  # noqa: BLE001  (whatever it is, nothing may run)
        os.write(2, f"the sandbox could not be set up: {type(error).__name__}: {error}\n".encode())
        os._exit(EXIT_SETUP)
    _add_builtins()
    sys.argv = [""]
    names: dict[str, Any] = {"__name__": "runner"}
    try:
        exec(compile(setup["runner"], "<runner>", "exec"), names)  # noqa: S102
        names["main"](setup["settings"], Channel(source, target, *codec))
    except MemoryError:
        os._exit(EXIT_MEMORY)


if __name__ == "__main__":
    _main()
