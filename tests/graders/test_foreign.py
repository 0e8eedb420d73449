"""Graders that a client names: no file, no code, no host."""

import pytest

from each_row import each_row
from redraft.errors import ConfigError
from redraft.graders import entries
from redraft.graders.registry import foreign_grader


@pytest.mark.parametrize(
    "spec",
    [
        "words:80-200",
        "helpfulness",
        "helpfulness:scoring=expectation",
        "judge",
        "judge:clarity",
        "judge:clarity,criteria_mode=separate",
        "ranker:helpfulness",
        "pairwise",
        "checklist",
        "jury",
        "jury:helpfulness,clarity",
        "readability:max_grade=8",
        "complexity:limit=10",
        "RelevanceGrader",
    ],
)
def test_graders_of_redraft_are_allowed(spec):
    """Requirements, judges by rubrics of the gallery, and what only computes, with their
    options.
    """
    assert foreign_grader(spec).name


@each_row(
    ("spec", "why"),
    [
        ("judge:/etc/passwd", "no rubric of the gallery"),
        ("judge:rubric.toml", "no rubric of the gallery"),
        ("judge:../a=b.toml", "no rubric of the gallery"),
        ("judge:a=b/../../etc/passwd", "sets 'a' of the judge"),
        ("ranker:rubric.md", "no rubric of the gallery"),
        ("pairwise:~/rubric.toml", "no rubric of the gallery"),
        ("checklist:questions.txt", "would read a file"),
        ("json_schema:/etc/passwd", "would read a file"),
        ("jury:helpfulness,judge:rubric.toml", "no rubric of the gallery"),
        ("jury:helpfulness,reward:http://127.0.0.1/", "calls a server of its own"),
        (f"jury:{','.join(['judge'] * 10)}", "more than 9 members"),
        ("reward:http://169.254.169.254/classify", "calls a server of its own"),
        ("embedding:http://127.0.0.1:1/v1#x", "calls a server of its own"),
        ("moderation", "calls a server of its own"),
        ("ranker:helpfulness,clarity", "'helpfulness,clarity', a file and no rubric"),
        ("pairwise:scoring=expectation", "is for judges that score one answer"),
        ("judge:helpfulness,clarity", "no rubric of the gallery"),
        ("jury:helpfulness,tests", "runs programs"),
        ("tests", "runs programs"),
        ("lint:E,F", "runs programs"),
        ("graders.py:polite", "'graders.py"),
        ("os:system", "'os"),
        ("helpfulness:file.toml", "file.toml"),
        ("x" * 3000, "more than 2000 characters"),
        ("", "grader"),
    ],
)
def test_what_names_files_code_or_hosts_is_refused(spec, why):
    """The error says what is not allowed."""
    with pytest.raises(ConfigError, match="(?s)" + why.replace(".", r"\.")):
        foreign_grader(spec)


@pytest.mark.parametrize(
    "spec", ["exact", "citations:min_words=6", "jury:helpfulness,rouge", "tool_calls"]
)
def test_what_computes_from_other_fields_than_the_task_has(spec):
    """A server whose requests have no reference refuses a grader that compares with it; a judge
    does without it.
    """
    assert foreign_grader(spec)
    with pytest.raises(
        ConfigError, match="computes from the .*(reference|context).*, which no task has here"
    ):
        foreign_grader(spec, {"messages"})
    assert foreign_grader("correctness", {"messages"})


def test_every_grader_that_is_refused():
    """A new grader with a file as its argument must be added to the checks; this lists which there
    are.
    """
    refused = set()
    for entry in entries():
        try:
            foreign_grader(entry.example or entry.name)
        except ConfigError as error:
            refused.add(entry.name)
            assert "not allowed here" in str(error)
    assert refused == {
        "embedding",
        "moderation",
        "reward",
        "lint",
        "security",
        "tests",
        "trained",
        "types",
    }


def test_every_grader_with_a_sandbox_runs_programs():
    """A grader that has options of the sandbox says in the registry that it runs programs."""
    for entry in entries():
        try:
            grader = entry.make("")
        except ConfigError:
            continue
        assert entry.runs_programs == hasattr(grader, "sandbox"), entry.name
