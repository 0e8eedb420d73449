"""What a notebook shows of results, reports and errors."""

import pytest

from redraft import Task, batch, grade, refine
from redraft.errors import ERROR_TYPES

EVIL = "<script>alert(1)</script>\x1b[2J"


@pytest.mark.parametrize("kind", ERROR_TYPES.values(), ids=ERROR_TYPES)
def test_an_error_is_one_line_unless_a_traceback_is_asked_for(kind, monkeypatch):
    """IPython calls this method in place of its own traceback; nothing in the message controls the
    page.
    """
    with pytest.raises(kind) as caught:
        raise kind(f"it is wrong {EVIL}")
    assert caught.value._render_traceback_() == [
        f"{kind.__name__}: it is wrong {EVIL}".replace("\x1b", "")
    ]
    monkeypatch.setenv("REDRAFT_DEBUG", "1")
    whole = caught.value._render_traceback_()
    assert (
        whole[0].startswith("Traceback")
        and __file__ in "".join(whole)
        and "\x1b" not in "".join(whole)
    )


async def test_results_and_reports_draw_themselves_escaped(tmp_path):
    """The text of a task, an answer, a grader or an error is shown as text."""

    def wrong(text):
        raise ValueError(EVIL)

    result = await refine(
        Task(EVIL, response=EVIL), False, lambda text: (0.5, EVIL), max_iterations=0
    )
    report = await grade(Task(EVIL, response=EVIL), graders=lambda text: (0.5, EVIL))
    rows = [{"prompt": EVIL, "response": EVIL, "id": EVIL}]
    failed = await batch(rows, tmp_path / "o.jsonl", False, wrong, max_iterations=0)
    done = await batch(rows, tmp_path / "p.jsonl", False, lambda text: 0.5, max_iterations=0)
    for each in (result, report, failed, done):
        html = each._repr_html_()
        assert html.startswith("<p>") and "<script>" not in html and "\x1b" not in html
    assert "alert(1)" in failed._repr_html_() and "rows 1 done" in done._repr_html_()
