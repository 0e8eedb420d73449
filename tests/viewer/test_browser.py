"""The pages in a real browser: they show what is there, keys work, and nothing in a run can make
them do anything else.
"""

import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from cpu_time import least_seconds
from redraft.storage.journal import Journal
from redraft.viewer.run_library import RunLibrary
from redraft.viewer.static_page import static_page

from .conftest import viewing
from .hostile_runs import HOSTILE, OUTSIDE, write_hostile_run
from .synthetic_runs import write_large_run, write_run

VIEWPORTS = [("light", 1280), ("dark", 390)]


@contextmanager
def watched_page(browser, allowed, **options):
    """A page of which every script error, console message, dialog and request to another address is
    a failure.
    """
    context = browser.new_context(**options)
    page = context.new_page()
    faults = []
    page.on("console", lambda message: faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: request.url.startswith(allowed) or faults.append(f"request: {request.url}"),
    )
    try:
        yield page
        assert page.evaluate("window.attacked") is None
        assert faults == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two harmless runs in one folder."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a.journal", 130, run="short")
    write_run(folder / "b.journal", 130, run="long", gain=0.25)
    with viewing(tmp_path_factory.mktemp("view"), folder) as server:
        yield server


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run with hostile texts in every field."""
    path = write_hostile_run(tmp_path_factory.mktemp("hostile") / "x.journal")
    with viewing(tmp_path_factory.mktemp("view"), path) as server:
        yield server


@pytest.fixture
def huge(tmp_path):
    """A hostile run, with answers of 10 MB."""
    path = write_hostile_run(tmp_path / "x.journal", length=10_000_000)
    with viewing(tmp_path, path) as server:
        yield server


def key_of(server, name):
    return next(entry.key for entry in server.library.entries() if entry.info.name == name)


def check_layout(page):
    """Nothing is wider than the page, controls have names and show the focus, heading levels
    follow, and text has contrast.
    """
    assert page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    unnamed = page.evaluate(
        """[...document.querySelectorAll('a, button, input:not([type=hidden]), select, summary')].filter(e =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).map(e => e.outerHTML)"""
    )
    assert unnamed == []
    assert page.evaluate(UNFOCUSED) == []
    levels = page.evaluate(
        "[...document.querySelectorAll('main h1, main h2, main h3, main h4')].map(h => +h.tagName[1])"
    )
    assert levels[0] == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:]))
    assert page.evaluate(CONTRAST) == []


UNFOCUSED = """[...document.querySelectorAll('a, button, input:not([type=hidden]), select, summary, [tabindex="0"]')]
  .filter(e => e.checkVisibility({visibilityProperty: true})).filter(e => { e.focus({preventScroll: true}); return document.activeElement !== e || getComputedStyle(e).outlineStyle === 'none'; })
  .map(e => e.outerHTML.slice(0, 200))"""

CONTRAST = """(() => {
  const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d', {willReadFrequently: true});
  const rgb = (color, under) => {
    context.fillStyle = `rgb(${under.join(',')})`; context.fillRect(0, 0, 1, 1);
    context.fillStyle = color; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const background = e => e ? rgb(getComputedStyle(e).backgroundColor, background(e.parentElement)) : [255, 255, 255];
  const poor = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const e = node.parentElement;
    if (!node.data.trim() || e.closest('svg, option, dialog, .skip, script, style') || !e.checkVisibility()) continue;
    const under = background(e), [a, b] = [luminance(rgb(getComputedStyle(e).color, under)), luminance(under)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.add(`${e.tagName}.${e.className}: ${node.data.trim().slice(0, 30)} ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
  }
  return [...poor].slice(0, 8);
})()"""


PAGES = {
    "runs": ("", "Runs"),
    "overview": ("run/{short}", "short"),
    "rows": (
        "run/{short}/rows?sort=uplift&descending=1&criterion=judge%3A+clarity&below=0.9",
        "Rows",
    ),
    "row": ("run/{short}/rows/9?n=8", "row-8"),
    "inline": ("run/{short}/rows/9?view=inline&n=8", "row-8"),
    "failed row": ("run/{short}/rows/97", "row-96"),
    "judging": ("run/{short}/rows/9/judging/0", "Prompts of graders, answer 0"),
    "graders": ("run/{short}/graders", "Graders"),
    "compare": ("compare?a={short}&b={long}", "Compare runs"),
    "choose": ("compare?a={short}", "Compare runs"),
}


def some_and_slow(pages):
    """Two rows of a table: a few of the pages, in one context of the browser, which takes as long
    as a page; the others are slow.
    """
    some = [*pages][::5]
    return [
        pytest.param(some, id="some"),
        pytest.param(
            [page for page in pages if page not in some], id="others", marks=pytest.mark.slow
        ),
    ]


@pytest.mark.parametrize("names", some_and_slow(PAGES))
def test_pages_are_legible(browser, runs, names):
    """Light and dark, on a screen and on a phone: no console message, nothing too wide, names,
    headings, contrast of AA.
    """
    for theme, width in VIEWPORTS:
        with watched_page(
            browser, runs.url, color_scheme=theme, viewport={"width": width, "height": 900}
        ) as page:
            for path, heading in map(PAGES.get, names):
                assert (
                    page.goto(
                        runs.url
                        + path.format(short=key_of(runs, "short"), long=key_of(runs, "long"))
                    ).status
                    == 200
                )
                assert page.inner_text("h1") == heading
                check_layout(page)


def test_the_check_of_contrast_can_fail(browser, runs):
    """Grey text on white is found."""
    with watched_page(browser, runs.url) as page:
        page.goto(runs.url)
        page.evaluate("document.querySelector('h1').style.color = '#999'")
        assert len(page.evaluate(CONTRAST)) == 1


VIEWS_OF_A_ROW = ("?n=0", "?view=inline", "?a=0&b=2", "?a=none&b=1", "/judging/0")
HOSTILE_PAGES = [
    *(f"run/{{run}}/rows/{n}{view}" for n in (2, 1) for view in VIEWS_OF_A_ROW),
    *(
        "",
        "run/{run}",
        "run/{run}/rows",
        "run/{run}/rows?text=%3Cscript%3E",
        "run/{run}/graders",
        "compare?a={run}&b={run}",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("paths", some_and_slow(HOSTILE_PAGES))
def test_hostile_texts_do_nothing(browser, hostile, paths):
    """In every field of every page: no script runs, no console message, and no request leaves the
    page's own address.
    """
    with watched_page(browser, hostile.url, viewport={"width": 1280, "height": 900}) as page:
        for path in paths:
            assert (
                page.goto(hostile.url + path.format(run=hostile.library.entries()[0].key)).status
                == 200
            )
            assert page.evaluate("document.scripts.length") == 1
            assert (
                page.locator("main iframe, main img[src^=http], main base, main script").count()
                == 0
            )
            for summary in page.locator("summary").all():
                summary.click()
            assert page.evaluate("document.title").endswith("Redraft")
            assert len(page.content()) < 3_000_000
            assert page.evaluate(
                "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            )
            assert not set("\x01\x1b\x7f\u202e\u2066\u200b") & set(page.inner_text("body"))


def test_hostile_texts_are_shown(browser, hostile):
    """A reader sees what the model wrote, with the characters that hide shown."""
    run = f"run/{hostile.library.entries()[0].key}"
    with watched_page(browser, hostile.url) as page:
        page.goto(f"{hostile.url}{run}/rows/2?a=none&b=2")
        shown = page.locator(".edit .text").inner_text()
        assert "<script>window.attacked = 1" in shown
        assert "␀␁␛[31mred" in shown and "⟨U+202E⟩right to left" in shown
        assert "{{ 7 * 7 }}" in shown


@pytest.mark.slow
def test_a_long_answer_is_cut_and_can_be_saved(browser, huge, tmp_path):
    """A page shows the start of 10 MB and says so; the whole text is a file. The difference of two
    is shown, too.
    """
    run = f"run/{huge.library.entries()[0].key}"
    with watched_page(browser, huge.url) as page:
        assert page.goto(f"{huge.url}{run}/rows/1").status == 200
        assert len(page.content()) < 3_000_000
        assert len(static_page(huge.library, huge.library.entries()[0])) < 1_000_000
        page.goto(f"{huge.url}{run}/rows/1?a=none&b=2")
        assert "more characters are not shown" in page.inner_text("main")
        with page.expect_download() as download:
            page.click("text=The whole text")
        text = Path(download.value.path()).read_text(encoding="utf-8")
        assert len(text) > 10_000_000 and text.startswith(HOSTILE[:50])


def test_a_file_is_complete_in_itself(browser, hostile, tmp_path):
    """The page for CI needs no server, loads nothing and runs nothing of the run."""
    (entry,) = hostile.library.entries()
    path = tmp_path / "report.html"
    path.write_text(static_page(hostile.library, entry), encoding="utf-8")
    with watched_page(browser, path.as_uri(), viewport={"width": 390, "height": 800}) as page:
        page.goto(path.as_uri())
        for summary in page.locator("summary").all():
            summary.click()
        assert page.locator("main iframe, main img, main script, main base").count() == 0
        assert page.locator(".row").count() == 5
        page.locator(".row").first.evaluate("row => row.open = false")
        page.locator(".examples a").first.click()
        page.wait_for_function("() => document.querySelector('.row').open")
        page.fill("#search", "harvest")
        assert page.locator(".row:visible").count() == 1
        assert page.inner_text("#found") == "1 of 5 rows"
        page.fill("#search", "")
        page.select_option("#order", "best")
        assert page.locator(".row").first.get_attribute("data-best") >= page.locator(
            ".row"
        ).last.get_attribute("data-best")
        check_layout(page)


def test_a_file_says_that_rows_are_left_out(tmp_path, monkeypatch):
    """With more rows than a file holds, it says how many there are."""
    monkeypatch.setattr("redraft.viewer.static_page.MAX_ROWS", 20)
    path = write_run(tmp_path / "run.journal", 30)
    with RunLibrary([path], tmp_path / "cache") as library:
        page = static_page(library, library.entries()[0])
    assert "the first 20 of 30 rows" in page
    assert page.count('<details class="row"') == 20
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []


def press(page, key):
    """Press a key when the page listens to keys."""
    page.wait_for_load_state()
    page.keyboard.press(key)


@pytest.mark.slow
def test_keys_walk_through_a_run(browser, runs):
    """j and k are rows in the order of the list, n and p answers, d the form of the difference, u
    the list, / the search.
    """
    run = f"{runs.url}run/{key_of(runs, 'short')}"
    with watched_page(browser, runs.url, viewport={"width": 1280, "height": 900}) as page:
        page.goto(f"{run}/rows?sort=uplift&descending=1")
        names = page.locator("tbody th a").all_inner_texts()
        page.click("tbody th a")
        assert page.inner_text("h1") == names[0]
        assert page.locator("[data-key=k]").count() == 0
        for key, expected in [("j", names[1]), ("j", names[2]), ("k", names[1])]:
            press(page, key)
            page.wait_for_function(
                "name => document.querySelector('h1').innerText === name", arg=expected
            )
        answers = page.locator(".answers a").count()
        assert answers > 1
        best = page.inner_text(".answers [aria-current]")
        press(page, "p")
        page.wait_for_function(
            "text => document.querySelector('.answers [aria-current]').innerText !== text", arg=best
        )
        press(page, "n")
        page.wait_for_function(
            "text => document.querySelector('.answers [aria-current]').innerText === text", arg=best
        )
        press(page, "d")
        page.wait_for_url("**view=inline**")
        assert page.locator(".edit ins").count() and page.locator(".edit del").count()
        press(page, "j")
        page.wait_for_function(
            "name => document.querySelector('h1').innerText === name", arg=names[2]
        )
        assert "view=inline" in page.url
        press(page, "?")
        assert page.locator("dialog[open]").is_visible()
        press(page, "Escape")
        press(page, "u")
        page.wait_for_url("**/rows?**")
        press(page, "/")
        page.keyboard.type("row-77")
        press(page, "Enter")
        page.wait_for_url("**text=row-77**")
        assert page.locator("tbody th a").all_inner_texts() == ["row-77"]


def test_a_snippet_can_be_copied(browser, runs):
    """It is Python that makes the task of the row."""
    with watched_page(browser, runs.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"{runs.url}run/{key_of(runs, 'short')}/rows/9")
        page.click("text=Copy")
        page.wait_for_function("() => document.getElementById('copied').innerText === 'copied'")
        code = page.evaluate("navigator.clipboard.readText()")
    names = {}
    exec(compile(code.partition("result = ")[0], "snippet", "exec"), names)
    assert names["task"].prompt.startswith("Question 8")
    compile(code, "snippet", "exec")


@pytest.mark.slow
def test_a_run_in_progress_is_followed(browser, tmp_path):
    """Rows that end while the page is open appear in it."""
    from .synthetic_runs import add_row, make_trace

    path = tmp_path / "live.journal"
    with Journal(path) as journal:
        journal.update_run("live", invocation=1)
        for n in range(3):
            add_row(journal, "live", n, make_trace(n))
        unfinished = make_trace(4)
        add_row(
            journal,
            "live",
            3,
            unfinished.__class__(unfinished.task, unfinished.panel, unfinished.records[:2]),
        )
        journal.flush()
        with viewing(tmp_path, path) as server, watched_page(browser, server.url) as page:
            page.goto(server.url)
            assert "in progress" in page.inner_text("main")
            assert "of 4 rows done" in page.inner_text("main")
            for n in range(5, 9):
                add_row(journal, "live", n, make_trace(n))
            journal.flush()
            page.wait_for_function(
                "() => document.querySelector('main').innerText.includes('of 8 rows done')",
                timeout=20_000,
            )


QUERIES = (
    "",
    "?sort=uplift&descending=1",
    "?sort=criterion&part=judge%3A+clarity",
    "?change=worse",
    "?text=harvest",
    "?offset=9950",
)


@pytest.mark.slow
def test_a_large_run_is_fast(browser, tmp_path):
    """A hundred times the rows take at most thirty times the CPU time of the server for its pages,
    in any order and search.
    """
    paths = [write_large_run(tmp_path / f"{rows}.journal", rows) for rows in (1_000, 100_000)]
    times = []
    for path in paths:
        with viewing(tmp_path, path) as server, watched_page(browser, server.url) as page:
            run = f"{server.url}run/{server.library.entries()[0].key}"
            page.goto(run)  # makes the index
            times.append(
                sum(
                    least_seconds(partial(page.goto, f"{run}/rows{query}"), 0.0)
                    for query in QUERIES
                )
            )
    assert times[1] < 30 * times[0]
    with (
        viewing(tmp_path, paths[1]) as server,
        watched_page(browser, server.url, viewport={"width": 1280, "height": 900}) as page,
    ):
        run = f"{server.url}run/{server.library.entries()[0].key}"
        for path in ("/graders", "/rows/50001", "/rows?text=harvest"):
            page.goto(run + path)
            assert OUTSIDE not in page.content()
