"""The rivals: the loops of other tools, re-implemented in a few lines each. Each takes one episode
and returns its result.

`bare` is the factor of a refinement's chance to help where the writer is shown a bare score (None:
that of the world). A grade that cannot be read counts as worse than any other, so that no rival
fails because of one.
"""

from __future__ import annotations

from .results import TARGET, TaskResult

UNREADABLE = -1.0  # below every score


def each(play, episodes):
    """Play the tasks one by one."""
    return [play(episode) for episode in episodes]


def result(episode, id, score, *, reached):
    """Return the result if the text `id` is returned with this score."""
    known = None if score is None or score == UNREADABLE else score
    return TaskResult(
        episode.texts[id].quality, episode.calls, known, reached=reached, rounds=episode.rounds
    )


def grade(episode, id, repeat=0):
    score = episode.grade(id, repeat)
    return UNREADABLE if score is None else score


def single(episode):
    """Write one draft, without grading it."""
    episode.draft(0)
    return result(episode, 0, None, reached=False)


def executionkit(episode, iterations=5, patience=3, delta=0.01, bare=None):
    """`refine_loop` of executionkit 0.4 with its defaults: refine the best with its score as the
    only feedback; stop at the target, or after three moves in a row of at most `delta`.
    """
    vague = episode.world.vague if bare is None else bare
    episode.draft(0)
    best, top = 0, grade(episode, 0)
    last, stale = top, 0
    for id in range(1, iterations + 1):
        if last >= TARGET or stale >= patience:
            break
        episode.refine(id, best, vague)
        score = grade(episode, id)
        stale = stale + 1 if abs(score - last) <= delta else 0
        last = score
        if score > top:
            best, top = id, score
    return result(episode, best, top, reached=last >= TARGET)


def openjudge(episode, iterations=3):
    """`LLMRefinement` of OpenJudge (RM-Gallery): critique the last answer, rewrite it, and return
    the last one, ungraded.

    A critique that cannot be read gives no score, but is shown to the writer all the same.
    """
    episode.draft(0)
    for id in range(iterations):
        episode.grade(id)
        episode.refine(id + 1, id)
    return result(episode, iterations, None, reached=False)


def dspy(attempts, episode, bare=None):
    """`Refine` of DSPy: new attempts, each with advice on the one before, until one reaches the
    target; the best is returned.

    An attempt is one call, its reward another, the advice a third. The model is generous: advice on
    one text helps to write another one as much as a bare score would help to revise it, and never
    harms.
    """
    best, top = 0, float("-inf")
    for id in range(attempts):
        episode.draft(id, hinted=id > 0, vague=bare)
        score = grade(episode, id)
        if score > top:
            best, top = id, score
        if score >= TARGET:
            break
        if id < attempts - 1:
            episode.advise()
    return result(episode, best, top, reached=top >= TARGET)
