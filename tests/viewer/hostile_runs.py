"""A run in which every text tries to run a script, to load something, to leave its place or to
confuse a reader.
"""

from redraft.loop.records import (
    Candidate,
    CriterionScore,
    Failure,
    Feedback,
    Outcome,
    StopReason,
)
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.storage.journal import Journal
from redraft.usage import Usage

from .synthetic_runs import add_row, make_trace

OUTSIDE = "http://outside.example"
ATTACKS = [
    "<script>window.attacked = 1; document.title = 'attacked'</script>",
    f'"><img src="{OUTSIDE}/a.png" onerror="window.attacked = 1">',
    f"'><svg onload=\"window.attacked = 1\"><image href='{OUTSIDE}/b.svg'/></svg>",
    f"</style><style>@import '{OUTSIDE}/c.css'; body {{ display: none }}</style>",
    f"</textarea></pre></title><iframe src='{OUTSIDE}/d'></iframe><base href='{OUTSIDE}/'>",
    f'<meta http-equiv="refresh" content="0;url={OUTSIDE}/e"><form action="{OUTSIDE}/f"><input name=q autofocus onfocus="window.attacked=1">',
    '<a href="javascript:window.attacked=1" id=main data-key=j>next</a>',
    "{{ 7 * 7 }}{% for x in [1] %}{{ x }}{% endfor %}${window.attacked=1}`",
    "\x00\x01\x1b[31mred\x1b]8;;http://outside.example\x07link\x7f\x85\u202eright to left\u2066\u200b\ufeff",
    "<!--><script>window.attacked=1</script>-->]]></desc></title></svg><script>window.attacked=1</script>",
    "\ud800\udfff lone surrogates \ud83d",
]
HOSTILE = "\n".join(ATTACKS)
MUST = f"must {ATTACKS[0]}{ATTACKS[2]}{ATTACKS[3]}"  # the name of a requirement that is not met
NAME = "".join(a for a in ATTACKS if "\x00" not in a and "\ud800" not in a)


def hostile_trace(n=0, *, length=0, stop=StopReason.FAILED, falls=False):
    """Return a trace with hostile text wherever text may be. `falls`: each answer scores lower than
    the one before.
    """
    text = HOSTILE + "word " * (length // 5)
    usage = Usage(1, 10, 10, cost=0.001, answer_tokens=20, answer_cost=0.001)
    task = Task(
        [{"role": "system", "content": HOSTILE}, {"role": "user", "content": f"{n} {HOSTILE}"}],
        id=f"{n}{NAME}",
        reference=HOSTILE,
        context=HOSTILE,
        metadata={HOSTILE: HOSTILE},
    )
    panel = (PanelGrader(NAME), PanelGrader("style"), PanelGrader(MUST, must=True))
    trace = Trace(task, panel, settings={HOSTILE: HOSTILE})
    for id in range(3):
        role = "refine" if id else "generate"
        trace += Candidate(
            id,
            f"{text} {id}",
            id - 1 if id else None,
            NAME,
            role,
            usage=usage,
            reasoning=HOSTILE,
            note=HOSTILE,
        )
        score = 0.2 * (2 - id if falls else id) + 0.1
        criteria = (CriterionScore(NAME, score, HOSTILE, HOSTILE), CriterionScore("clear", score))
        trace += Feedback(
            score,
            HOSTILE,
            (HOSTILE,),
            None,
            criteria,
            id,
            NAME,
            by=NAME,
            usage=usage,
            metadata={"note": NAME},
        )
        trace += Feedback(score, HOSTILE, (HOSTILE,), candidate=id, grader="style", by=NAME)
        trace += Feedback(0.0, HOSTILE, (HOSTILE,), candidate=id, grader=MUST, by=NAME)
    if stop is not StopReason.FAILED:
        return trace + Outcome(2, stop, HOSTILE)
    trace += Failure(("candidate", 3), "refine", NAME, HOSTILE, by=NAME)
    return trace + Outcome(2, stop, HOSTILE, 0.5, (0.3, 0.7), ((0, 0.1), (1, 0.3), (2, 0.5)))


def write_hostile_run(path, *, rows=2, length=0):
    """Write a run with hostile rows that failed, one harmless row, a hostile row that improved and
    one that got worse.
    """
    with Journal(path) as journal:
        journal.update_run(
            NAME,
            invocation=1,
            last_full_invocation=1,
            model=NAME,
            source=HOSTILE,
            output=NAME,
            mode=HOSTILE,
            state=HOSTILE,
        )
        for n in range(rows):
            add_row(journal, NAME, n, hostile_trace(n, length=length if n == 0 else 0))
        add_row(journal, NAME, rows, make_trace(1))
        for n, falls in enumerate((False, True), rows + 1):
            add_row(journal, NAME, n, hostile_trace(n, stop=StopReason.PATIENCE, falls=falls))
    return path
