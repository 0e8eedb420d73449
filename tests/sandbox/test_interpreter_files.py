"""What a program sees of its interpreter: the standard library and shared libraries, and no package
that was not named.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from redraft.sandbox import Sandbox
from redraft.sandbox import interpreter as interpreter_module
from redraft.sandbox.interpreter import current_interpreter
from require import require_sandbox

PROJECT = Path(__file__).parents[2]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = (  # folders of a prefix that hold packages, or files of other programs
    f"lib/{PYTHON}/site-packages",
    f"lib/{PYTHON}/site-packages/__pycache__",
    f"lib/{PYTHON}/dist-packages",
    f"lib/{PYTHON}/ensurepip/_bundled",
    f"lib64/{PYTHON}/site-packages",
    "lib/python3/dist-packages",
    "lib/python3.1/site-packages",
    "lib/pypy3.11/site-packages",
    "lib/environment/lib/python3/site-packages",
    "local/lib/python3/dist-packages",
    "user/lib/python3/site-packages",
    "bin",
    "etc",
    f"include/{PYTHON}",
    "share",
    "share/python-wheels",
    "src",
    "application",
    ".",
)
RUNNER = """
import ctypes, glob, importlib.machinery, importlib.metadata, importlib.util, linecache, mmap, os, pkgutil, runpy, site, sys, zipimport

def append(folder):
    sys.path.append(folder)
    import canary_module
    return canary_module.VALUE

def insert(folder):
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    return importlib.import_module("canary_package").VALUE

def by_location(folder):
    spec = importlib.util.spec_from_file_location("canary", folder + "/canary_module.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.VALUE

def by_finder(folder):
    spec = importlib.machinery.PathFinder.find_spec("canary_module", [folder])
    return spec.loader.load_module("canary_module").VALUE

def missing(names):
    def absent():
        return [name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None]
    first = absent()
    importlib.invalidate_caches()
    second = absent()
    sys.path_importer_cache.clear()
    return first + second + absent()

def by_descriptor(folder):
    os.chdir(folder)
    return open("canary_module.py").read()

WAYS = {
    "list": lambda folder: [name for name in os.listdir(folder) if "canary" in name],
    "scan": lambda folder: [entry.name for entry in os.scandir(folder) if "canary" in entry.name],
    "walk": lambda folder: [name for _, folders, names in os.walk(folder) for name in folders + names if "canary" in name],
    "walk its parent": lambda folder: [f for f, _, names in os.walk(os.path.dirname(folder)) for n in names if "canary" in n],
    "glob": lambda folder: glob.glob(folder + "/canary*"),
    "iterate modules": lambda folder: [m.name for m in pkgutil.iter_modules([folder]) if "canary" in m.name],
    "open": lambda folder: open(folder + "/canary_module.py").read(),
    "open below": lambda folder: open(folder + "/canary_package/__init__.py").read(),
    "open another way": lambda folder: open(os.path.join(folder, "..", os.path.basename(folder), "canary_module.py")).read(),
    "change the folder": by_descriptor,
    "descriptor": lambda folder: os.read(os.open("canary_module.py", os.O_RDONLY, dir_fd=os.open(folder, os.O_RDONLY)), 9),
    "linecache": lambda folder: linecache.getlines(folder + "/canary_module.py"),
    "append": append,
    "insert": insert,
    "location": by_location,
    "finder": by_finder,
    "run": lambda folder: runpy.run_path(folder + "/canary_module.py")["VALUE"],
    "run a folder": lambda folder: runpy.run_path(folder + "/canary_package")["VALUE"],
    "zip": lambda folder: zipimport.zipimporter(folder + "/canary.whl").load_module("canary_zip").VALUE,
    "site": lambda folder: (site.addsitedir(folder), sys.canary_of_pth)[1],
    "metadata": lambda folder: [d.name for d in importlib.metadata.distributions(path=[folder]) if d.name],
    "list all": lambda folder: sorted(os.listdir(folder)),
    "import": lambda name: importlib.import_module(name).__name__,
    "version": importlib.metadata.version,
    "all metadata": lambda _: sorted(d.name for d in importlib.metadata.distributions()),
    "append a folder": lambda folder: (sys.path.append(folder), importlib.import_module("outcomes"))[1],
    "missing modules": missing,
    "library": lambda folder: ctypes.PyDLL(folder + "/canary_module.py"),
}

def main(settings, channel):
    while (message := channel.receive()) is not None:
        path = sys.path[:]
        try:
            found = WAYS[message[0]](message[1])
        except BaseException as error:
            found = "file too short" in str(error) and "it was read"  # a library would have been loaded
        sys.path[:] = path
        vars(sys).pop("canary_of_pth", None)
        linecache.clearcache()
        for name in [name for name in sys.modules if name.startswith("canary")]:
            del sys.modules[name]
        channel.send(repr(found) if found else "")
"""
SCRIPT = """
import json, sys
from pathlib import Path
from redraft.sandbox import Sandbox
runner, tier, folders, prefix, ways = Path(sys.argv[1]), sys.argv[2], *map(json.loads, sys.argv[3:6])
assert sys.base_prefix == prefix, sys.base_prefix
sandbox = Sandbox(tier)
assert sandbox.tier == tier
with sandbox.start(runner, None) as process:
    found = {f"{folder}: {way}": said for folder in folders for way in ways if (said := process.request([way, folder]))}
print(json.dumps(found))
"""


def plant(folder):
    """Write modules, a wheel, a .pth file and metadata that a program must not find."""
    (folder / "canary_package").mkdir(parents=True, exist_ok=True)
    for file in ("canary_module.py", "canary_package/__init__.py", "canary_package/__main__.py"):
        (folder / file).write_text("VALUE = 'canary'\n")
    (folder / "canary.pth").write_text("import sys; sys.canary_of_pth = 'canary'\n")
    with zipfile.ZipFile(folder / "canary.whl", "w") as wheel:
        wheel.writestr("canary_zip.py", "VALUE = 'canary'\n")
    (folder / "canary-1.dist-info").mkdir(exist_ok=True)
    (folder / "canary-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: canary\nVersion: 1\n"
    )


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An installed interpreter: a copy of this one's, with packages and other files in all places
    that may hold them.
    """
    prefix = tmp_path_factory.mktemp("prefix").resolve()
    base, left_out = (
        Path(sys.base_prefix),
        shutil.ignore_patterns(
            "__pycache__", "test", "idlelib", "lib2to3", "*-packages", "config-*"
        ),
    )
    shutil.copytree(
        sysconfig.get_path("stdlib"), prefix / "lib" / PYTHON, ignore=left_out, symlinks=True
    )
    for library in base.glob("lib/libpython*.so*"):
        shutil.copy(library, prefix / "lib", follow_symlinks=False)
    (prefix / "bin").mkdir()
    shutil.copy(Path(sys._base_executable).resolve(), prefix / "bin" / PYTHON)
    for place in PACKAGES:
        plant(prefix / place)
    (prefix / "lib" / "python3.2").symlink_to("python3.1")
    return prefix


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    path = tmp_path_factory.mktemp("runner") / "runner.py"
    path.write_text(RUNNER)
    return path


WAYS = (
    "list",
    "scan",
    "walk",
    "walk its parent",
    "glob",
    "iterate modules",
    "open",
    "open below",
    "open another way",
)
WAYS += (
    "change the folder",
    "descriptor",
    "linecache",
    "append",
    "insert",
    "location",
    "finder",
    "run",
    "run a folder",
    "zip",
)
WAYS += ("site", "metadata", "library")


def found_by(python, prefix, runner, tier, folders, ways=WAYS):
    """What a program in a sandbox of another interpreter finds."""
    packages = sysconfig.get_path("purelib")
    ended = subprocess.run(
        [python, "-c", SCRIPT, str(runner), tier, *map(json.dumps, (folders, str(prefix), ways))],
        env={
            **os.environ,
            "PYTHONPATH": f"{PROJECT / 'src'}:{packages}",
            "PYTHONUSERBASE": f"{prefix}/user",
            "PYTHONNOUSERSITE": "",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
@pytest.mark.parametrize(
    "environment", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["installed", "venv"]
)
def test_no_package_of_the_interpreter_is_found(prefix, runner, tmp_path, tier, environment):
    """Whatever the prefix holds beside the standard library cannot be listed, read or imported."""
    require_sandbox(tier)
    python, folders = prefix / "bin" / PYTHON, [str(prefix / place) for place in PACKAGES]
    if environment:
        venv = tmp_path / "venv"
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(python)
        (venv / "pyvenv.cfg").write_text(
            f"home = {python.parent}\ninclude-system-site-packages = false\n"
        )
        plant(venv / "lib" / PYTHON / "site-packages")
        python, folders = (
            venv / "bin" / "python",
            [str(venv / "lib" / PYTHON / "site-packages"), str(venv), folders[0]],
        )
    assert found_by(python, prefix, runner, tier, folders) == {}


@pytest.mark.slow  # it says something about the table of ways, not about the sandbox
def test_the_ways_find_packages_without_a_sandbox(prefix, runner):
    """Each way finds what lies there where nothing is hidden, so that the test above says
    something.
    """
    folder = str(prefix / PACKAGES[0])
    found = found_by(prefix / "bin" / PYTHON, prefix, runner, "unsafe", [folder])
    assert {name.partition(": ")[2] for name in found} == set(WAYS)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_named_packages_are_found_and_no_other(runner, tier):
    """The named package and those that it requires are found with their metadata; the others in
    that folder are absent.
    """
    require_sandbox(tier)
    folder = sysconfig.get_path("purelib")
    with Sandbox(tier, packages=["jsonschema"]).start(runner, None) as process:
        for name in ("jsonschema", "referencing"):  # what it requires
            assert process.request(["import", name]) == repr(name)
            assert process.request(["version", name]) == repr(metadata.version(name))
        for name in ("pytest", "flask", "pip"):
            assert process.request(["import", name]) == process.request(["version", name]) == ""
        assert "pytest" not in process.request(["all metadata", None])
        assert "jsonschema" in process.request(["all metadata", None])
        assert tier == "bubblewrap" or process.request(["list all", folder]) == ""
        assert "pytest" not in process.request(["list all", folder])
        assert process.request(["append a folder", f"{folder}/_pytest"]) == ""


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_folders_of_this_machine_that_no_program_needs(runner, tier):
    """Of /usr/local only libraries are seen, of /usr neither sources nor headers, and of other
    interpreters no packages.
    """
    require_sandbox(tier)
    folders = [
        "/usr/local",
        "/usr/local/etc",
        "/usr/local/share",
        "/usr/local/bin",
        "/usr/local/src",
        "/usr/src",
        "/usr/include",
    ]
    folders += [
        *map(str, Path("/usr/lib").glob("python3*/*-packages")),
        *map(str, Path("/usr/local/lib").glob("python3*/*-packages")),
    ]
    with Sandbox(tier).start(runner, None) as process:
        listed = {folder: process.request(["list all", folder]) for folder in folders}
    assert {
        folder: names
        for folder, names in listed.items()
        if names not in ("", "['lib']", "['lib', 'lib64']")
    } == {}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_the_standard_library_is_whole(runner, tier):
    """Each module of the standard library can be found, also after the import system forgets what
    it has listed.
    """
    require_sandbox(tier)
    expected = [n for n in sys.stdlib_module_names if importlib.util.find_spec(n) is not None]
    with Sandbox(tier).start(runner, None) as process:
        assert process.request(["missing modules", expected]) == ""


@pytest.mark.parametrize(
    ("base", "shown", "hidden"),
    [
        (
            "usr",
            ["usr/lib/{p}"],
            [
                "usr/lib/python3/dist-packages",
                "usr/lib/{p}/dist-packages",
                "usr/share/python-wheels",
            ],
        ),
        (
            "usr/local",
            ["usr/local/lib", "usr/local/bin/{p}"],
            ["usr/local/lib/{p}/site-packages", "usr/lib/python3/dist-packages"],
        ),
        (
            "opt/python",
            ["opt/python/lib", "opt/python/bin/{p}"],
            ["opt/python/lib/{p}/site-packages"],
        ),
        ("home/me", ["home/me/bin/{p}", "home/me/lib/{p}"], ["home/me/lib/{p}/site-packages"]),
    ],
)
def test_where_an_interpreter_may_be_installed(tmp_path, monkeypatch, base, shown, hidden):
    """Of the prefix only the executable and the folders of libraries are shown, of these no
    packages; of a home folder less.
    """
    root, home = tmp_path.resolve(), tmp_path.resolve() / "home" / "me"
    for name in ("usr/lib", "usr/share", "usr/local/lib", f"{base}/lib/{PYTHON}"):
        for place in (
            "",
            "python3/dist-packages",
            "ensurepip/_bundled",
            "site-packages",
            "dist-packages",
            "etc",
            "python-wheels",
        ):
            (root / name / place).mkdir(parents=True, exist_ok=True)
    for name in ("dist-packages", "site-packages", "ensurepip/_bundled"):
        (root / "usr" / "lib" / PYTHON / name).mkdir(parents=True, exist_ok=True)
    for name in (*("etc", "share", "include", "src"), "bin"):
        (root / base / name).mkdir(exist_ok=True)
    (root / base / "bin" / PYTHON).touch()
    monkeypatch.setattr(
        interpreter_module,
        "SYSTEM_FOLDERS",
        tuple(f"{root}{folder}" for folder in interpreter_module.SYSTEM_FOLDERS),
    )
    monkeypatch.setattr(sys, "_base_executable", str(root / base / "bin" / PYTHON))
    for name in ("base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str(root / base))
    monkeypatch.setenv("HOME", str(home))
    found = current_interpreter.__wrapped__()
    visible = [*interpreter_module.SYSTEM_FOLDERS, *found.files]
    for place in shown:
        assert any((root / place.format(p=PYTHON)).is_relative_to(folder) for folder in visible), (
            place
        )
    for place in hidden:
        assert any(
            (root / place.format(p=PYTHON)).is_relative_to(folder) for folder in found.hidden
        ), place
    for place in ("etc", "include", "src"):
        assert not any((root / base / place).is_relative_to(folder) for folder in visible), place
    assert not any((root / base / "lib" / PYTHON).is_relative_to(folder) for folder in found.hidden)
