"""Labels that people gave in `redraft label`, in comparisons: which of them count, and that the
others cannot bias a verdict.
"""

import json
import random
from statistics import fmean

import pytest

import redraft
from redraft.cli import main
from redraft.comparison import compare_sync
from redraft.comparison.labels import NOT_RANDOM
from redraft.errors import ConfigError
from redraft.models import CallableModel
from redraft.validation import Label, LabelFile, LabelItem, LabelQuestion
from redraft.validation.label_file import export_labels, read_labels
from redraft.viewer.label_items import LabelQueue, two_runs_source
from redraft.viewer.run_library import RunLibrary


def world(seed, n=150, same=0.0):
    """Return two runs, and by how much people rate B above A in each row: more where the judge, who
    is biased, sees a near tie.
    """
    rng = random.Random(seed)
    a, b, truth = [], [], {}
    for k in range(n):
        judged = rng.gauss(0.05, 0.15)
        is_same = rng.random() < same
        truth[str(k)] = (
            0.0
            if is_same
            else min(1, max(-1, rng.gauss(0.15 if abs(judged) < 0.05 else -0.05, 0.1)))
        )
        a.append({"id": str(k), "prompt": f"T{k}", "response": f"A{k}", "score": 0.5})
        b.append(
            {
                "id": str(k),
                "prompt": f"T{k}",
                "response": f"A{k}" if is_same else f"B{k}",
                "score": 0.5 + judged / 2,
            }
        )
    return a, b, truth


def label_rows(truth, ids, sample):
    """Labels of both answers, as an export holds them."""
    for id in ids:
        for side, value in (("A", 2.0), ("B", 2.0 + 2 * truth[id])):
            yield {
                "id": f"{id}{side}",
                "prompt": f"T{id}",
                "response": f"{side}{id}",
                "ratings": [value],
                "sample": sample,
                "scale": [0, 4],
            }


def near_ties(b, ids, count):
    by_id = {row["id"]: abs(row["score"] - 0.5) for row in b}
    return sorted(ids, key=by_id.__getitem__)[:count]


@pytest.mark.slow
def test_labels_chosen_to_teach_do_not_bias_the_estimate():
    """They are of near ties, which are not like all rows: an estimate from all labels misses the
    truth, and they are left out.
    """
    misses = {"random": 0, "all": 0}
    for seed in range(12):
        a, b, truth = world(seed)
        ids = list(truth)
        drawn = random.Random(seed).sample(ids, 40)
        chosen = near_ties(b, set(ids) - set(drawn), 40)
        for name, sample in (("random", "chosen"), ("all", "random")):
            labels = [*label_rows(truth, drawn, "random"), *label_rows(truth, chosen, sample)]
            report = compare_sync(a, b, labels=labels)
            low, high = report.people.estimate.interval
            misses[name] += not low <= fmean(truth.values()) / 2 <= high
            assert report.unused_labels == (
                {"of rows that were not drawn at random": 80} if name == "random" else {}
            )
            assert report.people.estimate.labels == (40 if name == "random" else 80)
    assert misses["random"] <= 3  # 5 % of 12 are 0.6
    assert misses["all"] > 5


@pytest.mark.slow
def test_rows_with_equal_answers_need_no_label():
    """Their difference is 0, whatever the scores say; the interval covers the truth as often as it
    says.
    """
    covered, widths = 0, []
    for seed in range(20):
        a, b, truth = world(seed, same=0.5)
        differing = [id for id, row in zip(truth, b) if row["response"].startswith("B")]
        labels = list(label_rows(truth, random.Random(seed).sample(differing, 30), "random"))
        report = compare_sync(a, b, labels=labels)
        low, high = report.people.estimate.interval
        covered += low <= fmean(truth.values()) / 2 <= high
        widths.append(high - low)
        assert report.people.same_answers == len(a) - len(differing)
    assert covered >= 16  # 95 % of 20 are 19
    assert any("rows with equal answers" in line for line in report.summary())
    whole = compare_sync(
        *world(1)[:2], labels=list(label_rows(world(1)[2], list(world(1)[2])[:30], "random"))
    )
    assert fmean(widths) < whole.people.estimate.interval[1] - whole.people.estimate.interval[0]


def test_if_every_row_is_labelled_all_labels_count():
    """Then no choice of rows can bias anything."""
    a, b, truth = world(1, n=30, same=0.3)
    differing = [id for id, row in zip(truth, b) if row["response"].startswith("B")]
    labels = [
        *label_rows(truth, differing[:6], "random"),
        *label_rows(truth, differing[6:], "chosen"),
    ]
    report = compare_sync(a, b, labels=labels)
    assert report.people.estimate.value == pytest.approx(fmean(truth.values()) / 2)
    assert report.people.estimate.labels == len(differing)
    assert report.unused_labels == {}


@pytest.mark.parametrize(("labelled", "is_complete"), [("abcd", True), ("abc", False)])
def test_a_pair_with_an_answer_without_a_label_is_not_complete(labelled, is_complete):
    """Chosen labels count only if no answer of two samples lacks one: the choice could bias."""
    rows = [
        [
            {"prompt": f"T{k}", "response": f"{text}{k}", "score": 0.5}
            for k in range(12)
            for text in texts
        ]
        for texts in ("ab", "cd")
    ]
    labels = [
        {
            "id": f"{text}{k}",
            "prompt": f"T{k}",
            "response": f"{text}{k}",
            "ratings": [ord(text) - 96],
        }
        | {"sample": "random" if k < 6 else "chosen", "scale": [0, 4]}
        for k in range(12)
        for text in labelled
    ]
    report = compare_sync(*rows, labels=labels)
    assert report.people.labels_only.clusters == (12 if is_complete else 6)
    assert report.unused_labels == ({} if is_complete else {NOT_RANDOM: 6 * len(labelled)})


def pair_item(k):
    return LabelItem(str(k), f"T{k}", (f"A{k}", f"B{k}") if k % 2 else (f"B{k}", f"A{k}"))


def write_pairs(path, votes, sample="random"):
    """Write the label of pair k by each annotator: the votes for "A", "B" or "=" (a tie)."""
    with LabelFile(path, LabelQuestion("pair")) as file:
        for k, by_annotator in enumerate(votes):
            item = pair_item(k)
            for annotator, vote in zip(("ann", "bob", "cy"), by_annotator):
                value = (
                    0.0
                    if vote == "="
                    else next(
                        n for n, text in enumerate(item.responses, 1) if text.startswith(vote)
                    )
                )
                file.add(
                    item,
                    Label(
                        item.id,
                        annotator,
                        float(value),
                        sample=sample if isinstance(sample, str) else sample(k),
                    ),
                )


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("form", ["journal", "export"])
@pytest.mark.parametrize(
    ("votes", "preference"),
    [
        ("B", 0.5),
        ("A", -0.5),
        ("=", 0.0),
        ("BA", 0.0),
        ("BB", 0.5),
        ("B=", 0.0),
        ("BBA", 0.5),
        ("B=A", 0.0),
    ],
)
def test_several_annotators(tmp_path, votes, preference, form):
    """The most frequent rating counts; without one it is a tie, and the row is not left out."""
    path = tmp_path / "people.jsonl"
    write_pairs(path, [votes] * 10)
    if form == "export":
        path.write_text(export_labels(read_labels(path), "jsonl"))
    a, b, _ = world(0, n=40)
    report = compare_sync(a, b, labels=path)
    assert (report.people.unit, report.people.estimate.labels) == ("preference", 10)
    assert report.people.labels_only.value == pytest.approx(preference)
    assert report.unused_labels == {}


def test_what_does_not_count_is_told(tmp_path):
    """Rows that were not drawn at random, answers of other runs: how many, and why."""
    path = tmp_path / "people.jsonl"
    write_pairs(path, ["BB"] * 50, sample=lambda k: "random" if k < 20 else "chosen")
    a, b, _ = world(0, n=60)
    report = compare_sync(a, b[:10] + [{**row, "response": "new"} for row in b[10:]], labels=path)
    assert report.unused_labels == {
        "of other answers": 10,
        "of rows that were not drawn at random": 30,
    }
    assert (
        "left out: 10 labels of other answers, 30 labels of rows that were not drawn at random"
        in report.summary()
    )
    assert json.loads(json.dumps(report.as_data()))["unused_labels"] == report.unused_labels


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("chosen", "none of the 20 labelled rows was drawn at random"),
        ("imported", "where:sample=imported"),
        (
            lambda k: "random" if k < 3 else "chosen",
            "at least 5 are needed; 17 labels are of rows that were not drawn at random",
        ),
    ],
)
def test_without_a_random_sample_nothing_is_estimated(tmp_path, sample, message):
    """It is an error that says what is missing; whoever knows that the labels are a random sample
    can say so.
    """
    path = tmp_path / "people.jsonl"
    write_pairs(path, ["B"] * 20, sample)
    a, b, _ = world(0, n=60)
    with pytest.raises(ConfigError, match=message):
        compare_sync(a, b, labels=path)
    if sample == "imported":
        report = compare_sync(a, b, labels=path, label_columns={"where:sample": "imported"})
        assert report.people.estimate.labels == 20


def test_single_answers_of_both_runs_are_in_two_files(tmp_path):
    """Each run is labelled on its own; the scale of the question is known."""
    a, b, _ = world(0, n=60)
    paths = [tmp_path / name for name in ("a.labels.jsonl", "b.labels.jsonl")]
    for path, side, value in zip(paths, "AB", (2.0, 4.0)):
        with LabelFile(path, LabelQuestion("score", scale=(1, 5))) as file:
            for k in range(12):
                item = LabelItem(str(k), f"T{k}", (f"{side}{k}",))
                file.add(item, Label(item.id, "ann", value + k % 2, sample="random"))
    report = compare_sync(a, b, labels=paths)
    assert (report.people.unit, report.people.estimate.labels) == ("score", 12)
    assert report.people.labels_only.value == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="no pair has a label of both answers"):
        compare_sync(a, b, labels=paths[0])
    write_pairs(tmp_path / "pairs.jsonl", ["B"] * 12)
    with pytest.raises(ConfigError, match="labels of kind pair and score cannot be compared"):
        compare_sync(a, b, labels=[paths[0], tmp_path / "pairs.jsonl"])


def test_labels_that_can_be_read_once(tmp_path):
    """An iterator of rows is enough."""
    a, b, truth = world(3)
    report = compare_sync(a, b, labels=label_rows(truth, list(truth)[:50], "random"))
    assert report.people.estimate.labels == 50


def test_labels_that_cannot_be_read_are_count_phrases(tmp_path):
    """A labelled row that is no JSON is left out, and told."""
    a, b, truth = world(3)
    (path := tmp_path / "people.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in label_rows(truth, list(truth)[:50], "random"))
        + "{no JSON\n"
    )
    report = compare_sync(a, b, labels=path)
    assert (report.people.estimate.labels, report.unused_labels) == (50, {"unreadable": 1})
    assert "left out: 1 label unreadable" in report.summary()


@pytest.mark.slow
def test_graders_are_compared_on_the_random_rows(tmp_path, monkeypatch, capsys):
    """Agreement on rows that were chosen because graders disagree there is not the agreement on all
    rows.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    with LabelFile("people.jsonl", LabelQuestion("score", scale=(0, 9))) as file:
        for k in range(80):
            quality = random.Random(k).random()
            item = LabelItem(str(k), f"T{k}", (f"{quality if k < 40 else 1 - quality:.3f}",))
            file.add(
                item,
                Label(
                    item.id,
                    "ann",
                    round(9 * quality) * 1.0,
                    sample="random" if k < 40 else "chosen",
                ),
            )
    (tmp_path / "rules.py").write_text(
        "def exact(text: str) -> float:\n    return float(text)\n\ndef rough(text: str) -> float:\n    return float(text[-1]) / 9\n"
    )
    assert (
        main(["compare", "rules.py:rough", "rules.py:exact", "--labels", "people.jsonl", "--json"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["difference"]["rows"]) == ("better", 40)
    assert data["unused_labels"] == {"of rows that were not drawn at random": 40}


# ---- from a batch to a verdict


def helpful(text: str) -> float:
    """A judge that likes length."""
    return min(1.0, len(text) / 100)


def write_batches(folder):
    """Run two batches on the same tasks: B answers at length, and to every third task as A does."""
    tasks = [{"id": f"city-{n}", "prompt": f"Describe city {n}."} for n in range(60)]
    for name, extra in (("a", ""), ("b", " And as everybody knows, it is a city.")):

        def answer(messages, extra=extra):
            number = int(messages[-1]["content"].split()[-1].rstrip("."))
            return f"City {number} lies by a river{' and ' * (number % 7)}.{extra if number % 3 else ''}"

        model = CallableModel(answer, name=f"model {name}")
        redraft.batch_sync(
            tasks, folder / f"{name}.jsonl", model=model, graders=[helpful], max_iterations=0
        )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["journal", "export"])
def test_from_batches_to_a_verdict(tmp_path, monkeypatch, capsys, form):
    """Two runs, labels by two people in the order that the page shows, and the commands: people
    overrule the judge.
    """
    monkeypatch.chdir(tmp_path)
    write_batches(tmp_path)
    journals = [tmp_path / "a.jsonl.journal", tmp_path / "b.jsonl.journal"]
    with (
        RunLibrary(journals[:1], tmp_path / "cache") as first,
        RunLibrary(journals[1:], tmp_path / "cache") as second,
    ):
        source = two_runs_source((first, second), (first.entries()[0], second.entries()[0]))
        # the pairs that are left out are those that count as ties without a label below
        assert (len(source.information), source.identical) == (40, 20)
        queue = LabelQueue(source, 0.5)
        with LabelFile("people.jsonl", LabelQuestion("pair")) as file:
            for annotator in ("ann", "bob"):
                done = []
                for id in queue.following([], []):
                    item = source.read(id)
                    shorter = 1.0 + (len(item.responses[1]) < len(item.responses[0]))
                    file.add(
                        item,
                        Label(
                            id,
                            annotator,
                            shorter,
                            sample="random" if queue.is_random(id) else "chosen",
                        ),
                    )
                    done.append(id)
                    if len(done) == 24:
                        break
    if form == "export":
        (tmp_path / "people.jsonl").write_text(export_labels(read_labels("people.jsonl"), "jsonl"))
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    assert "b.jsonl is better than a.jsonl" in capsys.readouterr().out
    assert main(["compare", "a.jsonl", "b.jsonl", "--labels", "people.jsonl"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "b.jsonl is worse than a.jsonl" in printed
    assert "and 0 for 20 rows with equal answers" in printed
    assert "12 labels of rows that were not drawn at random" in printed
    assert main(["gate", "a.jsonl", "b.jsonl", "--labels", "people.jsonl"]) == 4


@pytest.mark.parametrize("ids", [{}, {"id": "same"}, {"id": None}], ids=["none", "equal", "null"])
def test_rows_of_labels_without_an_id_of_their_own_say_how_they_were_drawn(ids):
    """As where the two answers of one task have its ID, or files without IDs are joined."""
    a = [{"id": n, "prompt": f"T{n}", "response": f"A{n}", "score": 0.5} for n in range(9)]
    b = [{**row, "response": f"B{n}", "score": 0.6} for n, row in enumerate(a)]
    labels = [
        {"prompt": f"T{n}", "response": f"{side}{n}", "ratings": [n % 2], "sample": sample, **ids}
        for n, sample in enumerate(["random"] * 6 + ["chosen"] * 2)
        for side in "AB"
    ]
    report = compare_sync(a, b, labels=labels)
    assert report.unused_labels[NOT_RANDOM] == 4
