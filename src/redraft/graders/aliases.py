"""The names that other libraries give their graders, and the grader of Redraft that does the same.

The table lists the 38 names in the registry of RM-Gallery and the 64 graders of OpenJudge. A name
has either the `spec` of a grader that judges or computes the same thing, or none: then `note` says
why, and `nearest` names what comes closest. `as_grader` and the command line accept a name as these
libraries write it, in snake case, and without "grader" or "reward" at its end, such as `relevance`
and `detoxify`. A name of Redraft's own always means Redraft's grader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ..errors import ConfigError

RM_GALLERY, OPEN_JUDGE = "RM-Gallery", "OpenJudge"
LIBRARIES = (RM_GALLERY, OPEN_JUDGE)
COMPOSED = ("ranker", "jury")  # what follows the colon in these specs is not the user's choice
WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

NO_MEMORY = "a task has no separate memory, only its messages"
NO_PACKAGES = "Redraft grades answers, not packages of skills"


@dataclass(frozen=True, slots=True)
class Alias:
    """A grader of another library: `spec` is the same grader here, "" if there is none; `nearest`
    comes closest.
    """

    origin: str
    name: str
    spec: str = ""
    note: str = ""
    nearest: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The forms in which the name is accepted."""
        snake = WORD_START.sub("_", self.name).lower()
        return tuple(
            dict.fromkeys((self.name, snake, snake.removesuffix("_grader").removesuffix("_reward")))
        )

    @property
    def refusal(self) -> str:
        """Why there is no such grader, as a sentence without a full stop."""
        return (
            f"{self.name!r} of {self.origin} is not here, because {self.note}; nearest: "
            f"{self.nearest!r}"
        )


def _same(library: str, **specs: str) -> Iterator[Alias]:
    """Yield an alias for each name, with "SPEC" or "SPEC -- NOTE"."""
    for name, text in specs.items():
        spec, _, note = text.partition(" -- ")
        yield Alias(library, name, spec, note)


ALIASES: tuple[Alias, ...] = (
    *_same(
        RM_GALLERY,
        base_helpfulness_pointwise="helpfulness",
        base_harmlessness_pointwise="harmlessness",
        base_honesty_pointwise="honesty",
        base_helpfulness_listwise="ranker:helpfulness",
        base_harmlessness_listwise="ranker:harmlessness",
        base_honesty_listwise="ranker:honesty",
        safety_listwise_reward="ranker:safety",
        brainstorming_listwise_reward="ranker:brainstorming",
        chat_listwise_reward="ranker:chat",
        classification_listwise_reward="ranker:classification",
        closed_qa_listwise_reward="ranker:closed_qa",
        code_listwise_reward="ranker:code_quality",
        focus_listwise_reward="ranker:focus",
        generation_listwise_reward="ranker:writing",
        math_listwise_reward="ranker:math_reasoning",
        open_qa_listwise_reward="ranker:open_qa",
        precise_if_listwise_reward="ranker:instruction_following",
        reasoning_listwise_reward="ranker:reasoning",
        rewrite_listwise_reward="ranker:rewriting",
        role_playing_listwise_reward="ranker:role_play",
        summarization_listwise_reward=(
            "ranker:summary_coverage -- `ranker:summary_faithfulness` asks whether it is true"
        ),
        translation_listwise_reward="ranker:translation",
        factuality_listwise_reward="ranker:factuality",
        code_style="lint:E,W,N -- Python only",
        code_syntax_check="syntax -- Python only",
        code_execution="tests -- Python only; reads the task's tests",
        code_patch_similarity="fuzzy",
        reasoning_format=(
            "reasoning_format:answer=answer -- `reasoning_format` alone wants no tags around the "
            "answer"
        ),
        reasoning_tool_call_format="reasoning_format:answer=answer,tool_calls=true",
        length_penalty="length:characters=10-1000",
        ngram_repetition_penalty="repetition",
        privacy_leakage="pii -- `secrets` finds keys and passwords",
        accuracy="exact",
        f1_score="token_f1",
        rouge="rouge",
        number_accuracy="number_accuracy",
        math_verify_reward="math",
    ),
    Alias(
        RM_GALLERY,
        "detoxify_reward",
        "",
        "it runs the classifier Detoxify in this process",
        "harmlessness",
    ),
    *_same(
        OPEN_JUDGE,
        CorrectnessGrader="correctness",
        HallucinationGrader="hallucination",
        HarmfulnessGrader="harmlessness",
        InstructionFollowingGrader="instruction_following",
        RelevanceGrader="relevance",
        ActionAlignmentGrader="plan_quality",
        ActionLoopDetectionGrader="trajectory_efficiency -- a judge; theirs counts equal actions",
        PlanDecompositionGrader="plan_quality",
        PlanFeasibilityGrader="plan_quality",
        ReasoningCoherenceGrader="reasoning",
        ReasoningGroundednessGrader="observation_use",
        ReflectionAccuracyGrader="observation_use",
        ReflectionOutcomeUnderstandingGrader="observation_use",
        ReflectionProgressAwarenessGrader="goal_completion",
        ResponseCompletenessGrader="completeness",
        ResponseHelpfulnessGrader="helpfulness",
        ToolCallAccuracyGrader="tool_arguments -- `tool_selection` judges the choice",
        ToolCallPrecisionRecallMatchGrader=(
            "tool_call_precision -- `tool_call_recall` for the other half"
        ),
        ToolCallStepSequenceMatchGrader="tool_call_order",
        ToolCallSuccessGrader="tool_call_success",
        ToolParameterCheckGrader="tool_arguments",
        ToolSelectionGrader="tool_selection",
        ToolUsageEfficiencyGrader="trajectory_efficiency -- a judge; theirs counts calls",
        TrajectoryAccuracyGrader="goal_completion",
        TrajectoryComprehensiveGrader="jury:goal_completion,observation_use,trajectory_efficiency",
        TrajectoryErrorRecoveryGrader="tool_call_success",
        TrajectoryStepEfficiencyGrader="trajectory_efficiency -- a judge; theirs counts steps",
        CodeBugDetectionGrader="code_quality",
        CodeComplexityGrader="code_quality -- a judge; `complexity` measures Python",
        CodeExecutionGrader="tests -- Python only; reads the task's tests",
        CodeSecurityGrader="security -- rules for Python; theirs is a judge",
        CodeStyleGrader="lint:E,W,N -- Python only",
        SyntaxCheckGrader="syntax -- Python only",
        PatchSimilarityGrader="fuzzy",
        JsonMatchGrader="json_fields",
        JsonValidatorGrader="json",
        LengthPenaltyGrader="length:characters=10-1000",
        NgramRepetitionPenaltyGrader="repetition",
        ReasoningFormatGrader="reasoning_format:answer=answer",
        ReasoningToolCallFormatGrader="reasoning_format:answer=answer,tool_calls=true",
        MathExpressionVerifyGrader="math",
        AnaphoraResolutionGrader="context_memory",
        ContextMemoryGrader="context_memory",
        InstructionClarificationGrader="misunderstanding_repair",
        ProactiveInteractionGrader="chat",
        ResponseRepetitionGrader="chat",
        SelfCorrectionGrader="misunderstanding_repair",
        TopicSwitchGrader="chat",
        NumberAccuracyGrader="number_accuracy",
        SimilarityGrader="fuzzy -- also `token_f1`, `bleu`, `rouge`, `chrf`, `embedding`",
        StringMatchGrader="exact -- also `starts_with`, `ends_with`, `contains`, `regex`",
    ),
    Alias(OPEN_JUDGE, "MemoryAccuracyGrader", "", NO_MEMORY, "context_memory"),
    Alias(OPEN_JUDGE, "MemoryDetailPreservationGrader", "", NO_MEMORY, "context_memory"),
    Alias(OPEN_JUDGE, "MemoryRetrievalEffectivenessGrader", "", NO_MEMORY, "context_memory"),
    Alias(
        OPEN_JUDGE,
        "ObservationInformationGainGrader",
        "",
        "no grader measures how much a tool result differs from earlier ones",
        "trajectory_efficiency",
    ),
    Alias(
        OPEN_JUDGE,
        "SearchCorrectnessGrader",
        "",
        "judges do not search the web; give them a context",
        "factuality",
    ),
    Alias(
        OPEN_JUDGE,
        "ImageCoherenceGrader",
        "",
        "no rubric is about images; every judge is shown those of the task",
        "judge",
    ),
    Alias(
        OPEN_JUDGE,
        "ImageHelpfulnessGrader",
        "",
        "no rubric is about images; every judge is shown those of the task",
        "judge",
    ),
    Alias(OPEN_JUDGE, "TextToImageGrader", "", "Redraft grades texts, not images", "judge"),
    Alias(OPEN_JUDGE, "SkillCompletenessGrader", "", NO_PACKAGES, "completeness"),
    Alias(OPEN_JUDGE, "SkillDeclarationAlignmentGrader", "", NO_PACKAGES, "honesty"),
    Alias(OPEN_JUDGE, "SkillDesignGrader", "", NO_PACKAGES, "judge"),
    Alias(OPEN_JUDGE, "SkillRelevanceGrader", "", NO_PACKAGES, "relevance"),
    Alias(OPEN_JUDGE, "SkillThreatAnalysisGrader", "", NO_PACKAGES, "safety"),
)


def find_alias(name: str) -> Alias | None:
    """Return the grader of another library with that name, in any of its spellings; None if there
    is none.
    """
    return _aliases_by_spelling().get(name)


@cache
def _aliases_by_spelling() -> dict[str, Alias]:
    """Return the aliases by spelling; where two libraries use a name, RM-Gallery's comes first."""
    table: dict[str, Alias] = {}
    for alias in ALIASES:
        for spelling in alias.spellings:
            table.setdefault(spelling, alias)
    return table


def aliased_spec(name: str, argument: str) -> str | None:
    """Return the spec that another library's name stands for, with this argument if there is one;
    None for any other name.

    Raises ConfigError for a grader that Redraft does not have, and for an argument that has no
    place.
    """
    alias = find_alias(name)
    if alias is None:
        return None
    if not alias.spec:
        raise ConfigError(alias.refusal)
    target, _, default = alias.spec.partition(":")
    if argument and target in COMPOSED:
        raise ConfigError(
            f"grader {name!r} stands for {alias.spec!r} and takes nothing after a colon, got "
            f"{argument!r}"
        )
    return f"{target}:{argument or default}" if argument or default else target
