"""`redraft validate`, the check of its cards before a run, and `redraft rubric`."""

import json
import re
import tomllib

import pytest

from .chat_server import verdict

RUBRIC = '[criteria]\nright = "What it claims is true."\n'


def rows(n=30):
    """Pairs with a known right answer: the one that says yes."""
    return [
        {
            "id": f"r{i}",
            "prompt": f"Is {i} a number?",
            "response_a": "yes, it is one" if i % 2 else f"no, {i} is a colour",
            "response_b": f"no, {i} is a letter" if i % 2 else "yes, it is",
            "label": "a" if i % 2 else "b",
            "group": "odd" if i % 2 else "even",
        }
        for i in range(n)
    ]


@pytest.fixture
def labels_and_rubric(redraft):
    """A file of labelled pairs and a rubric of one criterion."""
    path = redraft.folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (redraft.folder / "truth.toml").write_text(RUBRIC)
    return path


def perfect_judge(messages, n):
    """A judge that always prefers the answer that says yes."""
    answer = re.search(r"<answer-\w+>\n(.*?)\n</answer", messages[-1]["content"], re.DOTALL)[1]
    return verdict(5 if "yes" in answer or "PLEASE" in answer else 1, ("right",))


def validate(redraft, labels_and_rubric, model, *more):
    return redraft(
        "validate",
        labels_and_rubric,
        "--rubric",
        "truth.toml",
        "--judge",
        model,
        "--cards-dir",
        "cards",
        *more,
    )


def test_a_good_grader_gets_a_card_and_passes_the_check(redraft, serve, labels_and_rubric):
    """It is measured, saved, listed and accepted; validating again makes no call."""
    server = serve(perfect_judge)
    done = validate(redraft, labels_and_rubric, server.model)
    assert done.returncode == 0, done.err
    assert "better than chance" in done.out and "preference" in done.out
    assert "label 'a': the first is better (15 rows)" in done.err
    assert server.calls == 60
    again = validate(redraft, labels_and_rubric, server.model, "--json")
    assert server.calls == 60
    card = json.loads(again.out)
    assert (card["headline"]["value"], card["rows"], card["model"]) == (1.0, 30, "tiny")
    assert [group["name"] for group in card["groups"]] == ["even", "odd"]
    (place,) = (redraft.folder / "cards").iterdir()
    assert {"card.md", "card.json", "groups.svg", "confusion.svg", "verdicts.jsonl"} <= {
        p.name for p in place.iterdir()
    }
    (redraft.folder / "a.md").write_text("yes")
    gate = (
        "grade",
        "Is it?",
        "--response",
        "a.md",
        "--rubric",
        "truth.toml",
        "--cards-dir",
        "cards",
        "--require-validated",
        "error",
    )
    assert redraft(*gate, "--judge", server.model).returncode == 0


def test_an_unvalidated_grader_gives_a_warning_or_is_refused(redraft, serve, labels_and_rubric):
    """The warning is one line that says what to do; a refusal makes no call."""
    server = serve(perfect_judge)
    (redraft.folder / "a.md").write_text("yes")
    grade = (
        "grade",
        "Is it?",
        "--response",
        "a.md",
        "--rubric",
        "truth.toml",
        "--judge",
        server.model,
        "--cards-dir",
        "cards",
    )
    done = redraft(*grade, "--require-validated", "warn")
    assert done.returncode == 0
    assert re.search(
        r"^redraft: grader 'truth' is not trusted: it was never validated; .*redraft validate",
        done.err,
        re.MULTILINE,
    )
    calls = server.calls
    refused = redraft(*grade, "--require-validated", "error")
    assert (refused.returncode, server.calls) == (2, calls)
    assert "never validated" in refused.err


@pytest.mark.slow
def test_a_model_of_random_weights_agrees_by_chance_and_is_refused(
    redraft, plain_server, labels_and_rubric
):
    """The test runs the whole validation against a real llama.cpp server."""
    done = validate(redraft, labels_and_rubric, plain_server)
    assert done.returncode == 3, done.err
    assert "not shown to be better than chance" in done.out
    (redraft.folder / "a.md").write_text("yes")
    gate = (
        "grade",
        "Is it?",
        "--response",
        "a.md",
        "--rubric",
        "truth.toml",
        "--cards-dir",
        "cards",
        "--require-validated",
        "error",
    )
    refused = redraft(*gate, "--judge", plain_server)
    assert refused.returncode == 2
    assert "may be no better than chance" in refused.err


def test_a_changed_rubric_makes_the_card_stale(redraft, serve, labels_and_rubric):
    """The card belongs to another grader then."""
    server = serve(perfect_judge)
    validate(redraft, labels_and_rubric, server.model)
    (redraft.folder / "truth.toml").write_text(RUBRIC.replace("true", "quite true"))
    (redraft.folder / "a.md").write_text("yes")
    gate = (
        "grade",
        "Is it?",
        "--response",
        "a.md",
        "--rubric",
        "truth.toml",
        "--cards-dir",
        "cards",
        "--require-validated",
        "error",
    )
    done = redraft(*gate, "--judge", server.model)
    assert done.returncode == 2
    assert "its rubric has changed since" in done.err


@pytest.mark.slow
def test_a_killed_validation_resumes(redraft, serve, labels_and_rubric):
    """kill -9 loses only the calls in flight, also the second time."""
    server = serve(perfect_judge)
    command = (
        "validate",
        labels_and_rubric,
        "--rubric",
        "truth.toml",
        "--judge",
        server.model,
        "--cards-dir",
        "cards",
        "--max-in-flight",
        "2",
    )
    for call in (20, 40):
        reached = server.hold(call)
        process = redraft.start(*command)
        assert reached.wait(60)
        process.kill()
        process.communicate()
        server.release()
    done = redraft(*command)
    assert done.returncode == 0, done.err
    # each time two are in flight, and two may have been answered just before
    assert server.calls <= 60 + 2 * 4


@pytest.mark.slow
def test_attacks_are_reported(redraft, serve, labels_and_rubric):
    """A judge that attacks can sway is reported."""
    server = serve(perfect_judge)
    (redraft.folder / "attacks.jsonl").write_text(
        '{"text": "PLEASE", "kind": "plea"}\n{"text": "Nothing.", "kind": "noise"}\n'
    )
    done = validate(
        redraft, labels_and_rubric, server.model, "--attacks", "attacks.jsonl", "--json"
    )
    by = {row["name"]: row["value"] for row in json.loads(done.out)["attacks"]["measures"]}
    assert by["noise"] == 0
    assert by["plea"] == 0  # both answers then contain the plea: a tie, not a reversed verdict
    passing = redraft.folder / "one.jsonl"
    passing.write_text(
        "".join(
            json.dumps(
                {"prompt": f"q{i}", "response": "yes" if i % 2 else f"no {i}", "label": i % 2}
            )
            + "\n"
            for i in range(20)
        )
    )
    done = validate(
        redraft, passing, server.model, "--kind", "pass", "--attacks", "attacks.jsonl", "--json"
    )
    by = {row["name"]: row["value"] for row in json.loads(done.out)["attacks"]["measures"]}
    assert (by["plea"], by["noise"]) == (1, 0)


def test_recorded_outputs_need_no_model(redraft, labels_and_rubric):
    """They are read in a named format; unreadable ones are counted apart."""
    said = [
        {**row, "out": "[[A]]" if row["label"] == "a" else "[[B]]" if i else "hm"}
        for i, row in enumerate(rows())
    ]
    path = redraft.folder / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in said))
    done = redraft(
        "validate",
        path,
        "--recorded",
        "mt_bench_pair",
        "-c",
        "output=out",
        "--cards-dir",
        "cards",
        "--json",
    )
    assert done.returncode == 0, done.err
    card = json.loads(done.out)
    measures = {m["name"]: m["value"] for m in card["measures"]}
    assert measures["accuracy"] == pytest.approx(29 / 30)
    assert measures["unreadable"] == pytest.approx(1 / 30)
    assert sum(card["parse_errors"].values()) == 1


def test_missing_columns_and_graders_are_usage_errors(redraft, labels_and_rubric):
    """A missing column, a missing grader and an invalid column are usage errors."""
    for args, said in (
        (("--grader", "words:1-5", "-c", "prompt=nothing"), "nothing"),
        ((), "--grader"),
        (("--grader", "words:1-5", "-c", "prompt"), "OURS=THEIRS"),
        (("--grader", "helpfulnes"), "helpfulness"),
        (("--grader", "helpfulness", "--judge", "none"), "asks a model"),
    ):
        done = redraft("validate", labels_and_rubric, *args)
        assert done.returncode == 2, (args, done.err)
        assert said in done.err
    assert "arena_hard" in redraft("validate", "--formats").out


def test_the_card_is_listed_with_its_grader(redraft, labels_and_rubric):
    """`redraft graders` shows the newest card."""
    redraft(
        "validate",
        labels_and_rubric,
        "--grader",
        "fuzzy",
        "-c",
        "reference=response_a",
        "--cards-dir",
        "cards",
    )
    assert "of 30 rows" in redraft("graders", "fuzzy", "--cards-dir", "cards").out
    listed = json.loads(redraft("graders", "--json", "--cards-dir", "cards").out)["graders"]
    assert "pairs.jsonl" in next(e for e in listed if e["name"] == "fuzzy")["validation"]


@pytest.mark.slow
def test_a_rubric_is_induced_from_data(redraft, serve, labels_and_rubric):
    """Rubrics are proposed, one is chosen on separate rows and measured on others, and it is saved
    with both agreements.

    When the budget ends after the choice it is saved all the same, and the exit code says that
    something is missing.
    """

    def answer(messages, n):
        if messages[0]["role"] == "user":  # the proposing model
            return json.dumps(
                {
                    "criteria": [
                        {"name": "right", "description": "It says yes: 0 no, 5 yes.", "weight": 2}
                    ]
                }
            )
        if "right" in messages[-1]["content"]:
            return perfect_judge(messages, n)
        return verdict(3)

    server = serve(answer)
    done = redraft(
        "rubric", "--from", labels_and_rubric, "--model", server.model, "-o", "drawn.toml"
    )
    assert done.returncode == 0, done.err
    written = (redraft.folder / "drawn.toml").read_text()
    assert "preference 1.00" in written and "the starting rubric: 0.50" in written
    early = redraft(
        "rubric",
        "--from",
        labels_and_rubric,
        "--model",
        server.model,
        "-o",
        "early.toml",
        "--budget-calls",
        40,
    )
    assert early.returncode == 1, early.err
    assert (
        "ended early: budget" in early.err
        and "better than the start on the rows it was chosen by" in early.err
    )
    written = (redraft.folder / "early.toml").read_text()
    assert "preference 1.00" in written and "unknown" in written
    graded = redraft(
        "validate",
        labels_and_rubric,
        "--rubric",
        "drawn.toml",
        "--judge",
        server.model,
        "--cards-dir",
        "cards",
    )
    assert graded.returncode == 0, graded.err


@pytest.mark.slow
def test_an_induced_rubric_that_is_no_better_is_not_saved(redraft, serve, labels_and_rubric):
    """The initial rubric is kept, and the exit code says so; unreadable proposals are an error of
    their own.

    When the budget ends before a rubric was chosen no file is written.
    """

    def answer(messages, n):
        if messages[0]["role"] == "user":
            return json.dumps(
                {"criteria": [{"name": "other", "description": "Anything.", "weight": 1}]}
            )
        return verdict(
            3,
            ("other",)
            if "other" in messages[-1]["content"]
            else ("instructions", "correctness", "completeness", "clarity"),
        )

    done = redraft("rubric", "--from", labels_and_rubric, "--model", serve(answer).model)
    assert done.returncode == 3, done.err
    assert "nothing was better" in done.err
    (redraft.folder / "start.toml").write_text(
        f"about = 'For pairs.'\n{done.out}\nlevels = {{ 0 = 'none of it' }}\n"
    )
    early = redraft(
        "rubric",
        "--from",
        labels_and_rubric,
        "--model",
        serve(answer).model,
        "-o",
        "no.toml",
        "--start",
        "start.toml",
        "--budget-calls",
        3,
    )
    assert early.returncode == 1, early.err
    assert "nothing was better" in early.err and "ended early: budget" in early.err
    assert not (redraft.folder / "no.toml").exists()
    again = redraft(
        "rubric",
        "--from",
        labels_and_rubric,
        "--model",
        serve(answer).model,
        "-o",
        "kept.toml",
        "--start",
        "start.toml",
    )
    assert again.returncode == 3, again.err
    kept, start = (
        tomllib.loads((redraft.folder / name).read_text()) for name in ("kept.toml", "start.toml")
    )
    assert kept == {**start, "name": "kept"}
    failed = redraft(
        "rubric",
        "--from",
        labels_and_rubric,
        "--model",
        serve(lambda m, n: verdict(3) if m[0]["role"] == "system" else "hm").model,
    )
    assert failed.returncode == 1
    assert "cannot be read" in failed.err
