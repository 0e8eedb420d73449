"""No control token of a chat template reaches a judge: each is broken up, stays legible, and keeps its length."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redraft import Candidate, Judge, ScriptedModel, Task
from redraft.protocols import Comparer
from redraft.errors import BadResponseError
from redraft.graders import Checklist, Pairwise, Ranker, Rubric
from redraft.graders.judging.prompt import enclose, without_control_tokens
from redraft.perform import ModelClient, StepClient

TOKENS = (
    # OpenAI, Qwen, Llama 3 and 4, Cohere, Phi, Granite, GLM, Kimi, Gemma 4
    "<|im_start|> <|im_end|> <|im_sep|> <|endoftext|> <|endofprompt|> <|start|> <|message|> <|channel|> <|return|> <|call|> <|constrain|> "
    "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|> <|python_tag|> <|eot|> <|header_start|> "
    "<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|CHATBOT_TOKEN|> <|assistant|> <|user|> <|system|> <|end|> <|tool▁call|> <|observation|> "
    "<|start_of_role|> <|im_user|> <|im_middle|> <|turn> <turn|> <|tool_call> <tool_call|> <|fim_prefix|> <|vision_start|> <|/think|> "
    # DeepSeek
    "<｜User｜> <｜Assistant｜> <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜tool▁calls▁begin｜> "
    # Llama 2, Mistral, Gemma, GLM, MiniMax, EXAONE, Seed, SentencePiece
    "[INST] [/INST] <<SYS>> <</SYS>> [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [/TOOL_RESULTS] [TOOL_CALLS] [THINK] [/THINK] "
    "<start_of_turn> <end_of_turn> <start_of_image> [gMASK] <sop> ]~b] ]~!b[ [e~[ <end_of_sentence> [|user|] [|endofturn|] <seed:bos> "
    "<s> </s> <bos> <eos> <pad> <unk> <think> </think> <tool_call> </tool_call> <extra_id_0> <reserved_106> <unused7> <SPECIAL_12>"
).split()
HONEST = (
    "a <| b |> c",
    "xs |> List.map f",
    "Vec<S>",
    "std::vector<int>",
    "Map<String, List<T>>",
    "<span class='s'>x</span>",
    "<strong>x</strong>",
    "x[i] | y",
    "[INSTALL]",
    "[1] [a]",
    "if (a<s) return s>b;",
    "<summary>",
    "a || b",
    "<|",
    "|>",
)
JUDGES = {
    "judge": Judge({"truth": "It is true."}),
    "template": Judge(template="{query} {response} {context} {reference} {tests} {history} {steps} {system}"),
    "examples": Judge(
        Rubric.from_data(
            {
                "criteria": [{"name": "a", "description": "x"}],
                "examples": [{"task": "<|im_end|>", "answer": "[INST]", "scores": {"a": 3}, "reason": "w"}],
            },
            "r",
            "r",
        )
    ),
    "checklist": Checklist(),
    "ranker": Ranker(),
    "pairwise": Pairwise(),
}


async def shown_texts(judge, text):
    """Return all that a judge sees of a task that has `text` in every foreign field, including the judge's own answer."""
    call = {"function": {"name": "f", "arguments": json.dumps({"a": text}, ensure_ascii=False)}}
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "content": text},
        {"role": "user", "content": [{"type": "text", "text": text}]},
        {"role": "assistant", "content": text},
    ]
    task = Task(messages, context=text, reference=text, tests=text)
    model = ScriptedModel([f"{{{text}"] * 20)
    answers = [Candidate(0, f"My answer {text}"), Candidate(1, f"Another {text}")]
    ask = StepClient(ModelClient("m", model.complete))
    with pytest.raises(BadResponseError):
        await (judge.compare(task, answers, ask) if isinstance(judge, Comparer) else judge.grade(task, answers[0], ask))
    return "\n".join(json.dumps(message, ensure_ascii=False) for asked in model.messages for message in asked)


@pytest.mark.parametrize("name", JUDGES)
async def test_no_control_token_reaches_a_judge(name):
    """Control tokens are broken in every field of the task, in examples and in the judge's own quoted answer."""
    prompt = await shown_texts(JUDGES[name], " ".join(TOKENS))
    assert "\u2039|im_start|>" in prompt
    assert [token for token in TOKENS if token in prompt] == []


def test_only_one_character_of_a_token_changes():
    """The text stays legible and as long as before, and the judge is told after the data."""
    for token in TOKENS:
        broken = without_control_tokens(token)
        assert len(broken) == len(token)
        assert broken[1:] == token[1:]
        shown = enclose("answer", token, "00000000")
        assert shown.index("</answer-00000000>") < shown.index("stand for")


@pytest.mark.parametrize("text", HONEST)
def test_ordinary_text_is_unchanged(text):
    """Operators, generics, markup and footnotes are no control tokens."""
    assert enclose("answer", text, "00000000") == f"<answer-00000000>\n{text}\n</answer-00000000>"


@given(st.lists(st.sampled_from([*TOKENS, "<", "<|", "|>", "[", "]", "a", "\n"]), max_size=8).map("".join))
@example("<|<turn|>")
def test_nested_tokens_are_broken(text):
    """Nested, adjacent and half tokens leave no token, and a second pass changes nothing."""
    shown = without_control_tokens(text)
    assert not any(token in shown for token in TOKENS)
    assert without_control_tokens(shown) == shown
    assert len(shown) == len(text)
