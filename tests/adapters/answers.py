"""What the tests of adapters share: nine questions, and answers of which a grader finds a third
good and fails on another third.
"""

import redraft

GOOD, SHORT, FAILS = "This answer has six good words.", "Too short.", "No grader reads this."
ANSWERS = {f"Question {n}?": [GOOD, SHORT, FAILS][n % 3] for n in range(9)}
GOOD_FEEDBACK = "six_words (1.00): 6 words"
SHORT_FEEDBACK = "six_words (0.00): 2 words; write six words"


def six_words(text):
    """A grader that fails on a third of the answers."""
    if text == FAILS:
        raise OSError("a message that names a server")
    found = len(text.split())
    if found == 6:
        return redraft.Feedback(1.0, "6 words")
    return redraft.Feedback(0.0, f"{found} words", ("write six words",))


QUICK = {"retries": 0}  # settings of grading
