"""Which files of this machine a sandboxed interpreter needs, and which it may see.

The interpreter inside is the one that runs here, without the packages of its environment. A tier
shows exactly these paths, read-only, under the names that they have here, and of them nothing that
lies in a hidden folder, but the packages that are named.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from ..base.checks import closest_names
from ..errors import ConfigError

SYSTEM_FOLDERS = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *(
        "/usr/bin",
        "/usr/sbin",
        "/usr/lib",
        "/usr/lib32",
        "/usr/lib64",
        "/usr/libx32",
        "/usr/libexec",
        "/usr/share",
    ),
    *("/usr/local/lib", "/usr/local/lib64"),
)
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
# of every interpreter, below a folder of libraries or the standard library; wheels are packages,
# too
PACKAGE_FOLDERS = (
    *(
        "py*/site-packages",
        "py*/dist-packages",
        "py*/ensurepip/_bundled",
        "*/lib/py*/site-packages",
    ),
    *("site-packages", "dist-packages", "ensurepip/_bundled", "python-wheels"),
)
# no packages, no script folder on the path, no cached byte code
FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8")
ENVIRONMENT = {  # of the program: the same everywhere, so that it behaves the same everywhere
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108  (inside)
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # sets and dictionaries have the same order in each run
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter: its executable, the files that it needs outside the system's folders, and
    its environment.

    `hidden` are the folders below these and the system's that no program sees (of packages).
    `libraries` are the folders of the standard library.
    """

    executable: str
    files: tuple[str, ...]
    environment: Mapping[str, str]
    hidden: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def current_interpreter() -> Interpreter:
    """Return the interpreter that runs here."""
    executable = str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())
    prefix = Path(sys.base_prefix).resolve()
    standard = _standard_library()
    shared = _libraries(executable)
    shown = [
        executable,
        *standard,
        *_prefix_files(prefix),
        *shared,
        *(f for f in SYSTEM_FILES if Path(f).exists()),
    ]
    files = tuple(_outermost(shown))
    hidden = tuple(
        _package_folders((*SYSTEM_FOLDERS, *files), needed=[executable, *standard, *shared])
    )
    return Interpreter(
        executable, files, {**ENVIRONMENT, **_library_path(shared)}, hidden, standard
    )


def _standard_library() -> tuple[str, ...]:
    """Return the folders of the standard library: of the interpreter itself, not of a virtual
    environment.
    """
    own = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    found = [sysconfig.get_path(name, vars=own) for name in ("stdlib", "platstdlib")]
    return tuple(
        dict.fromkeys(str(Path(path).resolve()) for path in found if path and Path(path).is_dir())
    )


def _prefix_files(prefix: Path) -> Iterator[str]:
    """Yield what else an installed interpreter and its packages need: shared libraries and time
    zones.
    """
    yield from (
        str(path)
        for path in prefix.glob("lib/libpython*" if _holds_home(prefix) else "lib*")
        if path.name != "libexec"
    )
    yield from (
        path
        for path in (sysconfig.get_config_var("TZPATH") or "").split(os.pathsep)
        if Path(path).is_dir()
    )


def _holds_home(prefix: Path) -> bool:
    """Whether a prefix is the root folder, a home folder or a folder above one: its libraries are
    not shown as a whole then.
    """
    try:
        home = Path.home().resolve()
    except RuntimeError:  # this user has none
        return prefix == Path(prefix.anchor)
    return home.is_relative_to(prefix)


def _package_folders(shown: Sequence[str], needed: Sequence[str]) -> Iterator[str]:
    """Yield the folders below those shown that hold packages: of this interpreter, of others, and
    this virtual environment.
    """
    roots = {
        Path(path).resolve() for path in shown if not path.endswith("bin") and Path(path).is_dir()
    }
    hidden = {
        path
        for path in map(Path.resolve, _package_places(roots))
        if path.is_dir() and not roots.isdisjoint(path.parents)
    }
    for path in sorted(hidden):
        if not any(Path(file).is_relative_to(path) for file in needed) and hidden.isdisjoint(
            path.parents
        ):
            yield str(path)


def _package_places(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield where packages may be: in folders of this interpreter, in those below the roots, and in
    this virtual environment.
    """
    own = [*site.getsitepackages([sys.base_prefix, sys.prefix]), site.getusersitepackages()]
    yield from map(Path, own)
    for root in roots:
        for pattern in PACKAGE_FOLDERS:
            yield from root.glob(pattern)
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix)


def _libraries(executable: str) -> list[str]:
    """Return the shared libraries that the executable loads, as far as `ldd` lists them."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return []
    try:
        listed = subprocess.run(  # noqa: S603
            [ldd, executable], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [
        path
        for path in re.findall(r"(?:^\s*|=> )(/\S+) \(0x", listed, re.MULTILINE)
        if Path(path).exists()
    ]


def _outermost(paths: Sequence[str]) -> Iterator[str]:
    """Yield the paths that lie neither in a system folder nor in another of them."""
    unique = list(dict.fromkeys(paths))
    for path in unique:
        others = [p for p in (*SYSTEM_FOLDERS, *unique) if p != path]
        if path not in SYSTEM_FOLDERS and not any(
            Path(path).is_relative_to(other) for other in others
        ):
            yield path


def _library_path(libraries: Sequence[str]) -> dict[str, str]:
    """Return the variable by which the loader finds the libraries, if it finds them by that
    variable here.
    """
    if "LD_LIBRARY_PATH" not in os.environ:
        return {}
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(
            dict.fromkeys(str(Path(library).parent) for library in libraries)
        )
    }


@dataclass(frozen=True, slots=True)
class Packages:
    """The files of the packages that a program may import, and the folders in which it finds
    them.
    """

    files: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def find_packages(names: tuple[str, ...]) -> Packages:
    """Return the files of installed distributions and of what they require. Raises ConfigError for
    one that is not installed.
    """
    files: dict[str, None] = {}
    folders: dict[str, None] = {}
    found: set[str] = set()
    left = [_find_distribution(name) for name in names]
    while left:
        distribution = left.pop()
        if (name := _normal(distribution.name)) in found:
            continue
        found.add(name)
        root = Path(str(distribution.locate_file(""))).resolve()
        folders[str(root)] = None
        files |= dict.fromkeys(
            str(root / top) for top in _top_level(distribution) if (root / top).exists()
        )
        left += _requirements(distribution)
    return Packages(tuple(files), tuple(folders))


def _find_distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        if PathFinder.find_spec(name):  # the name of a module, such as "yaml"
            providers = metadata.packages_distributions()  # reads all distributions
            if name in providers:
                return metadata.distribution(providers[name][0])
        near = closest_names(name, {d.name for d in metadata.distributions() if d.name})
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(
            f"packages: {name!r} is not installed beside Redraft (pip install it){hint}"
        ) from None


def _top_level(distribution: metadata.Distribution) -> set[str]:
    """Return the entries of the environment's folder that belong to a distribution."""
    if distribution.files is None:  # packages of some Linux distributions list no files
        modules = (distribution.read_text("top_level.txt") or distribution.name).split()
        return {entry for module in modules for entry in (module, f"{module}.py")}
    outside = ("..", "__pycache__")
    return {
        file.parts[0]
        for file in distribution.files
        if file.parts[0] not in outside and not file.is_absolute()
    }


def _requirements(distribution: metadata.Distribution) -> Iterator[metadata.Distribution]:
    """Yield the required distributions that are installed; those for other systems or extras
    usually are not.
    """
    for requirement in distribution.requires or ():
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name and not re.search(r";.*\bextra\s*==", requirement):
            try:
                yield metadata.distribution(name[0])
            except metadata.PackageNotFoundError:
                continue


def installed_programs(name: str) -> list[str]:
    """Return the paths of the programs of that name that the distribution of that name
    installed.
    """
    try:
        distribution = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return []
    return [
        str(distribution.locate_file(file))
        for file in distribution.files or ()
        if file.parts[-2:] == ("bin", name)
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
