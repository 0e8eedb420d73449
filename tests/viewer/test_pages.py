"""The pages as an application, without a browser: no address and no journal makes them fail, and
none changes a run.
"""

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from html import unescape

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import redraft
from redraft.graders.cards import CardStore
from redraft.loop.records import Candidate, Failure, Outcome, StopReason
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.runs.row_result import not_started_result
from redraft.storage.journal import Journal
from redraft.storage.trace_file import JsonlStore
from redraft.usage import Usage
from redraft.viewer.page_parts import count, number
from redraft.viewer.pages import ViewerPages
from redraft.viewer.row_view import snippet
from redraft.viewer.rows import ORDERS
from redraft.viewer.run_library import RunLibrary
from redraft.viewer.static_page import static_page

from .hostile_runs import ATTACKS, HOSTILE, hostile_trace, write_hostile_run
from .synthetic_runs import add_row, make_trace, write_run

ROOT = "/token"


class Pages:
    """The pages over some paths, and a client of them."""

    def __init__(self, folder, *paths):
        self.library = RunLibrary(paths, folder / "cache")
        for entry in self.library.entries():
            self.library.build(entry).wait()
        self.keys = [entry.key for entry in self.library.entries()]
        app = ViewerPages(self.library, ROOT, CardStore.in_folder(folder / "cards")).app()
        self.client = TestClient(app, raise_server_exceptions=False)

    def get(self, path):
        return self.client.get(f"{ROOT}/{path}")

    def every_page(self, rows):
        """Yield the address and the reply of every page of every run."""
        for key in self.keys:
            of_rows = [
                f"run/{key}/rows/{n}{more}"
                for n in rows
                for more in ("", "?a=none", "/text/0", "/judging/0")
            ]
            for path in (
                "",
                f"run/{key}",
                f"run/{key}/rows",
                f"run/{key}/graders",
                f"compare?a={key}&b={key}",
                *of_rows,
            ):
                yield path, self.get(path)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Harmless and hostile runs, and a file that is no journal."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a.journal", 60)
    write_hostile_run(folder / "b.journal")
    (folder / "c.journal").write_bytes(b"SQLite format 3\0 and no more")
    opened = Pages(tmp_path_factory.mktemp("view"), folder)
    yield opened
    opened.library.close()


VALUES = st.one_of(
    st.sampled_from(
        [
            *ATTACKS,
            "1" * 5000,
            "9" * 18,
            "9" * 19,
            "-1",
            "0",
            "1",
            "2",
            "none",
            "nan",
            "inf",
            "1e999",
            "٣",
            "²",
            "%00",
        ]
    ),
    st.sampled_from(sorted(ORDERS)),
    st.text(max_size=20),
)
NAMES = st.sampled_from(
    "sort descending part text change status stop error iteration grader criterion below offset n a b view method x".split()
)
PARTS = st.one_of(
    VALUES,
    st.sampled_from(
        ["run", "rows", "text", "graders", "compare", "static", "cards", "KEY", "..", "a" * 300]
    ),
)


@pytest.mark.slow
@settings(
    max_examples=2 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    path=st.one_of(
        st.lists(PARTS, max_size=7),
        st.sampled_from(
            [
                ["run", "KEY"],
                ["run", "KEY", "rows"],
                ["run", "KEY", "rows", "1"],
                ["run", "KEY", "rows", "2", "text", "0"],
                ["run", "KEY", "rows", "2", "judging", "0"],
                ["compare"],
                ["cards", "a" * 300, "scores"],
            ]
        ),
    ),
    query=st.lists(st.tuples(NAMES, VALUES), max_size=4),
)
def test_no_address_makes_a_page_fail(pages, path, query):
    """Whatever somebody writes into an address, the reply is a page, or says what is wrong with the
    address.
    """
    from urllib.parse import quote, urlencode

    key = pages.keys[len(query) % len(pages.keys)]
    quoted = "/".join(
        quote(part.replace("KEY", key), safe="", errors="surrogatepass") for part in path
    )
    parameters = urlencode(
        [(name, value.replace("KEY", key)) for name, value in query], errors="surrogatepass"
    )
    reply = pages.get(f"{quoted}?{parameters}")
    assert reply.status_code in {200, 400, 404}, reply.text[-500:]


DAMAGES_OF_ROWS = [
    *(
        f"UPDATE rows SET result = json_set(result, '$.{name}', json('{value}')) WHERE row = ROW"
        for name in ("calls", "cost", "score", "initial_score", "answer", "stop")
        for value in ("1e999", "-5", "1" * 40, '"text"', "[]", "7.5", "true")
    ),
    "UPDATE rows SET result = json_set(result, '$.by_iteration', json('[[1e999, 1, 1], [0.5, 99999999999999999999, -1]]')) WHERE row = ROW",
    "UPDATE rows SET result = json_set(result, '$.by_iteration', json('[[2]]')) WHERE row = ROW",
    "UPDATE rows SET result = x'ff00', id = x'fe' WHERE row = ROW",
    "UPDATE rows SET status = 'strange', position = 'first' WHERE row = ROW",
    "UPDATE rows SET id = '\"\\ud800 lone\"' WHERE row = ROW",
    "UPDATE rows SET id = '17' WHERE row = ROW",
    "UPDATE lines SET line = x'ff' WHERE number / 1048576 = ROW",
    "UPDATE lines SET line = '" + "[" * 100_000 + "' WHERE number = ROW * 1048576 + 1",
    (
        "UPDATE lines SET line = json_set(line, '$.score', 7, '$.seconds', 1e300, '$.candidate', 99) WHERE number / 1048576 = ROW "
        "AND line LIKE '%feedback%'"
    ),
    "UPDATE lines SET line = json_set(line, '$.id', -3, '$.parent', 12) WHERE number = ROW * 1048576 + 1",
    (
        "UPDATE lines SET line = json_set(line, '$.best', 77, '$.estimates', json('[[5, 0.3]]')) WHERE number / 1048576 = ROW "
        "AND line LIKE '%outcome%'"
    ),
    (
        'UPDATE lines SET line = json_set(line, \'$.settings\', json(\'{"draft-prompt": {"template": "{no_such_column} {prompt}"}}\')) '
        "WHERE number = ROW * 1048576"
    ),
    "UPDATE lines SET line = json_set(line, '$.settings', json('{\"draft-prompt\": {\"template\": 5}}')) WHERE number = ROW * 1048576",
    "DELETE FROM lines WHERE number = ROW * 1048576",
    "DELETE FROM lines WHERE number / 1048576 = ROW",
    "DELETE FROM seen_rows WHERE row = ROW",
    "UPDATE rows SET row = row + 4611686018427387904 WHERE row = ROW",
]
DAMAGES_OF_RUNS = [
    "UPDATE runs SET updated_at = '2026-01-01', started_at = ''",
    'UPDATE runs SET metadata = json_set(metadata, \'$.report\', json(\'{"uplift": 0.1, "interval": "wide"}\'))',
    "UPDATE runs SET metadata = json_set(metadata, '$.report', json('{\"uplift\": [1], \"interval\": [1, 2]}'), '$.source', json('{}'))",
    "UPDATE runs SET metadata = json_set(metadata, '$.settings', 5)",
    "UPDATE runs SET metadata = json_set(metadata, '$.judges', 5)",
    "UPDATE runs SET metadata = json_set(metadata, '$.judges', json('{\"x\": {\"judge\": [[]]}}'))",
    "UPDATE runs SET metadata = json_set(metadata, '$.invocation', 10000000000, '$.last_full_invocation', 10000000000)",
]


def damage(path, statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


@pytest.mark.slow
def test_no_row_makes_a_page_fail(tmp_path):
    """Values that Redraft would not write cost at most their own row, and nothing is written to the
    run.
    """
    n = len(DAMAGES_OF_ROWS)
    path = write_run(tmp_path / "a.journal", n + 2)
    before = damage(
        path,
        [statement.replace("ROW", str(row)) for row, statement in enumerate(DAMAGES_OF_ROWS, 1)],
    )
    pages = Pages(tmp_path, path)
    for address, reply in pages.every_page(range(1, n + 3)):
        is_damaged = "/rows/" in address and int(address.split("/")[3].partition("?")[0]) <= n
        assert reply.status_code in ({200, 404, 422} if is_damaged else {200}), (
            address,
            reply.text[-500:],
        )
    (entry,) = pages.library.entries()
    assert static_page(pages.library, entry).count('<details class="row"') == n
    figures = pages.library.build(entry).index.computed("figures", lambda: None)
    assert figures.rows == n and figures.calls.total is None and -1 < figures.uplift < 1
    pages.library.close()
    assert path.read_bytes() == before


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize("statement", DAMAGES_OF_RUNS)
def test_no_run_makes_a_page_fail(tmp_path, statement):
    """A run that cannot be read is named on the page of all runs, and what is said of others is
    shown as unknown.
    """
    path = write_run(tmp_path / "a.journal", 2)
    before = damage(path, [statement])
    pages = Pages(tmp_path, path, tmp_path)
    for address, reply in pages.every_page([1]):
        assert reply.status_code in {200, 404}, (address, reply.text[-500:])
    if not pages.keys:
        assert "is damaged" in pages.get("").text
    pages.library.close()
    assert path.read_bytes() == before


def graded(id, scores, *, must=1.0, cost=0.001, failure="", stop=StopReason.PATIENCE, roles=()):
    """Return the trace of a row whose answers have these scores. `must` None: no requirement."""
    panel = (
        PanelGrader("exact", model_free=True),
        PanelGrader("words:1-9", model_free=True, must=True),
    )[: 1 if must is None else 2]
    trace = Trace(Task(f"Question {id}", id=id), panel)
    for n, score in enumerate(scores):
        used = Usage(1, 10, 10, cost=cost, answer_tokens=20, answer_cost=cost)
        role = roles[n] if roles else "refine" if n else "generate"
        trace += Candidate(n, f"{n}", n - 1 if n else None, "m", role, usage=used)
        trace += redraft.Feedback(score, candidate=n, grader="exact")
        met = must[n] if isinstance(must, list) else must
        if met is not None:
            trace += redraft.Feedback(met, candidate=n, grader="words:1-9")
    if failure:
        trace += Failure(("candidate", len(scores)), "generate", failure, f"{failure} of {id}")
    end = StopReason.FAILED if failure else stop
    return trace + Outcome(trace.best.id if trace.best else None, end)


def plain_text(page):
    """Return the text of a page, its white space made single blanks."""
    return " ".join(unescape(re.sub("<[^>]*>", " ", page.partition("<main")[2])).split())


OVERVIEWS = {
    "better": (
        [graded(f"r{n}", [0.2, 0.2 + n / 10]) for n in range(1, 8)],
        [
            "The best answers score higher than the first ones",
            "7 improved (100%)",
            "What got better Row First Best Change r7 Question r7 0.20 0.90 +0.70 r6",
            "All 7 rows",
            "What got worse In no row.",
            "Nothing failed",
            "No best answer breaks one.",
            "money $0.014 $0.002",
        ],
    ),
    "worse": (
        [graded("a", [0.9, 0.3]), graded("b", [0.9, 0.7, 0.8]), graded("c", [0.5])],
        [
            "No score changed. Of 3 rows",
            "0.000 uplift, the mean change of score 0.767",
            "1 stayed as they were, in 2 every later answer was worse, so that the first one was kept, and 0 are too close to call",
            "No row improved",
            "Lowest later Change a Question a 0.90 0.30 -0.60 b Question b 0.90 0.70 -0.20",
        ],
    ),
    "failed": (
        [
            graded("a", [], failure="TimeoutError"),
            graded("b", [], failure="ModelError"),
            graded("c", [], failure="ModelError"),
        ],
        [
            "No row has a first and a best score. ",
            "Reason Rows For example ModelError ModelError of b 2 b",
            "TimeoutError TimeoutError of a 1 a",
            "Requirements not met No answer has a score.",
            "time of all steps unknown – – 3 rows",
            "0 of 3 rows done, 3 failed",
        ],
    ),
    "a requirement": (
        [graded("a", [0.5], must=0.0), graded("b", [0.5]), graded("c", [0.5], must=0.5)],
        ["2 best answers do not meet all of them", "Requirement Rows For example words:1-9 2 a"],
    ),
    "requirements met": (
        [graded("a", [0.5, 0.5], must=[0.0, 1.0]), graded("b", [0.5, 0.9])],
        [
            "2 improved (100%), 1 of them by meeting requirements that the first answer did not meet",
            "a Question a meets more requirements than the first answer 0.50 0.50 0.00",
            "b Question b 0.50 0.90 +0.40",
        ],
    ),
    "only requirements met": (
        [graded(name, [0.5, 0.5], must=[0.0, 1.0]) for name in "ab"],
        ["No score changed. Of 2 rows with scores, 2 improved (100%), 2 of them by meeting"],
    ),
    "undecided": (
        [graded("a", [0.5]), graded("b", [0.5]), graded("c", [0.5, 0.6])],
        [
            "Whether the best answers score higher is open: the interval of the mean change contains 0",
            "95%: -0.032 to +0.099",
            "Labels of people show whether they agree: redraft label",
        ],
    ),
    "no requirements": (
        [graded("a", [0.5], must=None)],
        ["Requirements not met This run has no requirements."],
    ),
    "stopped": (
        [
            graded("a", [0.5, 0.6]),
            graded("b", [0.4, 0.5, 0.6], stop=StopReason.BUDGET),
            graded("c", [], stop=StopReason.CANCELLED),
        ],
        [
            "1 of 3 rows done, 2 open",
            "5 calls, 100 tokens",
            "calls 5 2.5 0.167 none",
            "Rows that are open count as far as they have a result.",
            "the budget is used up 1",
            "the last refinements brought no improvement 1",
        ],
    ),
    "not scored yet": (
        [graded("a", [], stop=StopReason.CANCELLED)],
        ["No row has a first and a best score yet.", "calls 0 – – none"],
    ),
    "stopped at an unknown cost": (
        [graded("a", [0.5]), graded("b", [0.5, 0.6], cost=None, stop=StopReason.BUDGET)],
        ["money unknown – – 1 row; the others: $0.001", "calls 3 1.5"],
    ),
    "ended at different iterations": (
        [graded("a", [0.1, 0.2, 0.4]), graded("b", [0.9])],
        [
            "0 2 0.500 – 2 $0.002 – – 1 1 0.550 +0.100 1 $0.001 0.1 $0.0001 2 1 0.650 +0.200",
            "0.500 → 0.650",
            "The mean is over all rows with scores: a row that ended earlier keeps its score. Why",
        ],
    ),
    "repaired": (
        [
            graded("a", [0.1, 0.3, 0.4], roles=["generate", "repair", "refine"]),
            graded("b", [None], stop=StopReason.CANCELLED),
        ],
        [
            "0 2 0.300 – 3 $0.003 – – 1 1 0.400 +0.100",
            "Iteration 0 includes repairs and further drafts; the mean score of the first answers is 0.100.",
        ],
    ),
    "one requirement": (
        [graded("a", [0.5], must=0.0)],
        ["1 best answer does not meet all of them", "One row has a first and a best score."],
    ),
    "unknown cost": (
        [graded("a", [0.5, 0.7]), graded("b", [0.5, 0.6], cost=None)],
        ["money unknown – – 1 row; the others: $0.002", "calls 4 2", "tokens 80 40"],
    ),
    "nothing": ([graded("a", [None])], ["No row has a first and a best score. ", "1 call"]),
}


@pytest.mark.slow(but_each=18)
@pytest.mark.parametrize("name", OVERVIEWS)
def test_the_overview_says_what_happened(tmp_path, name):
    """What got better and worse, the biggest changes first, what failed and why, requirements that
    are not met, and what it cost, on the page and in the file.
    """
    traces, expected = OVERVIEWS[name]
    path = write_run(tmp_path / "a.journal", 0, traces=traces)
    pages = Pages(tmp_path, path)
    (entry,) = pages.library.entries()
    for page in (pages.get("").text, static_page(pages.library, entry)):
        text = plain_text(page)
        assert [each for each in expected if each not in text] == [], text[:5000]
    pages.library.close()


@pytest.mark.slow
def test_every_link_of_the_overview_leads_to_what_it_names(tmp_path):
    """A group to a list of as many rows, an example to its row, with the next one of its list
    beside it.
    """
    traces = [trace for traces, _ in OVERVIEWS.values() for trace in traces]
    traces = [replace(t, task=replace(t.task, id=f"id-{n}")) for n, t in enumerate(traces)]
    pages = Pages(tmp_path, write_run(tmp_path / "a.journal", 40, traces=traces))
    page = pages.get("").text
    main = page[page.index("<main") : page.index("</main")]
    links = re.findall(r'<a href="([^"]*)">(.*?)</a>', main)
    for address, name in links:
        reply = pages.client.get(unescape(address))
        assert reply.status_code == 200, address
        if re.search(r"/rows/\d", address):
            assert f"<h1>{name}</h1>" in reply.text
    for group, rows in re.findall(r'\?change=(\w+)">\1</a></th>\s*<td class="num">(\d+)', main):
        listed = pages.get(f"run/{pages.keys[0]}/rows?change={group}").text
        assert f"{rows} row" in plain_text(listed)
    in_file = static_page(pages.library, pages.library.entries()[0])
    targets = re.findall('href="#(row-[0-9]+)"', in_file)
    assert len(targets) > 10 and all(f'id="{target}"' in in_file for target in targets)
    pages.library.close()


def test_a_row_that_no_budget_was_left_for_has_not_failed(tmp_path):
    """It counts no calls, and is found by why it ended."""
    path = write_run(
        tmp_path / "a.journal", 0, traces=[graded("a", [0.5]), Trace(Task("b", id="b"))]
    )
    result = not_started_result("no budget was left")
    with Journal(path) as journal:
        journal.finish_row("answers", "b", "open", result.to_data())
    pages = Pages(tmp_path, path)
    text = plain_text(pages.get("").text)
    pages.library.close()
    for each in ("Nothing failed.", "calls 1 1 ", "no budget or time was left for it 1"):
        assert each in text


def test_a_row_has_the_same_loss_on_every_page(tmp_path):
    """By the estimates that its first and its best score are, not by what the judge said."""
    trace = replace(graded("a", [0.9, 0.2]), records=graded("a", [0.9, 0.2]).records[:-1])
    estimates = ((0, 0.8), (1, 0.3))
    pages = Pages(
        tmp_path,
        write_run(
            tmp_path / "a.journal",
            0,
            traces=[trace + Outcome(0, StopReason.GAIN, score=0.8, estimates=estimates)],
        ),
    )
    rows = f"run/{pages.keys[0]}/rows"
    assert "Lowest later Change a Question a 0.80 0.30 -0.50" in plain_text(pages.get("").text)
    for query in ("sort=loss", "change=worse"):
        text = plain_text(pages.get(f"{rows}?{query}").text)
        assert "Change Lowest later (loss)" in text
        assert "a Question a 0.80 0.80 0.00 0.30 (0.50) 0 / 1" in text
    assert "Lowest later" not in pages.get(rows).text
    row = plain_text(pages.get(f"{rows}/1").text)
    assert "Answers 0.80 0 draft best 0.30 1 refinement of 0" in row
    pages.library.close()


def test_a_list_of_rows_whose_scores_are_unchanged_has_no_interval(tmp_path):
    """An interval from 0 to 0 would say more than is known; that of other lists is there."""
    traces = [graded("a", [0.5]), graded("b", [0.5]), graded("c", [0.5, 0.9]), graded("d", [0, 1])]
    pages = Pages(tmp_path, write_run(tmp_path / "a.journal", 0, traces=traces))
    rows = f"run/{pages.keys[0]}/rows"
    assert "2 rows, uplift 0.000 Row" in plain_text(pages.get(f"{rows}?change=unchanged").text)
    assert "2 rows, uplift +0.700 (95%" in plain_text(pages.get(f"{rows}?change=improved").text)
    pages.library.close()


def test_orders_and_reasons_are_in_plain_words(tmp_path):
    """The word that an address has is the value of the option, or the title."""
    pages = Pages(tmp_path, write_run(tmp_path / "a.journal", 0, traces=[graded("a", [0.5])]))
    listed = pages.get(f"run/{pages.keys[0]}/rows").text
    phrase = "the last refinements brought no improvement"
    assert '<option value="change">size of the change</option>' in listed
    assert f'<option value="patience" title="patience">{phrase}</option>' in listed
    assert f'<span title="patience">{phrase}</span>' in listed
    for page in ("", f"run/{pages.keys[0]}/rows/1"):
        assert 'title="patience"' in pages.get(page).text and phrase in pages.get(page).text
    pages.library.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0000393, "0.0000393"),
        (1.5e-9, "0.0000000015"),
        (0.25, "0.25"),
        (7, "7"),
        (12.345, "12.3"),
        (123456.7, "123,457"),
        (1e21, "1,000,000,000,000,000,000,000"),
        (None, "–"),
    ],
)
def test_a_number_has_no_exponent(value, text):
    """However small or large it is."""
    assert number(value) == text


@pytest.mark.slow
def test_any_row_can_be_opened(tmp_path):
    """Whatever its ID is: with slashes, quotes, percent signs, control characters and half
    characters.
    """
    ids = [
        "a/b",
        "../..",
        "%2F%00",
        "?x=1#y",
        "\"'<>&",
        "\x00\x1f\n",
        "\ud800",
        "\udc80cp1252",
        " ",
        "é" * 500,
        "5",
        "null",
    ]
    path = tmp_path / "ids.journal"
    with Journal(path) as journal:
        journal.update_run("ids", invocation=1)
        for n, id in enumerate(ids):
            add_row(journal, "ids", n, make_trace(n, prompt=f"number {n}."), id=id)
    pages = Pages(tmp_path, path)
    assert pages.get(f"run/{pages.keys[0]}/rows").text.count('scope="row"') == len(ids)
    for n in range(len(ids)):
        reply = pages.get(f"run/{pages.keys[0]}/rows/{n + 1}")
        assert reply.status_code == 200 and f"number {n}." in reply.text
    pages.library.close()


def test_a_journal_has_any_name_and_may_be_replaced(tmp_path):
    """The pages show the file that is there now, not the one of a minute ago; a file of another
    kind is named.
    """
    path = write_run(tmp_path / "work.db", 3)
    pages = Pages(tmp_path, path)
    assert "of 3 rows done" in pages.get("").text
    write_run(tmp_path / "new.db", 5, seed=7).replace(path)
    pages.library._scanned_at = -10
    assert "of 5 rows done" in pages.get(f"run/{pages.keys[0]}").text
    assert "Question 11" in pages.get(f"run/{pages.keys[0]}/rows").text
    path.write_bytes(b"something else")
    pages.library._scanned_at = -10
    assert "is not a journal" in pages.get("").text
    pages.library.close()


REPORTS = {
    "of this version": {"scores": {"uplift": 0.125, "uplift_interval": [0.0625, 0.1875]}},
    "of 0.2": {"uplift": 0.125, "interval": [0.0625, 0.1875]},
}


@pytest.mark.parametrize("of", REPORTS)
def test_the_list_of_runs_has_the_uplift_of_each(tmp_path, of):
    """As the report that the journal holds says."""
    for name in "ab":
        path = write_run(tmp_path / f"{name}.journal", 2)
        with Journal(path) as journal:
            journal.update_run("answers", report=REPORTS[of])
    pages = Pages(tmp_path, tmp_path)
    text = plain_text(pages.get("").text)
    pages.library.close()
    assert text.count("+0.125 (+0.062 to +0.188)") == 2


def test_a_trace_leaves_nothing_in_the_cache(tmp_path):
    """Its index is temporary, as the copy of the trace is."""
    store = JsonlStore(tmp_path / "proof.jsonl")
    store.append(make_trace(1))
    store.close()
    pages = Pages(tmp_path, tmp_path / "proof.jsonl")
    assert "of 1 row done" in pages.get("").text
    pages.library.close()
    assert not list(tmp_path.glob("cache/*"))


def test_the_best_of_many_answers_is_shown(tmp_path):
    """Of a row with very many answers the first ones are shown, and the best, wherever it is."""
    with Journal(tmp_path / "many.journal") as journal:
        journal.update_run("many", invocation=1)
        trace = Trace(Task("q", id="x"), (PanelGrader("judge"),))
        for n in range(600):
            trace += Candidate(
                n, f"answer {n}", n - 1 if n else None, "m", "refine" if n else "generate"
            )
            trace += redraft.Feedback(0.9 if n == 500 else 0.1, candidate=n, grader="judge")
        add_row(journal, "many", 0, trace)
    pages = Pages(tmp_path, tmp_path / "many.journal")
    text = pages.get(f"run/{pages.keys[0]}/rows/1").text
    assert (
        "answer 500" in text.replace("<ins>", "").replace("</ins>", "")
        and text.count('class="cell') < 500
    )
    pages.library.close()


# ---- a file


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 rows"), (1, "1 row"), (1200, "1,200 rows"), (None, "– rows")]
)
def test_a_count_has_its_noun(value, text):
    """One is singular, and unknown is not 0."""
    assert count(value, "row") == text


def test_a_file_stays_small(tmp_path, monkeypatch):
    """Rows are added while their texts fit, and the page says how many there are."""
    monkeypatch.setattr("redraft.viewer.static_page.MAX_TEXT_BYTES", 12_000)
    path = write_run(tmp_path / "run.journal", 40)
    with RunLibrary([path], tmp_path / "cache") as library:
        page = static_page(library, library.entries()[0])
    shown = page.count('<details class="row"')
    assert 0 < shown < 40
    assert f"the first {shown} of 40 rows" in page


# ---- the snippet

OWN_GRADERS = [
    redraft.must("words:1-40"),
    redraft.with_weight("no_commas", 2.5),
    lambda text: min(1.0, len(text) / 100),
]


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 30_000])
def test_the_snippet_reproduces_a_row(tmp_path, length):
    """In a process of its own, for hostile texts and for a task that is too long to be written
    out.
    """
    rows = [
        {
            "id": attack,
            "prompt": attack + "x" * length,
            "response": f"One, two, three. {attack}",
            "reference": attack,
            "requirements": ["words:1-30"],
        }
        for attack in ATTACKS
    ]
    output = tmp_path / "out.jsonl"
    redraft.batch_sync(rows, output, model=False, graders=OWN_GRADERS[:2])
    with RunLibrary([output], tmp_path / "cache") as library:
        (entry,) = library.entries()
        index = library.build(entry).ready_index()
        code = "results = []\n"
        scores = []
        for number, _id in index.read("SELECT number, id FROM rows"):
            trace = index.trace(number)
            scores.append([trace.score, trace.best.text])
            code += (
                snippet(trace, entry.trace_code(trace.task.id))
                + "results.append([result.score, result.trace.best.text])\n"
            )
    code += "import json\nprint(json.dumps(results))\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == scores


def test_a_snippet_names_what_cannot_be_named(tmp_path):
    """A function is a comment, and so is whatever would read a file; names in hostile runs are
    never code.
    """
    task = Task("q", id="x", requirements=["words:1-9"])
    object.__setattr__(task, "requirements", ("words:1-9", "json_schema:/etc/passwd"))
    panel = (
        PanelGrader("judge", 2.0),
        PanelGrader("my_function"),
        PanelGrader("json_schema:/x"),
        PanelGrader("'];import os#"),
    )
    code = snippet(Trace(task, panel) + Candidate(0, "a", by="gpt-x", role="generate"), "None")
    assert "# your own: 'my_function'" in code and "# your own: 'json_schema:/x'" in code
    assert "# it also reads a file: 'json_schema:/etc/passwd'" in code
    assert "redraft.with_weight('judge', 2.0, repeats=1)," in code
    assert "model='gpt-x',  # its recorded name" in code
    compile(code, "snippet", "exec")
    for length in (0, 100_000):
        hostile = snippet(hostile_trace(length=length), "None")
        compile(hostile, "snippet", "exec")
        assert HOSTILE not in hostile
