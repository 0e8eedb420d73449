"""`redraft priors`, and the options that say what is believed and what a step must be worth."""

import json
import os
from pathlib import Path

import pytest

from redraft import Priors
from redraft.storage.journal import Journal
from redraft.storage.priors_store import PriorsKey, PriorsStore

from .chat_server import writer_and_judge

BAD = "{"
LEARN = ("priors", "learn", *["t.jsonl"] * 8)  # as few as teach anything


@pytest.fixture
def worked(redraft, serve):
    """A folder with a finished trace, t.jsonl, and the server that it was made with."""
    server = serve(writer_and_judge(["one", "two", "three", "four", "five"], [3, 2, 4, 3, 3]))
    redraft.server = server
    done = redraft("run", "Count", "--model", server.model, "--trace", "t.jsonl")
    assert done.returncode == 0, done.err
    return redraft


def kept():
    return [held for _, held in PriorsStore.in_folder().entries()]


def header(redraft, name):
    return json.loads((redraft.folder / name).read_text().splitlines()[0])


def test_with_nothing_learned_the_shipped_are_shown(redraft):
    """And how to learn; for programs the same as plain data. Nothing is made by looking."""
    told = redraft("priors")
    assert told.returncode == 0 and "shipped" in told.out and "priors learn" in told.err
    data = json.loads(redraft("priors", "--json").out)
    assert data == {"shipped": Priors().to_dict(), "saved": [], "damaged": {}}
    assert not list(Path(os.environ["REDRAFT_HOME"]).iterdir())


def test_every_figure_is_shown_with_what_it_means(redraft):
    """All of them."""
    told = redraft("priors", "show", "shipped")
    assert told.returncode == 0
    rows = [row.split() for row in told.out.splitlines()[1:]]
    assert [row[0] for row in rows] == list(Priors().to_dict())
    assert all(len(row) > 4 for row in rows)


def test_a_trace_teaches_what_its_settings_say(worked):
    """A trace of `redraft run` knows its model and judge; what it taught is listed and shown."""
    done = worked(*LEARN)
    assert done.returncode == 0, done.err
    [one] = kept()
    assert (one.priors_key.model, one.priors_key.graders, one.priors.tasks, one.source) == ("tiny", ("judge",), 8, "t.jsonl")
    assert "tiny with judge: learned from 8 tasks" in done.err
    assert one.priors_key.key[:8] in worked("priors").out
    for name in ("tiny", one.priors_key.key, one.priors_key.key[:5]):
        shown = worked("priors", "show", name)
        assert "tiny with judge" in shown.out and "from t.jsonl" in shown.out
    assert json.loads(worked("priors", "show", "tiny", "--json").out) == one.as_data()
    assert json.loads(worked("priors", "list", "--json").out)["saved"] == [one.as_data()]


def test_learning_again_takes_the_place_of_what_was_learned(worked):
    """It does not add up: the same work twice teaches no more than once."""
    first = worked(*LEARN, "--json")
    again = worked(*LEARN, "--json")
    assert "replacing priors from 8 tasks" in again.err
    [one], [two] = json.loads(first.out), json.loads(again.out)
    assert one["priors"] == two["priors"] == kept()[0].priors.to_dict()


def test_few_tasks_do_not_take_the_place_of_many(worked):
    """Fewer than eight teach nothing; fewer than what is kept was learned from take its place only when told to."""
    few = worked("priors", "learn", "t.jsonl")
    assert few.returncode == 1 and "1 task of at least 8" in few.err and kept() == []
    assert worked(*LEARN, "t.jsonl").returncode == 0
    less = worked(*LEARN)
    assert less.returncode == 1 and "learned from 9" in less.err and "--replace" in less.err
    assert kept()[0].priors.tasks == 9
    assert worked(*LEARN, "--replace").returncode == 0
    assert kept()[0].priors.tasks == 8


def test_a_run_says_by_what_it_goes(worked):
    """What was learned, and from how many tasks; that it is damaged or nothing was; nothing where it was not asked for."""
    plain = ("run", "Count", "--model", worked.server.model)
    run = (*plain, "--priors", "learned")
    assert "nothing has been learned yet" in worked(*run).err
    worked(*LEARN)
    [one] = kept()
    assert "learned from 8 tasks" in worked(*run, "--trace", "u.jsonl").err
    assert header(worked, "u.jsonl")["settings"]["priors"] == one.priors.to_dict()
    assert "learned" not in worked(*plain).err + worked(*plain, "--no-noise-aware").err
    events = [json.loads(row) for row in worked(*run, "--json").out.splitlines()]
    assert {"event": "priors", "tasks": 8, "key": one.priors_key.key} in events
    assert events[-1]["metadata"]["priors"] == one.priors.to_dict()
    (worked.folder / "mine.json").write_text('{"draft_mean": 0.3}')
    assert "priors given by --priors" in worked(*plain, "--priors", "mine.json").err
    PriorsStore.in_folder().path_for(one.priors_key).write_text(BAD)
    told = worked(*run)
    assert told.returncode == 0 and f"{one.priors_key.key}.json cannot be read" in told.err and "redraft priors forget" in told.err


def test_what_cannot_be_forgotten_is_said(worked):
    """What is shipped; and a file that cannot be read goes by its key alone, and says so."""
    shipped = worked("priors", "forget", "shipped")
    assert shipped.returncode == 2 and "cannot be deleted" in shipped.err
    worked(*LEARN)
    [one] = kept()
    PriorsStore.in_folder().path_for(one.priors_key).write_text(BAD)
    told = worked("priors", "forget", "tiny")
    assert told.returncode == 2 and f"{one.priors_key.key} (cannot be read)" in told.err


@pytest.mark.parametrize(
    "option", [("--min-expected-gain", "0.1"), ("--cost-unit", "tokens"), ("--priors", "shipped"), ("--tie-break",)]
)
def test_plain_has_no_use_for_what_weighs(redraft, option):
    """What would be ignored is refused, in the words of the command line; a default from elsewhere is none that was typed."""
    model = ("--model", "http://127.0.0.1:9/v1#tiny")
    for command in (("run", "x"), ("batch", "in.jsonl", "-o", "out.jsonl")):
        done = redraft(*command, *model, "--no-noise-aware", *option)
        assert done.returncode == 2 and option[0] in done.err and "--no-noise-aware" in done.err
    (redraft.folder / "in.jsonl").write_text('{"prompt": "x"}\n')
    assert (
        redraft("batch", "in.jsonl", "--dry-run", *model, "--no-noise-aware", env={"REDRAFT_MIN_EXPECTED_GAIN": "0.1"}).returncode
        == 0
    )


def test_what_is_weighed_in_usd_needs_a_price(redraft):
    """A step whose cost nobody knows would never be worth it; with a price it is weighed."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "x"}\n')
    for command in (("run", "x"), ("batch", "in.jsonl", "-o", "out.jsonl")):
        done = redraft(*command, "--model", "openai:nobody-knows", "--cost-unit", "usd", env={"OPENAI_API_KEY": "k"})
        assert (
            done.returncode == 2 and "price of 'nobody-knows' is unknown" in done.err and "--price nobody-knows=IN,OUT" in done.err
        )


def test_a_journal_teaches_what_is_finished_in_it(worked):
    """For the pair that is typed, or that its run noted; of the traces that were exported from it, too."""
    rows = "".join(f"{json.dumps({'id': i, 'prompt': f'Count {i}'})}\n" for i in range(9))
    (worked.folder / "in.jsonl").write_text(rows)
    assert worked("batch", "in.jsonl", "-o", "out.jsonl", "--model", worked.server.model).returncode == 0
    for pair in kept():
        PriorsStore.in_folder().delete(PriorsStore.in_folder().path_for(pair.priors_key))
    typed = worked("priors", "learn", "out.jsonl.journal", "--model", worked.server.model, "--json")
    assert typed.returncode == 0, typed.err
    [told] = json.loads(typed.out)
    assert (told["priors"]["tasks"], told["source"]) == (9, "run out-jsonl in out.jsonl.journal")
    pair = kept()[0].priors_key
    with Journal(worked.folder / "out.jsonl.journal") as journal:
        journal.update_run("out-jsonl", pair=pair.as_data())
    [noted] = json.loads(worked("priors", "learn", "out.jsonl.journal", "--json").out)
    assert {**noted, "created_at": ""} == {**told, "created_at": ""}
    [few] = json.loads(worked("priors", "learn", "out.jsonl.journal", "--limit", "8", "--replace", "--json").out)
    assert few["priors"]["tasks"] == 8
    assert worked("runs", "export", "out-jsonl", "-o", "all.jsonl").returncode == 0
    both = worked("priors", "learn", "all.jsonl", "t.jsonl", "--model", worked.server.model, "--json")
    assert [(one["priors"]["tasks"], one["source"]) for one in json.loads(both.out)] == [(10, "all.jsonl, t.jsonl")]
    assert worked("priors", "learn", "out.jsonl.journal", "--run", "other").returncode == 2


def test_work_of_others_is_left_out(worked):
    """By another model or other graders than were named, it says nothing of these; then nothing is kept."""
    for other, said in ((("--grader", "helpfulness"), "graded by judge"), (("--model", "openai:big"), "written by tiny")):
        done = worked(*LEARN, *other, env={"OPENAI_API_KEY": "k"})
        assert done.returncode == 1 and said in done.err and "nothing to learn" in done.err
    assert kept() == []


def test_what_no_model_graded_teaches_nothing(redraft):
    """Requirements have no noise, and repairs no writer."""
    done = redraft("run", "x", "--response", "-", "--model", "none", "--require", "no_commas", "--trace", "t.jsonl", input="a, b")
    assert done.returncode == 0, done.err
    done = redraft("priors", "learn", "t.jsonl", "--model", "http://127.0.0.1:9/v1#tiny")
    assert done.returncode == 1 and "that no model graded" in done.err


def test_what_is_no_trace_is_refused(redraft):
    """With its name."""
    (redraft.folder / "t.jsonl").write_text("hello\n")
    done = redraft("priors", "learn", "t.jsonl", "--model", "http://127.0.0.1:9/v1#tiny")
    assert done.returncode == 1 and "t.jsonl" in done.err


def test_a_damaged_file_is_told_of_and_can_be_removed(worked):
    """It is no end of the list, and no end of a run."""
    worked(*LEARN)
    [one] = kept()
    place = PriorsStore.in_folder().path_for(one.priors_key)
    place.write_text(BAD)
    told = worked("priors")
    assert told.returncode == 0 and str(place) in told.err
    assert list(json.loads(worked("priors", "--json").out)["damaged"]) == [str(place)]
    assert worked("priors", "show", one.priors_key.key).returncode == 1
    assert worked("run", "Count", "--model", worked.server.model).returncode == 0
    assert worked("priors", "forget", place.name).returncode == 0
    assert not place.exists()


def test_what_is_kept_can_be_forgotten(worked):
    """By its model or key; what is not there is said with what is."""
    worked(*LEARN)
    [one] = kept()
    missed = worked("priors", "forget", "other")
    assert missed.returncode == 2 and one.priors_key.key in missed.err
    assert "deleted tiny with judge" in worked("priors", "forget", "tiny").err
    assert kept() == []
    worked(*LEARN)
    gone = json.loads(worked("priors", "forget", one.priors_key.key[:6], "--json").out)
    assert gone == {"deleted": str(PriorsStore.in_folder().path_for(one.priors_key))} and kept() == []


def test_a_name_that_may_be_several_is_refused(worked):
    """The keys tell them apart."""
    worked(*LEARN)
    [one] = kept()
    other = PriorsKey.from_graders("tiny", "elsewhere", [("judge", 1.0, "a")])
    PriorsStore.in_folder().save(type(one).create(other, one.priors, "x"))
    done = worked("priors", "forget", "tiny")
    assert done.returncode == 2 and one.priors_key.key in done.err and other.key in done.err
    assert len(kept()) == 2


def test_hostile_names_drive_no_terminal(redraft):
    """Control sequences in a file of the shelf are text to nobody."""
    pair = PriorsKey.from_graders("\x1b[2Jtiny\n\x07", "m", [("ju\x1b]0;x\x07dge", 1.0, "a")])
    from redraft.storage.priors_store import StoredPriors

    PriorsStore.in_folder().save(StoredPriors.create(pair, Priors(), "from \x1b[31mhere"))
    for args in ((), ("show", pair.key)):
        assert "\x1b" not in redraft("priors", *args).out
    assert "\x1b" not in redraft("priors", "forget", pair.key).err


def test_no_file_of_the_shelf_hides_the_others(worked):
    """Neither a moment that no calendar has, nor a name that would drive the terminal."""
    worked(*LEARN)
    [one] = kept()
    for key, made in (
        ("ancient", "0001-01-01T00:00:00+05:00"),
        ("early", "0001-01-01T00:00:00+00:00"),
        ("\x1b[31mred", one.created_at),
    ):
        data = one.as_data() | {"key": key, "created_at": made}
        (PriorsStore.in_folder().folder / f"{key}.json").write_text(json.dumps(data))
    for zone in ("America/New_York", "Asia/Tokyo"):
        told = worked("priors", env={"TZ": zone})
        assert told.returncode == 0 and one.priors_key.key[:8] in told.out and "early" in told.out, told.err
        assert "ancient.json" in told.err and "created_at must be a date and time" in " ".join(told.err.split())
        assert "red" in told.out and "\x1b" not in told.out + told.err
    assert "\x1b" not in worked("priors", "show", "nobody").err


def test_the_options_shape_the_plan(worked):
    """They are kept with the trace, priors with all they hold, so that it goes on as it began."""
    (worked.folder / "mine.json").write_text(json.dumps(Priors(draft_mean=0.3).to_dict()))
    run = ("run", "Count", "--model", worked.server.model, "--min-expected-gain", "0.02", "--cost-unit", "tokens")
    done = worked(*run, "--priors", "mine.json", "--max-iterations", "1", "--trace", "u.jsonl")
    assert done.returncode == 0, done.err
    held = header(worked, "u.jsonl")["settings"]
    assert (held["min-expected-gain"], held["cost-unit"], held["priors"]) == (0.02, "tokens", Priors(draft_mean=0.3).to_dict())
    assert "noise-aware" not in held
    (worked.folder / "mine.json").unlink()
    assert worked("run", "--resume", "u.jsonl", "--max-iterations", "2").returncode == 0


def test_plain_takes_scores_at_their_word(worked):
    """The score is the one that was given, and nothing is weighed."""
    plain = worked("run", "Count", "--model", worked.server.model, "--no-noise-aware", "--json")
    last = json.loads(plain.out.splitlines()[-1])
    assert last["score"] in {0.4, 0.6, 0.8}
    weighed = worked("run", "Count", "--model", worked.server.model, "--noise-aware", "--priors", "shipped", "--json")
    assert json.loads(weighed.out.splitlines()[-1])["score"] not in {0.4, 0.6, 0.8}


def test_settings_in_a_file(worked):
    """What is believed may stand in redraft.toml, beside which the file of priors lies."""
    (worked.folder / ".git").mkdir()
    (worked.folder / "mine.json").write_text('{"draft_mean": 0.2}')
    (worked.folder / "redraft.toml").write_text('priors = "mine.json"\nmin-expected-gain = 0.05\nnoise-aware = true\n')
    below = worked.folder / "below"
    below.mkdir()
    done = worked("run", "Count", "--model", worked.server.model, "--trace", "u.jsonl", cwd=below)
    assert done.returncode == 0, done.err
    held = header(worked, "below/u.jsonl")["settings"]
    assert (held["priors"]["draft_mean"], held["min-expected-gain"], held["noise-aware"]) == (0.2, 0.05, True)


@pytest.mark.parametrize("command", [("run", "x"), ("batch", "in.jsonl", "-o", "out.jsonl")])
def test_priors_that_are_none_are_refused(redraft, command):
    """Before anything is asked or written."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "x"}\n')
    (redraft.folder / "mine.json").write_text('{"draft_mean": 7}')
    for file, said in (("mine.json", "draft_mean"), ("absent.json", "absent.json")):
        done = redraft(*command, "--model", "http://127.0.0.1:9/v1#tiny", "--priors", file)
        assert done.returncode == 2 and said in done.err
    assert not (redraft.folder / "out.jsonl").exists()
