"""Completion in the shell: what the Tab key proposes, and how it is installed."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
from io import FileIO
from pathlib import Path
from time import monotonic

import click
import pytest

from each_row import each_row
from in_process import run_in_process
from redraft.cli import COMMANDS, program
from redraft.cli.completion import completion_script
from require import require_program

SHELLS = ("bash", "zsh", "fish")
BIN = Path(sys.executable).parent  # has `redraft`
VARIABLE = "_REDRAFT_COMPLETE"


def proposals(line):
    """What bash gets for a line whose last word the user is typing: kinds and values."""
    words = line.split(" ")
    env = {VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = run_in_process([], env=env)
    assert (done.returncode, done.err) == (0, "")
    return [tuple(each.split(",", 1)) for each in done.out.split("\n") if each]


@each_row(
    "line, expected",
    [
        ("redraft ", [("plain", name) for name in COMMANDS]),
        ("redraft va", [("plain", "validate")]),
        ("redraft --vers", [("plain", "--version")]),
        ("redraft --install-completion z", [("plain", "zsh")]),
        ("redraft runs sh", [("plain", "show")]),
        ("redraft runs --jour", [("plain", "--journal")]),  # of `redraft runs list`
        ("redraft keys list --fol", [("plain", "--folder")]),
        ("redraft validate --recor", [("plain", "--recorded")]),
        ("redraft validate --formats --recor", [("plain", "--recorded")]),  # prints no list
        (
            "redraft validate data.jsonl --kind p",
            [("plain", "pass"), ("plain", "pair")],
        ),
        ("redraft gate a b --undecided ", [("plain", "pass"), ("plain", "fail")]),
        ("redraft run x --schema ans", [("file", "ans")]),
        ("redraft validate da", [("file", "da")]),
        ("redraft graders --cards-dir ", [("dir", "")]),
        ("redraft nonsense --kind", []),
    ],
)
def test_proposals(line, expected):
    """Commands, options, choices, and files where a file may be named."""
    assert proposals(line) == expected


@each_row(
    "line, expected",
    [
        ("redraft run x --grader helpfu", ("plain", "helpfulness")),
        ("redraft validate data.jsonl --grader pairw", ("plain", "pairwise")),
        ("redraft graders helpfu", ("plain", "helpfulness")),
        ("redraft batch in.jsonl --require word", ("plain", "words")),
        ("redraft run x --grader graders.p", ("file", "graders.p")),
    ],
)
def test_names_of_graders_and_requirements_are_proposed(line, expected):
    """And for a grader a file, whose function may be named."""
    assert expected in proposals(line)


def test_a_requirement_is_no_judge():
    """--require takes no grader that gives a score."""
    names = {value for _, value in proposals("redraft run x --require ")}
    assert "words" in names and not names & {"helpfulness", "judge", "tests"}


def test_names_of_runs_are_proposed(redraft, monkeypatch):
    """Those in the journals of this folder, or in --journal; one that is damaged proposes none."""
    monkeypatch.chdir(redraft.folder)
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p", "response": "one two"}\n')
    arguments = ("batch", "in.jsonl", "--model", "none", "--require", "words:1-5")
    assert redraft(*arguments, "-o", "first.jsonl").returncode == 0
    assert redraft(*arguments, "-o", "second.jsonl", "--journal", "other").returncode == 0
    (redraft.folder / "bad.journal").write_bytes(b"no journal")
    for command in ("runs show", "runs export", "runs prune", "export", "view", "label"):
        assert proposals(f"redraft {command} fir") == [("file", "fir"), ("plain", "first.jsonl")]
        assert proposals(f"redraft {command} --journal other sec") == [
            ("file", "sec"),
            ("plain", "second.jsonl"),
        ]


def parameters(command, name):
    """Each option and argument of a command and of those in it, with the name of the command."""
    for param in command.params:
        yield name, param
    for sub, each in getattr(command, "commands", {}).items():
        yield from parameters(each, f"{name} {sub}")


NAMES_FILES = re.compile(r"\b(FILE|DIR|TRACE|RUN|DATA|TASKS|SOURCE|JOURNAL|A|B)\b|^IN")


@each_row("name", COMMANDS)
def test_where_a_file_can_be_named_files_are_proposed(name):
    """Every option and argument whose name in the help says so."""
    context = click.Context(program)
    for path, param in parameters(program.get_command(context, name), name):
        shown = param.metavar or str(param.name).upper() * isinstance(param, click.Argument)
        if NAMES_FILES.search(shown):
            kinds = {item.type for item in param.shell_complete(context, "zz")}
            assert kinds & {"file", "dir"}, f"{path}: {param.opts[0]} {shown}"


def test_commands_are_proposed_without_importing_any():
    """The Tab key after `redraft` must not wait."""
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules))\n"
        "from redraft.cli import main; sys.argv[1:] = []; main()"
    )
    env = {VARIABLE: "bash_complete", "COMP_WORDS": "redraft ", "COMP_CWORD": "1"}
    out = subprocess.check_output([sys.executable, "-c", code], env=os.environ | env, text=True)
    assert "plain,validate\n" in out
    loaded = set(out.splitlines()[-1].split())
    assert not [m for m in loaded if m.startswith(("redraft.cli.commands", "redraft.settings"))]


PROTOCOLS = {  # how the script of each shell asks, and what it gets
    "bash": ({"COMP_WORDS": "redraft val", "COMP_CWORD": "1"}, "plain,validate"),
    "zsh": (
        {"COMP_WORDS": "redraft val", "COMP_CWORD": "1"},
        "plain\nvalidate\nMeasure a grader against labels of people.",
    ),
    "fish": (
        {"COMP_WORDS": "redraft val", "COMP_CWORD": "val"},
        "plain,validate\tMeasure a grader against labels of people.",
    ),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_process_answers_the_script_of_each_shell(shell):
    """The script names the variable, and `redraft` answers it: also where the shell is missing."""
    assert f"{VARIABLE}={shell}_complete" in completion_script(shell)
    asked, expected = PROTOCOLS[shell]
    env = os.environ | asked | {VARIABLE: f"{shell}_complete"}
    assert subprocess.check_output([BIN / "redraft"], env=env, text=True).rstrip("\n") == expected


def start_file(home, shell):
    """The file in which the user's own lines are."""
    return home / (".config/fish/completions/redraft.fish" if shell == "fish" else f".{shell}rc")


def install(home, *arguments, **env):
    """Install completion for a user with this home."""
    unset = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME", "REDRAFT_HOME", "ZDOTDIR"), "")
    env = {**unset, "HOME": str(home), "SHELL": "/bin/none", **env}
    return run_in_process(["--install-completion", *arguments], env=env)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("own", [None, b"", b"own=1\n", b"own=1"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_second_installation_changes_nothing_and_the_users_lines_stay(tmp_path, shell, own):
    """The user's file is appended to once, on a line of its own."""
    file = start_file(tmp_path, shell)
    if own is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(own)
    first = install(tmp_path, shell)
    once = contents(tmp_path)
    second = install(tmp_path, shell)
    assert (first.returncode, second.returncode) == (0, 0)
    assert contents(tmp_path) == once
    kept, written = once[file][: len(own or b"")], once[file][len(own or b"") :]
    assert kept == (own or b"") and b"redraft" in written
    assert written.startswith(b"\n") == (own == b"own=1")
    assert f"written to {next(iter(once)) if shell == 'fish' else ''}" in first.err
    assert str(file) in first.err and f"`exec {shell}`" in first.err
    assert "already" in second.err


def test_the_script_is_replaced_by_a_newer_one(tmp_path):
    """The script in the data folder is ours; the start file, which names it, stays as it is."""
    install(tmp_path, "bash")
    once = contents(tmp_path)
    script = next(path for path in once if path.name == "completion.bash")
    script.write_text("old")
    assert "written" in install(tmp_path, "bash").err
    assert contents(tmp_path) == once


def test_the_shell_is_that_of_the_user(tmp_path):
    """`$SHELL` says which, unless one is named."""
    install(tmp_path, SHELL="/usr/local/bin/zsh")
    assert (tmp_path / ".zshrc").exists() and not (tmp_path / ".bashrc").exists()
    done = run_in_process(["--show-completion"], env={"SHELL": "/usr/bin/fish"})
    assert done.out.strip() == completion_script("fish")


@each_row(
    "arguments, shell, said",
    [
        (["tcsh"], "/bin/bash", "'tcsh' is not one of 'auto', 'bash', 'zsh', 'fish'"),
        ([], "/bin/tcsh", "$SHELL is '/bin/tcsh': name the shell, one of bash, zsh, fish"),
        ([], "", "$SHELL is not set: name the shell, one of bash, zsh, fish"),
    ],
)
def test_an_unknown_shell_is_an_error(arguments, shell, said):
    """It names those that are allowed."""
    for option in ("--install-completion", "--show-completion"):
        done = run_in_process([option, *arguments], env={"SHELL": shell})
        assert (done.returncode, done.out) == (2, "") and said in done.err


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    """It names the file, and how to do it by hand."""
    (tmp_path / ".bashrc").mkdir()
    done = install(tmp_path, "bash")
    assert done.returncode == 1
    assert ".bashrc: Is a directory" in done.err and "--show-completion" in done.err


def take_terminal():
    """Let the terminal on stdin be that of this session, as fish demands."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A shell in a terminal, as a user has it."""

    def __init__(self, shell, home):
        self.screen, self.seen = None, b""
        ours, theirs = pty.openpty()
        env = {
            "HOME": str(home),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "TERM": "dumb" if shell != "fish" else "xterm",
            "LANG": "C.UTF-8",
        }
        self.process = subprocess.Popen(
            [require_program(shell), "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=home,
            env=env,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self.screen = FileIO(ours, "r+")

    def type(self, keys):
        self.screen.write(keys.encode())

    def wait_for(self, text):
        """Read until the terminal shows a text that it did not show before."""
        end, start = monotonic() + 60, len(self.seen)
        while text.encode() not in self.seen[start:]:
            left = max(0, end - monotonic())
            assert select.select([self.screen], [], [], left)[0], self.seen.decode()
            self.seen += os.read(self.screen.fileno(), 65536)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.screen.close()


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_in_the_real_shell(tmp_path, shell):
    """A new shell of a user who has installed completion completes commands and files."""
    require_program(shell)
    assert install(tmp_path, shell).returncode == 0
    (tmp_path / "labelled-answers.jsonl").touch()
    terminal = Terminal(shell, tmp_path)
    try:
        terminal.type("echo rea''dy\n")
        terminal.wait_for("ready")
        terminal.type("redraft valid\t")
        terminal.wait_for("ate ")
        terminal.type("labelled\t")
        terminal.wait_for("answers.jsonl")
        terminal.type(" --rep\t")
        terminal.wait_for("eats")
    finally:
        terminal.close()
