"""Runs whose judge has a validation card with labels of people: their scores are in people's
points, and say so.
"""

import json
import random
from dataclasses import replace

import pytest

import redraft
from redraft import Feedback, ScriptedModel, batch, refine, refine_sync
from redraft.base.documents import read_small_text
from redraft.graders.cards import Card, CardStore, Measure
from redraft.loop.records import Candidate, StopReason
from redraft.loop.steps import Stop
from redraft.loop.stopping import max_iterations, target
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.models import CallableModel
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.calibration import Calibration
from redraft.plans.quality.lineage import observe
from redraft.plans.quality.posterior import Posterior
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import SelfRefine
from redraft.session.options import Options
from redraft.validation import Label, LabelFile, LabelItem, LabelQuestion
from sessions import make_session

CALIBRATION = Calibration(
    labels=120,
    clusters=60,
    knots=((0.0, 0.0), (1.0, 0.5)),
    errors=tuple(n / 400 for n in range(-60, 61)),
    label_mean=0.3,
    score_mean=0.6,
    score_sd=0.2,
    bias=0.3,
    error_sd=0.1,
    score_error_sd=0.3,
    noise_sd=0.05,
    repeats=2.0,
    drift=0.1,
    drift_se=0.01,
    drift_pairs=60,
)
BY_LABELS = "by people's labels (n = 120)"
GOOD = Measure("correlation", 0.8, 0.7, 0.9, 120, 0.0)


async def judge(text, model):
    """A judge whose score is the answer's last word."""
    return Feedback(float(await model(text)), actions=("more",))


async def other_judge(text, model):
    return Feedback(float(await model(text)) / 2, actions=("more",))


def last_word(messages):
    return messages[-1]["content"].split()[-1]


def judge_model(name="the judge's model"):
    return CallableModel(last_word, name=name)


def writer():
    return ScriptedModel(
        [f"text {n} {score}" for n, score in enumerate((0.4, 0.6, 0.5, 0.7, 0.6, 0.7))]
    )


def fingerprint_of(grader=judge, model=None):
    session = make_session(Options(), writer(), grader, model or judge_model())
    panel, roles = session.common_panel()
    return roles.fingerprint(panel[0].name)


def save_card(
    folder, *, fingerprint=None, headline=GOOD, calibration=CALIBRATION, data="labels", rows=120
):
    """Save a card of the judge as it is now, unless told otherwise."""
    fingerprint = fingerprint or fingerprint_of()
    card = Card(
        "judge",
        fingerprint,
        "m",
        "2026-05-01",
        data,
        "0" * 64,
        "live",
        "score",
        rows,
        0,
        headline,
        calibration=calibration,
    )
    path = CardStore(folder).card_folder("judge", fingerprint, data, "0" * 64) / "card.json"
    path.parent.mkdir(parents=True)
    path.write_text(card.to_json())
    return path


@pytest.fixture
def cards(tmp_path):
    save_card(tmp_path / "cards")
    return tmp_path / "cards"


async def test_a_run_says_what_stands_behind_its_score(cards, tmp_path):
    """The score, the interval, the note and all data are in people's points; the judge's own score
    stays.
    """
    plain = await refine(
        "q", writer(), judge, judge_model(), cards_dir=tmp_path / "none", max_iterations=2
    )
    result = await refine("q", writer(), judge, judge_model(), cards_dir=cards, max_iterations=2)
    assert (plain.score_basis, result.score_basis) == ("by this judge", BY_LABELS)
    assert result.judge_score == 0.6
    assert 0.2 < result.score < 0.35 < plain.score
    low, high = result.score_interval
    assert low < result.score < high
    data = result.to_dict()
    assert (data["score_basis"], data["score"]) == (BY_LABELS, result.score)
    assert (
        f"(the judge said 0.60; 95% between {low:.2f} and {high:.2f} {BY_LABELS})"
        in result.summary()
    )
    json.dumps(data)


async def test_noise_and_drift_by_labels_enter_the_priors(cards):
    """They replace the shipped ones; priors that the user gives stay."""
    session = make_session(Options(cards_dir=cards), writer(), judge, judge_model())
    assert (session.knowledge.priors.noise_sd, session.knowledge.priors.bias_drift) == (
        0.05,
        pytest.approx(0.1, abs=0.002),
    )
    assert (
        replace(
            session.knowledge.priors, noise_sd=Priors().noise_sd, bias_drift=Priors().bias_drift
        )
        == Priors()
    )
    given = Priors(noise_sd=0.3)
    assert (
        make_session(
            Options(cards_dir=cards, priors=given), writer(), judge, judge_model()
        ).knowledge.priors
        == given
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "0123456789abcdef"},
        {"headline": Measure("correlation", 0.1, -0.1, 0.3, 120, 0.0)},
        {"calibration": None},
        {"calibration": replace(CALIBRATION, labels=99)},
    ],
    ids=["changed", "chance", "none", "few"],
)
async def test_only_a_trusted_card_of_the_judge_as_it_is_counts(changes, tmp_path, recwarn):
    """Nothing is said about others: nobody asked whether the judge is validated."""
    save_card(tmp_path / "cards", **changes)
    result = await refine(
        "q", writer(), judge, judge_model(), cards_dir=tmp_path / "cards", max_iterations=1
    )
    assert result.score_basis == "by this judge"
    assert not recwarn.list


@pytest.mark.parametrize(
    ("grader", "model", "settings", "basis"),
    [
        (judge, judge_model("another model"), {}, "by this judge"),
        (other_judge, judge_model(), {}, "by this judge"),
        ([judge, redraft.must("characters:<80")], judge_model(), {}, BY_LABELS),
        ([judge, lambda text: Feedback(actions=("x",))], judge_model(), {}, BY_LABELS),
        ([judge, lambda text: 0.5], judge_model(), {}, "by this judge"),
        ([judge, other_judge], judge_model(), {}, "by these judges"),
        (judge, judge_model(), {"noise_aware": False}, "by this judge"),
        (judge, judge_model(), {"require_validated": "error"}, BY_LABELS),
        (lambda text: 0.5, judge_model(), {}, ""),
    ],
)
async def test_what_stands_behind_scores(grader, model, settings, basis, cards):
    """Labels count for the only judge that scores, with the grader and the model that were
    validated.
    """
    result = await refine(
        "q", writer(), grader, model, cards_dir=cards, max_iterations=1, **settings
    )
    assert result.score_basis == basis


@pytest.mark.parametrize("content", ["", "no JSON", "{}", "[]", '{"redraft_card": 2}', None])
async def test_damaged_cards_are_left_out_quietly(content, tmp_path, recwarn):
    """A run without require_validated never fails or warns because of them; the sound one
    counts.
    """
    damaged = save_card(tmp_path / "cards", data="damaged")
    damaged.write_text(content) if content is not None else (damaged.unlink(), damaged.mkdir())
    for basis in ("by this judge", BY_LABELS):
        result = await refine(
            "q", writer(), judge, judge_model(), cards_dir=tmp_path / "cards", max_iterations=1
        )
        assert result.score_basis == basis
        if basis == "by this judge":
            save_card(tmp_path / "cards")
    assert not recwarn.list


async def test_a_finished_trace_stays_as_it_is(cards, tmp_path):
    """Its calibration is in the trace: without the card, or with one that came later, no call is
    made, and no score changes.
    """
    folders = cards, tmp_path / "none"
    for before, after in (folders, folders[::-1]):
        result = await refine(
            "q", writer(), judge, judge_model(), cards_dir=before, max_iterations=2
        )
        trace = redraft.Trace.from_json(result.trace.to_json())
        unasked = ScriptedModel([])
        again = await refine(
            trace, unasked, judge, judge_model(), cards_dir=after, max_iterations=2
        )
        assert (again.score, again.score_basis, again.score_interval) == (
            result.score,
            result.score_basis,
            result.score_interval,
        )
        assert unasked.calls == 0


async def test_a_batch_with_a_new_card_redoes_its_rows(cards, tmp_path):
    """With equal labels it resumes without a call; with new labels, the rows are computed again."""
    rows, out = [{"prompt": f"q{n}"} for n in range(3)], tmp_path / "out.jsonl"

    async def run():
        asked = CallableModel(lambda messages: "text 0.6", name="writer")
        report = await batch(
            rows, out, asked, judge, judge_model(), cards_dir=cards, max_iterations=1
        )
        return report, [json.loads(line) for line in out.read_text().splitlines()]

    report, written = await run()
    assert [row["score_basis"] for row in written] == [BY_LABELS] * 3
    assert BY_LABELS in "\n".join(report.summary())
    report, again = await run()
    assert (report.rows.reused, report.spending.calls, again) == (3, 0, written)
    (card,) = cards.glob("*/card.json")
    card.write_text(card.read_text().replace('"date": "2026-05-01"', '"date": "2026-06-01"'))
    report, _ = await run()
    assert report.rows.reused == 3  # the same labels on another day
    save_card(
        cards,
        calibration=replace(CALIBRATION, labels=150),
        data="more labels",
        headline=replace(GOOD, n=150),
    )
    card.unlink()
    report, newest = await run()
    assert report.rows.reused == 0
    assert [row["score_basis"] for row in newest] == ["by people's labels (n = 150)"] * 3


@pytest.mark.slow
def test_second_looks_are_saved_if_labels_have_shown_the_noise(cards, tmp_path):
    """Without the card, every fourth of the first 64 rows gets one."""
    rows = [{"prompt": f"q{n}"} for n in range(64)]
    looks = []
    for folder in (tmp_path / "none", cards):
        asked = CallableModel(lambda messages: f"{messages[-1]['content'][:9]} 0.6", name="writer")
        out = tmp_path / f"out {folder.name}.jsonl"
        report = redraft.batch_sync(
            rows, out, asked, judge, judge_model(), cards_dir=folder, max_iterations=0
        )
        looks.append(report.priors.second_looks)
    assert looks == [16, 0]


def test_a_big_folder_of_cards_costs_little(tmp_path, monkeypatch):
    """Only the cards of the judge are read: those of 300 others are not."""
    for n in range(300):
        save_card(tmp_path / "cards", fingerprint=f"{n:08x}" * 2)
    store, read = CardStore(tmp_path / "cards"), []
    monkeypatch.setattr(
        "redraft.graders.cards.read_small_text",
        lambda path: (read.append(path), read_small_text(path))[1],
    )
    assert (store.measures_of(fingerprint_of()), read) == ((None, None), [])
    save_card(tmp_path / "cards")
    assert (store.measures_of(fingerprint_of()).calibration, len(read)) == (CALIBRATION, 1)


@pytest.mark.slow
def test_the_card_of_a_validation_is_found(tmp_path):
    """From labels to a labelled score, without writing a card by hand."""
    rng = random.Random(0)
    rows = [
        {
            "prompt": f"Task {n}",
            "response": f"text {n} {(value := rng.random()):.3f}",
            "label": value / 2,
        }
        for n in range(120)
    ]
    redraft.validation.validate_sync(rows, judge, judge_model(), cards_dir=tmp_path).save_card()
    result = refine_sync("q", writer(), judge, judge_model(), cards_dir=tmp_path, max_iterations=1)
    assert result.score_basis == BY_LABELS
    assert result.score == pytest.approx(result.judge_score / 2, abs=0.1)


async def test_calibrate_takes_the_drift_from_labels(cards, tmp_path):
    """What labels show is reported and kept; the lift is what remains of the rise of the scores."""
    learned = []
    for folder in (tmp_path / "none", cards):
        asked = CallableModel(
            lambda messages: f"text {0.6 if len(messages) > 1 else 0.4}", name="writer"
        )
        learned.append(
            await redraft.calibrate(
                ["q"] * 8, asked, judge, judge_model(), calls=40, cards_dir=folder
            )
        )
    plain, labelled = learned
    assert plain.drift is None
    assert (labelled.priors.noise_sd, labelled.priors.bias_drift) == (
        0.05,
        pytest.approx(0.1, abs=0.002),
    )
    assert labelled.drift.error == 0.01
    assert labelled.lift.value < plain.lift.value
    assert "by people's labels" in "\n".join(labelled.summary())
    assert "drift" not in "\n".join(plain.summary())


def test_a_tie_is_broken_only_between_answers_that_reach_the_target():
    """The other answer of a close pair must reach it by people's labels, too, or it cannot be
    returned for that reason.
    """
    panel = (PanelGrader("judge"), PanelGrader("ranker", compares=True))
    plans = {
        goal: Adaptive(SelfRefine(target(goal) | max_iterations(3)), calibration=CALIBRATION)
        for goal in (0.2, 0.33)
    }
    trace = Trace(Task("q"), panel)
    for id, score in enumerate((0.70, 0.62)):
        trace += Candidate(id, f"text {id}")
        trace += Feedback(score, actions=("x",), candidate=id, grader="judge")
    posterior = Posterior(observe(trace), Priors())
    estimated = trace.with_scores(posterior.means)
    pairs = {
        goal: len(plan.ending(estimated, posterior).tie_break_pair(Stop(0, StopReason.TARGET)))
        for goal, plan in plans.items()
    }
    assert pairs == {0.2: 2, 0.33: 0}


# ---- labels of people in the browser


def label_answers(path, question, n, value_of):
    """Write labels of one annotator, as `redraft label` does; value_of(k) is the label of item k,
    whose texts end in a score.
    """
    with LabelFile(path, question) as file:
        for k in range(n):
            rng = random.Random(k)
            qualities = [rng.uniform(0.1, 0.9) for _ in range(2 if question.kind == "pair" else 1)]
            item = LabelItem(
                f"row {k}", f"Task {k}", tuple(f"text {k} {quality:.3f}" for quality in qualities)
            )
            file.add(
                item,
                Label(
                    item.id, "ann", value_of(qualities), sample="random" if k % 4 == 0 else "chosen"
                ),
            )


def noisy_judge_model():
    """A judge whose scores of one answer differ by 0.05 from call to call."""
    numbers = random.Random(0)
    return CallableModel(
        lambda messages: str(min(1, max(0, float(last_word(messages)) + numbers.gauss(0, 0.05)))),
        name="noisy",
    )


@pytest.mark.slow
def test_labels_of_answers_on_a_scale_make_a_calibration(tmp_path):
    """The file knows its scale, so that nobody must repeat it; scores of runs are then in people's
    points.
    """
    path = tmp_path / "labels.jsonl"
    label_answers(
        path,
        LabelQuestion("score", scale=(1, 5)),
        110,
        lambda qualities: float(round(1 + 4 * qualities[0])),
    )
    validated = redraft.validation.validate_sync(
        path, judge, judge_model(), cards_dir=tmp_path / "cards"
    )
    assert any("28 drawn at random, 82 chosen" in note for note in validated.column_notes)
    validated.save_card()
    assert validated.calibration.labels == 110
    assert abs(validated.calibration.bias) < 0.05
    result = refine_sync(
        "q", writer(), judge, judge_model(), cards_dir=tmp_path / "cards", max_iterations=1
    )
    assert result.score_basis == "by people's labels (n = 110)"


def test_labels_of_pairs_decide_trust_and_show_the_noise(tmp_path):
    """A judge that prefers what people prefer is trusted, and repeated scores of the pairs are the
    noise of the priors.
    """
    path, cards = tmp_path / "labels.jsonl", tmp_path / "cards"
    label_answers(
        path, LabelQuestion("pair"), 60, lambda qualities: 1.0 + (qualities[1] > qualities[0])
    )
    redraft.validation.validate_sync(
        path, judge, noisy_judge_model(), repeats=2, cards_dir=cards
    ).save_card()
    session = make_session(Options(cards_dir=cards), writer(), judge, noisy_judge_model())
    assert session.knowledge.priors.noise_sd == pytest.approx(0.05, rel=0.25)
    assert session.knowledge.labelled_figures.noise_error == pytest.approx(
        session.knowledge.priors.noise_sd / (2 * 120) ** 0.5
    )
    assert session.knowledge.calibration.for_plan == (None, "")
    result = refine_sync(
        "q",
        writer(),
        judge,
        noisy_judge_model(),
        cards_dir=cards,
        max_iterations=1,
        require_validated="error",
    )
    assert result.score_basis == "by this judge"
    assert (
        make_session(
            Options(cards_dir=tmp_path / "none"), writer(), judge, noisy_judge_model()
        ).knowledge.priors
        == Priors()
    )


@pytest.mark.parametrize(
    ("preference", "basis"),
    [((0.8, 0.7, 0.9), BY_LABELS), ((0.5, 0.4, 0.6), "by this judge")],
    ids=["agrees", "chance"],
)
def test_labels_of_pairs_do_not_hide_a_calibration(tmp_path, preference, basis):
    """A larger card by pairs leaves the calibration of single answers in force, unless it shows
    that the judge is at chance.
    """
    cards = tmp_path / "cards"
    save_card(cards)
    save_card(
        cards,
        headline=Measure("preference", *preference, 400, 0.5),
        calibration=None,
        data="pairs",
        rows=400,
    )
    result = refine_sync("q", writer(), judge, judge_model(), cards_dir=cards, max_iterations=1)
    assert result.score_basis == basis
