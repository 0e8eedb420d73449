"""Change the code in small ways, one at a time, and list the changes that no test notices: see
CONTRIBUTING.md.

All tests run in copies of the checkout in `build/`, which are removed at the end. First, once for
each state of the sources, they run under coverage, which notes the lines that each test executes.
Then each change is written into a copy and tried: by the tests that execute the line, then by
others of the module.
"""

import argparse
import contextlib
import hashlib
import json
import os
import queue
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from coverage.numbits import numbits_to_nums
from mutations import Mutant, draw

import coverage

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
CONTEXTS = BUILD / "mutants-contexts"  # which test executes which line, in coverage's format
NOTES = BUILD / "mutants-contexts.json"  # for which files, and how long each test takes
FIRST_SECONDS = (
    60  # of tests that execute the line, tried together: most changes are noticed by these
)
WIDER_SECONDS = 300  # of other tests
FILES_TOGETHER = (
    40  # that run under coverage before what they execute is noted: Ctrl-C loses no more
)
TEST_SECONDS = 100  # for one test that states no limit of its own
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", ".coverage*"
)
STOP = threading.Event()


class Copy:
    """A copy of the checkout, with an environment that has the packages of this one but finds `src`
    of the copy first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, environment = folder, folder / "checkout", folder / "environment"
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=NOT_COPIED)
        venv.create(environment, symlinks=True)
        packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [
            str(self.root / "src"),
            str(self.root / "scripts"),
            *(f"import site; site.addsitedir({path!r})" for path in packages),
        ]
        own = Path(
            sysconfig.get_path(
                "purelib", vars={"base": str(environment), "platbase": str(environment)}
            )
        )
        (own / "copy.pth").write_text("\n".join(lines) + "\n")
        scripts = Path(sysconfig.get_path("scripts"))
        for script in scripts.iterdir():
            if not (copy := environment / scripts.name / script.name).exists():
                content = script.read_bytes() if script.is_file() else b""
                if content.startswith(shebang := f"#!{scripts}".encode()):
                    copy.write_bytes(content.replace(shebang, f"#!{copy.parent}".encode(), 1))
                    copy.chmod(0o755)
                else:
                    copy.symlink_to(script)
        self.python = environment / scripts.name / "python"

    def pytest(self, *arguments: str, limit: float, **variables: str) -> tuple[int | None, str]:
        """Return pytest's exit status and output; no status if it was killed: after `limit`
        seconds, or by Ctrl-C.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        options = ["-p", "mutants_plugin", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}"]
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(  # noqa: S603
                [self.python, "-m", "pytest", *options, *arguments],
                cwd=self.root,
                env=environment | variables | {"MUTANTS_COPY": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                end = time.monotonic() + limit
                while process.poll() is None and time.monotonic() < end and not STOP.wait(0.05):
                    pass
                status = process.poll()
            finally:
                self.kill(process)
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a run and what is left of it: where there is a /proc, also the processes that it
        started in other sessions.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        mark = f"MUTANTS_COPY={self.folder}\0".encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        self.write(mutant.path, mutant.changed)
        try:
            yield
        finally:
            self.write(mutant.path, mutant.source)

    def write(self, path: Path, source: bytes) -> None:
        target = self.root / path.relative_to(ROOT)
        target.write_bytes(source)
        # its source may have the same size and time
        for compiled in target.parent.glob(f"__pycache__/{target.stem}.*.pyc"):
            compiled.unlink()


@dataclass
class Result:
    mutant: Mutant
    outcome: str  # "noticed", "noticed by time" or "survived"
    by: str
    executing: int  # how many tests execute the line
    tried: int

    @property
    def place(self) -> str:
        return f"{self.mutant.path.relative_to(ROOT)}:{self.mutant.line} {self.mutant.kind}"


class Contexts:
    """Which test executes which line, and how long it takes."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.places = seconds, {test: place for place, test in enumerate(seconds)}
        self.database = sqlite3.connect(
            f"{CONTEXTS.as_uri()}?mode=ro", uri=True, check_same_thread=False
        )
        rows = self.database.execute(
            "SELECT context, count(*) FROM line_bits JOIN context ON context.id = context_id "
            "GROUP BY 1"
        )
        self.modules = Counter[str]()
        for context, count in rows:
            self.modules[context.rpartition("|")[0]] += count
        self.lock = threading.Lock()

    def by_line(self, path: Path) -> dict[int, set[str]]:
        query = (
            "SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id JOIN "
            "file ON file.id = file_id WHERE path = ?"
        )
        with self.lock:
            rows = self.database.execute(query, [str(path.relative_to(ROOT))]).fetchall()
        lines = defaultdict(set)
        for context, numbits in rows:
            if (test := context.rpartition("|")[0]) in self.seconds:
                for line in numbits_to_nums(numbits):
                    lines[line].add(test)
        return lines

    def tests(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the tests that execute the line, and others.

        The others are first those of the same files, which may use what one of them has set up for
        all, and those named after the module or its folder, which may execute the line in other
        processes; then those that execute another line of the module.
        """
        by_line = self.by_line(mutant.path)
        on_lines = (
            set[str]().union(*(by_line.get(line, ()) for line in lines)) for lines in mutant.places
        )
        executing = self.order(next(filter(None, on_lines), set()))
        names = tuple(
            f"tests/{folder}/" for folder in mutant.path.relative_to(ROOT / "src").parts[1:-1]
        )
        names += f"tests/test_{mutant.path.stem}", *(test.partition("::")[0] for test in executing)
        named = {test for test in self.seconds if test.startswith(names)}
        module = set[str]().union(*by_line.values())
        done = {*executing}
        return executing, self.order(named - done) + self.order(module - named - done)

    def order(self, tests: set[str]) -> list[str]:
        """Keep the tests of a file together, as they may share a server; first the files whose
        tests execute few modules.
        """
        files = defaultdict(list)
        for test in sorted(tests, key=self.places.__getitem__):
            files[test.partition("::")[0]].append(test)
        ranked = sorted(
            files.values(),
            key=lambda file: (sum(self.modules[test] for test in file) / len(file), file),
        )
        return [test for file in ranked for test in file]

    def within(self, tests: list[str], most: float) -> list[str]:
        """Return as many of the tests, from the first, as take so many seconds."""
        chosen = []
        for test in tests:
            if most <= 0:
                break
            chosen.append(test)
            most -= self.seconds[test]
        return chosen


def attempt(
    copies: "queue.SimpleQueue[Copy]", contexts: Contexts, mutant: Mutant, slow: list[str]
) -> Result:
    """Try a change by the tests that execute the line, then by others. One that fails once and then
    passes does not count.
    """
    executing, others = contexts.tests(mutant)
    first = contexts.within(executing, FIRST_SECONDS)
    wider = contexts.within(executing[len(first) :] + others, WIDER_SECONDS)
    result, copy = Result(mutant, "survived", "", len(executing), 0), copies.get()
    try:
        with copy.changed(mutant):
            left = [first, wider]
            while left and result.outcome == "survived" and not STOP.is_set():
                tests = left.pop(0)
                result.tried += len(tests)
                outcome, failed = run(copy, contexts, tests, slow) if tests else ("passed", "")
                if (
                    outcome == "failed"
                    and failed in tests
                    and run(copy, contexts, [failed], slow)[0] == "passed"
                ):
                    left.insert(0, tests[tests.index(failed) + 1 :])
                elif outcome != "passed":
                    result.outcome, result.by = (
                        "noticed" if outcome == "failed" else "noticed by time",
                        failed,
                    )
    finally:
        copies.put(copy)
    return result


def run(copy: Copy, contexts: Contexts, tests: list[str], slow: list[str]) -> tuple[str, str]:
    """Return the outcome of tests, and which failed."""
    (names := copy.folder / "tests").write_text(json.dumps(tests))
    (report := copy.folder / "report").write_text("")
    status, output = copy.pytest(
        *["-x", "-p", "no:xdist", *slow, *dict.fromkeys(test.partition("::")[0] for test in tests)],
        limit=TEST_SECONDS + 5 * sum(map(contexts.seconds.__getitem__, tests)),
        MUTANTS_TESTS=str(names),
        MUTANTS_REPORT=str(report),
    )
    for test, _, outcome in map(json.loads, report.read_text().splitlines()):
        if outcome in {"failed", "by time"}:
            return outcome, test
    if status is None:
        return ("passed", "") if STOP.is_set() else ("by time", "the run was killed")
    if status in {0, 5}:  # 5: there was no test
        return "passed", ""
    return "failed", f"pytest ends with {status}: {output.strip().rpartition(chr(10))[2][:200]}"


def failing(copy: Copy, contexts: Contexts, tests: set[str], slow: list[str]) -> list[str]:
    """Return which of some tests fail without a change."""
    left, found = contexts.order(tests), []
    while left and (failed := run(copy, contexts, left, slow)[1]) in left:
        found.append(failed)
        left.remove(failed)
    return found


def gather(copy: Copy, parts: list[str], slow: list[str], processes: int) -> Contexts:
    """Run the tests whose lines are not known: all, if the package or what tests share changed,
    else those of changed files.
    """
    shared, files = hashlib.sha256(repr(slow).encode()), {}
    for path in sorted(
        [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), ROOT / "pyproject.toml"]
    ):
        name, content = path.relative_to(ROOT).as_posix(), path.read_bytes()
        if not path.name.startswith("test_"):
            shared.update(name.encode() + content)
        elif any(path.is_relative_to(ROOT / part) for part in parts):
            files[name] = hashlib.sha256(content).hexdigest()
    notes = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    if notes.get("shared") != shared.hexdigest():
        notes = {"shared": shared.hexdigest(), "files": {}, "tests": {}}
        CONTEXTS.unlink(missing_ok=True)
    missing = [name for name, content in files.items() if notes["files"].get(name) != content]
    start = time.monotonic()
    for place in range(0, len(missing), FILES_TOGETHER):
        say(
            f"[{place}/{len(missing)} files, {time.monotonic() - start:.0f} s] learning which "
            "lines each test executes"
        )
        together = missing[place : place + FILES_TOGETHER]
        notes["tests"] = {
            test: note
            for test, note in notes["tests"].items()
            if test.partition("::")[0] not in together
        }
        for test, seconds, outcome in cover(copy, together, slow, processes):
            _, before = notes["tests"].get(test, (0, "passed"))
            notes["tests"][test] = seconds, outcome if before == "passed" else before
        notes["files"] |= {name: files[name] for name in together}
        NOTES.write_text(json.dumps(notes))
    outcomes = {
        test: note for test, note in notes["tests"].items() if test.partition("::")[0] in files
    }
    if failed := sorted(
        test for test, (_, outcome) in outcomes.items() if outcome in {"failed", "by time"}
    ):
        say(f"{len(failed)} tests fail without a change, and are left out: {' '.join(failed)}")
    return Contexts(
        {test: seconds for test, (seconds, outcome) in outcomes.items() if outcome == "passed"}
    )


def cover(
    copy: Copy, files: list[str], slow: list[str], processes: int
) -> Iterator[tuple[str, float, str]]:
    """Run test files, add which lines each test executes to those known, and yield each test's
    seconds and outcome.
    """
    (copy.root / "coverage.ini").write_text("[run]\nrelative_files = true\nsource = src\n")
    data, report = copy.folder / "contexts", copy.folder / "report"
    report.write_text("")
    options = ["-p", "xdist", "-p", "pytest_cov", f"--numprocesses={processes}", "--dist=loadfile"]
    measure = ["--cov", "--cov-config=coverage.ini", "--cov-context=test", "--cov-report="]
    status, output = copy.pytest(
        *[*options, *measure, *slow, *files],
        limit=float("inf"),
        COVERAGE_FILE=str(data),
        COVERAGE_CORE="ctrace",
        MUTANTS_REPORT=str(report),
    )
    if STOP.is_set():
        raise KeyboardInterrupt
    if status not in {0, 1, 5}:
        raise RuntimeError(f"pytest ends with {status}:\n{output[-3000:]}")
    known, new = coverage.CoverageData(str(CONTEXTS)), coverage.CoverageData(str(data))
    known.read()
    new.read()
    known.update(new)
    data.unlink(missing_ok=True)
    yield from map(json.loads, report.read_text().splitlines())


def say(text: str) -> None:
    print(text, flush=True)


def try_all(
    mutants: list[Mutant], copies: list[Copy], contexts: Contexts, slow: list[str]
) -> Iterator[Result]:
    """Say and yield what becomes of each change, as it is known."""
    free, start = queue.SimpleQueue[Copy](), time.monotonic()
    for copy in copies:
        free.put(copy)
    with ThreadPoolExecutor(len(copies)) as pool:
        tries = [pool.submit(attempt, free, contexts, mutant, slow) for mutant in mutants]
        try:
            for count, done in enumerate(as_completed(tries), 1):
                result = done.result()
                progress = f"[{count}/{len(mutants)}, {time.monotonic() - start:.0f} s]"
                say(f"{progress} {result.outcome}: {result.place} {result.by}")
                yield result
        finally:
            STOP.set()
            pool.shutdown(cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parts = "folders, modules or lines of the package: storage=2 runs/allocation runs/job:145"
    parser.add_argument("--packages", nargs="+", required=True, metavar="NAME[=WEIGHT]", help=parts)
    parser.add_argument("-n", type=int, default=40, help="how many changes to draw")
    parser.add_argument("--seed", default="1", help="any text, which decides what is drawn")
    parser.add_argument(
        "--processes", type=int, default=2, help="how many changes are tried at a time"
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        default=["tests"],
        metavar="PATH",
        help="folders and files with the tests to run",
    )
    parser.add_argument("--slow", help="which tests marked slow are run: all, none or SEED/SHARE")
    arguments = parser.parse_args()
    [package] = [path.parent for path in ROOT.glob("src/*/__init__.py")]
    try:
        mutants = draw(package, arguments.packages, arguments.n, arguments.seed)
    except ValueError as error:
        parser.error(str(error))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    slow = ["--slow", arguments.slow] if arguments.slow else []
    BUILD.mkdir(exist_ok=True)
    results, interrupted = list[Result](), False
    with tempfile.TemporaryDirectory(prefix="mutants-copies-", dir=BUILD) as folder:
        try:
            copies = [Copy(Path(folder) / str(number)) for number in range(arguments.processes)]
            contexts = gather(copies[0], arguments.tests, slow, arguments.processes)
            say(
                f"Trying {len(mutants)} changes of {' '.join(arguments.packages)}, drawn with "
                f"seed {arguments.seed}."
            )
            results.extend(try_all(mutants, copies, contexts, slow))
            STOP.clear()
            for test in failing(
                copies[0],
                contexts,
                {result.by for result in results} & contexts.seconds.keys(),
                slow,
            ):
                say(f"Without a change {test} fails, too: what it noticed is not certain.")
        except KeyboardInterrupt:
            interrupted = True
            say("Interrupted.")
    for result in sorted(results, key=lambda result: (result.mutant.path, result.mutant.start)):
        if result.outcome == "survived":
            tests = f"{result.executing} tests execute it, {result.tried} were run"
            say(f"\n{result.place}: {tests}\n{result.mutant.diff}")
    say(
        "\n"
        + ", ".join(
            f"{count} {outcome}"
            for outcome, count in Counter(result.outcome for result in results).most_common()
        )
    )
    sys.exit(130 if interrupted else 0)


if __name__ == "__main__":
    main()
