"""`redraft priors`, and the options that choose priors and the least expected gain of a step."""

import json
import os
from pathlib import Path

import pytest

from redraft import Task, Trace
from redraft.plans.quality.priors import Priors
from redraft.storage.journal import Journal
from redraft.storage.priors_store import PriorsKey, PriorsStore

from .chat_server import writer_and_judge

BAD = "{"
LEARN = ("priors", "learn", *["t.jsonl"] * 8)  # the least number that is learned from


@pytest.fixture
def folder_with_trace(redraft, serve):
    """A folder with a finished trace, t.jsonl, and the server that it was made with."""
    server = serve(writer_and_judge(["one", "two", "three", "four", "five"], [3, 2, 4, 3, 3]))
    redraft.server = server
    done = redraft("run", "Count", "--model", server.model, "--trace", "t.jsonl")
    assert done.returncode == 0, done.err
    return redraft


def priors_file():
    return [held for _, held in PriorsStore.in_folder().entries()]


def header(redraft, name):
    return json.loads((redraft.folder / name).read_text().splitlines()[0])


def test_without_learned_priors_the_shipped_ones_are_shown(redraft):
    """The output says how to learn; JSON has the same as data, and no file is made."""
    told = redraft("priors")
    assert told.returncode == 0 and "shipped" in told.out and "priors learn" in told.err
    data = json.loads(redraft("priors", "--json").out)
    assert data == {"shipped": Priors().to_dict(), "saved": [], "damaged": {}}
    assert not list(Path(os.environ["REDRAFT_HOME"]).iterdir())


def test_every_parameter_is_shown_with_its_meaning(redraft):
    """No parameter of the priors is left out."""
    told = redraft("priors", "show", "shipped")
    assert told.returncode == 0
    rows = [row.split() for row in told.out.splitlines()[1:]]
    assert [row[0] for row in rows] == list(Priors().to_dict())
    assert all(len(row) > 4 for row in rows)


def test_priors_are_learned_for_the_model_and_judge_of_a_trace(folder_with_trace):
    """A trace of `redraft run` knows its model and judge; the learned priors are listed and
    shown.
    """
    done = folder_with_trace(*LEARN)
    assert done.returncode == 0, done.err
    [one] = priors_file()
    assert (one.priors_key.model, one.priors_key.graders, one.priors.tasks, one.source) == (
        "tiny",
        ("judge",),
        8,
        "t.jsonl",
    )
    assert "tiny with judge: learned from 8 tasks" in done.err
    assert one.priors_key.key[:8] in folder_with_trace("priors").out
    for name in ("tiny", one.priors_key.key, one.priors_key.key[:5]):
        shown = folder_with_trace("priors", "show", name)
        assert "tiny with judge" in shown.out and "from t.jsonl" in shown.out
    assert json.loads(folder_with_trace("priors", "show", "tiny", "--json").out) == one.as_data()
    assert json.loads(folder_with_trace("priors", "list", "--json").out)["saved"] == [one.as_data()]


def test_learning_again_replaces_learned_priors(folder_with_trace):
    """The same trace twice counts once."""
    first = folder_with_trace(*LEARN, "--json")
    again = folder_with_trace(*LEARN, "--json")
    assert "replacing priors from 8 tasks" in again.err
    [one], [two] = json.loads(first.out), json.loads(again.out)
    assert one["priors"] == two["priors"] == priors_file()[0].priors.to_dict()


def test_priors_of_fewer_tasks_do_not_replace_those_of_more(folder_with_trace):
    """Fewer than eight tasks are too few; fewer than before replace the saved priors only with the
    option that forces it.
    """
    few = folder_with_trace("priors", "learn", "t.jsonl")
    assert few.returncode == 1 and "1 task of at least 8" in few.err and priors_file() == []
    assert folder_with_trace(*LEARN, "t.jsonl").returncode == 0
    less = folder_with_trace(*LEARN)
    assert less.returncode == 1 and "learned from 9" in less.err and "--replace" in less.err
    assert priors_file()[0].priors.tasks == 9
    assert folder_with_trace(*LEARN, "--replace").returncode == 0
    assert priors_file()[0].priors.tasks == 8


def test_a_run_says_which_priors_it_uses(folder_with_trace):
    """It says how many tasks they are from, that the file is damaged or that there are none; with
    shipped priors it says nothing.
    """
    plain = ("run", "Count", "--model", folder_with_trace.server.model)
    run = (*plain, *folder_with_trace.plan(priors="learned"))
    assert "nothing has been learned yet" in folder_with_trace(*run).err
    folder_with_trace(*LEARN)
    [one] = priors_file()
    assert "learned from 8 tasks" in folder_with_trace(*run, "--trace", "u.jsonl").err
    assert header(folder_with_trace, "u.jsonl")["settings"]["priors"] == one.priors.to_dict()
    exact = ("--config", "exact.toml")
    (folder_with_trace.folder / "exact.toml").write_text('plan = "plain.toml"\n')
    (folder_with_trace.folder / "plain.toml").write_text("noise-aware = false\n")
    assert "learned" not in folder_with_trace(*plain).err + folder_with_trace(*plain, *exact).err
    events = [json.loads(row) for row in folder_with_trace(*run, "--json").out.splitlines()]
    assert {"event": "priors", "tasks": 8, "key": one.priors_key.key} in events
    assert events[-1]["priors"] == one.priors.to_dict()
    (folder_with_trace.folder / "mine.json").write_text('{"draft_mean": 0.3}')
    own = folder_with_trace(*plain, *folder_with_trace.plan(priors="mine.json"))
    assert "priors given by the plan" in own.err
    folder_with_trace.plan(priors="learned")
    PriorsStore.in_folder().path_for(one.priors_key).write_text(BAD)
    told = folder_with_trace(*run)
    assert (
        told.returncode == 0
        and f"{one.priors_key.key}.json cannot be read" in told.err
        and "redraft priors forget" in told.err
    )


def test_forgetting_shipped_or_damaged_priors_is_refused(folder_with_trace):
    """Shipped priors cannot be forgotten; a damaged file is removed by its key alone."""
    shipped = folder_with_trace("priors", "forget", "shipped")
    assert shipped.returncode == 2 and "cannot be deleted" in shipped.err
    folder_with_trace(*LEARN)
    [one] = priors_file()
    PriorsStore.in_folder().path_for(one.priors_key).write_text(BAD)
    told = folder_with_trace("priors", "forget", "tiny")
    assert told.returncode == 2 and f"{one.priors_key.key} (cannot be read)" in told.err


def test_a_gain_per_usd_needs_a_price(redraft):
    """Without a price no step would be worth its unknown cost; with one the run works."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "x"}\n')
    for command in (("run", "x"), ("batch", "in.jsonl", "-o", "out.jsonl")):
        done = redraft(
            *command,
            "--model",
            "openai:nobody-knows",
            *redraft.plan(cost_unit="usd"),
            env={"OPENAI_API_KEY": "k"},
        )
        assert (
            done.returncode == 2
            and "price of 'nobody-knows' is unknown" in done.err
            and "--price nobody-knows=IN,OUT" in done.err
        )


def test_priors_are_learned_from_finished_rows_of_a_journal(folder_with_trace):
    """The model and judge are the given ones or those of the run; exported traces work as well."""
    rows = "".join(f"{json.dumps({'id': i, 'prompt': f'Count {i}'})}\n" for i in range(9))
    (folder_with_trace.folder / "in.jsonl").write_text(rows)
    assert (
        folder_with_trace(
            "batch", "in.jsonl", "-o", "out.jsonl", "--model", folder_with_trace.server.model
        ).returncode
        == 0
    )
    for pair in priors_file():
        PriorsStore.in_folder().delete(PriorsStore.in_folder().path_for(pair.priors_key))
    typed = folder_with_trace(
        "priors", "learn", "out.jsonl.journal", "--model", folder_with_trace.server.model, "--json"
    )
    assert typed.returncode == 0, typed.err
    [told] = json.loads(typed.out)
    assert (told["priors"]["tasks"], told["source"]) == (9, "run out.jsonl in out.jsonl.journal")
    pair = priors_file()[0].priors_key
    with Journal(folder_with_trace.folder / "out.jsonl.journal") as journal:
        journal.update_run("out-jsonl", priors_key=pair.as_data())
    [noted] = json.loads(folder_with_trace("priors", "learn", "out.jsonl.journal", "--json").out)
    assert {**noted, "created_at": ""} == {**told, "created_at": ""}
    [few] = json.loads(
        folder_with_trace(
            "priors", "learn", "out.jsonl.journal", "--limit", "8", "--replace", "--json"
        ).out
    )
    assert few["priors"]["tasks"] == 8
    assert folder_with_trace("runs", "export", "out-jsonl", "-o", "all.jsonl").returncode == 0
    both = folder_with_trace(
        "priors",
        "learn",
        "all.jsonl",
        "t.jsonl",
        "--model",
        folder_with_trace.server.model,
        "--json",
    )
    assert [(one["priors"]["tasks"], one["source"]) for one in json.loads(both.out)] == [
        (10, "all.jsonl, t.jsonl")
    ]
    assert (
        folder_with_trace("priors", "learn", "out.jsonl.journal", "--run", "other").returncode == 2
    )


def test_traces_of_other_models_and_graders_are_skipped(folder_with_trace):
    """Where no trace is left, nothing is saved."""
    for other, said in (
        (("--grader", "helpfulness"), "graded by judge"),
        (("--model", "openai:big"), "written by tiny"),
    ):
        done = folder_with_trace(*LEARN, *other, env={"OPENAI_API_KEY": "k"})
        assert done.returncode == 1 and said in done.err and "nothing to learn" in done.err
    assert priors_file() == []


def test_traces_without_a_judge_teach_nothing(redraft):
    """Requirements have no noise, and repairs no writer."""
    done = redraft(
        "run",
        "x",
        "--response",
        "-",
        "--model",
        "none",
        "--require",
        "no_commas",
        "--trace",
        "t.jsonl",
        input="a, b",
    )
    assert done.returncode == 0, done.err
    done = redraft("priors", "learn", "t.jsonl", "--model", "http://127.0.0.1:9/v1#tiny")
    assert done.returncode == 1 and "that no model graded" in done.err


def test_a_file_that_is_no_trace_is_refused(redraft):
    """The error names it."""
    (redraft.folder / "t.jsonl").write_text("hello\n")
    done = redraft("priors", "learn", "t.jsonl", "--model", "http://127.0.0.1:9/v1#tiny")
    assert done.returncode == 1 and "t.jsonl" in done.err


def test_a_damaged_priors_file_is_reported_and_can_be_removed(folder_with_trace):
    """It ends neither the list nor a run."""
    folder_with_trace(*LEARN)
    [one] = priors_file()
    place = PriorsStore.in_folder().path_for(one.priors_key)
    place.write_text(BAD)
    told = folder_with_trace("priors")
    assert told.returncode == 0 and str(place) in told.err
    assert list(json.loads(folder_with_trace("priors", "--json").out)["damaged"]) == [str(place)]
    assert folder_with_trace("priors", "show", one.priors_key.key).returncode == 1
    assert (
        folder_with_trace("run", "Count", "--model", folder_with_trace.server.model).returncode == 0
    )
    assert folder_with_trace("priors", "forget", place.name).returncode == 0
    assert not place.exists()


def test_learned_priors_can_be_forgotten(folder_with_trace):
    """They are chosen by model or key; an unknown name lists the existing ones."""
    folder_with_trace(*LEARN)
    [one] = priors_file()
    missed = folder_with_trace("priors", "forget", "other")
    assert missed.returncode == 2 and one.priors_key.key in missed.err
    assert "deleted tiny with judge" in folder_with_trace("priors", "forget", "tiny").err
    assert priors_file() == []
    folder_with_trace(*LEARN)
    gone = json.loads(folder_with_trace("priors", "forget", one.priors_key.key[:6], "--json").out)
    assert (
        gone == {"deleted": str(PriorsStore.in_folder().path_for(one.priors_key))}
        and priors_file() == []
    )


def test_an_ambiguous_name_is_refused(folder_with_trace):
    """The error lists the keys."""
    folder_with_trace(*LEARN)
    [one] = priors_file()
    other = PriorsKey.from_graders("tiny", "elsewhere", [("judge", 1.0, "a")])
    PriorsStore.in_folder().save(type(one).create(other, one.priors, "x"))
    done = folder_with_trace("priors", "forget", "tiny")
    assert done.returncode == 2 and one.priors_key.key in done.err and other.key in done.err
    assert len(priors_file()) == 2


def test_control_sequences_in_priors_files_have_no_effect(redraft):
    """They are shown as text."""
    pair = PriorsKey.from_graders("\x1b[2Jtiny\n\x07", "m", [("ju\x1b]0;x\x07dge", 1.0, "a")])
    from redraft.storage.priors_store import StoredPriors

    PriorsStore.in_folder().save(StoredPriors.create(pair, Priors(), "from \x1b[31mhere"))
    for args in ((), ("show", pair.key)):
        assert "\x1b" not in redraft("priors", *args).out
    assert "\x1b" not in redraft("priors", "forget", pair.key).err


def test_no_invalid_priors_file_hides_the_others(folder_with_trace):
    """One has an impossible date, the other a name with control sequences."""
    folder_with_trace(*LEARN)
    [one] = priors_file()
    for key, made in (
        ("ancient", "0001-01-01T00:00:00+05:00"),
        ("early", "0001-01-01T00:00:00+00:00"),
        ("\x1b[31mred", one.created_at),
    ):
        data = one.as_data() | {"key": key, "created_at": made}
        (PriorsStore.in_folder().folder / f"{key}.json").write_text(json.dumps(data))
    for zone in ("America/New_York", "Asia/Tokyo"):
        told = folder_with_trace("priors", env={"TZ": zone})
        assert (
            told.returncode == 0 and one.priors_key.key[:8] in told.out and "early" in told.out
        ), told.err
        assert "ancient.json" in told.err and "created_at must be a date and time" in " ".join(
            told.err.split()
        )
        assert "red" in told.out and "\x1b" not in told.out + told.err
    assert "\x1b" not in folder_with_trace("priors", "show", "nobody").err


def test_a_trace_with_removed_settings_resumes(redraft, serve):
    """What an earlier version could do is named, and left out."""
    server = serve(writer_and_judge(["one", "two", "three"], [2]))
    settings = {"width": 2, "unseen-last": True, "tie-break": False, "max-iterations": 1}
    (redraft.folder / "w.jsonl").write_text(
        json.dumps(Trace(Task("Count"), settings=settings).header()) + "\n"
    )
    done = redraft("run", "--resume", "w.jsonl", "--model", server.model, "--json")
    result = json.loads(done.out.splitlines()[-1])
    assert (result["iterations"], result["usage"]["calls"]) == (1, 4), done.err
    for name in ("width", "unseen-last", "tie-break"):
        assert f"w.jsonl: {name} is no longer a setting" in done.err


def test_a_dry_run_counts_second_looks(redraft):
    """16 of 64 rows have one, and none with --no-calibrate."""
    (redraft.folder / "in.jsonl").write_text("".join(f'{{"prompt": "x {n}"}}\n' for n in range(64)))
    command = (
        "batch",
        "in.jsonl",
        "--dry-run",
        "--json",
        "--model",
        "http://127.0.0.1:9/v1#tiny",
        "--max-iterations",
        "0",
    )
    least = [
        json.loads(redraft(*command, *more).out)["calls"][0] for more in ((), ("--no-calibrate",))
    ]
    assert least == [64 * 2 + 16, 64 * 2]


def test_options_set_the_plan_of_a_trace(folder_with_trace):
    """The trace saves them with all its priors, so that it resumes with the same plan."""
    (folder_with_trace.folder / "mine.json").write_text(
        json.dumps(Priors(draft_mean=0.3).to_dict())
    )
    run = (
        "run",
        "Count",
        "--model",
        folder_with_trace.server.model,
        *folder_with_trace.plan(min_expected_gain=0.02, cost_unit="tokens", priors="mine.json"),
    )
    done = folder_with_trace(*run, "--max-iterations", "1", "--trace", "u.jsonl")
    assert done.returncode == 0, done.err
    held = header(folder_with_trace, "u.jsonl")["settings"]
    assert (held["min-expected-gain"], held["cost-unit"], held["priors"]) == (
        0.02,
        "tokens",
        Priors(draft_mean=0.3).to_dict(),
    )
    assert "noise-aware" not in held
    (folder_with_trace.folder / "mine.json").unlink()
    (folder_with_trace.folder / "plan.toml").unlink()
    assert folder_with_trace("run", "--resume", "u.jsonl", "--max-iterations", "2").returncode == 0


def test_plain_reports_observed_scores(folder_with_trace):
    """The result has the score that was given, and no step is weighed."""
    plain = folder_with_trace(
        "run",
        "Count",
        "--model",
        folder_with_trace.server.model,
        *folder_with_trace.plan(noise_aware=False),
        "--json",
    )
    last = json.loads(plain.out.splitlines()[-1])
    assert last["score"] in {0.4, 0.6, 0.8}
    weighed = folder_with_trace(
        "run",
        "Count",
        "--model",
        folder_with_trace.server.model,
        *folder_with_trace.plan(noise_aware=True, priors="shipped"),
        "--json",
    )
    assert json.loads(weighed.out.splitlines()[-1])["score"] not in {0.4, 0.6, 0.8}


def test_redraft_toml_can_set_priors(folder_with_trace):
    """It names a plan file relative to itself, which names priors relative to itself."""
    (folder_with_trace.folder / ".git").mkdir()
    (folder_with_trace.folder / "plans").mkdir()
    (folder_with_trace.folder / "plans" / "mine.json").write_text('{"draft_mean": 0.2}')
    (folder_with_trace.folder / "redraft.toml").write_text('plan = "plans/plan.toml"\n')
    (folder_with_trace.folder / "plans" / "plan.toml").write_text(
        'priors = "mine.json"\nmin-expected-gain = 0.05\nnoise_aware = true\n'
    )
    below = folder_with_trace.folder / "below"
    below.mkdir()
    done = folder_with_trace(
        "run", "Count", "--model", folder_with_trace.server.model, "--trace", "u.jsonl", cwd=below
    )
    assert done.returncode == 0, done.err
    held = header(folder_with_trace, "below/u.jsonl")["settings"]
    assert (held["priors"]["draft_mean"], held["min-expected-gain"], held["noise-aware"]) == (
        0.2,
        0.05,
        True,
    )


@pytest.mark.parametrize("command", [("run", "x"), ("batch", "in.jsonl", "-o", "out.jsonl")])
def test_invalid_priors_are_refused(redraft, command):
    """The error comes before a call or a written file."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "x"}\n')
    (redraft.folder / "mine.json").write_text('{"draft_mean": 7}')
    for file, said in (("mine.json", "draft_mean"), ("absent.json", "absent.json")):
        done = redraft(
            *command, "--model", "http://127.0.0.1:9/v1#tiny", *redraft.plan(priors=file)
        )
        assert done.returncode == 2 and "plan.toml: " in done.err and said in done.err
    assert not (redraft.folder / "out.jsonl").exists()


def test_calibrating_states_and_spends_a_number_of_calls(redraft, serve):
    """It shows what it found, and saves it only when asked."""
    server = serve(writer_and_judge(["one", "two", "three", "four", "five"], [3, 2, 4, 3, 3]))
    (redraft.folder / "in.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Count to {n}."}) + "\n" for n in range(12))
    )
    calibrate = ("priors", "calibrate", "in.jsonl", "--model", server.model, "--calls", "47")
    done = redraft(*calibrate)
    assert done.returncode == 0, done.err
    assert "calibrating: 9 of 12 tasks, 5 calls each: at most 45 calls" in done.err
    assert server.calls <= 47
    assert all(word in done.out for word in ("noise", "level", "lift", "shipped 0.12"))
    assert "--save saves the priors for runs with learned priors" in done.err
    assert priors_file() == []
    saved = redraft(*calibrate, "--save", "--json")
    assert saved.returncode == 0, saved.err
    assert "saved for runs with learned priors: redraft priors show " in saved.err
    data = json.loads(saved.out)
    [one] = priors_file()
    assert (
        data["saved"]
        and one.priors.to_dict() == data["priors"]
        and one.priors.tasks == data["tasks"] == 9
    )


def test_calibrating_with_too_few_calls_is_refused(redraft, serve):
    """The message says how many one task takes; no call is made."""
    server = serve(writer_and_judge(["one"], [3]))
    (redraft.folder / "in.jsonl").write_text('{"prompt": "Count."}\n')
    done = redraft("priors", "calibrate", "in.jsonl", "--model", server.model, "--calls", "4")
    assert done.returncode == 2
    assert "calls must be at least 5, which one task takes, got 4" in done.err
    assert server.calls == 0
