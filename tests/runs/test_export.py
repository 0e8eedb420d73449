"""Training data from a run: correct pairs, no duplicates, stable splits, and files that the
trainers' libraries load.
"""

import json
import random
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from redraft.base.jsontext import dumps_text
from redraft.errors import ConfigError, RedraftError
from redraft.loop.records import Candidate, Feedback, Outcome, StopReason
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.tables.export.formats import (
    FORMATS,
    ExportConfig,
    NotExportable,
    Provenance,
    TraceExamples,
    types_of,
)
from redraft.tables.export.writer import export

pytestmark = pytest.mark.usefixtures("no_open_files")

JUDGE = (PanelGrader("judge"),)
GATED = (PanelGrader("words:<9", must=True), PanelGrader("judge"))
RUN = Provenance("nightly", "openai:small", {"target_score": 0.9})


def trace(*answers, task="Why is the sky blue?", panel=JUDGE, reason=StopReason.PATIENCE):
    """The trace of a refinement: each answer is a score, or (text, scores by grader, other fields
    of the candidate).
    """
    grown = Trace(task if isinstance(task, Task) else Task(task), panel)
    for i, answer in enumerate(answers):
        text, scores, more = answer if isinstance(answer, tuple) else (f"answer {i}", answer, {})
        grown += Candidate(
            i, text, **{"parent": i - 1 if i else None, "by": "m", "role": "refine", **more}
        )
        for seat, score in zip(
            panel, scores if isinstance(scores, tuple) else (scores,) * len(panel), strict=True
        ):
            if score is not None:
                grown += Feedback(score, "so so", ("be brief",), candidate=i, grader=seat.name)
    return grown + Outcome(grown.best.id if grown.best else None, reason)


def trace_of_texts(traces):
    return [(SimpleNamespace(id=f"row {i}"), t) for i, t in enumerate(traces)]


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def export_to_file(tmp_path, traces, **recipe):
    """Export one file and return its examples and counts."""
    path = tmp_path / "out.jsonl"
    numbers = export(trace_of_texts(traces), path, ExportConfig(**recipe), RUN, overwrite=True)
    return lines(path), numbers


def message_texts(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


SKY = [{"role": "user", "content": "Why is the sky blue?"}]
ORIGIN = {
    "redraft_run": "nightly",
    "redraft_row": "row 0",
    "redraft_model": "openai:small",
    "redraft_graders": ["judge"],
}


@pytest.mark.parametrize(
    ("recipe", "columns"),
    [
        (
            ExportConfig("preference"),
            {
                "prompt": SKY,
                "chosen": message_texts("answer 1")[0],
                "rejected": message_texts("answer 0")[0],
                "redraft_chosen_by": "m",
                "redraft_rejected_by": "m",
                "redraft_score_chosen": 0.9,
                "redraft_score_rejected": 0.3,
                "redraft_margin": 0.6,
            },
        ),
        (
            ExportConfig("unpaired"),
            {
                "prompt": SKY,
                "completion": message_texts("answer 1")[0],
                "label": True,
                "redraft_by": "m",
                "redraft_score": 0.9,
            },
        ),
        (
            ExportConfig("prompt-completion", style="standard"),
            {
                "prompt": "Why is the sky blue?",
                "completion": "answer 1",
                "redraft_by": "m",
                "redraft_score": 0.9,
            },
        ),
        (
            ExportConfig("messages"),
            {
                "messages": SKY + message_texts("answer 1")[0],
                "redraft_by": "m",
                "redraft_score": 0.9,
            },
        ),
        (
            ExportConfig("stepwise"),
            {
                "prompt": "Why is the sky blue?",
                "completions": ["answer 0", "answer 1", "answer 2"],
                "labels": [True, True, False],
                "redraft_by": ["m", "m", "m"],
                "redraft_scores": [0.3, 0.9, 0.4],
            },
        ),
    ],
    ids=lambda x: x.format if isinstance(x, ExportConfig) else "",
)
def test_each_format_has_its_columns(tmp_path, recipe, columns):
    """The trainers' own columns come first, then ours; the card has the type of each."""
    path = tmp_path / "out.jsonl"
    export(trace_of_texts([trace(0.3, 0.9, 0.4)]), path, recipe, RUN)
    first = lines(path)[0]
    assert first == columns | ORIGIN
    assert list(first) == list(types_of(recipe))


def test_a_trajectory_is_the_whole_refinement(tmp_path):
    """It includes ungraded and truncated answers, each with its parent and its feedback."""
    whole = trace(0.3, ("cut", None, {"truncated": True}), 0.9)
    (row,), numbers = export_to_file(tmp_path, [whole], format="trajectory")
    assert [
        (c["id"], c["parent"], c["text"], c["score"], c["truncated"]) for c in row["candidates"]
    ] == [
        (0, None, "answer 0", 0.3, False),
        (1, 0, "cut", None, True),
        (2, 1, "answer 2", 0.9, False),
    ]
    assert (row["best"], row["stop"], row["prompt"]) == (2, "patience", SKY)
    view = {
        "grader": "judge",
        "repeat": 0,
        "score": 0.9,
        "reason": "so so",
        "actions": ["be brief"],
        "done": None,
    }
    assert row["candidates"][2]["feedback"] == [view]
    assert numbers.means == {"first": 0.3, "best": 0.9}


def test_the_scores_of_a_trajectory_are_those_that_graders_gave(tmp_path):
    """Observed scores are exported where estimates are lower; one answer is both first and best."""
    grown = trace(0.9)
    believing = Trace(
        grown.task,
        grown.panel,
        (*grown.records[:-1], Outcome(0, "gain", "", 0.79, (0.6, 0.95), ((0, 0.79),))),
    )
    (row,), numbers = export_to_file(tmp_path, [believing], format="trajectory")
    assert row["candidates"][0]["score"] == 0.9
    assert numbers.means == {"first": 0.9, "best": 0.9}


@pytest.mark.parametrize(
    ("scores", "recipe", "pairs"),
    [
        ((0.3, 0.9, 0.1), {}, [(0.9, 0.3)]),
        ((0.3, 0.9, 0.1), {"pairs": "best-worst"}, [(0.9, 0.1)]),
        ((0.3, 0.9, 0.1), {"pairs": "all"}, [(0.9, 0.3), (0.9, 0.1)]),
        ((0.3, 0.9, 0.8), {"pairs": "all", "min_margin": 0.6}, [(0.9, 0.3)]),
        ((0.9, 0.3), {"pairs": "best-worst"}, [(0.9, 0.3)]),
        ((None, 0.5, 0.9), {}, [(0.9, 0.5)]),
    ],
)
def test_pairs_follow_the_recipe(tmp_path, scores, recipe, pairs):
    """The best answer is paired with the first, the worst, or each that scored less by the margin;
    ungraded answers are never used.
    """
    rows, _ = export_to_file(tmp_path, [trace(*scores)], **recipe)
    assert [(r["redraft_score_chosen"], r["redraft_score_rejected"]) for r in rows] == pairs


CUT, IMAGE = (
    {"truncated": True},
    [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}},
    ],
)
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}


@pytest.mark.parametrize(
    ("left", "recipe", "reason"),
    [
        (trace(), {}, "no answer"),
        (trace(None, None), {}, "no answer has a score"),
        (trace(("a", 0.2, CUT), ("b", 0.9, CUT)), {}, "the scored answers were cut off"),
        (trace((" ", 0.2, {}), ("\n", 0.9, {})), {}, "the scored answers are empty"),
        (trace(("a", 0.2, {}), ("b", 0.9, CUT)), {}, "only one scored answer"),
        (trace(("a", 0.2, {}), ("a", 0.2, {})), {}, "only one scored answer"),
        (trace(0.5, 0.5), {}, "no better answer"),
        (trace(0.5, 0.4), {}, "no better answer"),
        (trace((0.5), ("answer 0\n", 0.9, {})), {}, "the same text"),
        (trace(0.5, 0.6), {"min_margin": 0.2}, "the margin is too small"),
        (trace(("a", (0.0, 0.2), {}), panel=GATED), {}, "the best answer breaks a must"),
        (
            trace(("a", (0.0, 0.9), {}), ("b", (1.0, 0.4), {}), panel=GATED),
            {"min_margin": 0.5},
            "the margin is too small",
        ),
        (trace(0.5, 0.6), {"format": "messages", "good": 0.7}, "the best score is too low"),
        (
            trace(0.5, 0.6),
            {"format": "unpaired", "good": 0.7, "min_margin": 0.3},
            "the margin is too small",
        ),
        (trace(0.2), {"format": "stepwise"}, "only one scored answer"),
        (trace(), {"format": "trajectory"}, "no answer"),
        (
            trace(0.1, 0.9, task=Task([{"role": "user", "content": IMAGE}])),
            {},
            "the prompt is more than text",
        ),
        (trace(0.1, 0.9, task=Task([*SKY, CALL, *SKY])), {}, "the prompt is more than text"),
        (
            trace(0.1, 0.9, task=Task([{"role": "system", "content": "s"}])),
            {},
            "the prompt does not end with a user or a tool",
        ),
        (
            trace(0.1, 0.9, task=Task([{"role": "system", "content": "s"}, *SKY])),
            {"style": "standard"},
            "the prompt is more than one user message, which plain text cannot hold",
        ),
        (trace(("a\ud800", 0.1, {}), 0.9), {}, "not valid Unicode"),
    ],
)
def test_rows_without_an_example_are_counted_by_reason(tmp_path, left, recipe, reason):
    """Nothing of such a row is exported, and the next row is."""
    fine = trace(("poor", 0.1, {}), ("fine", 0.95, {}), task="Another question")
    rows, numbers = export_to_file(tmp_path, [left, fine], **recipe)
    assert numbers.left_out == {reason: 1}
    assert {r["redraft_row"] for r in rows} == {"row 1"}
    assert (numbers.rows, numbers.used) == (2, 1)


WHOLE, HALF = ("whole", 0.4, {}), ("half an ans", 0.9, CUT)
BEST_CUT = trace(("poor", 0.1, {}), WHOLE, HALF)
FAILED = trace(("poor", 0.1, {}), WHOLE, reason=StopReason.FAILED)
LOWER_CUT = trace(("poo", 0.1, CUT), ("fair", 0.2, {}), WHOLE)


@pytest.mark.parametrize(
    ("format", "left", "reason", "kept"),
    [
        ("messages", BEST_CUT, "the best answer was cut off", None),
        ("prompt-completion", BEST_CUT, "the best answer was cut off", None),
        ("messages", FAILED, "the row failed", None),
        ("prompt-completion", FAILED, "the row failed", None),
        (
            "messages",
            trace(HALF, reason=StopReason.FAILED),
            "the scored answers were cut off",
            None,
        ),
        ("messages", trace(reason=StopReason.FAILED), "no answer", None),
        (
            "messages",
            trace((WHOLE[0], None, {}), reason=StopReason.FAILED),
            "no answer has a score",
            None,
        ),
        ("messages", LOWER_CUT, None, 1),
        ("prompt-completion", LOWER_CUT, None, 1),
        ("messages", trace(WHOLE, reason=StopReason.BUDGET), None, 1),
        ("messages", trace(WHOLE, reason=StopReason.TARGET), None, 1),
        ("preference", BEST_CUT, None, 1),
        ("preference", FAILED, None, 1),
        ("unpaired", BEST_CUT, None, 2),
        ("unpaired", FAILED, None, 2),
        ("stepwise", BEST_CUT, None, 1),
        ("stepwise", FAILED, None, 1),
        ("trajectory", BEST_CUT, None, 1),
        ("trajectory", FAILED, None, 1),
    ],
)
def test_an_answer_that_takes_the_place_of_the_best_is_not_fine_tuned_on(
    tmp_path, format, left, reason, kept
):
    """A comparison of complete answers with scores is as good as in another row. No answer that was
    cut off is in a format of TRL.
    """
    fine = trace(("poor", 0.1, {}), ("fine", 0.95, {}), task="Another question")
    rows, numbers = export_to_file(tmp_path, [left, fine], format=format)
    found = [row for row in rows if row["redraft_row"] == "row 0"]
    assert (len(found), numbers.left_out) == (kept or 0, {reason: 1} if reason else {})
    assert format == "trajectory" or "half" not in json.dumps(found)


def test_a_must_comes_before_a_score(tmp_path):
    """The chosen answer meets the must and the rejected one breaks it, whatever the judge's
    score.
    """
    gated = trace(
        ("long", (0.0, 0.5), {}),
        ("short", (1.0, 0.8), {}),
        ("long too", (0.0, 1.0), {}),
        panel=GATED,
    )
    rows, _ = export_to_file(tmp_path, [gated], pairs="all")
    assert [(r["chosen"], r["rejected"]) for r in rows] == [
        tuple(message_texts("short", other)) for other in ("long", "long too")
    ]
    assert {(r["redraft_score_chosen"], r["redraft_score_rejected"]) for r in rows} == {(0.8, 0.0)}
    rows, _ = export_to_file(tmp_path, [gated], format="unpaired", good=0.7)
    assert [(r["completion"][0]["content"], r["label"]) for r in rows] == [
        ("long", False),
        ("short", True),
        ("long too", False),
    ]
    rows, _ = export_to_file(tmp_path, [gated], format="stepwise")
    assert rows[0]["labels"] == [False, True, False]


def test_a_step_is_compared_with_its_parent(tmp_path):
    """It is not compared with the answer before it; for an ungraded parent its own parent
    counts.
    """
    both = trace(
        0.5,
        0.2,
        ("c", 0.4, {"parent": 0}),
        ("d", 0.6, {"parent": 0}),
        ("e", None, {"parent": 3}),
        ("f", 0.7, {"parent": 4}),
    )
    rows, _ = export_to_file(tmp_path, [both], format="stepwise")
    assert (rows[0]["completions"][-1], rows[0]["labels"]) == (
        "f",
        [True, False, False, True, True],
    )
    rows, _ = export_to_file(tmp_path, [both], format="stepwise", min_margin=0.2)
    assert rows[0]["labels"] == [True, False, False, False, False]


def test_a_conversation_stays_whole(tmp_path):
    """System message, earlier turns and text parts are the prompt, without keys that training does
    not use.
    """
    turns = [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}],
            "toxic": 0.1,
        },
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    rows, _ = export_to_file(tmp_path, [trace(0.1, 0.9, task=Task(turns))], format="messages")
    assert [(m["role"], m["content"]) for m in rows[0]["messages"]] == [
        ("system", "Be kind."),
        ("user", "Hi\nthere"),
        ("assistant", "Hello."),
        ("user", "Bye"),
        ("assistant", "answer 1"),
    ]
    assert all(set(m) == {"role", "content"} for m in rows[0]["messages"])


texts = st.sampled_from(["a", "b ", "b", "c", " ", "long answer"])
answers = st.tuples(
    texts,
    st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([None, 0.0, 0.1, 0.2, 0.3, 0.9, 1.0])),
    st.fixed_dictionaries({"truncated": st.booleans()}),
)
runs = st.lists(
    st.builds(
        lambda q, found: trace(*found, task=q, panel=GATED),
        st.sampled_from("pqr"),
        st.lists(answers, max_size=5),
    ),
    max_size=8,
)


def any_examples(traces, **recipe):
    for one in traces:
        with suppress(NotExportable):
            if TraceExamples(one, ExportConfig(**recipe)).examples():
                return True
    return False


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.filter_too_much])  # many runs have no pair
@given(
    runs, st.sampled_from([0.0, 0.1, 0.25]), st.sampled_from(["best-first", "best-worst", "all"])
)
def test_every_pair_has_a_better_chosen_answer(tmp_path_factory, traces, margin, pairs):
    """The chosen text scored more by the margin, differs, is complete and breaks no must; no pair
    is repeated, and every row is counted.
    """
    assume(any_examples(traces, pairs=pairs, min_margin=margin))
    rows, numbers = export_to_file(
        tmp_path_factory.mktemp("x"), traces, pairs=pairs, min_margin=margin
    )
    sources = {f"row {i}": t for i, t in enumerate(traces)}
    seen = set()
    for row in rows:
        chosen, rejected = row["chosen"][0]["content"], row["rejected"][0]["content"]
        assert row["redraft_score_chosen"] > row["redraft_score_rejected"]
        assert row["redraft_margin"] >= margin - 1e-9
        assert chosen.strip() != rejected.strip()
        whole = {c.text: c for c in sources[row["redraft_row"]].candidates if not c.truncated}
        assert {chosen, rejected} <= set(whole)
        seen.add((row["prompt"][0]["content"], frozenset((chosen.strip(), rejected.strip()))))
    assert len(seen) == len(rows) == numbers.train
    assert numbers.rows == len(traces) == numbers.used + sum(numbers.left_out.values())


@given(runs, st.sampled_from(FORMATS))
def test_duplicates_are_exported_once_and_counted(tmp_path_factory, traces, format):
    """A run exported twice at once gives the examples of one."""
    folder = tmp_path_factory.mktemp("x")
    if not any_examples(traces, format=format):
        with pytest.raises(RedraftError, match="nothing was written"):
            export_to_file(folder, [*traces, *traces], format=format)
        return
    once, first = export_to_file(folder, traces, format=format)
    twice, both = export_to_file(folder, [*traces, *traces], format=format)
    assert twice == once
    assert both.duplicates == first.duplicates * 2 + len(once)
    assert both.used == first.used


def test_a_prompt_stays_in_its_split(tmp_path):
    """The split of a prompt does not depend on other rows, their order or the run; the share is
    about the requested one.
    """
    traces = [trace(0.1, 0.9, task=f"Question {i}") for i in range(400)]
    recipe = ExportConfig(test_size=0.25, salt="s")

    def splits_of(rows, name):
        done = export(rows, tmp_path / f"{name}.jsonl", recipe, Provenance(name))
        found = {
            side: {r["prompt"][0]["content"] for r in lines(tmp_path / f"{name}.{side}.jsonl")}
            for side in ("train", "test")
        }
        assert (done.train, done.test) == (len(found["train"]), len(found["test"]))
        assert done.files == tuple(
            str(tmp_path / f"{name}.{side}.jsonl") for side in ("train", "test")
        )
        return found

    whole = splits_of(trace_of_texts(traces), "whole")
    assert not whole["train"] & whole["test"]
    assert 70 <= len(whole["test"]) <= 130
    some = random.Random(1).sample(traces, 100)
    part = splits_of(trace_of_texts(some), "part")
    assert part["test"] == whole["test"] & {t.task.prompt for t in some}
    spaced = [trace(0.1, 0.9, task=f" Question  {i}\n") for i in range(400)]
    assert {
        " ".join(q.split()) for q in splits_of(trace_of_texts(spaced), "spaced")["test"]
    } == whole["test"]
    recipe = ExportConfig(test_size=0.25, salt="another")
    assert splits_of(trace_of_texts(traces), "salted")["test"] != whole["test"]


@pytest.mark.parametrize("side", ["train", "test"])
def test_an_empty_split_leaves_no_file(tmp_path, side):
    """A file of an earlier export is removed, too: `datasets` cannot load an empty one, and old
    examples would look new.
    """
    salt = next(s for s in map(str, range(99)) if _in_test(s) == (side == "train"))
    (tmp_path / f"out.{side}.jsonl").write_text('{"old": 1}\n')
    done = export(
        trace_of_texts([trace(0.1, 0.9)]),
        tmp_path / "out.jsonl",
        ExportConfig(test_size=0.5, salt=salt),
        RUN,
        overwrite=True,
    )
    assert [str(p) for p in tmp_path.iterdir()] == list(done.files)
    assert len(lines(tmp_path / done.files[0])) == 1


def _in_test(salt):
    recipe = ExportConfig(test_size=0.5, salt=salt)
    return TraceExamples(trace(0.1), recipe).prompt.in_test(recipe)


# Loading with other libraries


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Call `datasets.load_dataset` without the network and with a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    return lambda *args, **options: load_dataset(
        *args, cache_dir=str(tmp_path / "cache"), **options
    )


HARD = [
    trace(("2024-01-01", 0.1, {}), ("2024-01-02", 0.9, {}), task="2024-01-01 00:00:00"),
    trace(("nul \0, 'quotes\" and \u2028", 0.2, {}), ("=1+1 😀\r\n", 1.0, {}), task="{}"),
    trace(("x", 0.0, {"by": "given"}), ("y", None, {}), ("z", 0.5, {"by": "editor"}), task="plain"),
]


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_a_folder_loads_as_it_was_written(tmp_path, load, format, files):
    """`datasets` loads both splits from the folder's name with every value unchanged: texts like
    dates stay texts.
    """
    recipe = ExportConfig(format, test_size=0.4, files=files)
    more = [trace(0.1, 0.9, task=f"Question {i}") for i in range(20)]
    done = export(trace_of_texts([*HARD, *more]), tmp_path / "data", recipe, Provenance("r"))
    loaded = load(str(tmp_path / "data"))
    assert {name: len(split) for name, split in loaded.items()} == {
        "train": done.train,
        "test": done.test,
    }
    assert loaded["train"].column_names == loaded["test"].column_names == list(types_of(recipe))
    whole, _ = export_to_file(tmp_path, [*HARD, *more], format=format)
    found = [
        dict(r) | {"redraft_run": "nightly", "redraft_model": "openai:small"}
        for side in loaded.values()
        for r in side
    ]
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, whole))


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("ending", ["jsonl", "parquet", "jsonl.gz"])
def test_a_single_file_loads(tmp_path, load, format, ending):
    """The ending of its name gives the format."""
    path = tmp_path / f"out.{ending}"
    done = export(
        trace_of_texts(trace(0.1, 0.9, task=f"Question {i}") for i in range(3)),
        path,
        ExportConfig(format),
        RUN,
    )
    loaded = load("parquet" if ending == "parquet" else "json", data_files=str(path))["train"]
    assert (len(loaded), loaded.column_names) == (done.train, list(types_of(ExportConfig(format))))


def test_trl_recognises_every_format(tmp_path, load):
    """TRL's functions recognise each format as conversational and apply a chat template to it."""
    trl = pytest.importorskip("trl.data_utils", reason="no trl")
    transformers = pytest.importorskip("transformers", reason="no transformers")
    from tokenizers import Tokenizer, models

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    )
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    for format in ("preference", "unpaired", "prompt-completion", "messages"):
        export(trace_of_texts([trace(0.1, 0.9)]), tmp_path / format, ExportConfig(format), RUN)
        dataset = load(str(tmp_path / format))["train"]
        assert trl.is_conversational(dataset[0])
        templated = trl.apply_chat_template(dataset[0], tokenizer)
        answer = templated.get("chosen") or templated.get("completion") or templated["text"]
        assert answer.endswith("answer 1</>")
        assert (
            templated.get("prompt", "<user>Why is the sky blue?</><assistant>")
            == "<user>Why is the sky blue?</><assistant>"
        )
    pairs = load(str(tmp_path / "preference"))["train"]
    assert [r["label"] for r in trl.unpair_preference_dataset(pairs)] == [True, False]
    assert trl.maybe_extract_prompt(pairs[0]) == pairs[0]


# The card

HOSTILE = '"}\n---\nevil: [x]\n# <script>alert(1)</script> | `x` \x1b[31m ![](http://x/y.png)'


def test_the_card_says_how_the_data_were_made(tmp_path):
    """It has the counts, the graders with their validation cards, the writers, and what was left
    out.
    """
    card = {"status": "trusted", "words": "preference 0.81 [0.76, 0.85] of 300 rows"}
    panel = (PanelGrader("helpful", card=card), PanelGrader("words:<9"))
    traces = [
        trace(0.2, 0.8, panel=panel),
        trace(0.5, 0.5, task="b"),
        trace(0.1, 0.2, task="c", panel=panel),
    ]
    done = export(trace_of_texts(traces), tmp_path / "data", ExportConfig(min_margin=0.05), RUN)
    text = (tmp_path / "data" / "README.md").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert (header["license"], header["pretty_name"], header["size_categories"]) == (
        "unknown",
        "nightly",
        ["n<1K"],
    )
    assert header["configs"][0]["data_files"] == [{"split": "train", "path": "train.jsonl"}]
    for line in (
        "| examples | 2: train 2, test 0 |",
        "| rows of the run | 3; 2 of them gave examples |",
        "| mean margin | 0.350 |",
        "| helpful | trusted: preference 0.81 \\[0.76, 0.85\\] of 300 rows |",
        "| words:&lt;9 | none was looked for |",
        "| model | openai:small |",
        "| target\\_score | 0.9 |",
        "| pairs | best-first, margin at least 0.05 |",
        "| m | 4 |",
        "| no better answer | 1 |",
        "| 0.1 to 0.2 | 0 | 1 | 1 |",
        "| 0.8 to 0.9 | 1 | 0 | 0 |",
    ):
        assert line in text.splitlines()
    assert done.as_data()["left_out"] == {"no better answer": 1}
    json.dumps(done.as_data())


def test_hostile_names_are_escaped_in_the_card(tmp_path):
    """They stay within their quotes in the header and are neither HTML, Markdown nor control
    sequences in the text.
    """
    seat = PanelGrader(HOSTILE, card={"status": HOSTILE, "words": HOSTILE})
    panel = (seat, PanelGrader("second", card="no mapping"))
    rows = [trace(0.2, (HOSTILE, 0.8, {"by": HOSTILE}), panel=panel, task=HOSTILE)]
    export(
        trace_of_texts(rows),
        tmp_path / "data",
        ExportConfig(),
        Provenance(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}),
    )
    text = (tmp_path / "data" / "README.md").read_text()
    assert list(yaml.safe_load_all(text.split("\n---\n")[0])) == [
        yaml.safe_load(text.split("\n---\n")[0])
    ]
    header = yaml.safe_load(text.split("\n---\n")[0])
    assert "evil" not in header
    assert header["configs"][0]["data_files"] == [{"split": "train", "path": "train.jsonl"}]
    body = text.split("\n---\n", 1)[1]
    assert "<script" not in body and "![" not in body and "\x1b" not in body and "\n# <" not in body
    assert lines(tmp_path / "data" / "train.jsonl")[0]["redraft_run"] == HOSTILE


def test_the_card_names_fifty_graders_at_most(tmp_path):
    """Each row of the data may name its own grader; the rest are counted together."""
    traces = [
        trace(0.2, ("b", 0.9, {"by": f"m{i}"}), task=str(i), panel=(PanelGrader(f"words:<{i}"),))
        for i in range(120)
    ]
    done = export(trace_of_texts(traces), tmp_path / "data", ExportConfig(), RUN)
    assert len(done.graders) == len(done.writers) == 51
    assert done.writers["others"] == 120 - 49


def test_a_second_export_replaces_the_first(tmp_path):
    """The files in the folder are equal byte for byte where nothing changed."""
    path, traces = tmp_path / "data", [trace(0.1, 0.9, task=str(i)) for i in range(9)]
    told = []
    for _ in range(2):
        export(trace_of_texts(traces), path, ExportConfig(test_size=0.5), RUN)
        told.append({p.name: p.read_bytes() for p in sorted(path.iterdir())})
    assert told[0] == told[1]
    assert list(told[0]) == ["README.md", "test.jsonl", "train.jsonl"]


def test_a_foreign_readme_is_never_replaced(tmp_path):
    """A folder with a README.md of another program is refused before any file is written."""
    (tmp_path / "README.md").write_text("# My project\n")
    with pytest.raises(ConfigError, match=r"README\.md of its own"):
        export([], tmp_path, ExportConfig(), RUN)
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"format": "dpo"}, "format must be one of preference, unpaired"),
        ({"pairs": "random"}, "pairs must be one of best-first"),
        ({"style": "chat"}, "style must be one of conversational, standard, openai, got 'chat'"),
        ({"style": "openai", "format": "unpaired"}, "style is for preference, messages"),
        ({"tool_calls": True, "format": "stepwise"}, "tool_calls is for preference, unpaired"),
        ({"tool_calls": True, "style": "standard"}, "tool_calls needs messages"),
        ({"tool_calls": True, "files": "parquet"}, r"tool_calls needs JSON Lines \(.jsonl\)"),
        ({"style": "openai", "files": "parquet"}, "style 'openai' needs JSON Lines"),
        ({"files": "csv"}, "files must be one of jsonl, parquet"),
        ({"min_margin": -0.1}, r"min_margin must be a number in \[0, 1\], got -0.1"),
        ({"min_margin": float("nan")}, "min_margin must be a number"),
        ({"test_size": 1.0}, r"test_size must be a number in \[0, 1\), got 1.0"),
        ({"test_size": True}, "test_size must be a number"),
        ({"good": 2, "format": "messages"}, "good must be a number"),
        (
            {"good": 0.5},
            "good is for unpaired, prompt-completion, messages; format 'preference' does not use 0.5",
        ),
        ({"min_margin": 0.1, "format": "messages"}, "min_margin is for preference"),
        ({"pairs": "all", "format": "messages"}, "pairs is for preference, unpaired"),
        ({"style": "standard", "format": "messages"}, "style is for"),
    ],
)
def test_invalid_recipes_are_refused(settings, words):
    """The error has the name, the value and what is allowed."""
    with pytest.raises(ConfigError, match=words):
        ExportConfig(**settings)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("out.csv", ExportConfig()), ("out.txt", ExportConfig()), ("-", ExportConfig(test_size=0.5))],
)
def test_unsuitable_destinations_are_refused(tmp_path, name, recipe):
    """CSV cells cannot hold messages, and stdout cannot hold two files."""
    with pytest.raises(ConfigError, match="path must"):
        export([], name if name == "-" else tmp_path / name, recipe, RUN)


def test_an_export_without_examples_is_an_error(tmp_path):
    """There is no file or folder, only the reasons with their counts."""
    for name in ("out.jsonl", "data"):
        with pytest.raises(
            RedraftError,
            match=r"none of the 2 rows of run .* gives an example: 2 x no better answer",
        ):
            export(trace_of_texts([trace(0.5, 0.5)] * 2), tmp_path / name, ExportConfig(), RUN)
    assert not list(tmp_path.glob("*.jsonl"))
    assert not list(tmp_path.glob("*/*"))


def test_a_trace_gives_an_example_or_a_reason():
    """The examples of one trace are at least one, or there is a reason why not."""
    assert len(TraceExamples(trace(0.1, 0.9), ExportConfig()).examples()) == 1
    with pytest.raises(NotExportable, match="only one"):
        TraceExamples(trace(0.1), ExportConfig()).examples()


def test_a_journal_is_exported_in_input_order(tmp_path):
    """Rows that were interrupted are included."""
    from redraft.loop.serialize import record_to_json
    from redraft.storage.journal import Journal

    path = tmp_path / "journal.db"
    with Journal(path) as journal:
        journal.update_run("nightly")
        for n, score in ((1, 0.9), (0, 0.8)):
            told = trace(0.1, score, task=f"Question {n}")
            journal.begin_row("nightly", f"id {n}", n, "key", {}, dumps_text(told.header()))
            journal.append_records(
                "nightly", f"id {n}", 0, [record_to_json(r) for r in told.records]
            )
            journal.finish_row("nightly", f"id {n}", "done" if n else "open", {})
    with Journal(path, read_only=True) as journal:
        done = export(journal.traces("nightly"), tmp_path / "out.jsonl", ExportConfig(), RUN)
    assert (done.rows, done.train) == (2, 2)
    assert [r["redraft_row"] for r in lines(tmp_path / "out.jsonl")] == ["id 0", "id 1"]


def test_an_export_that_fails_leaves_no_partial_file(tmp_path):
    """An error while rows are read is raised unchanged, and no file looks complete."""

    def failing_rows():
        yield from trace_of_texts([trace(0.1, 0.9)])
        raise OSError("the journal is gone")

    with pytest.raises(OSError, match="the journal is gone"):
        export(failing_rows(), tmp_path / "data", ExportConfig(), RUN)
    assert not list((tmp_path / "data").iterdir())


def test_a_dash_exports_json_lines_to_stdout(capfdbinary):
    """ "-" is stdout."""
    done = export(trace_of_texts([trace(0.1, 0.9)]), "-", ExportConfig(), RUN)
    assert (json.loads(capfdbinary.readouterr().out)["redraft_margin"], done.files) == (0.8, ("-",))


def test_an_existing_file_is_not_replaced_without_permission(tmp_path):
    """The error names it and the option that allows it; an empty file is replaced."""
    path = tmp_path / "out.jsonl"
    path.write_text("precious\n")
    with pytest.raises(ConfigError, match=r"out\.jsonl' exists already.*--overwrite"):
        export(trace_of_texts([trace(0.2, 0.8)]), path, ExportConfig(), RUN)
    assert path.read_text() == "precious\n"
    export(trace_of_texts([trace(0.2, 0.8)]), path, ExportConfig(), RUN, overwrite=True)
    assert len(lines(path)) == 1
    path.write_text("")
    export(trace_of_texts([trace(0.2, 0.8)]), path, ExportConfig(), RUN)
    assert len(lines(path)) == 1


def test_only_files_of_an_earlier_export_are_replaced_in_a_folder(tmp_path):
    """Files that its card names are replaced; with any other file the folder is refused and stays
    unchanged.
    """
    folder = tmp_path / "set"
    export(trace_of_texts([trace(0.2, 0.8)]), folder, ExportConfig(), RUN)
    export(
        trace_of_texts([trace(0.2, 0.8), trace(0.1, 0.7, task="Why?")]), folder, ExportConfig(), RUN
    )
    assert len(lines(folder / "train.jsonl")) == 2
    (folder / "test.jsonl").write_text("precious\n")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(ConfigError, match=r"test\.jsonl' exists already"):
        export(trace_of_texts([trace(0.2, 0.8)]), folder, ExportConfig(test_size=0.5), RUN)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


FULL = """
import resource, sys
from types import SimpleNamespace
from redraft.loop.records import Candidate, Feedback
from redraft.loop.trace import PanelGrader, Trace
from redraft.loop.task import Task
from redraft.tables.export.formats import Provenance
from redraft.tables.export.writer import export
from redraft.tables.export.formats import ExportConfig

def rows():
    for n in range(3000):
        grown = Trace(Task(f"q{n}"), (PanelGrader("judge"),))
        for i in range(2):
            grown += Candidate(i, f"{n} {i} " + "a" * 1000)
            grown += Feedback(0.2 + i / 2, "so so", candidate=i, grader="judge")
        yield SimpleNamespace(id=str(n)), grown

resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
export(rows(), sys.argv[1], ExportConfig(), Provenance("r"), overwrite=True)
"""


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    ("name", "there"), [("out.jsonl", True), ("out.parquet", False), ("set", True), ("set", False)]
)
def test_a_full_disk_leaves_the_old_file(tmp_path, name, there):
    """There is no partial or empty file, and the error names the file and the reason."""
    path = tmp_path / name
    if there:
        export(trace_of_texts([trace(0.2, 0.8)]), path, ExportConfig(), RUN)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (
        ended.returncode
        and name in ended.stderr
        and "cannot be written: File too large" in ended.stderr
    ), ended.stderr
    assert "earlier files are unchanged" in ended.stderr
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_prompts_leave_out_requirements_unless_requested(tmp_path):
    """With them the prompt is that of the writer; the split follows the user's words in either
    case.
    """
    panel = (PanelGrader("words:<9", must=True, demand="at most 8 words"), PanelGrader("judge"))
    traces = [
        trace((f"a {i}", (1.0, 0.3), {}), (f"b {i}", (1.0, 0.8), {}), task=f"Why {i}?", panel=panel)
        for i in range(20)
    ]
    for format in ("preference", "messages", "stepwise", "trajectory"):
        (own, *_), _ = export_to_file(tmp_path, traces[:1], format=format)
        (told, *_), _ = export_to_file(tmp_path, traces[:1], format=format, with_requirements=True)
        assert "at most 8 words" not in json.dumps(own)
        assert "Why 0?\\n\\nThe answer must meet this:\\n- at most 8 words" in json.dumps(told)
    splits_of = []
    for with_requirements in (False, True):
        recipe = ExportConfig(test_size=0.5, with_requirements=with_requirements)
        export(trace_of_texts(traces), tmp_path / "split", recipe, RUN, overwrite=True)
        splits_of.append([row["redraft_row"] for row in lines(tmp_path / "split" / "test.jsonl")])
        card = (tmp_path / "split" / "README.md").read_text()
        assert ("with the requirements, as the model was given them" in card) is with_requirements
    assert splits_of[0] == splits_of[1]
    assert 0 < len(splits_of[0]) < 20
