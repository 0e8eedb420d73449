"""Which of several marked answers of a text counts: the last one after a withdrawal, all of them
without one.
"""

import pytest

from cpu_time import least_seconds
from each_row import each_row
from redraft import Candidate, Task
from redraft.graders.computed.answers import choices, marked_answers, standing_text
from redraft.graders.registry import grader_from_spec


async def score_of(spec, text, reference):
    feedback = await grader_from_spec(spec).grade(
        Task("q", reference=reference), Candidate(0, text), None
    )
    return feedback.score


WITHDRAWN = [  # texts with two marked answers, of which the second, 13, counts
    r"First \boxed{12}. Wait, that is wrong. So \boxed{13}",
    r"the answer is \boxed{12}. wait, actually \boxed{13}",
    r"First attempt gives \boxed{12}. That is wrong; correcting, the answer is \boxed{13}.",
    r"$\boxed{12}$ Hmm, wait - let me recheck. $\boxed{13}$",
    r"\[\boxed{12}\] But wait, I forgot one. \[\boxed{13}\]",
    r"\boxed{12} no, \boxed{13}",
    r"\boxed{12}。等等，不对。\boxed{13}",
    "The answer is 12. Actually, the answer is 13.",
    "The answer is 12. No: the answer is 13.",
    "The answer is 12. No wait, the answer is 13.",
    "The answer is **12**.\n\n**Wait**, I made a mistake.\n\nThe answer is **13**.",
    "The answer is 12.\n\nCorrection: the answer is 13.",
    "The answer is 12 \u2014 actually, the answer is 13.",
    "Answer: 12\nAfter checking the reasoning, I need to correct this.\nAnswer: 13",
    "Answer: 12\n\nLet me double-check: 6 + 7 = 13.\n\nAnswer: 13",
    "Answer: 12. Sorry, I miscounted. Answer: 13",
    "Answer: 12. Oops! Answer: 13",
    "Final answer: 12. Scratch that. Final answer: 13",
    "Final answer: 12\nHold on. 6 + 7 is 13.\nFinal answer: 13",
    "The answer is 12. On second thought, the answer is 13.",
    "The answer is 12. This can't be right. The answer is 13.",
    "The answer is 12. Let me recalculate. The answer is 13.",
    "The answer is 12. I was wrong. The answer is 13.",
    "The answer is 12. Corrected answer: 13",
    "#### 12\nNo, once more.\n#### 13",
    "#### 12\n#### 13",
    "#### 12\n\n#### 13\n",
    r"\boxed{12}. Wait, I misread the question. The answer is 13.",
    r"#### 12" + "\nActually, I forgot the last one.\n" + r"\boxed{13}",
    r"\boxed{10} or \boxed{11}? Wait, neither. \boxed{12}. No, that's not right. \boxed{13}",
    r"\boxed{12}. Wait, the old man said \"no\". So \boxed{13}",
    r"\boxed{12} (actually, \boxed{13})",
    r"\boxed{12}. *Wait* \boxed{13}",
    r"\boxed{12}. Nope. \boxed{13}",
    r"\boxed{12}. Hmm, that doesn't seem right. \boxed{13}",
    r"\boxed{12}. Let me try a different approach. \boxed{13}",
    r"\boxed{12}. However, this is incorrect. \boxed{13}",
    r"\boxed{12}. Actually, 12 is too small. \boxed{13}",
    "The answer is 12. My apologies, the answer is 13.",
    "The answer is 12. I apologize for the confusion. The answer is 13.",
    "The answer is 12. Upon closer inspection, the answer is 13.",
    "The answer is 12. EDIT: the answer is 13.",
    "The answer is 12. Never mind, the answer is 13.",
    "The answer is 12. I mean, the answer is 13.",
    "<answer>12</answer> Wait, I forgot one. <answer>13</answer>",
    r"\boxed{12}" + "\nUpdated answer: 13",
    "The answer is 12.\nUpdated answer: 13",
    "The answer is 12. The corrected answer is 13.",
    "Revised answer: 12\nMy new answer: 13",
    "The answer is 12. Rechecking: 6 + 7. The answer is 13.",
    "The answer is 12. Wait, no: it's 13.",
    "The answer is 12. Actually, 13.",
    "The answer is 12. Wait, no, that's 13. I had left one out.",
    r"So \boxed{12}. No, it should be **13**.",
    r"<think>So \boxed{12}?</think> The answer is \boxed{13}, which was also checked.",
    r"It is \boxed{12}.</think>" + "\nThe answer is 13.",
]
SEVERAL = [  # texts that give several answers
    r"The two roots are \boxed{12} and \boxed{13}.",
    r"\boxed{12}, or \boxed{13}",
    "The answer is 12. The answer is 13.",
    "Answer: 12\nAnswer: 13",
    "The answer is 12 or the answer is 13.",
    r"(a) \boxed{12} (b) \boxed{13}",
    r"(a) \boxed{12}. Let me verify: it fits. (b) Let us fix n. \boxed{13}",
    r"\boxed{12}. Wait, there is another one: \boxed{13}",
    "The first answer is 12. Actually, the answer is also 13.",
    r"The answer is \boxed{12}. He said: " + '"Wait, that is wrong."' + r" And \boxed{13}.",
    "\\boxed{12} is what \u201cNo, I mean it\u201d gives, \\boxed{13} the rest.",
    "The answer is 12. She had to wait for it and waited on. The answer is 13.",
    "The answer is 12. Wait 5 minutes and it cools down. The answer is 13.",
    "The answer is 12. There is no real doubt. The answer is 13.",
    "The result is actually 12. The result is 13.",
    r"Wait, let me think. Actually, \boxed{12} and \boxed{13}",
    r"\boxed{11}. Wait, that is wrong: \boxed{12} and \boxed{13}",
    r"\boxed{12 \text{ no, 1}}, \boxed{13}",
    r"\boxed{12}. Wait, \boxed{13} works too.",
    r"\boxed{12}. Actually, \boxed{13} is a solution as well.",
    r"(a) \boxed{12} (b) Ignore the friction. \boxed{13}",
    r"One root is \boxed{12}. By inspection, \boxed{13} fits.",
    r"\boxed{12}. On reflection in the axis it is \boxed{13}.",
    "<answer>12</answer> <answer>13</answer>",
]
STANDING = [  # texts with one answer that stands: 13
    "The answer is 13. Wait, let me double-check: 6 + 7 = 13. Yes, in 2 steps.",
    "The answer is 13. Actually, there are 2 ways to see that.",
    "The answer is 13. If you found 12, that is wrong.",
    "The answer is 13. No, it is not 12.",
    r"\boxed{13}" + "\n\nNo further steps: 2 are enough.",
    r"Wait, no. Let me recheck. So \boxed{13}",
    r"I will put the answer in \boxed{}. It is \boxed{13}.",
    "The answer is 13 cm. Wait, that was quick: 2 minutes.",
    r"\boxed{13\text{ cm}}",
    "#### 13\nI hope that helps, in 2 steps.",
    "#### Step 1: add\n6 + 7\n#### Step 2: check\nIt fits.\n\nThe answer is 13.",
    "#### 1. Add 6\n#### 2. Add 7\nFinal answer: 13",
    "Answer: the answer is 13",
    "6 + 7 = 13 #### 13\nIn 2 steps.",
    "**Final Answer**\n\n13\n\nIn 2 steps.",
    "#### Final Answer:\n13\n\nIn 2 steps.",
    "Final answer:\n13 apples\n\nIn 2 steps.",
    "Tags: <answer> </answer>. <answer>\n13\n</answer> in 2 steps",
    "<think>The answer is 12.</think>It is 13.",
    "The answer is 12. Wait, that is wrong. It is 13.",
    "The answer is 12. No, scratch that, 13.",
    "The answer is 13. Actually, it is 2 cm longer.",
    "The answer is 13. Wait, 2 is even.",
    "The answer is 13. Let me recheck: 1. Add 6. 2. Add 7.",
    "The answer is 13. Let me recheck.\n1. Add 6.\n2. Add 7.",
    "The answer is 13. The updated list has 2 rows.",
    "The final answer is 12, no wait, that's wrong, 13",
]

OTHERS_MARKS = [  # texts with a mark that is not their own, of 12, and one that is, of 13
    "The answer is not 12. The answer is 13.",
    "The answer isn't 12. The answer is 13.",
    "The answer isn\u2019t 12; the answer is 13.",
    "The answer is clearly not **12**. The answer is 13.",
    "The answer is not 12 but 13.",
    "The answer is 13, not 12.",
    "The answer is **13** (not 12).",
    r"The answer is \boxed{13}, not $12$.",
    "The answer is not 11, 12 or 14. The answer is 13.",
    r"The answer is not $\boxed{12}$. The answer is \boxed{13}.",
    r"Not \boxed{12} but \boxed{13}.",
    r"\boxed{13}, not \boxed{12}",
    "If the answer is 12, then 6 + 6 = 13, a contradiction. So the answer is 13.",
    "Suppose the answer is 12. Then contradiction. The answer is 13.",
    "Suppose that the final answer is 12. Then contradiction. The final answer is 13.",
    "Assuming the answer were 12, there is a contradiction. The answer is 13.",
    "You might think the answer is 12, but the answer is 13.",
    "Many students say that the answer is 12. The answer is 13.",
    "He asked whether the answer is 12. The answer is 13.",
    'Someone said "the answer is 12". The answer is 13.',
    "Some say \u201cthe answer is 12\u201d. The answer is 13.",
    r'"Is it \boxed{12}?" he asked. It is \boxed{13}.',
]
OWN_MARKS = [  # texts whose one mark, of 13, is their own
    '"The answer is 13."',
    '{"steps": "6 + 7", "text": "The answer is 13."}',
    "If x is 6 and y is 7, the answer is 13.",
    "Assuming no friction, the answer is 13.",
    "I think the answer is 13.",
    "I would say the answer is 13.",
    "So you can say the answer is 13.",
    "Not only that: the answer is 13.",
    "The answer is 13, not counting the rest.",
    'He said "stop" and 6" is short. The answer is 13.',
    "Let me see if the answer is 13. It is.",
]

OTHER_LANGUAGES = [  # texts that mark 13 in another language, with another number after it
    "\u7b54\u6848\u662f 13\u3002\u56e0\u4e3a 11+2\u3002",
    "\u7b54\u6848\uff1a13\n\u56e0\u4e3a 11+2",
    "\u6240\u4ee5\u6700\u7ec8\u7b54\u6848\u4e3a**13**\u3002\u56e0\u4e3a 11+2\u3002",
    "\u6b63\u786e\u7b54\u6848\u5e94\u8be5\u662f13\u3002\u56e0\u4e3a 11+2\u3002",
    "\u7b54\u6848\u4e0d\u662f 12\u3002\u7b54\u6848\u662f 13\u3002\u56e0\u4e3a 11+2\u3002",
    "\u7b54\u6848\u662f 12\u3002\u4e0d\u5bf9\u3002\u7b54\u6848\u662f 13\u3002\u56e0\u4e3a 11+2\u3002",
    "Die Antwort ist 13. Denn 11 + 2.",
    "**Antwort:** 13\nDenn 11 + 2.",
    "Die Antwort ist nicht 12. Die Antwort lautet 13. Denn 11 + 2.",
    "La r\u00e9ponse est 13. Car 11 + 2.",
    "La respuesta es: 13. Porque 11 + 2.",
]


@pytest.mark.parametrize("text", OTHER_LANGUAGES)
async def test_marks_in_other_languages_count(text):
    """For numbers and for choices; several are several, and none that is negated counts."""
    assert await score_of("numeric", text, "13") == 1
    assert await score_of("numeric", text, "2") == 0
    assert await score_of("numeric", text, "12") == 0
    letters = text.replace("13", "C").replace("12", "B")
    assert await score_of("math", letters, "C") == 1
    assert await score_of("math", letters, "B") == 0
    several = f"{text}\n{text.replace('13', '14').replace('12', '13')}"
    assert await score_of("numeric", several, "13") == 0


@each_row("text", OTHERS_MARKS)
async def test_marks_that_are_not_the_own_of_a_text_do_not_count(text):
    """They are negated, supposed or quoted."""
    for spec in ("numeric", "math"):
        assert await score_of(spec, text, "13") == 1
        assert await score_of(spec, text, "12") == 0


@pytest.mark.parametrize("text", OWN_MARKS)
async def test_marks_with_such_words_around_them_count(text):
    """The words belong to another part of the sentence, or are the writer's own, or all of the text
    is quoted.
    """
    assert await score_of("numeric", text, "13") == 1
    for other in ("6", "7"):
        assert await score_of("numeric", text, other) == 0


async def test_a_mark_that_is_only_negated_gives_no_answer():
    """Neither for numbers nor for choices; nor does the rest of its list."""
    for text in (
        "The answer is not 12.",
        "The answer isn't 12 or 13.",
        r"Not \boxed{12}, and not \boxed{13}.",
    ):
        for reference in ("12", "13"):
            assert await score_of("numeric", text, reference) == 0
    for text in (
        "The answer is not (B).",
        "If the answer is B, stop.",
        "You might think the answer is B.",
    ):
        assert await score_of("math", text, "B") == 0


@each_row("text", WITHDRAWN)
async def test_the_last_answer_counts_after_a_withdrawal(text):
    """For numbers and mathematics alike; the answer that was withdrawn scores 0."""
    for spec in ("numeric", "math"):
        assert await score_of(spec, text, "13") == 1
        assert await score_of(spec, text, "12") == 0


@each_row("text", SEVERAL)
async def test_several_answers_without_a_withdrawal_stay_several(text):
    """None of them is right alone: an answer that names every possibility is wrong."""
    for spec in ("numeric", "math"):
        for reference in ("12", "13"):
            assert await score_of(spec, text, reference) == 0


@each_row("text", STANDING)
async def test_one_answer_that_stands_counts(text):
    """A check that confirms it, or words about other answers, withdraw nothing."""
    assert await score_of("numeric", text, "13") == 1
    assert await score_of("numeric", text, "2") == 0
    assert await score_of("numeric", text, "12") == 0


@pytest.mark.parametrize(
    "text", ["The answer is 12. Wait, that is wrong.", r"\boxed{12}" + "\nOops, I made a mistake."]
)
async def test_an_answer_that_is_only_withdrawn_is_none(text):
    """Nothing is marked anew, so there is no answer."""
    for spec in ("numeric", "math"):
        assert await score_of(spec, text, "12") == 0


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{\frac{1}{2}}, which is \boxed{0.5}",
        r"So \boxed{x = \frac12}. The answer is \boxed{\dfrac{1}{2}}",
        "The answer is 1/2. In decimals, the answer is 0.5.",
    ],
)
async def test_one_answer_in_several_spellings_is_one(text):
    """All are equal to the reference, so no possibility is named that is wrong."""
    assert await score_of("math", text, r"\frac{1}{2}") == 1
    assert await score_of("math", text + r" or \boxed{3}", r"\frac{1}{2}") == 0
    assert await score_of("math", text, "3") == 0


async def test_lists_of_numbers_are_withdrawn_as_well():
    """The list that counts is the one after the withdrawal."""
    text = r"\boxed{1, 2}. Wait, the order is wrong: \boxed{2, 1}"
    assert await score_of("numeric", text, "2, 1") == 1
    assert await score_of("numeric", text, "1, 2") == 0


CHOICES = [
    (r"\boxed{\text{C}}", "C"),
    (r"\boxed{\textbf{(C)}\ 12}", "C"),
    (r"\boxed{\text{(C)}}", "C"),
    (r"\boxed{\mathbf{C}}", "C"),
    (r"\boxed{\mathrm{C) } 12}", "C"),
    (r"\boxed{(C)}", "C"),
    (r"$\boxed{\left(\text{C}\right)}$", "C"),
    (r"\boxed{\text{Option C}}", "C"),
    (r"\boxed{C: A polygenic risk score}", "C"),
    (r"\boxed{E: A polygenic risk score}", "E"),
    (r"Since \boxed{a \ll \Delta E}. Answer: D", "D"),
    (r"\boxed{E = mc^2}. **Answer: D**", "D"),
    ("**Answer:** D", "D"),
    ("(A) and (B) are wrong, so (C)", "C"),
    ("A and B are wrong, so C.", "C"),
    ("(A) is wrong.\n(B) is not right.\n(C)", "C"),
    ("(A), (B) and (D) can be ruled out. Therefore, (C) is correct.", "C"),
    ("The correct option is (C).", "C"),
    ("So the correct choice is C.", "C"),
    ("Hence the answer is (C), not (D).", "C"),
    ("The answer is C because A dog is no cat.", "C"),
    ("The answer is A. No: the answer is B.", "B"),
    ("Answer: A\nAfter checking the reasoning, I need to correct this.\nAnswer: B", "B"),
    (r"\boxed{A}. Wait, I misread it. \boxed{\text{B}}", "B"),
    ("Answer: A because it fits", "A"),
    ("Answer: A", "A"),
    ("The answer is A, B is wrong.", "A"),
    ("The answer is C, and A is wrong.", "C"),
    ("The answer is C, I think.", "C"),
    ("Answer: C, not D", "C"),
    ("Answer: C) A Tale of Two Cities", "C"),
    ("Answer: C, A Tale of Two Cities", "C"),
    ("Answer: C (A Tale of Two Cities)", "C"),
    ("Answer: C. I am sure", "C"),
    ("Answer: C - Germany", "C"),
    ("So (C), not (D).", "C"),
    ("So (C), and (D) is wrong.", "C"),
    ("(A) and (B) are wrong, so it's (C).", "C"),
    ("(A) and (B) are wrong, which leaves us with (C).", "C"),
    (r"The answer is $\boxed{12}$, which is option (C).", "C"),
    ("Only (C) is right.", "C"),
    ("A and B have the wrong sign. Option C is correct.", "C"),
    ("I choose C.", "C"),
    ("The answer is (c).", "C"),
    ("<answer>C</answer>", "C"),
    ("Answer: C; A is wrong", "C"),
    ("Answer: C; the rest is wrong.", "C"),
    ("Answer: C - A Tale of Two Cities", "C"),
    ("Answer: C: 5, as A has 7", "C"),
    (r"\boxed{C:\ \text{5, which A lacks}}", "C"),
    ("Answer: C. A has 5.", "C"),
    ("Answer: C (or so I think)", "C"),
    ("The answer is B. Wait, no: it's C.", "C"),
    ("The answer is B. No, C.", "C"),
    ("The answer is B. Actually, it should be (C), not B.", "C"),
    (r"\boxed{B}. Wait, C is correct.", "C"),
    ("Answer: B\nSorry, I mean C", "C"),
    ("Answer: B. Scratch that: option C.", "C"),
    ("The answer is C. Wait, A dog is no cat.", "C"),
    ("The answer is C. Actually, it is a mystery.", "C"),
    ("The answer is C. No, B is wrong.", "C"),
    ("The answer is C. Wait, let me check. Yes.", "C"),
    ("The answer is C. Rechecking: it fits.", "C"),
    ("Therefore, B is the correct answer.", "B"),
    ("A has the wrong sign, so C is correct.", "C"),
    ("Thus **B** is the best choice.", "B"),
    ("B is the answer.", "B"),
    ("So (B) is the answer, not C.", "B"),
    ("The answer is most likely option B.", "B"),
    ("Answer: probably (B)", "B"),
    ("So the answer should be (B).", "B"),
    ("The answer must be B", "B"),
    ("The answer would be B, since A is too small.", "B"),
    ("Naively, the answer would be B. But x < 0, so (C).", "C"),
    ("Option C", "C"),
    ("Choice C.", "C"),
    ("**Option C**", "C"),
    ("Option C: Germany", "C"),
    ("Option A is wrong.\nOption C", "C"),
    ("I would choose C", "C"),
    ("I'd pick option C.", "C"),
    ("The right choice is C, not D.", "C"),
    ("The correct option is C because A is too small.", "C"),
    ("Between B and C, C is better. So I'd say C.", "C"),
    ("A) 3\nB) 4\nC) 5\n\nI go with B) 4", "B"),
    ("A: wrong\nB: wrong\nC: it fits", "C"),
    ("My guess is (C).", "C"),
]
NO_CHOICES = [
    "Answer: A dog barks.",
    "The answer is a dog.",
    "The answer is a matter of taste, so I pass.",
    "A and B are both fine.",
    "(A) is wrong, so (B) or (C).",
    r"\boxed{A} or \boxed{B}",
    "Answer: A\nAnswer: B",
    "Because I think so, I pass.",
    "Are A and B wrong? Hard to say.",
    r"\boxed{A + B}",
    r"\boxed{A_1}",
    "Answer: A or B",
    "Answer: (A) or (B)",
    "Answer: A, B",
    "Answer: A, B, and C",
    "Answer: A and C",
    "The answer is A or maybe C.",
    "The answer is B, or possibly (D).",
    r"\boxed{A, C}",
    r"\boxed{\text{A or C}}",
    r"\boxed{\text{A}, \text{C}}",
    "(A) or (B)",
    "(A)\n(B)\n(C)",
    "A\nB\nC\nD",
    "<answer>\nA\nB\n</answer>",
    r"\boxed{B\text{ and }C}",
    "Answer: C D",
    "Answer: C | D",
    "So (B), or (C).",
    "So (B) and (C).",
    "C is correct? Hard to say.",
    "Neither A nor C is correct.",
    r"\boxed{A\ \text{or}\ B}",
    r"\boxed{A~\text{and}~B}",
    r"\boxed{\text{A}\text{ or }\text{B}}",
    r"\boxed{A: 5, C: 7}",
    r"\boxed{A) 5, C) 7}",
    "Answer: A: 5; C: 7",
    r"\boxed{A - C}",
    r"\boxed{B\text{ to }D}",
    "Answer: B \u2013 D",
    "Answer: A; C",
    "Answer: A; B; and C.",
    "Answer: A (or C)",
    "Answer: A (and C)",
    "Answer: A and/or C",
    "Answer: B, possibly C",
    "Answer: B as well as C",
    "Answer: A. B. C.",
    "A. B. C.",
    "Option C is wrong.",
    "So (C) is wrong.",
    "Option C: wrong",
    "Option A\nOption B",
    "Therefore, B is not the correct answer.",
    "If so, B is correct? Hard to say.",
    "B is not the answer.",
    "The answer is probably a number.",
    "The answer is likely B or C.",
    "The answer should be a number.",
    "The answer must be A number of things.",
    "The answer would be B or C.",
    "The answer cannot be B.",
    "I would not choose C.",
    "I would choose B or C.",
    "I'd say C is wrong.",
    "I choose (C) or (D).",
    "The right choice is not C.",
    "The right choice is C, D or E.",
]


@pytest.mark.slow
@each_row(("text", "letter"), CHOICES)
async def test_letters_of_choices_are_read(text, letter):
    """In LaTeX's text commands, with brackets, after a conclusion, with what was ruled out
    before.
    """
    for other in "ABCDE":
        assert await score_of("math", text, other) == (other == letter)
    assert await score_of("math", text, rf"\boxed{{\text{{{letter}}}}}") == 1


@pytest.mark.slow
@each_row("text", NO_CHOICES)
async def test_words_that_look_like_choices_are_none(text):
    """The article is no choice, several letters are no choice, and a variable is none."""
    for letter in "ABCDEFGHIJ":
        assert await score_of("math", text, letter) == 0


HOSTILE = {
    "open braces": r"\boxed{" * 40_000,
    "nested braces": r"\boxed{" * 15_000 + "1" + "}" * 15_000,
    "many boxes": r"\boxed{1} no, " * 15_000,
    "many answers": "the answer is " * 15_000,
    "many withdrawals": "Answer: 1. " + "wait, " * 40_000 + "Answer: 2",
    "line ends": "Answer: 1" + "\n" * 120_000 + "Answer: 2",
    "quotation marks": "Answer: 1 " + '"' * 120_000 + " Answer: 2",
    "letters": "(A) and " * 25_000 + "are wrong",
    "heads": "#### " * 40_000,
    "tags": "<answer>" * 25_000,
    "ends of reasoning": "Answer: 1 " + "</think>" * 25_000,
    "headings": "final answer\n" * 15_000,
    "choices": "Answer: " + "A or " * 40_000,
    "lines of choices": "(A) or\n" * 25_000,
    "withdrawals without a mark": "Answer: 1. " + "no, it's 2 " * 30_000,
    "negations": "the answer is not 1, 2, " * 10_000,
    "suppositions": "if the answer is " * 10_000,
    "quotations": '"answer is ' * 20_000,
    "labels": "Answer: A: " + "5, " * 40_000,
    "letters alone": "Answer: " + "A. " * 60_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_linear_in_the_length(name):
    """It takes far less than a second of CPU time; in quadratic time it would take minutes."""

    def read():
        marked_answers(standing_text(HOSTILE[name]))
        choices(HOSTILE[name])

    assert least_seconds(read, 10.0) < 10.0  # a quadratic reader takes minutes
