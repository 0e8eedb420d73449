"""The names of other libraries' graders: every one makes a grader of ours or says why there is
none.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft.errors import ConfigError
from redraft.graders import Judge, Pairwise, Ranker, as_grader, entries
from redraft.graders.aliases import (
    ALIASES,
    LIBRARIES,
    OPEN_JUDGE,
    RM_GALLERY,
    aliased_spec,
    find_alias,
)
from redraft.graders.registry import resolve_spec
from redraft.graders.rubric import rubric_files

# The names as the libraries register them, not as our table has them.
RM_GALLERY_NAMES = """accuracy base_harmlessness_listwise base_harmlessness_pointwise base_helpfulness_listwise
base_helpfulness_pointwise base_honesty_listwise base_honesty_pointwise brainstorming_listwise_reward chat_listwise_reward
classification_listwise_reward closed_qa_listwise_reward code_execution code_listwise_reward code_patch_similarity code_style
code_syntax_check detoxify_reward f1_score factuality_listwise_reward focus_listwise_reward generation_listwise_reward
length_penalty math_listwise_reward math_verify_reward ngram_repetition_penalty number_accuracy open_qa_listwise_reward
precise_if_listwise_reward privacy_leakage reasoning_format reasoning_listwise_reward reasoning_tool_call_format
rewrite_listwise_reward role_playing_listwise_reward rouge safety_listwise_reward summarization_listwise_reward
translation_listwise_reward""".split()
OPEN_JUDGE_CLASSES = """ActionAlignment ActionLoopDetection AnaphoraResolution CodeBugDetection CodeComplexity CodeExecution
CodeSecurity CodeStyle ContextMemory Correctness Hallucination Harmfulness ImageCoherence ImageHelpfulness
InstructionClarification InstructionFollowing JsonMatch JsonValidator LengthPenalty MathExpressionVerify MemoryAccuracy
MemoryDetailPreservation MemoryRetrievalEffectiveness NgramRepetitionPenalty NumberAccuracy ObservationInformationGain
PatchSimilarity PlanDecomposition PlanFeasibility ProactiveInteraction ReasoningCoherence ReasoningFormat ReasoningGroundedness
ReasoningToolCallFormat ReflectionAccuracy ReflectionOutcomeUnderstanding ReflectionProgressAwareness Relevance
ResponseCompleteness ResponseHelpfulness ResponseRepetition SearchCorrectness SelfCorrection Similarity SkillCompleteness
SkillDeclarationAlignment SkillDesign SkillRelevance SkillThreatAnalysis StringMatch SyntaxCheck TextToImage ToolCallAccuracy
ToolCallPrecisionRecallMatch ToolCallStepSequenceMatch ToolCallSuccess ToolParameterCheck ToolSelection ToolUsageEfficiency
TopicSwitch TrajectoryAccuracy TrajectoryComprehensive TrajectoryErrorRecovery TrajectoryStepEfficiency""".split()
EQUAL, NONE = [a for a in ALIASES if a.spec], [a for a in ALIASES if not a.spec]
OWN = {e.name for e in entries()}


def test_every_name_of_both_libraries_is_listed():
    """Each once: the 38 names of RM-Gallery's registry and the 64 classes of OpenJudge."""
    listed = {
        library: sorted(a.name for a in ALIASES if a.origin == library) for library in LIBRARIES
    }
    assert listed == {
        RM_GALLERY: sorted(RM_GALLERY_NAMES),
        OPEN_JUDGE: sorted(f"{name}Grader" for name in OPEN_JUDGE_CLASSES),
    }
    assert [len(names) for names in listed.values()] == [38, 64]


@each_row("alias", EQUAL, ids=lambda alias: alias.name)
def test_every_target_makes_a_grader(alias):
    """In each spelling it is the grader of the target, under the target's name."""
    expected = as_grader(alias.spec)
    for spelling in alias.spellings:
        if spelling in OWN or find_alias(spelling) != alias:
            continue  # a name of ours means our grader, and one of two libraries the first
        grader = as_grader(spelling)
        assert (type(grader), grader.name) == (type(expected), expected.name)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("alias", NONE, ids=lambda alias: alias.name)
def test_a_grader_that_is_not_here_says_why_and_what_is_nearest(alias):
    """It never guesses at a similar name, and the nearest grader exists."""
    assert alias.note and as_grader(alias.nearest)
    for spelling in alias.spellings:
        if spelling in OWN or find_alias(spelling) != alias:
            continue
        with pytest.raises(
            ConfigError, match=f"is not here, because .*; nearest: '{alias.nearest}'$"
        ) as caught:
            as_grader(spelling)
        assert alias.origin in str(caught.value) and "did you mean" not in str(caught.value)


def test_names_are_found_as_the_libraries_write_them():
    """As a class, in snake case with and without the suffix, and by RM-Gallery's name."""
    for name in ("RelevanceGrader", "relevance_grader", "relevance"):
        assert as_grader(name).name == "relevance"
    assert type(as_grader("base_helpfulness_listwise")) is Ranker
    assert type(as_grader("base_helpfulness_pointwise")) is Judge
    assert as_grader("HarmfulnessGrader").name == as_grader("harmfulness").name == "harmlessness"


def test_a_name_of_ours_is_never_replaced():
    """Aliases are looked up last."""
    for entry in entries():
        found, argument = resolve_spec(f"{entry.name}:x")
        assert (found.name, argument) == (entry.name, "x")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "chat_listwise_reward:x",
            "stands for 'ranker:chat' and takes nothing after a colon, got 'x'",
        ),
        ("CodeExecutionGrader:x", "'x' is not an option"),
        ("detoxify_reward:x", "it runs the classifier Detoxify"),
        ("TextToImageGrader:x", "grades texts, not images"),
        ("RelevanceGrader:x", "takes nothing after a colon"),
        ("RelevanceGraders", "unknown grader 'RelevanceGraders'"),
    ],
)
def test_a_wrong_alias_is_an_error(spec, says):
    """An argument has a place only where the target takes one."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        as_grader(spec)


def test_an_argument_reaches_the_target():
    """As in the target's own spec."""
    assert as_grader("privacy_leakage:kinds=email").name == as_grader("pii:kinds=email").name
    assert aliased_spec("f1_score", "") == "token_f1"


@each_row("prefix, kind", [("judge", Judge), ("ranker", Ranker), ("pairwise", Pairwise)])
@each_row("alias", ALIASES, ids=lambda alias: alias.name)
def test_a_name_is_found_after_the_name_of_a_way_of_judging(alias, prefix, kind):
    """And as the rubric of the class: it is the rubric of the target, or an error says what the
    name stands for.
    """
    spelling = alias.spellings[-1]
    if spelling in rubric_files() or find_alias(spelling) != alias:
        return
    rubric = alias.spec.removeprefix("ranker:")
    if rubric in rubric_files():
        expected = as_grader(f"{prefix}:{rubric}")
        grader = as_grader(f"{prefix}:{spelling}")
        assert (type(grader), grader.name, grader.rubric) == (kind, expected.name, expected.rubric)
        assert kind(rubric=spelling).rubric == kind(rubric=rubric).rubric == expected.rubric
        return
    says = re.escape(
        alias.refusal
        if not alias.spec
        else f"stands for the grader {alias.spec!r}, which has no rubric"
    )
    for make in (lambda: as_grader(f"{prefix}:{spelling}"), lambda: kind(rubric=spelling)):
        with pytest.raises(ConfigError, match=says):
            make()


@pytest.mark.parametrize("kind", [Judge, Ranker, Pairwise])
def test_every_judge_takes_a_rubric_in_every_form(kind, tmp_path):
    """A name, a mapping, a path, or a Rubric."""
    (tmp_path / "own.toml").write_text('[criteria]\ntruth = "It is true."\n')
    forms = [
        "clarity",
        {"truth": "It is true."},
        tmp_path / "own.toml",
        str(tmp_path / "own.toml"),
        Judge("clarity").rubric,
    ]
    assert [len(kind(rubric=form).rubric.criteria) > 0 for form in forms] == [True] * 5


SPELLINGS = sorted({spelling for alias in ALIASES for spelling in alias.spellings})


@given(
    st.sampled_from(SPELLINGS),
    st.sampled_from([str, str.swapcase, lambda name: name[:-1], lambda name: f"{name} "]),
)
def test_any_other_name_is_no_alias(name, change):
    """Only listed spellings are found."""
    name = change(name)
    alias = find_alias(name)
    assert (alias is not None) == (name in SPELLINGS) and (alias is None or name in alias.spellings)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("reply", "plain", "with_calls"),
    [
        ("<think>2 + 2</think><answer>4</answer>", 1, 1),
        (
            '<think>I must search.</think><tool_call>{"name": "search", "arguments": {"q": "Rome"}}</tool_call>',
            0,
            1,
        ),
        ("<think>I must search.</think><tool_call>search Rome</tool_call>", 0, 0),
        ("<think>2 + 2</think>4", 0, 0),
        ("<answer>4</answer>", 0, 0),
    ],
)
def test_formats_of_reasoning_want_the_tags_that_the_libraries_want(reply, plain, with_calls):
    """Reasoning, then an answer in tags; tool calls may take its place where the name says so."""
    sample = ("2 + 2?", reply)
    for name, score in {
        "ReasoningFormatGrader": plain,
        "reasoning_tool_call_format": with_calls,
    }.items():
        assert redraft.grade_sync(sample, name).score == score
