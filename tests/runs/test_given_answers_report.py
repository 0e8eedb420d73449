"""The report of rows with several given answers: the best of them is the starting point."""

import pytest

from redraft import ScriptedModel, batch_sync

GIVEN = ["aaaa", "aaa", "a"]


def share_of_nine(text):
    """Grade by length; the letter e is an error."""
    if "e" in text:
        raise ValueError("an e")
    return len(text) / 9


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("given", "answers", "settings", "counts"),
    [
        (GIVEN, None, {"mode": "grade"}, {"unchanged": 1}),
        (GIVEN[::-1], None, {"mode": "grade"}, {"unchanged": 1}),
        (GIVEN, ["aa"], {"max_iterations": 0}, {"unchanged": 1}),
        (GIVEN, None, {"mode": "best"}, {"unchanged": 1}),
        (GIVEN, ["aaaaaaaa"], {"max_iterations": 1}, {"improved": 1}),
        (GIVEN[::-1], ["aaaaaaaa"], {"max_iterations": 1}, {"improved": 1}),
        (GIVEN, ["aa"], {"max_iterations": 1}, {"regressed": 1}),
        (GIVEN, ["bbbb"], {"max_iterations": 1}, {"unchanged": 1}),
        (["e", *GIVEN], ["aa"], {"max_iterations": 1}, {}),
        (["aaaa"], ["aa"], {"max_iterations": 1}, {"regressed": 1}),
        # drafts are no refinements
        ([], ["aaaa", "aa", "aaa"], {"max_iterations": 0, "drafts": 3}, {"unchanged": 1}),
        ([], ["aa", "aaaa", "aaa"], {"max_iterations": 0, "drafts": 3}, {"improved": 1}),
    ],
)
def test_only_a_later_answer_can_regress(given, answers, settings, counts, tmp_path):
    """A given answer that scores lower than another is no regression; a row whose start has no
    score is not counted.
    """
    rows = [
        {"prompt": "q", "responses": given}
        if len(given) > 1
        else {"prompt": "q", **({"response": given[0]} if given else {})}
    ]
    model = ScriptedModel(answers * 3) if answers else False
    report = batch_sync(rows, tmp_path / "out.jsonl", model, share_of_nine, **settings)
    names = ("improved", "unsure", "unchanged", "regressed")
    found = {name: getattr(report.rows, name) for name in names}
    assert {name: n for name, n in found.items() if n} == counts
