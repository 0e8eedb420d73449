"""Imports a package in one thread and all its modules in others, at the worst moment: `python
imported_at_once.py PACKAGE...`.

The thread that imports the package stops when it holds the package's lock, until every other thread
holds the lock of its module and waits for the package. What the package imports of its own is then
held by a thread that waits for it: Python raises an error. What lies outside the package is
imported before, since it is not what is tried.
"""

import _frozen_importlib
import sys
import threading
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

PACKAGE = Path(find_spec("redraft").origin).parent
PATHS = [path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
MODULES = [".".join(path.parts).removesuffix(".__init__") for path in PATHS]
# programs: importing them runs them
RUN_INSIDE = {"redraft.workers.bootstrap", "redraft.workers.worker", "redraft.__main__"}
SECONDS = 100  # for what takes milliseconds
wrong = []


def import_one(name):
    """Import a module, and note what is raised, unless a library that it needs is not installed."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("redraft"):
            wrong.append(f"{name}: {error!r}")
    except Exception as error:
        wrong.append(f"{name}: {error!r}")


class ImportedMeanwhile(SourceFileLoader):
    """Loads a package; before that, when its lock is held, the threads that import its modules
    begin.
    """

    def create_module(self, spec):
        for thread in threads:
            thread.start()
        end = monotonic() + SECONDS
        while waiting(spec.name) < len(threads) and monotonic() < end:
            sleep(0.001)
        if waiting(spec.name) < len(threads):
            wrong.append(
                f"{spec.name}: only {waiting(spec.name)} of {len(threads)} threads wait for it"
            )


class FoundFirst:
    """Finds the package that is tried."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == tried and FoundFirst in sys.meta_path:
            sys.meta_path.remove(FoundFirst)  # whoever tries again after an error finds it as usual
            spec = PathFinder.find_spec(name, path)
            spec.loader = ImportedMeanwhile(name, spec.origin)
            return spec
        return None


def waiting(name):
    """Return how many threads wait for the lock of a module. What each waits for is a list after
    Python 3.11.
    """
    awaited = [
        each if isinstance(each, list) else [each]
        for each in list(_frozen_importlib._blocking_on.values())
    ]
    return sum(any(lock.name == name for lock in locks) for locks in awaited)


def try_package(package):
    """Import a package and what is in it, in threads, as if it had not been imported."""
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, FoundFirst)
    import_one(package)
    for thread in threads:
        thread.join(SECONDS)
        if thread.is_alive():
            wrong.append(f"{package}: a thread does not end")


for name in MODULES:
    if name not in RUN_INSIDE:
        with suppress(ImportError):
            import_module(name)
for tried in sys.argv[1:]:
    children = [
        name for name in MODULES if name.rpartition(".")[0] == tried and name not in RUN_INSIDE
    ]
    threads = [threading.Thread(target=import_one, args=[name]) for name in children]
    try_package(tried)
print("\n".join(wrong) or "nothing was raised", flush=True)
