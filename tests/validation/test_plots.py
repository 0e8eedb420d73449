"""Plots of a validation: valid XML with the numbers in words, safe for any names, and visible in a
browser.
"""

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from redraft.base.svg import ticks
from redraft.validation import plots
from require import require_program

HOSTILE = '</text><script>alert("x")</script>\x1b[31m\u202e & \x00\ufffe\ud800'
POINTS = [(0.05, 0.02, 40), (0.45, 0.5, 20), (0.95, 0.86, 140)]
GROUPS = {"people: 1": [0.1, 0.12, 0.3], "people: 5": [0.95, 1.0]}
LABELS = ["first", "second", "tie", "unreadable"]
COUNTS = {"first": {"first": 12, "unreadable": 3}, "second": {"second": 7, "first": 1}}
ROWS = [
    ("easy", 0.9, 0.85, 0.94, 120, 0.5),
    ("hard", 0.4, None, None, 7, 0.25),
    ("empty", None, None, None, 0, None),
]
DRAWN = {
    "reliability": plots.reliability_svg(POINTS),
    "histogram": plots.histogram_svg(GROUPS),
    "confusion": plots.confusion_svg(LABELS, COUNTS),
    "scatter": plots.scatter_svg([(1, 0.1), (1, 0.2), (3.5, 0.8)]),
    "forest": plots.forest_svg(ROWS),
}
WORDS = {
    "reliability": ["mean probability", "share that came true", "140"],
    "histogram": ["people: 1", "n = 3", "mean 0.17", "score that the grader gave"],
    "confusion": ["people", "grader", "unreadable", "12", "80%"],
    "scatter": ["what people gave", "what the grader gave", "3 rows"],
    "forest": ["easy", "0.90 [0.85, 0.94]", "n = 120", "unknown", "chance"],
}


def texts(svg):
    root = ElementTree.fromstring(svg)
    return " | ".join(text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("name", DRAWN)
def test_plot_has_labels_and_numbers(name):
    """The axes are labelled, and each number is near what it measures."""
    for words in WORDS[name]:
        assert words in texts(DRAWN[name])


@pytest.mark.parametrize("name", DRAWN)
def test_plot_is_accessible(name):
    """A title and the numbers in words are the label of the plot."""
    root = ElementTree.fromstring(DRAWN[name])
    texts_by_id = {part.get("id"): part.text for part in root if part.get("id")}
    assert root.get("role") == "img"
    assert all(texts_by_id[id] for id in root.get("aria-labelledby").split())


@pytest.mark.parametrize("name", DRAWN)
def test_plot_is_self_contained(name):
    """It has no address and no script, and it includes colours for dark mode."""
    assert "href" not in DRAWN[name] and "url(" not in DRAWN[name] and "<script" not in DRAWN[name]
    assert DRAWN[name].count("http") == DRAWN[name].count('xmlns="http://www.w3.org/2000/svg"') == 1
    assert "prefers-color-scheme: dark" in DRAWN[name]


HOSTILE_DRAWN = [
    lambda name: plots.histogram_svg({name: [0.5]}),
    lambda name: plots.confusion_svg([name], {name: {name: 3}}),
    lambda name: plots.forest_svg([(name, 0.5, 0.4, 0.6, 9, 0.5)]),
]


@pytest.mark.parametrize("draw", HOSTILE_DRAWN)
def test_hostile_name_is_text(draw):
    """It closes or adds no tag, sends no terminal sequence, and leaves the XML valid."""
    svg = draw(HOSTILE)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert "script" not in tags
    assert "</text><s" in texts(svg)
    assert not set("\x1b\u202e\x00\ufffe\ud800") & set(svg)


@settings(max_examples=20)
@given(st.text())
def test_any_name_can_be_drawn(name):
    """Any text as a name gives a valid plot."""
    for draw in HOSTILE_DRAWN:
        ElementTree.fromstring(draw(name))


def test_groups_that_look_alike_stay_apart():
    """Two names that differ only in invisible characters are two panels."""
    assert texts(plots.histogram_svg({"a": [0.1], "a\x00": [0.9]})).count("n = 1") == 2


@given(st.lists(st.floats(0, 1)), st.integers(1, 40))
def test_every_score_is_in_one_bin(scores, bins):
    """The highest score is in a bin, too."""
    assert sum(plots.bin_counts(scores, 0, 1, bins)) == len(scores)


def test_score_out_of_range_is_an_error():
    """It is not drawn at another place."""
    with pytest.raises(ValueError, match="1.2"):
        plots.histogram_svg({"a": [1.2]})


@pytest.mark.parametrize(
    "svg",
    [
        plots.reliability_svg([]),
        plots.histogram_svg({}),
        plots.histogram_svg({"nobody": []}),
        plots.confusion_svg(["a", "b"], {}),
        plots.scatter_svg([]),
        plots.scatter_svg([(3, 0.5)]),
        plots.forest_svg([]),
        plots.forest_svg([("a", -0.4, -0.9, 0.1, 12, 0.0)]),
    ],
)
def test_little_or_no_data_can_be_drawn(svg):
    """An empty plot is valid, too."""
    assert ElementTree.fromstring(svg).get("class") == "redraft"


def test_omitted_points_are_count_phrases():
    """The plot stays small and says how much it leaves out."""
    assert "40 more groups" in texts(
        plots.forest_svg([(str(n), 0.5, 0.4, 0.6, 9, None) for n in range(100)])
    )
    assert "76 more labels" in texts(plots.confusion_svg([str(n) for n in range(100)], {}))
    many = plots.scatter_svg([(n % 5, 0.5) for n in range(10_000)])
    assert "2,000 of 10,000 rows" in texts(many)


def test_jitter_is_deterministic():
    """Drawing again gives the same file."""
    points = [(1, 0.5)] * 30
    assert plots.scatter_svg(points) == plots.scatter_svg(points)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_lie_inside(low, wide):
    """It holds for any range."""
    found = ticks(low, low + wide)
    assert 2 <= len(found) <= 12
    assert all(low - 1e-6 * wide <= tick <= low + wide * (1 + 1e-6) for tick in found)


def print_plot(drawn):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    with console.file:
        console.print(drawn)
    return console.export_text()


def test_each_group_of_a_forest_has_its_own_chance():
    """A line and a number for each group; the axis states the value only if it is the same for
    all.
    """
    different = plots.forest_svg(ROWS)
    assert different.count('class="chance"') == 2 and "dashed: chance<" in different
    assert "120 rows, chance 0.50" in different and "7 rows, chance 0.25" in different
    assert "dashed: chance, 0.5<" in plots.forest_svg(ROWS[:1])


def test_terminal_output():
    """It contains the numbers and marks unknown values."""
    assert "0.95  0.86       140" in print_plot(plots.reliability_text(POINTS))
    shown = print_plot(plots.histogram_text(GROUPS))
    assert "0.10-0.20  ██████████ 2" in shown
    assert "0.90-1.00" in shown and "people: 5" in shown
    assert "12 (80%)" in print_plot(plots.confusion_text(LABELS, COUNTS))
    shown = print_plot(plots.forest_text(ROWS))
    assert "0.90 [0.85, 0.94]" in shown and "unknown" in shown
    easy, hard, empty = shown.splitlines()[-3:]
    assert (easy.split()[5], hard.split()[3], "|" in empty) == ("0.5", "0.25", False)
    assert easy.index("|") > hard.index("|")


def test_hostile_name_sends_no_terminal_sequence():
    """It is not read as markup, either."""
    name = "[bold red]" + HOSTILE
    for drawn in (
        plots.histogram_text({name: [0.5]}),
        plots.confusion_text([name], {name: {name: 3}}),
        plots.forest_text([(name, 0.5, None, None, 9, None)]),
    ):
        shown = print_plot(drawn)
        assert "[bold red]" in shown
        assert not set("\x1b\u202e\x00") & set(shown)


FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    """A real browser: Debian's Chromium, where it is installed."""
    path = require_program("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        with playwright.chromium.launch(executable_path=path, args=FLAGS) as launched:
            yield launched


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_browser_renders_the_plot(browser, name, tmp_path):
    """As a file of its own, light and dark, its texts are inside the picture and something is
    drawn.
    """
    path = tmp_path / "plot.svg"
    path.write_text(DRAWN[name], encoding="utf-8")
    shots = []
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme, viewport={"width": 760, "height": 640})
        page.goto(path.as_uri())
        boxes = page.eval_on_selector_all(
            "text",
            "all => all.map(t => { const b = t.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] })",
        )
        width, height = page.evaluate(
            "[document.documentElement.width.baseVal.value, document.documentElement.height.baseVal.value]"
        )
        assert all(
            left >= 0 and top >= 0 and right <= width and bottom <= height
            for left, top, right, bottom in boxes
            if right > left
        )
        assert page.locator("text", has_text=WORDS[name][0]).first.is_visible()
        shots.append(page.screenshot())
        page.close()
    blank = browser.new_page(viewport={"width": 760, "height": 640})
    assert len({*shots, blank.screenshot()}) == 3
    blank.close()


@pytest.mark.slow
def test_browser_runs_no_script_of_a_hostile_name(browser):
    """The page holds the plot inline and not only a link to it."""
    page = browser.new_page()
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.set_content(plots.forest_svg([(HOSTILE, 0.5, 0.4, 0.6, 9, 0.5)]))
    assert page.locator("script").count() == 0
    assert dialogs == []
    page.close()
