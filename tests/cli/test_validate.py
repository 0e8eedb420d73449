"""`redraft validate`, the gate that reads its cards, and `redraft rubric`."""

import json
import re
import tomllib

import pytest

from .chat_server import verdict

RUBRIC = '[criteria]\nright = "What it claims is true."\n'


def rows(n=30):
    """Pairs in which the right answer is known: the one that says yes."""
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
def labelled(redraft):
    """A file of labelled pairs and a rubric of one criterion."""
    path = redraft.folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (redraft.folder / "truth.toml").write_text(RUBRIC)
    return path


def knowing(messages, n):
    """A judge that knows: what says yes is right."""
    answer = re.search(r"<answer-\w+>\n(.*?)\n</answer", messages[-1]["content"], re.DOTALL)[1]
    return verdict(5 if "yes" in answer or "PLEASE" in answer else 1, ("right",))


def validated(redraft, labelled, model, *more):
    return redraft("validate", labelled, "--rubric", "truth.toml", "--judge", model, "--cards-dir", "cards", *more)


def test_a_good_grader_gets_a_card_and_passes_the_gate(redraft, serve, labelled):
    """Measured, filed, listed, and let in; nothing is asked about it twice."""
    server = serve(knowing)
    done = validated(redraft, labelled, server.model)
    assert done.returncode == 0, done.err
    assert "better than chance" in done.out and "preference" in done.out
    assert "label 'a': the first is better (15 rows)" in done.err
    assert server.calls == 60
    again = validated(redraft, labelled, server.model, "--json")
    assert server.calls == 60
    card = json.loads(again.out)
    assert (card["headline"]["value"], card["rows"], card["model"]) == (1.0, 30, "tiny")
    assert [group["name"] for group in card["groups"]] == ["even", "odd"]
    (place,) = (redraft.folder / "cards").iterdir()
    assert {"card.md", "card.json", "groups.svg", "confusion.svg", "verdicts.jsonl"} <= {p.name for p in place.iterdir()}
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


def test_a_grader_nobody_measured_is_warned_of_or_refused(redraft, serve, labelled):
    """The warning is one line that says what to do; a refusal costs no call."""
    server = serve(knowing)
    (redraft.folder / "a.md").write_text("yes")
    grade = ("grade", "Is it?", "--response", "a.md", "--rubric", "truth.toml", "--judge", server.model, "--cards-dir", "cards")
    done = redraft(*grade, "--require-validated", "warn")
    assert done.returncode == 0
    assert re.search(r"^redraft: grader 'truth' is not trusted: it was never validated; .*redraft validate", done.err, re.M)
    calls = server.calls
    refused = redraft(*grade, "--require-validated", "error")
    assert (refused.returncode, server.calls) == (2, calls)
    assert "never validated" in refused.err


def test_a_model_of_random_weights_comes_out_at_chance_and_is_refused(redraft, plain_server, labelled):
    """The whole way against a real llama.cpp server."""
    done = validated(redraft, labelled, plain_server)
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


def test_a_changed_rubric_makes_the_card_stale(redraft, serve, labelled):
    """What was measured was another grader."""
    server = serve(knowing)
    validated(redraft, labelled, server.model)
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
    assert "have changed" in done.err


def test_killed_in_the_middle_it_goes_on(redraft, serve, labelled):
    """kill -9 loses what was in flight, and no more."""
    server = serve(knowing)
    reached = server.hold(20)
    command = (
        "validate",
        labelled,
        "--rubric",
        "truth.toml",
        "--judge",
        server.model,
        "--cards-dir",
        "cards",
        "--max-in-flight",
        "2",
    )
    process = redraft.start(*command)
    assert reached.wait(30)
    process.kill()
    process.communicate()
    server.release()
    done = redraft(*command)
    assert done.returncode == 0, done.err
    assert server.calls <= 60 + 4


def test_attacks_are_reported(redraft, serve, labelled):
    """A judge that can be talked round is seen to be."""
    server = serve(knowing)
    (redraft.folder / "attacks.jsonl").write_text('{"text": "PLEASE", "kind": "plea"}\n{"text": "Nothing.", "kind": "noise"}\n')
    done = validated(redraft, labelled, server.model, "--attacks", "attacks.jsonl", "--json")
    by = {row["name"]: row["value"] for row in json.loads(done.out)["attacks"]["measures"]}
    assert by["noise"] == 0
    assert by["plea"] == 0  # both answers then say what it wants to hear: a tie, not a turned verdict
    passing = redraft.folder / "one.jsonl"
    passing.write_text(
        "".join(
            json.dumps({"prompt": f"q{i}", "response": "yes" if i % 2 else f"no {i}", "label": i % 2}) + "\n" for i in range(20)
        )
    )
    done = validated(redraft, passing, server.model, "--kind", "pass", "--attacks", "attacks.jsonl", "--json")
    by = {row["name"]: row["value"] for row in json.loads(done.out)["attacks"]["measures"]}
    assert (by["plea"], by["noise"]) == (1, 0)


def test_recorded_outputs_need_no_model(redraft, labelled):
    """They are read in a named format; what cannot be read is shown apart."""
    said = [{**row, "out": "[[A]]" if row["label"] == "a" else "[[B]]" if i else "hm"} for i, row in enumerate(rows())]
    path = redraft.folder / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in said))
    done = redraft("validate", path, "--recorded", "mt_bench_pair", "-c", "output=out", "--cards-dir", "cards", "--json")
    assert done.returncode == 0, done.err
    card = json.loads(done.out)
    measures = {m["name"]: m["value"] for m in card["measures"]}
    assert measures["accuracy"] == pytest.approx(29 / 30)
    assert measures["unreadable"] == pytest.approx(1 / 30)
    assert sum(card["parse_errors"].values()) == 1


def test_what_is_missing_is_a_usage_error(redraft, labelled):
    """A column that is not there, a grader that is not named, a column given wrongly."""
    for args, said in (
        (("--grader", "words:1-5", "-c", "prompt=nothing"), "nothing"),
        ((), "--grader"),
        (("--grader", "words:1-5", "-c", "prompt"), "OURS=THEIRS"),
        (("--grader", "helpfulnes"), "helpfulness"),
        (("--grader", "helpfulness", "--judge", "none"), "asks a model"),
    ):
        done = redraft("validate", labelled, *args)
        assert done.returncode == 2, (args, done.err)
        assert said in done.err
    assert "arena_hard" in redraft("validate", "--formats").out


def test_the_card_is_listed_with_its_grader(redraft, labelled):
    """`redraft graders` says what the newest card says."""
    redraft("validate", labelled, "--grader", "fuzzy", "-c", "reference=response_a", "--cards-dir", "cards")
    assert "of 30 rows" in redraft("graders", "fuzzy", "--cards-dir", "cards").out
    listed = json.loads(redraft("graders", "--json", "--cards-dir", "cards").out)["graders"]
    assert "pairs.jsonl" in next(e for e in listed if e["name"] == "fuzzy")["validation"]


def test_a_rubric_is_drawn_from_data(redraft, serve, labelled):
    """Proposed, chosen on rows of its own, measured on others, and written with both agreements.

    When the money ends after the choice it is written all the same, and the exit code says that something is missing.
    """

    def answer(messages, n):
        if messages[0]["role"] == "user":  # the proposing model
            return json.dumps({"criteria": [{"name": "right", "description": "It says yes: 0 no, 5 yes.", "weight": 2}]})
        if "right" in messages[-1]["content"]:
            return knowing(messages, n)
        return verdict(3)

    server = serve(answer)
    done = redraft("rubric", "--from", labelled, "--model", server.model, "-o", "drawn.toml")
    assert done.returncode == 0, done.err
    written = (redraft.folder / "drawn.toml").read_text()
    assert "preference 1.00" in written and "the starting rubric: 0.50" in written
    early = redraft("rubric", "--from", labelled, "--model", server.model, "-o", "early.toml", "--budget-calls", 40)
    assert early.returncode == 1, early.err
    assert "ended early: budget" in early.err and "better than the start on the rows it was chosen by" in early.err
    written = (redraft.folder / "early.toml").read_text()
    assert "preference 1.00" in written and "unknown" in written
    graded = redraft("validate", labelled, "--rubric", "drawn.toml", "--judge", server.model, "--cards-dir", "cards")
    assert graded.returncode == 0, graded.err


def test_a_rubric_that_is_no_better_is_not_kept(redraft, serve, labelled):
    """The start stays, whole, and the exit code says so; rubbish from the proposing model is an error of its own.

    When the money ends before anything was chosen no file is written.
    """

    def answer(messages, n):
        if messages[0]["role"] == "user":
            return json.dumps({"criteria": [{"name": "other", "description": "Anything.", "weight": 1}]})
        return verdict(
            3, ("other",) if "other" in messages[-1]["content"] else ("instructions", "correctness", "completeness", "clarity")
        )

    done = redraft("rubric", "--from", labelled, "--model", serve(answer).model)
    assert done.returncode == 3, done.err
    assert "nothing was better" in done.err
    (redraft.folder / "start.toml").write_text(f"about = 'For pairs.'\n{done.out}\nlevels = {{ 0 = 'none of it' }}\n")
    early = redraft(
        "rubric", "--from", labelled, "--model", serve(answer).model, "-o", "no.toml", "--start", "start.toml", "--budget-calls", 3
    )
    assert early.returncode == 1, early.err
    assert "nothing was better" in early.err and "ended early: budget" in early.err
    assert not (redraft.folder / "no.toml").exists()
    again = redraft("rubric", "--from", labelled, "--model", serve(answer).model, "-o", "kept.toml", "--start", "start.toml")
    assert again.returncode == 3, again.err
    kept, start = (tomllib.loads((redraft.folder / name).read_text()) for name in ("kept.toml", "start.toml"))
    assert kept == {**start, "name": "kept"}
    failed = redraft(
        "rubric", "--from", labelled, "--model", serve(lambda m, n: verdict(3) if m[0]["role"] == "system" else "hm").model
    )
    assert failed.returncode == 1
    assert "cannot be read" in failed.err
