"""Judging in the browser: blind, with keys, by several people at once, and without losing a
label.
"""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from itertools import product
from math import isclose
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import redraft
from redraft.cli import main
from redraft.errors import ConfigError
from redraft.loop.records import Candidate, Outcome, StopReason, ToolCall
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.models import CallableModel
from redraft.plans.quality.priors import Priors
from redraft.session.options import Options
from redraft.validation import read_cases
from redraft.validation.label_file import LabelFile, LabelItem, LabelQuestion, read_labels
from redraft.viewer.label_items import (
    LabelQueue,
    LabelSource,
    file_source,
    pair_information,
    run_source,
    single_information,
    two_runs_source,
)
from redraft.viewer.label_pages import (
    LabelPages,
    choices,
    item_handle,
    label_value,
    presentation_order,
)
from redraft.viewer.run_library import RunLibrary
from sessions import make_session

from .conftest import serving
from .hostile_runs import write_hostile_run
from .synthetic_runs import write_run
from .test_browser import check_layout, watched_page


@contextmanager
def labelling(source, path, *, kind="pair", count=None, share=0.25):
    with LabelFile(path, LabelQuestion(kind, "Which is better?")) as file:
        with serving(
            lambda server: LabelPages(
                source, file, LabelQueue(source, share), server.root, count
            ).app(),
            (),
        ) as server:
            yield server


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    path = write_run(folder / "a.journal", 120)
    with RunLibrary([path], folder / "cache") as library:
        yield library, library.entries()[0]


# ---- what is judged


@pytest.mark.slow
def test_pairs_of_a_run_are_the_first_and_the_best_answer(run):
    """Of every row whose best answer is another than its first; which comes first says nothing
    about where it comes from.
    """
    library, entry = run
    source = run_source(library, entry, "pair")
    firsts = Counter()
    index = library.build(entry).ready_index()
    traces = {id: index.trace(number) for number, id in index.read("SELECT number, id FROM rows")}
    rewritten = {id for (id,) in index.read("SELECT id FROM rows WHERE rewritten")}
    assert (
        source.information.keys()
        == rewritten
        == {id for id, t in traces.items() if t.best and t.best.id != 0}
    )
    for id in source.information:
        item, trace = source.read(id), traces[id]
        by_origin = dict(zip(item.origins, item.responses))
        assert by_origin == {
            "first answer": trace.candidates[0].text,
            "best answer": trace.best.text,
        }
        firsts[item.origins[0]] += 1
    assert min(firsts.values()) > len(source.information) / 4


@pytest.mark.slow
def test_pairs_of_two_runs_are_their_best_answers(run, tmp_path):
    """Of the rows that both have, without those that are identical, which are counted."""
    library, entry = run
    other = write_run(tmp_path / "b.journal", 100, run="other", gain=0.3)
    with RunLibrary([other], tmp_path / "cache") as second:
        source = two_runs_source((library, second), (entry, second.entries()[0]))
        items = [source.read(id) for id in source.information]
        assert items and all(set(item.origins) == {"answers", "other"} for item in items)
        index = second.build(second.entries()[0]).ready_index()
        answers = [
            {id: trace.best.text for id, n in found if (trace := each.trace(n)).best}
            for each in (library.build(entry).ready_index(), index)
            for found in [each.read("SELECT id, number FROM rows")]
        ]
        both = answers[0].keys() & answers[1].keys()
        same = {id for id in both if answers[0][id] == answers[1][id]}
        assert source.information.keys() == both - same
        assert source.identical == len(same) > 50
        trace = index.trace(index.read("SELECT number FROM rows WHERE id = ?", items[0].id)[0][0])
        assert dict(zip(items[0].origins, items[0].responses))["other"] == trace.best.text


@pytest.mark.parametrize(
    ("kind", "header", "row", "columns"),
    [
        ("pair", "id,prompt,response_a,response_b", "1,q,x,y", {}),
        (
            "pair",
            "question,left,right",
            "q,x,y",
            {"prompt": "question", "response_a": "left", "response_b": "right"},
        ),
        ("pass", "prompt,answer", "q,x", {}),
        ("score", "prompt,text", "q,x", {"response": "text"}),
    ],
)
def test_files_are_judged(tmp_path, kind, header, row, columns):
    """Columns by their usual names, or named; a row of two equal answers is nothing to judge."""
    path = tmp_path / "rows.csv"
    same = re.sub("y$", "x", row).replace("1,", "2,")
    path.write_text(f"{header}\n{row}\n{same if kind == 'pair' else ''}")
    source = file_source(path, kind, columns)
    (item,) = map(source.read, source.information)
    assert source.identical == (1 if kind == "pair" else 0)
    assert (item.prompt, item.responses) == ("q", ("x", "y") if kind == "pair" else ("x",))


def test_pairs_of_equal_calls_of_tools_are_identical(tmp_path):
    """The answers are what a page shows of them: an equal text with another call of a tool is
    another answer.
    """
    sources = []
    for name, cities in (("a", "xyz"), ("b", "xyy")):
        traces = [
            Trace(Task("q", id=f"row {n}"), (PanelGrader("judge"),))
            + Candidate(0, "", None, "m", tool_calls=(ToolCall("weather", f'"{city}"', "1"),))
            + redraft.Feedback(0.5, candidate=0, grader="judge")
            + Outcome(0, StopReason.TARGET)
            for n, city in enumerate(cities)
        ]
        sources.append(write_run(tmp_path / f"{name}.journal", 0, run=name, traces=traces))
    with (
        RunLibrary(sources[:1], tmp_path / "cache") as first,
        RunLibrary(sources[1:], tmp_path / "cache") as second,
    ):
        source = two_runs_source((first, second), (first.entries()[0], second.entries()[0]))
        assert (list(source.information), source.identical) == (["row 2"], 2)
        assert source.read("row 2") is not None


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("q,x,y\nq,a,a\n", "1 item; 1 pair is identical and was left out; labels go"),
        ("q,x,y\nq,a,a\nq,b,b\n", "1 item; 2 pairs are identical and were left out; labels go"),
        ("q,x,y\nq,x,z\n", "2 items; labels go"),
    ],
)
def test_identical_pairs_are_counted(tmp_path, monkeypatch, capsys, rows, said):
    """By the command, on the pages, in the file, and when the labels are exported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(f"prompt,response_a,response_b\n{rows}")
    monkeypatch.setattr(
        "redraft.base.page_server.PageServer.run", lambda server, app, styles, announce: announce()
    )
    assert main(["label", "rows.csv", "--no-browser"]) == 0
    assert said in " ".join(capsys.readouterr().err.split())
    left_out = said.partition("; ")[2].removesuffix("labels go").rstrip("; ")
    source = file_source(tmp_path / "rows.csv", "pair")
    assert read_labels("rows.csv.labels.jsonl").identical == source.identical
    with LabelFile("rows.csv.labels.jsonl", LabelQuestion()) as file:
        size = file.path.stat().st_size
        file.note_identical(source.identical)
        assert file.path.stat().st_size == size
        client = TestClient(LabelPages(source, file, LabelQueue(source), "/x").app())
        for id in source.information:
            item = source.read(id)
            assert left_out in client.get("/x/").text
            client.post(
                "/x/judge", data={"annotator": "ann", "item": item_handle(item.id), "choice": "1"}
            )
        assert left_out in client.get("/x/judge?annotator=ann").text
    assert main(["label", "rows.csv.labels.jsonl", "--export", "out.jsonl"]) == 0
    assert left_out in capsys.readouterr().err


def test_a_run_without_two_different_answers_says_so(tmp_path, monkeypatch, capsys):
    """And how many pairs are identical."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("prompt,response_a,response_b\nq,x,x\nr,y,y\n")
    assert main(["label", "rows.csv", "--no-browser"]) == 2
    assert "2 pairs are identical" in capsys.readouterr().err


def test_a_file_without_answers_says_what_is_missing(tmp_path):
    """It names the columns that are looked for."""
    path = tmp_path / "rows.csv"
    path.write_text("prompt\nq\n")
    for kind in ("pair", "pass"):
        with pytest.raises(ConfigError, match="response"):
            file_source(path, kind)


def test_rows_that_cannot_be_judged_are_reported(tmp_path, caplog):
    """By their lines and with the reason; the others are judged."""
    path = tmp_path / "rows.csv"
    path.write_text(
        "prompt,response_a,response_b\nq,x,y\nq,x\n\"[{'role': 'user', 'content': 'q'} ...]\",x,y\n"
    )
    assert list(file_source(path, "pair").information) == ["rows.csv:2"]
    assert [
        all(
            text in record.getMessage()
            for text in ("2 rows cannot be judged", "csv:3: there are 2", "csv:4: 'prompt' looks")
        )
        for record in caplog.records
    ] == [True]


# ---- what comes next


def test_information_is_highest_where_graders_tie_or_disagree():
    """A near tie, a wide spread, and nothing known teach more than a clear difference."""
    assert pair_information([]) == pair_information([0.0]) == 1.0
    assert (
        pair_information([0.05, -0.05])
        > pair_information([0.3, 0.1])
        > pair_information([0.3, 0.3])
        > pair_information([0.6, 0.6])
    )
    assert isclose(pair_information([0.3]), pair_information([-0.3]))
    assert single_information([0.2, 0.9], passes=False) > single_information(
        [0.5, 0.6], passes=False
    )
    assert single_information([0.5], passes=True) > single_information([0.9], passes=True)


SOURCES = st.dictionaries(st.text(max_size=6), st.floats(0, 1), min_size=1, max_size=40)


@given(SOURCES, st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.data())
def test_every_item_comes_once(information, share, data):
    """In whatever order an annotator stops and goes on: no item twice, none forgotten, the random
    ones in the same order.
    """
    queue = LabelQueue(LabelSource("x", information, lambda id: None), share)
    whole = list(queue.following([], []))
    assert sorted(whole) == sorted(information)
    stop = data.draw(st.integers(0, len(whole)))
    resumed = whole[:stop] + list(queue.following(whole[:stop], []))
    assert sorted(resumed) == sorted(whole)
    others = data.draw(st.sets(st.sampled_from(sorted(information))))
    again = list(queue.following([], others))
    assert [id for id in again if queue.is_random(id)] == [
        id for id in whole if queue.is_random(id)
    ]
    chosen = [id for id in again if not queue.is_random(id)]
    assert chosen == [
        *(id for id in chosen if id not in others),
        *(id for id in chosen if id in others),
    ]
    for ids in ([id for id in chosen if id not in others], [id for id in chosen if id in others]):
        assert [information[id] for id in ids] == sorted(
            (information[id] for id in ids), reverse=True
        )


def test_the_random_share_represents_all_items():
    """Of the first labels a quarter is random; their mean is unbiased, and that of the chosen ones
    is not.
    """
    numbers = Random(1)
    gaps, shares = {"random": [], "chosen": []}, []
    for world in range(40):
        information = {f"{world}-{n}": numbers.random() for n in range(800)}
        queue = LabelQueue(LabelSource("x", information, lambda id: None), 0.25, seed=world)
        first = [id for id, _ in zip(queue.following([], []), range(200))]
        random = [id for id in first if queue.is_random(id)]
        shares.append(len(random) / 200)
        truth = fmean(information.values())
        gaps["random"].append(fmean(information[id] for id in random) - truth)
        gaps["chosen"].append(
            fmean(information[id] for id in first if not queue.is_random(id)) - truth
        )
    assert all(isclose(share, 0.25, abs_tol=0.01) for share in shares)
    assert abs(fmean(gaps["random"])) < 0.03
    assert fmean(gaps["chosen"]) > 0.2


# ---- what a key means


@given(
    st.sampled_from(["pair", "pass", "score"]), st.text(min_size=1, max_size=8), st.integers(0, 99)
)
def test_a_button_means_what_was_shown(kind, annotator, n):
    """Whatever the order on the page, a label names the response that stood there."""
    question = LabelQuestion(kind)
    item = LabelItem(str(n), "q", ("a", "b") if kind == "pair" else ("a",))
    order = presentation_order(item, annotator)
    assert sorted(order) == list(range(len(item.responses)))
    for choice in choices(question):
        value = label_value(question, choice.value, order)
        if choice.value == "skip":
            assert value is None
        elif kind == "pair" and choice.value != "0":
            assert item.responses[int(value) - 1] == item.responses[order[int(choice.value) - 1]]
        else:
            assert value == float(choice.value)
    assert len({choice.key for choice in choices(question)}) == len(choices(question))
    with pytest.raises(ConfigError):
        label_value(question, "3" if kind != "score" else "9", order)


# ---- in a browser


def judge(page, keys, *, read=None):
    """Press a key for each item; `read` chooses the key from the page."""
    for key in keys:
        if page.locator(".choices").count() == 0:
            return
        before = page.locator("[name=item]").get_attribute("value")
        page.keyboard.press(read(page) if read else key)
        wait_for_another_item(page, before)


def wait_for_another_item(page, before):
    """Wait until the page shows another item than `before`, or none, and listens to keys."""
    page.wait_for_function(
        "b => document.readyState === 'complete' && document.querySelector('[name=item]')?.value !== b",
        arg=before,
    )


def shorter(page):
    first, second = (text.strip() for text in page.locator(".edit .text").all_inner_texts())
    return "1" if len(first) < len(second) else "2" if len(second) < len(first) else "0"


def lengthy(text: str) -> float:
    """A grader that likes length."""
    return min(1.0, len(text) / 100)


async def judged_by_model(text, model):
    return float(await model(text))


def brief_judge():
    """A judge that likes brevity, and whose scores of one text differ by 0.03 from call to call."""
    numbers = Random(0)
    return CallableModel(
        lambda m: f"{1 - lengthy(m[-1]['content']) + numbers.gauss(0, 0.03):.4f}",
        name="brief judge",
    )


def write_two_runs(folder):
    """Two runs on the same rows; the answers of the second one are longer."""
    rows = [{"id": f"row-{n}", "prompt": f"Describe city {n}."} for n in range(60)]
    for name, more in (("a", ""), ("b", " And as everybody knows, it is a city.")):
        answers = CallableModel(
            lambda m, more=more: f"{m[-1]['content']} It lies by a river.{more}",
            name=f"model {name}",
        )
        redraft.batch_sync(rows, folder / f"{name}.jsonl", answers, lengthy, max_iterations=0)


@contextmanager
def label_command(folder, *arguments):
    """Run `redraft label` in a process of its own; the value is the process and the address of the
    page.
    """
    command = [sys.executable, "-m", "redraft", "label", *arguments, "--no-browser"]
    environment = {**os.environ, "REDRAFT_HOME": str(folder / "home")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def sign_in(page, url, name):
    page.goto(url)
    page.fill("[name=annotator]", name)
    page.keyboard.press("Enter")
    page.wait_for_selector(".choices")


@pytest.mark.slow
def test_labels_of_two_people_reach_everything(browser, tmp_path, monkeypatch, capsys):
    """Two people in two browser sessions label 40 pairs, `kill -9` in between loses none, and all
    that uses labels has them.

    Both prefer the shorter answer; the grader prefers the longer one. So `validate` says that it
    agrees with nobody, `compare` overrules it, and a judge that agrees with them is trusted, with
    its noise in the priors.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    write_two_runs(tmp_path)
    path, done = tmp_path / "a.jsonl.labels.jsonl", 0
    for rounds in (5, 3):
        with label_command(
            tmp_path, "a.jsonl", "b.jsonl", "--count", "40", "--random-share", "0.5"
        ) as (process, url):
            with watched_page(browser, url) as ann, watched_page(browser, url) as bob:
                for page, name in ((ann, "ann"), (bob, "bob")):
                    sign_in(page, url, name)
                    assert f"{name}: {done} of 40" in page.inner_text("[role=status]")
                for _ in range(rounds):
                    for page in (ann, bob):
                        judge(page, range(5), read=shorter)
                done += 5 * rounds
                if done < 40:
                    assert f"bob: {done} of 40" in bob.inner_text("[role=status]")
                else:
                    assert [page.inner_text("h1") for page in (ann, bob)] == [
                        "You have judged what was asked for"
                    ] * 2
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        labels = read_labels(path)
        assert Counter(annotator for _, annotator in labels.labels) == {"ann": done, "bob": done}
    assert {label.shown for label in labels.labels.values()} == {(0, 1), (1, 0)}
    cases = read_cases(path).cases
    both = [case for case in cases if None not in case.ratings]
    assert len(both) >= 20
    for case in cases:
        expected = 1.0 if len(case.responses[0]) < len(case.responses[1]) else 2.0
        assert {rating for rating in case.ratings if rating is not None} == {expected}

    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    assert "b.jsonl is better than a.jsonl" in capsys.readouterr().out
    assert main(["compare", "a.jsonl", "b.jsonl", "--labels", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "b.jsonl is worse than a.jsonl" in printed
    assert "labels of rows that were not drawn at random" in printed
    assert main(["gate", "a.jsonl", "b.jsonl", "--labels", str(path)]) == 4

    against = redraft.validation.validate_sync(path, lengthy, cards_dir="cards")
    assert (against.trusted, against.headline.value) == (False, 0.0)
    assert (
        next(m.value for m in against.report.measures if m.name == "raters' alpha (nominal)") == 1.0
    )

    validated = redraft.validation.validate_sync(
        path, judged_by_model, brief_judge(), repeats=2, cards_dir="cards"
    )
    validated.save_card()
    session = make_session(
        Options(cards_dir="cards"), redraft.ScriptedModel(["x"]), judged_by_model, brief_judge()
    )
    assert 0.02 < session.knowledge.priors.noise_sd < 0.04 < Priors().noise_sd
    settings = {"cards_dir": "cards", "require_validated": "error", "max_iterations": 0}
    assert (
        redraft.refine_sync(
            "q", redraft.ScriptedModel(["x"]), judged_by_model, brief_judge(), **settings
        ).value
        == "x"
    )


def test_judging_is_blind(browser, run, tmp_path):
    """Neither scores, nor models, nor where an answer comes from are anywhere in the page."""
    library, entry = run
    source = run_source(library, entry, "pair")
    with (
        labelling(source, tmp_path / "l.jsonl") as server,
        watched_page(browser, server.url) as page,
    ):
        for name in ("ann", "bob"):
            page.goto(f"{server.url}judge?annotator={name}")
            content = page.content()
            assert not re.search(
                r"writer-1|judge-1|first answer|best answer|0\.\d\d|uplift|iteration|row-\d",
                content.replace("First answer", ""),
            )


def test_keys_skip_undo_and_choose(browser, run, tmp_path):
    """s skips, u takes the last label back and shows its item again; nothing else is lost."""
    library, entry = run
    source = run_source(library, entry, "pair")
    path = tmp_path / "l.jsonl"
    with (
        labelling(source, path) as server,
        watched_page(browser, server.url, viewport={"width": 390, "height": 800}) as page,
    ):
        page.goto(f"{server.url}judge?annotator=ann")
        check_layout(page)
        page.keyboard.press("?")
        assert page.locator("dialog[open] kbd").all_inner_texts() == ["1", "2", "0", "s", "u", "?"]
        page.keyboard.press("Escape")
        judge(page, "12s0")
        before = page.locator("[name=item]").get_attribute("value")
        page.keyboard.press("u")
        wait_for_another_item(page, before)
        assert [label.value is None for label in read_labels(path).labels.values()] == [
            False,
            False,
            True,
        ]
        judge(page, "2")
        assert page.locator("[name=item]").get_attribute("value") == before
        assert len(read_labels(path).labels) == 4
        assert {label.sample for label in read_labels(path).labels.values()} == {"random", "chosen"}


def test_a_hasty_key_is_not_about_the_item_before(browser, run, tmp_path):
    """A second key before the next item is there changes nothing, and a key that is held down
    judges one item.
    """
    library, entry = run
    path = tmp_path / "l.jsonl"
    press = "keys => keys.forEach(key => document.body.dispatchEvent(new KeyboardEvent('keydown', {bubbles: true, ...key})))"
    with (
        labelling(run_source(library, entry, "pair"), path) as server,
        watched_page(browser, server.url) as page,
    ):
        page.goto(f"{server.url}judge?annotator=ann")
        page.evaluate(press, [{"key": "0", "repeat": True}])
        first = page.locator("[name=item]").get_attribute("value")
        page.evaluate(press, [{"key": "0"}, {"key": "1"}, {"key": "s"}])
        wait_for_another_item(page, first)
    assert [label.value for label in read_labels(path).labels.values()] == [0.0]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("kind", ["pair", "pass", "score"])
def test_hostile_items_do_nothing(browser, tmp_path, kind):
    """Texts and IDs of a hostile run can be judged, and do nothing else."""
    path = write_hostile_run(tmp_path / "x.journal", rows=3)
    with RunLibrary([path], tmp_path / "cache") as library:
        source = run_source(library, library.entries()[0], kind)
        with (
            labelling(source, tmp_path / "l.jsonl", kind=kind) as server,
            watched_page(browser, server.url) as page,
        ):
            page.goto(f"{server.url}judge?annotator=%3Cscript%3Ealert(1)%3C%2Fscript%3E")
            judge(page, "1" * len(source.information))
            assert page.inner_text("h1") == "Nothing left to judge"
            page.goto(server.url)
            assert "<script>alert(1)</script>" in page.inner_text("table")
    labels = read_labels(tmp_path / "l.jsonl")
    assert {item for item, _ in labels.labels} == set(source.information)


def test_wrong_forms_change_nothing(run, tmp_path):
    """An item that is not there, a choice that is none, no name, and a form of other pages are
    refused.
    """
    import http.client
    from urllib.parse import urlencode

    library, entry = run
    source = run_source(library, entry, "pair")
    path = tmp_path / "l.jsonl"
    with labelling(source, path) as server:
        page = http.client.HTTPConnection("127.0.0.1", server.port)
        page.request("GET", f"{server.root}/judge?annotator=ann")
        item = re.search(r'name="item" value="(\w+)"', page.getresponse().read().decode())[1]
        own = {"Origin": f"http://127.0.0.1:{server.port}"}
        good = {"annotator": "ann", "item": item, "choice": "1"}
        before = path.read_bytes()
        for status, fields, headers in [
            (404, {**good, "item": "x"}, own),
            (400, {**good, "choice": "9"}, own),
            (400, {**good, "annotator": ""}, own),
            (400, {**good, "annotator": "x" * 81}, own),
            (413, {**good, "note": "x" * 20_000}, own),
            (403, good, {}),
            (403, good, {"Origin": "http://evil.example"}),
        ]:
            page.request("POST", f"{server.root}/judge", urlencode(fields), headers)
            reply = page.getresponse()
            reply.read()
            assert (reply.status, path.read_bytes()) == (status, before)
        page.request("POST", f"{server.root}/judge", urlencode(good), own)
        reply = page.getresponse()
        reply.read()
        page.close()
        assert reply.status == 303
        assert len(read_labels(path).labels) == 1


def test_what_cannot_be_judged_is_passed_over(tmp_path):
    """Damaged rows, and rows with two equal answers, hold nobody up, and are read once."""
    import sqlite3
    from contextlib import closing

    from starlette.testclient import TestClient

    path = write_run(tmp_path / "a.journal", 30)
    with (
        RunLibrary([path], tmp_path / "cache") as library,
        LabelFile(tmp_path / "l.jsonl", LabelQuestion("pair")) as file,
    ):
        source = run_source(library, library.entries()[0], "pair")
        *damaged, sound = LabelQueue(source, 1.0).random
        ((number,),) = library.build(library.entries()[0]).index.read(
            "SELECT number FROM rows WHERE id = ?", sound
        )
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "UPDATE lines SET line = '[' WHERE number % 1048576 = 2 AND number / 1048576 != ?",
                [number],
            )
            connection.commit()
        reads = Counter()
        counted = LabelSource(
            "x", source.information, lambda id: (reads.update([id]), source.read(id))[1]
        )
        client = TestClient(LabelPages(counted, file, LabelQueue(counted, 1.0), "/t").app())
        for _ in range(3):
            assert item_handle(sound) in client.get("/t/judge?annotator=ann").text
        assert reads == {**dict.fromkeys(damaged, 1), sound: 3}


@pytest.mark.slow
def test_no_request_makes_the_label_page_fail(run, tmp_path):
    """A name that is too long and a choice of an item that nobody was shown are refused, and
    nothing is written.
    """
    from starlette.testclient import TestClient

    library, entry = run
    source = run_source(library, entry, "pair")
    with LabelFile(tmp_path / "l.jsonl", LabelQuestion("pair")) as file:
        pages = LabelPages(source, file, LabelQueue(source), "/t")
        client = TestClient(pages.app(), raise_server_exceptions=False, follow_redirects=False)
        before = file.path.read_bytes()
        names = ("", "\x00", "a\nb", "x" * 81, "\ud800", "\u202e", "é", "<b>")
        items = ("", "x", "9" * 5000)
        for name, item in [*product(names, [None]), *product(["é", "x" * 81], items)]:
            parameters = {"annotator": name.encode("utf-8", "surrogatepass")} | (
                {} if item is None else {"item": item}
            )
            asked = (
                client.get("/t/judge", params=parameters),
                client.post("/t/judge", data={**parameters, "choice": "1"}),
                client.post("/t/undo", data=parameters),
            )
            expected = [400, 400, 400] if len(name) > 80 else [200, 404, 303]
            assert [reply.status_code for reply in asked] == expected, (name, item)
        for body in (b"", b"\xff", b"a", b"=&=", b"%zz=1", b"annotator=ann&" * 50):
            assert client.post("/t/judge", content=body).status_code == 400
        assert file.path.read_bytes() == before
