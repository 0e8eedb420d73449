"""Fixtures of all tests: no network beyond this machine, no keys from the environment, a real model
server.
"""

import gc
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

from descriptors import open_files
from require import require_sandbox
from reserved_port import reserved_port

# For properties that do not say how many examples they want. No deadline: it would time the
# machine, which other tests load.
settings.register_profile("all", max_examples=50, deadline=None)
settings.register_profile("quick", max_examples=20, deadline=None)

sys.path.append(str(Path(__file__).parents[1] / "bench"))  # benchmarks are tested, too
TINY = Path(__file__).parent / "wire" / "tiny.py"
SKIPPED = "redraft/skipped"  # in pytest's cache
LOCAL = ("127.", "::1", "localhost")
HOMES = count()
FOREIGN = ("REDRAFT_", "OPENAI_", "ANTHROPIC_", "OLLAMA_")
# files that run first, the longest before the others, so that no worker ends long after the rest
LONGEST = (
    "test_chaos.py",
    "test_ray.py",
    "test_docs.py",
    "test_batch_faults.py",
    "test_kill.py",
    "test_examples.py",
    "test_money.py",
    "test_processes.py",
    "test_provider_batch.py",
    "test_plots.py",
    "test_quirks.py",
    "test_call_counts.py",
    "test_allocation.py",
    "test_online_priors.py",
    "test_secrets.py",
    "test_shards.py",
    "test_hostile_text.py",
    "test_batch.py",
)


def pytest_addoption(parser):
    parser.addoption(
        "--slow",
        default="all",
        metavar="all|none|SEED/SHARE",
        help="which tests marked slow run: all (the default), none, or a share of them that the seed chooses",
    )
    parser.addoption(
        "--skipped", action="store_true", help="run only the tests that the last run skipped"
    )
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        help="run the files, and the tests of each file, in a random order that the seed chooses",
    )


def pytest_configure(config):
    """Receive Ctrl-C even where the tests were started with it ignored, as `nohup` and some CI
    runners start them.
    """
    settings.load_profile("all" if config.getoption("--slow") == "all" else "quick")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Two workers for each core, since some tests wait for a deadline, a pause or another process,
    and each worker takes the time to read all tests and to import what they need; fewer with
    little memory, of which each takes up to 1 GB.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return max(1, min(2 * (cores or 1), int(gigabytes / 2)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Look for no cycles of objects while the tests are read, and afterwards not among these: it
    would take half of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
    """After the last test of a file, leave what it has loaded to no later search for cycles: the
    objects of hundreds of files would make each take a second.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


def pytest_collection_modifyitems(config, items):
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    left_out = {*slow_tests(items)} - {*chosen_slow_tests(items, config.getoption("--slow"))}
    if config.getoption("--skipped"):
        skipped = {*config.cache.get(SKIPPED, [])}
        left_out |= {
            item for item in items if not skipped & {item.nodeid, item.nodeid.partition("::")[0]}
        }
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    if seed := config.getoption("--shuffle"):
        draw = lambda name: sha256(f"{seed} {name}".encode()).digest()
        items.sort(key=lambda item: (draw(item.path.name), draw(item.nodeid)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    """Count the skipped tests by reason in the last line but one, and note them for `--skipped`,
    which repeats its failures, too.
    """
    yield
    reports = terminalreporter.getreports("skipped")
    failures = terminalreporter.getreports("failed") + terminalreporter.getreports("error")
    if hasattr(config, "cache"):
        noted = reports + failures if config.getoption("--skipped") else reports
        config.cache.set(SKIPPED, [report.nodeid for report in noted])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.write_line(
            "; ".join(f"{count} skipped: {reason}" for reason, count in reasons.most_common())
        )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """That the last run skipped nothing is no failure of `--skipped`."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("--skipped"):
        session.exitstatus = pytest.ExitCode.OK


def slow_tests(items):
    """The tests marked slow. Of a table that is marked `slow(but_each=n)`, one in n rows is not:
    the one with values that were seldom chosen before, so that in a table of all combinations it is
    not always the same value.
    """
    tables, slow = defaultdict(list), []
    for item in items:
        if marker := item.get_closest_marker("slow"):
            each = marker.kwargs.get("but_each")
            tables[item.path, item.originalname, each].append(item)
    for (_, _, each), rows in tables.items():
        if each is None:
            slow += rows
            continue
        chosen = Counter()
        for start in range(0, len(rows), each):
            some = rows[start : start + each]
            quick = min(some, key=lambda row: sum(chosen[value] for value in values_of(row)))
            chosen.update(values_of(quick))
            slow += [row for row in some if row is not quick]
    return slow


def values_of(row):
    """The values of the parameters of a row of a table, by their identity, as some have no hash."""
    return [(name, id(value)) for name, value in row.callspec.params.items()]


def chosen_slow_tests(items, which):
    """The tests marked slow that run. A share of them is chosen by a hash of the seed and the
    test's name.
    """
    if which in ("all", "none"):
        return slow_tests(items) if which == "all" else []
    seed, slash, share = which.partition("/")
    if not slash or not re.fullmatch(r"1|0?\.\d*[1-9]\d*", share):
        raise pytest.UsageError(
            f"--slow takes all, none or SEED/SHARE with a share above 0 and up to 1, got {which!r}"
        )
    slow = slow_tests(items)
    draw = lambda item: sha256(f"{seed} {item.nodeid}".encode()).digest()
    return sorted(slow, key=draw)[: math.ceil(float(share) * len(slow))]


@pytest.fixture
def closed_url():
    """A local address at which nothing listens, until a test starts a server there."""
    with reserved_port() as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(autouse=True, scope="session")
def no_network():
    """Refuse every connection that would leave this machine."""
    connect = socket.socket.connect

    def connect_locally(self, address):
        if isinstance(address, tuple) and not str(address[0]).startswith(LOCAL):
            raise OSError(f"tests do not leave this machine, asked for {address[0]!r}")
        return connect(self, address)

    socket.socket.connect = connect_locally
    yield
    socket.socket.connect = connect


@pytest.fixture(autouse=True, scope="session")
def one_authority(tmp_path_factory):
    """Trust a single certificate: the clients of httpx would read those of all authorities, which
    takes each of them 20 ms.
    """
    import trustme

    path = tmp_path_factory.mktemp("authority") / "authority.pem"
    trustme.CA().cert_pem.write_to_path(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path_factory):
    """Remove every variable and file by which Redraft would find a model, a setting or a card of
    this machine.
    """
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    # `mktemp` would list all of them for each test
    home = tmp_path_factory.getbasetemp() / f"redraft-home{next(HOMES)}"
    home.mkdir()
    monkeypatch.setenv("REDRAFT_HOME", str(home))


@pytest.fixture
def no_open_files(tmp_path_factory):
    """Fail if a test leaves a descriptor open of a file or folder below pytest's folder, whether it
    succeeds or raises an error.
    """
    folder, before = str(tmp_path_factory.getbasetemp()), open_files()
    yield
    if left := [each for each in open_files() - before if folder in each[1]]:
        gc.collect()  # objects of the test itself
        left = [each for each in left if each in open_files()]
    assert not left


@pytest.fixture(scope="session")
def sandbox():
    """The best sandbox here; tests that use it are skipped where none works."""
    return require_sandbox("auto")


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory):
    """A file with a tiny model of random weights."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "TEMPLATE")


@pytest.fixture(scope="session")
def strict_gguf_file(tmp_path_factory):
    """The same with a chat template that refuses a system role and two turns of one role."""
    return write_model(tmp_path_factory.mktemp("model") / "strict.gguf", "STRICT")


def write_model(path, template, likely=""):
    arguments = f"{str(path)!r}, tiny.{template}, {likely!r}"
    make = (
        f"import sys; sys.path.insert(0, {str(TINY.parent)!r}); import tiny; tiny.make({arguments})"
    )
    subprocess.run([sys.executable, "-c", make], check=True)
    return path


@pytest.fixture(scope="session")
def plain_server(gguf_file):
    """The name of a model on a real llama.cpp server that needs no key."""
    with llama_server(gguf_file) as name:
        yield name


@pytest.fixture(scope="session")
def strict_server(strict_gguf_file):
    """The same with the strict chat template."""
    with llama_server(strict_gguf_file) as name:
        yield name


@pytest.fixture(scope="session")
def digit_server(tmp_path_factory):
    """The name of a model on a real llama.cpp server that finds the digits 1 to 5 likely
    everywhere.
    """
    with llama_server(
        write_model(tmp_path_factory.mktemp("model") / "digits.gguf", "TEMPLATE", "12345")
    ) as name:
        yield name


@contextmanager
def llama_server(path):
    with subprocess.Popen(
        [sys.executable, str(TINY), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield f"{process.stdout.readline().strip()}/v1#tiny"
        finally:
            process.kill()
