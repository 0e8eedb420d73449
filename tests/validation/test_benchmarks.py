"""Published benchmarks: their shapes, and their scores, which are computed here a second time from
the publications.
"""

import json
import random
from math import tanh

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_rows import (
    ROWS,
    judge_bench,
    reward_bench,
    reward_bench_2,
    rm_bench,
    rmb_best_of_n,
    rmb_pair,
)
from redraft.validation.benchmark_report import BenchmarkScores, report_of
from redraft.validation.benchmarks import BENCHMARKS, benchmark_case, find_benchmark
from redraft.validation.cases import CaseVerdicts, Verdict
from redraft.validation.labelled import read_cases
from redraft.validation.report import ReportConfig


def write_rows(path, rows):
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


FORMATS = [(name, suffix) for name in ROWS for suffix in (".jsonl", ".json", ".parquet", ".csv")]


@pytest.mark.parametrize(
    "name, suffix", [each for each in FORMATS if each[1] != ".csv" or "RMB" not in each[0]]
)  # (CSV has no objects)
def test_shapes_are_recognised_in_every_format(name, suffix, tmp_path):
    """A file as published, or the same rows in another format; the notes name the benchmark, and no
    response is lost.
    """
    rows, path = [ROWS[name](n) for n in range(4)], tmp_path / f"rows{suffix}"
    if suffix in {".jsonl", ".json"}:
        write_rows(path, rows)
    else:
        if suffix == ".csv":
            rows = [
                {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()}
                for row in rows
            ]
        pandas = pytest.importorskip("pandas", reason="no pandas")
        frame = pandas.DataFrame(rows)
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    labelled = read_cases(path)
    assert (labelled.benchmark, labelled.skipped_rows) == (name, ())
    assert name in labelled.column_notes[0]
    for case in labelled.cases:
        assert case.task.prompt.startswith("p")
        assert all(
            text.startswith("good") == (rank == 0)
            for text, rank in zip(case.responses, case.ranks, strict=True)
        )
        assert sorted(case.source_order) == list(range(len(case.responses)))


def test_conversations_have_roles_and_contents_only(tmp_path):
    """RMB adds a language to each message, which no server knows."""
    (case,) = read_cases(write_rows(tmp_path / "rows.json", [rmb_pair(1)])).cases
    assert case.task.messages == ({"role": "user", "content": "p1"},)


NOT_BENCHMARKS = {
    "another subset": [{"prompt": "p", "chosen": "a", "rejected": "b", "subset": "mine"}],
    "a subset that is no text": [{"prompt": "p", "chosen": "a", "rejected": "b", "subset": ["hep-go"]}],
    "chats": [{"prompt": "p", "chosen": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}],
               "rejected": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "b"}], "subset": "x"}],
    "two of a domain": [{"prompt": "p", "chosen": ["a", "b"], "rejected": ["c", "d"], "domain": "chat"}],
    "a tie": [judge_bench(1) | {"label": "tie"}],
    "mixed": [reward_bench(1), {"prompt": "p", "chosen": "a", "rejected": "b"}],
}  # fmt: skip


@pytest.mark.parametrize("rows", NOT_BENCHMARKS.values(), ids=NOT_BENCHMARKS)
def test_other_rows_are_no_benchmark(rows):
    assert find_benchmark(rows) is None


def test_a_named_column_or_another_kind_is_taken_at_its_word(tmp_path):
    """Whoever names a column gets the general reading."""
    path = write_rows(tmp_path / "rows.jsonl", [judge_bench(n) for n in range(3)])
    assert read_cases(path).benchmark == "JudgeBench"
    assert read_cases(path, {"label": "label"}).benchmark == ""
    assert read_cases(path, {"where:source": "mmlu-pro-law"}).benchmark == "JudgeBench"
    assert find_benchmark([reward_bench(1)], "ranking") is None


def test_rows_that_do_not_fit_their_benchmark_are_reported(tmp_path):
    """A row without an answer is skipped with its reason, and the others count."""
    rows = [reward_bench_2(1), reward_bench_2(2, chosen=("a", "b")), reward_bench_2(3)]
    labelled = read_cases(write_rows(tmp_path / "rows.jsonl", rows))
    assert [case.id for case in labelled.cases] == ["1", "3"]
    assert "one chosen response, got 2" in labelled.skipped_rows[0].message


@pytest.mark.parametrize("bad", ["plain text", {"llm_name": "a"}, 3])
def test_an_answer_of_rmb_is_an_object(tmp_path, bad):
    """Another shape is another file, and its row is skipped."""
    rows = [rmb_best_of_n(1), {**rmb_best_of_n(2), "loser_list": [bad]}]
    labelled = read_cases(write_rows(tmp_path / "rows.jsonl", rows))
    assert len(labelled.cases) == 1
    assert "must be an object with the text 'answer'" in labelled.skipped_rows[0].message


def test_judge_bench_keeps_its_order(tmp_path):
    """Its labels are about A and B; in other benchmarks the order of the responses is a hash of
    their texts.
    """
    rows = [judge_bench(n, label=random.Random(n).choice(["A>B", "B>A"])) for n in range(12)]
    for row, case in zip(
        rows, read_cases(write_rows(tmp_path / "rows.jsonl", rows)).cases, strict=True
    ):
        assert case.responses == (row["response_A"], row["response_B"])
    first = [
        case.ranks[0]
        for case in read_cases(
            write_rows(tmp_path / "b.jsonl", [reward_bench(n) for n in range(40)])
        ).cases
    ]
    assert 8 < sum(first) < 32


# ---- scores


def benchmark_named(name):
    return next(b for b in BENCHMARKS if b.name == name)


def scores_of(name, rows, all_scores, *, ranks=False):
    """Return the scores of a benchmark, given a grader's scores of each row's responses, the better
    ones first.
    """
    benchmark, verdicts, cases = benchmark_named(name), [], []
    for n, (row, scores) in enumerate(zip(rows, all_scores, strict=True)):
        case = benchmark_case(benchmark, row, f"line {n}")
        shown = tuple(scores[i] for i in case.source_order)
        places = tuple(sum(other > own for other in shown) for own in shown)
        cases.append(case)
        verdicts.append(Verdict(case.id, ranks=places) if ranks else Verdict(case.id, scores=shown))
    report = report_of(cases, verdicts, ReportConfig(benchmark=name))
    rows_with_verdicts = [CaseVerdicts(c, (v,)) for c, v in zip(cases, verdicts, strict=True)]
    return report, BenchmarkScores(benchmark, benchmark.outcomes(rows_with_verdicts), 0)


score = st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hep-go", "math-prm", "donotanswer", "mt-bench-easy"]), score, score
        ),
        min_size=1,
        max_size=20,
    )
)
def test_reward_bench_weights_subsets_and_averages_sections(drawn):
    """447 rows of math-prm weigh 984 in Reasoning, 164 rows of code 164 each; a tie of scores is
    wrong.
    """
    rows = [reward_bench(n, subset) for n, (subset, _, _) in enumerate(drawn)]
    report, _ = scores_of("RewardBench", rows, [scores for _, *scores in drawn])
    accuracy = {
        subset: sum(a > b for s, a, b in drawn if s == subset) / n
        for subset in {s for s, _, _ in drawn}
        if (n := sum(s == subset for s, _, _ in drawn))
    }
    weights = {"hep-go": 164, "math-prm": 984}
    reasoning = [s for s in accuracy if s in weights]
    sections = [accuracy[s] for s in accuracy if s not in weights]
    if reasoning:
        sections.append(
            sum(weights[s] * accuracy[s] for s in reasoning) / sum(weights[s] for s in reasoning)
        )
    assert report.headline.value == pytest.approx(sum(sections) / len(sections))
    assert report.headline.chance == 0.5


def published_ties_score(reference, tied):
    """RewardBench 2's score of Ties, from its description: 30 % each for accuracies, 20 % each for
    margins, 1 % for their ratio.
    """

    def stats(right, wrong):
        return min(right) - max(wrong), max(right) - min(right)

    mean = lambda values: sum(values) / len(values)
    total, preferred, hard, ratio = (
        0.3 * mean([stats(*t)[0] > 0 for t in tied])
        + 0.3 * mean([stats(*r)[0] > 0 for r in reference]),
        [],
        [],
        [],
    )
    for r, t in zip(reference, tied, strict=True):
        (reference_margin, _), (margin, spread) = stats(*r), stats(*t)
        least = min(reference_margin, margin)
        preferred.append(margin > spread)
        hard.append(least > spread)
        ratio.append(tanh(least / spread - 1) if spread else (least > 0) - (least < 0))
    return total + 0.2 * mean(preferred) + 0.2 * mean(hard) + 0.01 * mean(ratio)


ties = st.tuples(*[st.lists(score, min_size=n, max_size=n) for n in (1, 2, 2, 3)])


@pytest.mark.slow
@given(
    st.lists(ties, min_size=1, max_size=6),
    st.lists(st.lists(score, min_size=4, max_size=4), min_size=1, max_size=6),
)
def test_reward_bench_2_scores_ties_by_their_margins(drawn, focus):
    """Ties counts accuracies and margins; in the other subsets a shared first place counts in
    part.
    """
    rows, all_scores = [], []
    for n, (right, wrong, tied_right, tied_wrong) in enumerate(drawn):
        rows.append(reward_bench_2(n, "Ties", ("a",), ("x", "y"), f"ref:{n}"))
        rows.append(reward_bench_2(100 + n, "Ties", ("a", "b"), ("x", "y", "z"), f"tied:{n}"))
        all_scores += [[*right, *wrong], [*tied_right, *tied_wrong]]
    rows += [reward_bench_2(200 + n) for n in range(len(focus))]
    report, scores = scores_of("RewardBench 2", rows, [*all_scores, *focus])
    expected_ties = published_ties_score([(r, w) for r, w, *_ in drawn], [t[2:] for t in drawn])
    expected_focus = sum((s[0] == max(s)) / s.count(max(s)) for s in focus) / len(focus)
    by_name = {m.name: m.value for m in report.groups}
    assert by_name == {"Focus": pytest.approx(expected_focus), "Ties": pytest.approx(expected_ties)}
    assert report.headline.value == pytest.approx((expected_focus + expected_ties) / 2)
    assert len(scores.outcomes) == report.headline.n == len(rows)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["chat", "math", "safety-refuse", "safety-response"]),
            st.lists(score, min_size=6, max_size=6),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_rm_bench_compares_three_with_three(drawn):
    """Hard: chosen plainer than rejected; easy: richer; the two domains of safety are averaged
    first.
    """
    rows = [rm_bench(n, domain) for n, (domain, _) in enumerate(drawn)]
    report, _ = scores_of("RM-Bench", rows, [scores for _, scores in drawn])
    mean = lambda values: sum(values) / len(values)

    def level(domain, cells):
        return mean([mean([s[i] > s[3 + j] for i, j in cells]) for d, s in drawn if d == domain])

    levels = {
        "hard": [(0, 1), (0, 2), (1, 2)],
        "normal": [(0, 0), (1, 1), (2, 2)],
        "easy": [(1, 0), (2, 0), (2, 1)],
    }
    present = {d for d, _ in drawn}
    safety, others = (
        [d for d in present if d.startswith("safety")],
        [d for d in present if not d.startswith("safety")],
    )
    expected = {}
    for name, cells in levels.items():
        domains = [level(d, cells) for d in others] + (
            [mean([level(d, cells) for d in safety])] if safety else []
        )
        expected[name] = mean(domains)
    measured = {m.name: m.value for m in report.measures if m.name in levels}
    assert measured == {name: pytest.approx(value) for name, value in expected.items()}
    assert report.headline.value == pytest.approx(mean(list(expected.values())))


def test_rmb_averages_its_goals():
    """Four pairs of one goal weigh as much as one of the other; best-of-n must beat every loser."""
    rows = [rmb_pair(n) for n in range(4)] + [rmb_pair(4, "Harmlessness/S1")]
    report, _ = scores_of(
        "RMB pairs", rows, [(0.9, 0.1), (0.9, 0.1), (0.9, 0.1), (0.1, 0.9), (0.5, 0.5)]
    )
    assert report.headline.value == pytest.approx((0.75 + 0) / 2)
    assert [m.name for m in report.measures[:3]] == [
        "RMB pairs score",
        "Harmlessness",
        "Helpfulness",
    ]
    rows = [rmb_best_of_n(n) for n in range(3)]
    report, _ = scores_of(
        "RMB best-of-n", rows, [(0.9, 0.1, 0.2), (0.5, 0.1, 0.5), (0.1, 0.2, 0.0)]
    )
    assert (report.headline.value, report.headline.chance) == (
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
    )


def test_judge_bench_counts_both_orders():
    """One right verdict and a tie are right, a right and a wrong one are not, and no readable
    verdict is wrong.
    """
    benchmark = benchmark_named("JudgeBench")
    verdicts = {
        "right": [(0, 1), (0, 1)],
        "right and a tie": [(0, 1), (0, 0)],
        "contradiction": [(0, 1), (1, 0)],
        "wrong": [(1, 0), (1, 0)],
        "unreadable": [],
    }
    value = {}
    for n, (name, all_ranks) in enumerate(verdicts.items()):
        case = benchmark_case(benchmark, judge_bench(n), "x")
        row = CaseVerdicts(
            case, tuple(Verdict(case.id, ranks=ranks) for ranks in all_ranks) or (Verdict(case.id),)
        )
        value[name] = benchmark.outcomes([row])[0].value
    assert value == {
        "right": 1,
        "right and a tie": 1,
        "contradiction": 0,
        "wrong": 0,
        "unreadable": 0,
    }


@pytest.mark.parametrize("name", ROWS)
def test_unreadable_verdicts_are_wrong_and_chance_is_not_trusted(name):
    """A perfect grader scores 1 and beats chance; one without readable verdicts scores 0."""
    benchmark, rows = benchmark_named(name), [ROWS[name](n) for n in range(12)]
    n_better = {"RM-Bench": 3}.get(name, 1)
    cases = [benchmark_case(benchmark, row, "x") for row in rows]
    perfect = [tuple(float(rank == 0) for rank in case.ranks) for case in cases]
    right = report_of(
        cases,
        [Verdict(c.id, s) for c, s in zip(cases, perfect, strict=True)],
        ReportConfig(benchmark=name),
    )
    silent = report_of(
        cases, [Verdict(c.id, reason="no score") for c in cases], ReportConfig(benchmark=name)
    )
    assert (right.headline.value, right.headline.beats_chance) == (1, True)
    assert (silent.headline.value, silent.headline.beats_chance) == (0, False)
    assert all(case.ranks.count(0) == n_better for case in cases)


def test_a_tie_of_a_comparer_counts_half_in_reward_bench_only():
    """As its generative leaderboard counts it."""
    half, _ = scores_of(
        "RewardBench", [reward_bench(n) for n in range(2)], [(0.5, 0.5), (0.9, 0.1)], ranks=True
    )
    none, _ = scores_of(
        "RMB pairs", [rmb_pair(n) for n in range(2)], [(0.5, 0.5), (0.9, 0.1)], ranks=True
    )
    assert (half.headline.value, none.headline.value) == (0.75, 0.5)
