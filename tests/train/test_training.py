"""`redraft.train.train`: labels in, a grader with a card out, which is used like any other."""

import json
import random
import shutil
import threading
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat

import pytest

import redraft
from redraft import Budget, ScriptedModel
from redraft.errors import BudgetExhaustedError, ConfigError, GradingError
from redraft.graders import as_grader
from redraft.graders.cards import CardStore
from redraft.train import train
from redraft.train.api import split_cases
from redraft.validation import read_cases
from redraft.validation.report import cluster_of

RNG = random.Random(0)
WORDS = ["good " * n + "bad " * (10 - n) for n in range(11)]


def scored_rows(n=80, *, noise=False):
    """Answers of which the share of "good" is what people like."""
    rows = []
    for task in range(n):
        share = task % 11
        label = RNG.random() if noise else share / 10
        rows.append({"prompt": f"Task {task}", "response": WORDS[share], "label": round(label, 2)})
    return rows


def passed_rows(n=80, *, noise=False):
    """The same, of which people like some; their measures take less time."""
    return [{**row, "label": row["label"] > 0.5} for row in scored_rows(n, noise=noise)]


def pair_rows(n=80):
    rng = random.Random(1)
    rows = []
    for task in range(n):
        a, b = rng.sample(range(11), 2)
        rows.append(
            {
                "prompt": f"Task {task}",
                "response_a": WORDS[a],
                "response_b": WORDS[b],
                "label": "a" if a > b else "b",
            }
        )
    return rows


def ranked_rows(n=60):
    rng = random.Random(1)
    rows = []
    for task in range(n):
        shares = rng.sample(range(11), 3)
        ranking = [1 + sum(other > own for other in shares) for own in shares]
        rows.append(
            {
                "prompt": f"Task {task}",
                "responses": [WORDS[share] for share in shares],
                "ranking": ranking,
            }
        )
    return rows


def judge_reply(messages):
    """A judge that counts: one criterion is what people like, the other is of no use."""
    text = messages[-1]["content"].rpartition("<answer")[2]
    good = min(5, text.count("good") // 2)
    rows = {
        name: {"evidence": "", "change": "say good", "score": score}
        for name, score in (("instructions", good), ("correctness", 3), ("completeness", 5 - good), ("clarity", len(str(messages)) % 6))
    }  # fmt: skip
    return json.dumps({"reason": "counted", "criteria": rows, "done": False})


def judge(name="judge"):
    return ScriptedModel(repeat(judge_reply), name=name)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


KINDS = {"score": scored_rows, "pass": passed_rows, "pair": pair_rows, "ranking": ranked_rows}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("kind", KINDS)
async def test_labels_of_every_kind_make_a_grader_with_a_card(kind, home):
    """It is better than chance, may be used with `require_validated`, and knows the better
    answer; the judge's own mean says nothing of the labels.
    """
    result = await train(KINDS[kind](), ["judge"], judge(), name="good")
    assert result.trusted and result.validation.card.kind == kind
    assert result.best_single in {"", "judge"}
    grades = [
        await redraft.grade(
            ("Another task", WORDS[n]), "trained:good", judge(), require_validated="error"
        )
        for n in (2, 8)
    ]
    assert grades[0].score < grades[1].score
    feedback = grades[1].feedback[0].repeats[0]
    low, high = feedback.metadata["interval"]
    assert low < feedback.score < high
    assert feedback.votes[0].criteria and feedback.actions == ("say good",)


async def test_every_answer_is_graded_once(home):
    """The labels that are held out are no extra calls; the usage is that of all of them."""
    model = judge()
    result = await train(passed_rows(60), ["judge"], model, name="good")
    assert result.usage.calls == 60 == len(model.requests)
    assert result.fitted + result.validation.card.rows == 60
    assert not (result.folder / "replies.db").exists()


async def test_the_card_is_about_clusters_that_were_held_out():
    """No cluster is on both sides, also if most rows are of a single one."""
    rows = [{**row, "cluster": str(n % 25)} for n, row in enumerate(passed_rows(100))]
    cases = read_cases(rows, {"cluster": "cluster"}).cases
    for share in (0.1, 0.3, 0.5):
        to_fit, to_measure = split_cases(cases, share)
        sides = [{cluster_of(case) for case in side} for side in (to_fit, to_measure)]
        assert not sides[0] & sides[1] and len(sides[0]) >= 10 <= len(sides[1])
        assert len(to_fit) + len(to_measure) == 100
        assert (to_fit, to_measure) == split_cases(cases, share)


@pytest.mark.slow
async def test_a_grader_no_better_than_chance_is_refused(home):
    """It is stored with its card, and nothing that requires validation uses it."""
    rows = passed_rows(80, noise=True)
    result = await train(rows, ["judge"], judge(), name="noise")
    assert not result.trusted
    with pytest.raises(ConfigError, match="no better than chance"):
        await redraft.grade(("q", WORDS[3]), "trained:noise", judge(), require_validated="error")


@pytest.mark.slow
async def test_no_one_skips_the_card(home, tmp_path):
    """A grader over graders that only compute needs its card, too: without it, or with that of an
    earlier training, it is refused.
    """
    graders = ["characters:<70", "readability"]
    rows = [
        {"prompt": f"{n}", "response": "Short. " * (n % 12 + 5), "label": float(n % 12 < 6)}
        for n in range(60)
    ]
    result = await train(rows, graders, name="short", cards_dir=tmp_path / "cards")
    sample = ("q", "Short. " * 8)
    strict = {"require_validated": "error", "cards_dir": tmp_path / "cards"}
    assert (await redraft.grade(sample, "trained:short", **strict)).score is not None
    shutil.rmtree(result.validation.card_folder)
    with pytest.raises(ConfigError, match="never validated"):
        await redraft.grade(sample, "trained:short", **strict)
    await train(rows, graders, name="short", cards_dir=tmp_path / "cards")
    await train(rows[:50], graders, name="short", cards_dir=tmp_path / "others")
    with pytest.raises(ConfigError, match="changed since"):
        await redraft.grade(sample, "trained:short", **strict)


@pytest.mark.slow
async def test_another_judge_makes_the_card_stale(home):
    """The card is about the model that judged."""
    await train(passed_rows(), ["judge"], judge(), name="good")
    with pytest.raises(ConfigError, match="its model has changed|changed since"):
        await redraft.grade(
            ("q", WORDS[3]), "trained:good", judge("another"), require_validated="error"
        )


@pytest.mark.slow
async def test_an_unlike_answer_has_no_score(home):
    """None with the reason, also in a weighted mean, and never a number."""
    rows = [row for row in scored_rows(120) if 0.4 <= row["label"] <= 0.6]
    rows = [{**row, "label": row["label"] + (n % 3) / 10} for n, row in enumerate(rows)]
    await train(rows, ["judge"], judge(), name="narrow")
    report = await redraft.grade(("q", WORDS[10]), "trained:narrow", judge())
    assert report.score is None
    assert "unlike the labelled answers: judge" in report.feedback[0].reason


@pytest.mark.slow
async def test_it_resumes_and_pays_for_no_call_twice(home):
    """After the budget ran out, the same call asks only for what is missing."""
    model = judge()
    with pytest.raises(BudgetExhaustedError, match="goes on from here"):
        await train(
            passed_rows(50), ["judge"], model, name="good", budget=Budget(calls=20), max_in_flight=4
        )
    before = len(model.requests)
    assert 16 <= before <= 20
    result = await train(passed_rows(50), ["judge"], model, name="good")
    assert len(model.requests) == 50
    assert result.usage.calls == 50 - before and result.trusted


@pytest.mark.slow
async def test_answers_that_cannot_be_graded_are_counted(home):
    """A few are left out, with the reason; if it is most of them, nothing is fitted."""

    def reply(messages):
        return "no verdict" if "Task 7" in str(messages) else judge_reply(messages)

    model = ScriptedModel(repeat(reply))
    result = await train(passed_rows(), ["judge"], model, name="good")
    assert sum(result.lost.values()) == sum("Task 7" in row["prompt"] for row in passed_rows())
    assert result.trusted
    with pytest.raises(GradingError, match="80 of 80 answers could not be graded"):
        await train(passed_rows(), ["judge"], ScriptedModel(repeat("no")), name="bad")


@contextmanager
def embedding_server(vector_of):
    """A server of /v1/embeddings."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            (text,) = bodies[-1]["input"]
            data = {"data": [{"index": 0, "embedding": vector_of(text)}], "usage": {}}
            body = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1#vectors", bodies
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
async def test_a_head_reads_embeddings(home):
    """The vector of task and answer is enough, no grader is needed; the record has no vector."""
    with embedding_server(lambda text: [text.count("good") / 10, *[0.1] * 600]) as (name, bodies):  # fmt: skip
        result = await train(passed_rows(60), [], name="vectors", embeddings=name)
        assert result.trusted and len(bodies) == 60
        assert all("Task" in body["input"][0] and "d " in body["input"][0] for body in bodies)
        report = await redraft.grade(("q", WORDS[9]), "trained:vectors", require_validated="error")
        assert report.score > 0.7
        assert '"vector"' not in json.dumps([asdict(each) for each in report.trace.records])


BAD = {
    "a function": (dict(graders=[len]), "each is a name or a SPEC"),
    "no grader": (dict(graders=[]), "name what a head can learn from"),
    "a comparer": (dict(graders=["ranker"]), "only ranks answers"),
    "an unknown grader": (dict(graders=["claritty"]), "did you mean"),
    "a name with spaces": (dict(name="my grader"), "or the path of a folder"),
    "an empty name": (dict(name=""), "or the path of a folder"),
    "all held out": (dict(held_out=1.0), "held_out must be"),
    "none held out": (dict(held_out=0), "held_out must be"),
    "equal labels": (
        dict(cases=[{**row, "label": 0.5} for row in scored_rows()]),
        "all labels are 0.5: there is nothing to learn",
    ),
    "a narrow scale": (dict(cases=scored_rows(), scale=(0, 0.5)), "no place for the label 0.6"),
    "a trained grader": (dict(graders=["judge", "trained:a"]), "cannot read another one"),
    "a jury with one": (dict(graders=["jury:trained:./a,clarity"]), "cannot read another one"),
    "many graders": (dict(graders=["judge"] * 101), "101 are named, and 100 are the most"),
    "no model's name": (dict(embeddings=3), "embeddings must be"),
    "few labels": (dict(cases=passed_rows(19)), "labels of 20 tasks are the fewest"),
    "a setting that there is not": (dict(held=0.3), "unknown argument"),
    "a chat model as embeddings": (dict(embeddings="anthropic:claude"), "OpenAI-compatible"),
}


@pytest.mark.parametrize("name", BAD)
async def test_mistakes_are_named_before_any_call(name, home):
    """Which argument, its value, and what is allowed; nothing is stored."""
    changed, message = BAD[name]
    model = judge()
    given = {"cases": passed_rows(), "graders": ["judge"], "name": "good", **changed}
    with pytest.raises(ConfigError, match=message):
        await train(judge=model, **given)
    assert not model.requests and not (home / "trained").exists()


def test_a_grader_that_is_not_there():
    """The message says how it is made."""
    with pytest.raises(ConfigError, match="`redraft train DATA --name support`"):
        as_grader("trained:support")
    with pytest.raises(ConfigError, match="needs the NAME"):
        as_grader("trained:")


@pytest.mark.slow
async def test_a_folder_travels(tmp_path, home):
    """A grader in a folder of its own is the same grader after it was moved, and its card counts."""
    cards = tmp_path / "cards"
    await train(passed_rows(), ["judge"], judge(), name=f"{tmp_path}/a", cards_dir=cards)
    shutil.move(tmp_path / "a", tmp_path / "b")
    report = await redraft.grade(
        ("q", WORDS[7]), f"trained:{tmp_path}/b", judge(), cards_dir=cards, require_validated="error"
    )  # fmt: skip
    assert report.score > 0.5
    assert len(CardStore.in_folder(cards).cards) == 1
