"""Settings that were found in a folder or in a trace: what they may not choose without consent, and
how to give consent.
"""

import json
import os
import shlex
from pathlib import Path

import pytest

from redraft import Task, Trace
from redraft.cli import main, program
from redraft.cli.options import SettingOption
from redraft.models.model_names import PREFIXES, VENDORS

from .chat_server import writer_and_judge

HOSTILE = {  # settings, with {url} for a server and {outside} for another folder
    "model at an address": {"model": "{url}"},
    "judge at an address": {"judge": "{url}"},
    "address after another model": {"model": "openai:m, {url}"},
    "model file after another model": {"model": "openai:m,local:m.gguf"},
    "address after a provider": {"model": "ollama:{url}"},
    "address without a known scheme": {"judge": "openai://127.0.0.1/v1#m"},
    "model file": {"model": "local:m.gguf"},
    "judge's model file": {"judge": "local:m.gguf"},
    "grader at an address": {"grader": ["embedding:{url}"]},
    "moderation at an address": {"grader": ["moderation:{url},flagged=true"]},
    "grader at an address in a jury": {"grader": ["clarity", "jury:clarity,embedding:{url}"]},
    "jury in a jury": {"grader": ["jury:jury:judge:{outside}/rubric.toml"]},
    "code in a file": {"grader": ["evil.py:grade"]},
    "code in a module": {"grader": ["evil:Grader"]},
    "code in a file elsewhere": {"grader": ["{outside}/evil.py:grade"]},
    "reward at an address": {"grader": ["reward:{url}"]},
    "rubric of a judge": {"grader": ["judge:{outside}/rubric.toml"]},
    "rubric of a judge above": {"grader": ["judge:../outside/rubric.toml"]},
    "rubric of a ranker": {"grader": ["ranker:{outside}/rubric.toml"]},
    "rubric of pairs": {"grader": ["jury:pairwise:{outside}/rubric.toml"]},
    "questions elsewhere": {"grader": ["checklist:{outside}/rubric.toml"]},
    "schema elsewhere": {"require": ["words:1-9", "json_schema:{outside}/schema.json"]},
    "schema above": {"require": ["json_schema:../outside/schema.json"]},
    "schema as a grader": {"grader": ["json_schema:{outside}/schema.json"]},
    "schema behind a link": {"require": ["json_schema:link.json"]},
    "rubric elsewhere": {"rubric": "{outside}/rubric.toml"},
    "rubric behind a link": {"rubric": "folder/rubric.toml"},
    "prompt elsewhere": {"refine-prompt": "{outside}/rubric.toml"},
    "prompt above": {"draft-prompt": "../outside/rubric.toml"},
    "plan elsewhere": {"plan": "{outside}/plan.toml"},
    "plan behind a link": {"plan": "folder/plan.toml"},
    "priors of a plan elsewhere": {"plan": "plan.toml"},
    "priors of a plan above": {"plan": "plans/above.toml"},
    "priors of a plan above, after a blank": {"plan": "plans/blank.toml"},
    "priors of a plan behind a link": {"plan": "linked.toml"},
    "type of the answer in a file": {"answer": "evil.py:Answer"},
    "type of the answer in a module": {"answer": "evil:Answer"},
    "schema of the answer elsewhere": {"schema": "{outside}/schema.json"},
    "cards elsewhere": {"cards-dir": "{outside}"},
    "no sandbox": {"sandbox": "unsafe"},
    "an image as the sandbox": {"sandbox": "docker:evil/image"},
    "a package in the sandbox": {"packages": ["pip"]},
    "tests that can be forged": {"trust-in-process": True},
    "no sandbox for a grader": {"grader": ["tests:sandbox=unsafe"]},
    "tests of a grader that can be forged": {
        "grader": ["jury:exact,tests: trust_in_process = true"]
    },
}
IN_TRACES = [
    name
    for name, table in HOSTILE.items()
    if not {"rubric", "refine-prompt", "draft-prompt", "plan"} & table.keys()
]
"""Without rubrics, prompts and plans: a trace has their texts and settings."""


def toml(table):
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def example_of(table, **values):
    return json.loads(
        json.dumps(table)
        .replace("{url}", values["url"])
        .replace("{outside}", str(values["outside"]))
    )


class World:
    """An untrusted folder, a folder with private files beside it, and a server that counts
    calls.
    """

    def __init__(self, folder, server, monkeypatch, capsys):
        self.server, self.capsys = server, capsys
        self.outside = folder / "outside"
        self.stranger = folder / "stranger's"
        self.outside.mkdir()
        self.stranger.mkdir()
        (self.outside / "schema.json").write_text('{"type": "string", "const": "CANARY"}')
        (self.outside / "rubric.toml").write_text('[criteria]\nc = "CANARY"\n')
        (self.outside / "priors.json").write_text("CANARY")
        (self.outside / "plan.toml").write_text('CANARY = "CANARY"\n')
        (self.stranger / "plan.toml").write_text(f"priors = '{self.outside}/priors.json'\n")
        (self.stranger / "plans").mkdir()
        above = 'priors = "../../outside/priors.json"\n'
        (self.stranger / "plans" / "above.toml").write_text(above)
        (self.stranger / "plans" / "blank.toml").write_text(above.replace('"', '" ', 1))
        # beside the link it names a file outside, beside its target one that is in the folder
        near = 'priors = "../outside/priors.json"\n'
        (self.stranger / "plans" / "near.toml").write_text(near)
        (self.stranger / "linked.toml").symlink_to("plans/near.toml")
        (self.stranger / "plans" / "own.toml").write_text('priors = "learned"\n')
        (self.outside / "evil.py").write_text("open('CANARY', 'w')\n")
        (self.stranger / "evil.py").write_text("open('CANARY', 'w')\n")
        (self.stranger / "link.json").symlink_to("../outside/schema.json")
        (self.stranger / "folder").symlink_to(self.outside)
        monkeypatch.chdir(self.stranger)

    def settings(self, table):
        return example_of(table, url=self.server.model, outside=self.outside)

    def __call__(self, *args):
        code = main([str(arg) for arg in args])
        out, err = self.capsys.readouterr()
        return code, out, err

    def write(self, table, name="redraft.toml"):
        head = "[tool.redraft]\n" if name == "pyproject.toml" else ""
        (self.stranger / name).write_text(head + toml(self.settings(table)))

    def write_trace(self, table, name="t.jsonl"):
        settings = self.settings(table)
        task = Task("Say it", requirements=settings.pop("require", ["words:1-9"]))
        (self.stranger / name).write_text(
            json.dumps(Trace(task, settings=settings).header()) + "\n"
        )

    def run(self, *args):
        return self("run", "Say it", "--max-iterations", "0", *args)

    def is_refused(self, code, out, err, place):
        # a batch prints JSON
        said = json.loads(err.splitlines()[-1])["message"] if err.startswith("{") else err
        assert (code, out) == (2, "") and f"redraft trust {shlex.quote(str(place))}" in said, err
        assert self.server.calls == 0 and "CANARY" not in err
        assert not (self.stranger / "CANARY").exists() and not (self.outside / "CANARY").exists()


@pytest.fixture
def world(tmp_path, serve, monkeypatch, capsys):
    return World(tmp_path, serve(writer_and_judge(["fine"], [5])), monkeypatch, capsys)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("place", ["redraft.toml", "pyproject.toml"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_sensitive_settings_of_a_found_file_need_consent(world, kind, place):
    """Nothing is sent, read or run; exit code 2, and the message names the command that allows
    it.
    """
    world.write(HOSTILE[kind], place)
    more = [] if "model" in HOSTILE[kind] else ["--model", world.server.model]
    world.is_refused(*world.run(*more), world.stranger)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("kind", IN_TRACES)
def test_sensitive_settings_of_a_foreign_trace_need_consent(world, kind):
    """The same holds for settings and requirements of a trace that is resumed."""
    world.write_trace(HOSTILE[kind])
    more = [] if "model" in HOSTILE[kind] else ["--model", world.server.model]
    world.is_refused(*world("run", "--resume", "t.jsonl", *more), world.stranger / "t.jsonl")


def test_a_grader_of_another_package_needs_consent(world, tmp_path, monkeypatch):
    """Loading it runs its code."""
    (tmp_path / "spy.py").write_text(
        "open('CANARY', 'w').close()\n\ndef grade(text):\n    return 1.0\n"
    )
    about = tmp_path / "spy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[redraft.graders]\nspy = spy:grade\n")
    monkeypatch.syspath_prepend(tmp_path)
    world.write({"grader": ["jury:clarity,spy"]})
    world.is_refused(*world.run("--model", world.server.model), world.stranger)
    assert world("trust", ".", "--yes")[0] == 0
    world.run("--model", world.server.model)
    assert (world.stranger / "CANARY").exists()


def test_requirements_among_the_settings_of_a_trace_need_consent(world):
    """They override those of its task."""
    task = Task("Say it", requirements=["words:1-9"])
    settings = world.settings(
        {"model": "openai:m", "require": ["json_schema:{outside}/schema.json"]}
    )
    (world.stranger / "t.jsonl").write_text(
        json.dumps(Trace(task, settings=settings).header()) + "\n"
    )
    world.is_refused(*world("run", "--resume", "t.jsonl"), world.stranger / "t.jsonl")


@pytest.mark.parametrize(
    "command",
    [
        ("best", "Say it"),
        ("grade", "Say it", "--response", "evil.py"),
        ("batch", "rows.jsonl", "-o", "out.jsonl"),
        ("validate", "rows.jsonl", "--grader", "clarity"),
        ("rubric", "--from", "rows.jsonl"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_asks_for_consent(world, command):
    """Every command that reads settings from files refuses sensitive ones."""
    world.write({"model": "{url}"})
    (world.stranger / "rows.jsonl").write_text('{"prompt": "a", "response": "b", "label": 1}\n')
    world.is_refused(*world(*command), world.stranger)
    assert not (world.stranger / "out.jsonl").exists()


def test_learning_from_a_trace_needs_consent_too(world):
    """`priors learn` makes the graders that a trace names."""
    world.write_trace({"model": "openai:m", "grader": ["judge:{outside}/rubric.toml"]})
    world.is_refused(*world("priors", "learn", "t.jsonl"), world.stranger / "t.jsonl")


def test_consent_covers_the_sensitive_settings_until_one_changes(world):
    """An edited target needs no new consent, an edited host or file does; consents can be listed
    and revoked.
    """
    hostile = {"model": "{url}", "require": ["json_schema:{outside}/schema.json"]}
    world.write({**hostile, "target-score": 0.5})
    code, out, _ = world("trust", ".", "--yes")
    assert code == 0 and world.server.model in out and str(world.outside / "schema.json") in out
    assert world.run()[0] == 3 and world.server.calls > 0  # it is not CANARY
    assert "CANARY" in str(world.server.asked)
    world.write({**hostile, "target-score": 0.6, "drafts": 2})
    assert world.run()[0] == 3
    code, out, _ = world("trust", "--list")
    assert code == 0 and str(world.stranger) in out and world.server.model in out

    kept = Path(os.environ["REDRAFT_HOME"], "trust")
    assert [path.stat().st_mode & 0o777 for path in (kept, *kept.iterdir())] == [0o700, 0o600]

    world.server.asked.clear()
    for changed in (
        {**hostile, "model": "{url}2"},
        {**hostile, "judge": "{url}"},
        {**hostile, "require": [f"json_schema:{world.outside}/./other.json"]},
    ):
        world.write(changed)
        world.is_refused(*world.run(), world.stranger)
    world.write(hostile)
    assert world("trust", "--revoke", ".")[0] == 0
    world.is_refused(*world.run(), world.stranger)
    assert world("trust", "--revoke", ".")[0] == 2


def test_a_changed_link_needs_new_consent(world):
    """Consent is given to the target of a link."""
    world.write({"require": ["json_schema:link.json"]})
    assert world("trust", ".", "--yes")[0] == 0
    (world.outside / "more.json").write_text('{"const": "CANARY"}')
    (world.stranger / "link.json").unlink()
    (world.stranger / "link.json").symlink_to("../outside/more.json")
    world.is_refused(*world.run("--model", world.server.model), world.stranger)


def test_a_trace_is_resumed_after_consent(world):
    """Consent holds after the trace was moved; options on the command line need none."""
    world.write_trace({"model": "{url}", "target-score": 0.7})
    world.is_refused(*world("run", "--resume", "t.jsonl"), world.stranger / "t.jsonl")
    assert world("trust", "t.jsonl", "--yes")[0] == 0
    (world.stranger / "t.jsonl").rename(world.stranger / "u.jsonl")
    code, out, err = world("run", "--resume", "u.jsonl")
    assert (code, out) == (
        0,
        "fine\n",
    ) and "settings from u.jsonl; model at http://127.0.0.1:" in err

    world.write_trace({"model": "http://127.0.0.1:9/v1#other"})
    assert world("run", "--resume", "t.jsonl", "--model", world.server.model)[:2] == (0, "fine\n")


def test_a_users_own_traces_need_no_consent(world):
    """A trace of this user's run can be resumed; with an address added it needs consent."""
    rubric = ("--grader", f"judge:{world.outside / 'rubric.toml'}", "--model", world.server.model)
    (world.stranger / "redraft.toml").write_text("target-score = 0.5\n")
    world.server.answer = lambda messages, n: "no JSON"
    world.run(*rubric, "--trace", "t.jsonl")
    assert world.server.calls
    before = world.server.calls
    world("run", "--resume", "t.jsonl")
    assert world.server.calls > before
    world.server.asked.clear()
    head, *rest = (world.stranger / "t.jsonl").read_text().splitlines()
    changed = json.loads(head)
    changed["settings"]["judge"] = "http://127.0.0.1:9/v1#spy"
    (world.stranger / "t.jsonl").write_text("\n".join([json.dumps(changed), *rest, ""]))
    world.is_refused(*world("run", "--resume", "t.jsonl"), world.stranger / "t.jsonl")


@pytest.mark.parametrize(
    "way",
    [
        "typed",
        "environment",
        "config file",
        "own configuration",
        "REDRAFT_TRUST",
        "REDRAFT_TRUST above",
    ],
)
def test_settings_chosen_by_the_user_need_no_consent(world, monkeypatch, tmp_path, way):
    """These are the command line, the environment, --config FILE, the user's own configuration, and
    folders in REDRAFT_TRUST.
    """
    typed = ()
    if way == "typed":
        world.write({"model": "http://127.0.0.1:9/v1#spy"})
        typed = ("--model", world.server.model)
    elif way == "environment":
        world.write({"model": "http://127.0.0.1:9/v1#spy"})
        monkeypatch.setenv("REDRAFT_MODEL", world.server.model)
    elif way == "config file":
        world.write({"model": "http://127.0.0.1:9/v1#spy"})
        (tmp_path / "mine.toml").write_text(toml({"model": world.server.model}))
        typed = ("--config", tmp_path / "mine.toml")
    elif way == "own configuration":
        world.write({"target-score": 0.8})
        Path(os.environ["REDRAFT_HOME"], "config.toml").write_text(
            toml({"model": world.server.model, "target-score": 0.2})
        )
    else:
        world.write({"model": "{url}"})
        trusted = world.stranger if way == "REDRAFT_TRUST" else tmp_path
        monkeypatch.setenv("REDRAFT_TRUST", os.pathsep.join(["/nowhere", str(trusted)]))
    code, out, err = world.run(*typed, "--trace", "t.jsonl")
    assert (code, out) == (0, "fine\n"), err
    target = json.loads((world.stranger / "t.jsonl").read_text().splitlines()[0])["settings"][
        "target-score"
    ]
    assert target == (0.8 if way == "own configuration" else 0.9)


@pytest.mark.parametrize(
    "table",
    [
        {"model": "openai:gpt-4o-mini", "judge": "anthropic:claude-sonnet-4-5"},
        {
            "grader": [
                "clarity",
                "jury:clarity,honesty",
                "exact:case=false",
                "embedding:openai:text-embedding-3-small",
            ]
        },
        {
            "require": [
                "contains:http://x",
                "regex://",
                "json_schema:schema.json",
                'json_schema:{"type":"object"}',
            ]
        },
        {"rubric": "rubric.toml", "cards": "cards", "plan": "plans/own.toml"},
        {"grader": ["judge:rubric.toml", "checklist:./rubric.toml"]},
        {"target-score": 0.5, "price": ["http://x=1,2"]},
        {"answer": "code:python", "sandbox": "bubblewrap", "trust-in-process": False},
        {"grader": ["tests", "tests:cpu_seconds=2"]},
        {"schema": "schema.json"},
    ],
    ids=lambda table: "+".join(table),
)
def test_harmless_settings_need_no_consent(world, table):
    """These are named providers, requirements, and files within the folder."""
    (world.stranger / "rubric.toml").write_text('[criteria]\nc = "good"\n')
    (world.stranger / "schema.json").write_text('{"type": "string"}')
    world.write(table)
    code, _, err = world("trust", ".", "--yes")
    assert code == 0 and "nothing that needs consent" in err


def test_every_setting_and_every_kind_of_model_is_classified():
    """A text setting is a model, a spec, a path or harmless; a model is a named provider or needs
    consent.
    """

    from redraft.cli.consent import MODEL_SETTINGS, PATH_SETTINGS
    from redraft.graders.execution import EXECUTION_FIELDS

    execution = {name.replace("_", "-") for name in EXECUTION_FIELDS}
    harmless = {"require-validated", "column", "price", "durability", "on-duplicate", "weight"}
    named = {"openai:", "ollama:", "lmstudio:", "llamacpp:", "vllm:", *(f"{v}:" for v in VENDORS)}
    for name in ("run", "best", "grade", "batch", "validate", "rubric"):
        for p in program.get_command(None, name).params:
            if (
                isinstance(p, SettingOption)
                and not p.is_flag
                and p.type.name in {"text", "choice", "path", "file", "directory", "_check_price"}
            ):
                assert (
                    p.key
                    in {
                        *MODEL_SETTINGS,
                        *PATH_SETTINGS,
                        "answer",
                        "schema",
                        *execution,
                        "grader",
                        "require",
                    }
                    | harmless
                ), p.key
    assert set(PREFIXES) == named | {"local:", "http://", "https://"}


def test_a_folder_cannot_give_consent_to_itself(world, monkeypatch):
    """Where REDRAFT_HOME is in the folder, its consents and configuration are not the user's
    own.
    """
    monkeypatch.setenv("REDRAFT_HOME", "own")
    world.write({"model": "{url}"})
    for given in (world("trust", ".", "--yes"), world.run()):
        assert given[0] == 2 and "REDRAFT_HOME" in given[2]
    (world.stranger / "own").mkdir(exist_ok=True)
    (world.stranger / "own" / "config.toml").write_text(toml({"model": world.server.model}))
    world.write({"target-score": 0.5})
    code, _, err = world.run()
    assert (code, world.server.calls) == (2, 0) and "config.toml" in err


def test_the_consent_prompt_shows_the_real_host(world):
    """It has no control sequences and no passwords."""
    table = {
        "model": "http://evil.example?@openai.com/v1#m",
        "grader": ["embedding:http://u:hunter22@h/v1?key=hunter22#e"],
    }
    world.write(
        {
            **table,
            "judge": "http://h/\u001b[2Jv1#m\u202e",
            "rubric": "/\u001b]0;x\u0007/etc\n/passwd.toml",
        }
    )
    code, out, err = world("trust", ".")
    assert code == 2 and "--yes" in err
    assert "http://evil.example#m" in out and "hunter22" not in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out) and len(out.splitlines()) == 5


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_asks_for_consent(world, monkeypatch, answer):
    """Without --yes a person answers."""
    ours, theirs = os.openpty()
    os.write(ours, f"{answer}\n".encode())
    world.write({"model": "{url}"})
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        code, out, _ = world("trust", ".")
    os.close(ours)
    assert code == (0 if answer == "y" else 1) and world.server.model in out
    assert world.run()[0] == (0 if answer == "y" else 2)


FILES = {
    "huge": (lambda path: path.write_text("#" * 2_000_000), "more than 1,048,576 bytes"),
    "deep": (lambda path: path.write_text("a = " + "[" * 100_000), "redraft.toml"),
    "not UTF-8": (lambda path: path.write_bytes(b'model = "\xff"\n'), "utf-8"),
    "a pipe": (os.mkfifo, "a pipe or a device"),
    "a folder": (os.mkdir, "redraft.toml"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "a pipe or a device"),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "redraft.toml"),
    "a key without end": (
        lambda path: path.write_text(f"{'a.' * 300_000}a = 1\n"),
        "more than 30 parts",
    ),
    "a quoted key without end": (
        lambda path: path.write_text('["\\""' + "  . '.'" * 100_000 + "]\n"),
        "more than 30 parts",
    ),
    "a number without end": (
        lambda path: path.write_text(f"target-score = 0x{'f' * 100_000}\n"),
        "digits",
    ),
    "a number too large": (
        lambda path: path.write_text(f"target-score = 0x{'f' * 3_000}\n"),
        "target-score must be a number",
    ),
    "no number": (
        lambda path: path.write_text("target-score = nan\n"),
        "target-score must be a number in [0, 1], got nan",
    ),
    "a name that no file has": (
        lambda path: path.write_text('rubric = "a\\u0000"\n'),
        "rubric must be the path of a file",
    ),
    "juries without end": (
        lambda path: path.write_text(f'grader = ["{"jury:" * 5_000}clarity"]\n'),
        "more than 200 graders",
    ),
    "a long value": (
        lambda path: path.write_text(f"model = [{'1, ' * 50_000}]\n"),
        "model must be text",
    ),
    "a long name": (lambda path: path.write_text(f'rubric = "{"a" * 100_000}"\n'), "rubric"),
    "no table of ours": (lambda path: path.write_text("[[model]]\n"), "model must be"),
}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("kind", FILES)
def test_a_configuration_path_that_is_no_file_is_an_error(world, kind):
    """The error comes at once and names it; the path is never skipped."""
    make, said = FILES[kind]
    make(world.stranger / "redraft.toml")
    code, _, err = world.run(*([] if kind == "a long value" else ["--model", "none"]))
    assert (
        code == 2
        and "redraft.toml" in err
        and said in err
        and len(err) < 2000
        and err.count("\n") == 1
    )


def test_a_setting_that_names_a_pipe_does_not_block(world):
    """Reading the pipe could block for ever."""
    os.mkfifo(world.stranger / "pipe.toml")
    world.write({"rubric": "pipe.toml"})
    code, _, err = world.run("--model", world.server.model)
    assert (code, world.server.calls) == (2, 0) and "pipe.toml" in err


def test_paths_in_settings_are_relative_to_their_file(world):
    """This includes paths in the names of graders, from any folder of the repository."""
    (world.stranger / ".git").mkdir()
    (world.stranger / "rubric.toml").write_text('[criteria]\nwarmth = "It is kind."\n')
    world.write({"grader": ["jury:judge:rubric.toml,judge:rubric.toml"], "rubric": "rubric.toml"})
    below = world.stranger / "below"
    below.mkdir()
    os.chdir(below)
    world.server.answer = lambda messages, n: "fine"
    world.run("--model", world.server.model)
    assert "warmth" in str(world.server.asked)


def test_redraft_trust_does_not_take_values_of_require_validated(world, monkeypatch):
    """REDRAFT_TRUST names folders: such a value is an error."""
    monkeypatch.setenv("REDRAFT_TRUST", "error")
    code, _, err = world.run("--model", "none", "--require", "words:1-9")
    assert code == 2 and "REDRAFT_REQUIRE_VALIDATED=error" in err
    monkeypatch.delenv("REDRAFT_TRUST")
    monkeypatch.setenv("REDRAFT_REQUIRE_VALIDATED", "error")
    code, _, err = world.run("--model", world.server.model)
    assert code == 2 and "redraft validate" in err


@pytest.mark.filterwarnings("ignore:grader 'judge' is not trusted")
@pytest.mark.parametrize("own", ["file", "environment"])
@pytest.mark.parametrize("where", ["redraft.toml", "t.jsonl"])
def test_found_settings_do_not_lower_require_validated(world, monkeypatch, tmp_path, where, own):
    """A user who refuses unvalidated graders refuses them in an untrusted folder, too; --trust and
    --config may allow them.
    """
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    if own == "environment":
        monkeypatch.setenv("REDRAFT_REQUIRE_VALIDATED", "error")
    else:
        (tmp_path / "home" / "config.toml").write_text('require-validated = "error"\n')
    write = world.write if where == "redraft.toml" else world.write_trace
    write({"require-validated": "warn"})
    args = ("run", "Say it") if where == "redraft.toml" else ("run", "--resume", where)
    args = (*args, "--grader", "judge")
    code, _, err = world(*args, "--model", world.server.model)
    assert (code, world.server.calls) == (2, 0) and "redraft validate" in err
    code, _, err = world(*args, "--model", world.server.model, "--require-validated", "warn")
    assert code == 0, err


def test_every_run_says_where_settings_came_from(world):
    """It says so once, with the host and without the secrets of its address; if all settings are
    options it says nothing.
    """
    world.write({"target-score": 0.8})
    address = world.server.model.replace("://", "://me:hunter22@").replace("#", "?key=hunter22#")
    _, _, err = world.run("--model", address)
    host = world.server.model.partition("#")[0]
    assert (
        err.count(f"settings from redraft.toml; model at {host}\n") == 1 and "hunter22" not in err
    )
    _, _, err = world("grade", "x", "--response", "evil.py", "--require", "words:1-9")
    assert "settings from" not in err  # there is no target here
    (world.stranger / "redraft.toml").unlink()
    assert "settings from" not in world.run("--model", world.server.model)[2]


def test_a_case_of_the_demo_reads_files_beside_it_only(world):
    """A foreign case cannot show another file."""
    for response, require in (
        ("../outside/schema.json", "words:1-9"),
        ("evil.py", "json_schema:link.json"),
    ):
        table = {"title": "x", "prompt": "y", "response": response, "require": [require]}
        (world.stranger / "case.toml").write_text(toml(table))
        code, out, err = world("demo", ".")
        assert code == 2 and "case.toml" in err and "CANARY" not in out + err


DOCKER = {"auths": {"https://index.docker.io/v1/": {"auth": "CANARY"}}, "credsStore": "desktop"}
SCHEMA = {
    "type": "object",
    "title": "CANARY",
    "x-internal": {"note": "CANARY"},
    "$comment": "CANARY",
    "default": {"name": "CANARY"},
    "properties": {
        "name": {"type": "string", "maxLength": 9, "description": "CANARY", "examples": ["CANARY"]},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    "body",
    [
        DOCKER,
        {},
        {"$schema": "https://json.schemastore.org/package", "token": "CANARY"},
        [1],
        "CANARY",
    ],
)
def test_a_file_that_is_no_schema_is_refused(world, body):
    """Its text is not sent, and is not in the error."""
    (world.stranger / "config.json").write_text(json.dumps(body))
    code, _, err = world.run("--model", world.server.model, "--require", "json_schema:config.json")
    assert (code, world.server.calls) == (2, 0) and "config.json" in err and "CANARY" not in err


@pytest.mark.parametrize("way", [["--require"], ["--grader"]], ids=["require", "grader"])
def test_prompts_contain_only_the_demands_of_a_schema(world, way):
    """Neither the first prompt nor one for a refinement quotes other parts of the file."""
    (world.stranger / "schema.json").write_text(json.dumps(SCHEMA))
    world(
        "run",
        "Say it",
        "--model",
        world.server.model,
        *way,
        "json_schema:schema.json",
        "--max-iterations",
        "1",
        "--no-editor",
    )
    said = str(world.server.asked)
    assert world.server.calls > 1 and "maxLength" in said and '"required":["name"]' in said
    assert "CANARY" not in said
