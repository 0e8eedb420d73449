"""Reasoning is split from the answer by position and pairs, in the form of every model family; a
text about such marks is whole.
"""

from time import thread_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each_row import each_row
from redraft.models.reasoning import VisibleText, split_reasoning

H = "<|channel|>analysis<|message|>"  # OpenAI's harmony
F = "<|start|>assistant<|channel|>final<|message|>"
R = "One word is wanted. Four."

SPLIT = [  # what a model wrote, the answer, the reasoning
    # tags
    (f"<think>{R}</think>four", "four", R),
    (f"<think>\n{R}\n</think>\n\nfour", "four", R),
    (f"\n\n<think>\n{R}\n</think>\nfour\n", "four\n", R),
    (f"<think> {R} </think> four", "four", R),
    (f"<thinking>{R}</thinking>\nfour", "four", R),
    (f"<thought>\n{R}\n</thought>four", "four", R),
    (f"<thoughts>{R}</thoughts>four", "four", R),
    (f"<seed:think>{R}</seed:think>four", "four", R),
    (f"<THINKING>{R}</THINKING>four", "four", R),
    (f"<Think>{R}</think>four", "four", R),
    (f"[THINK]{R}[/THINK]four", "four", R),
    (f"\u25c1think\u25b7{R}\u25c1/think\u25b7four", "four", R),
    (f"<|START_THINKING|>{R}<|END_THINKING|>four", "four", R),
    (f"<|START_THINKING|>{R}<|END_THINKING|><|START_RESPONSE|>four<|END_RESPONSE|>", "four", R),
    (f"<|begin_of_thought|>{R}<|end_of_thought|>\n\nfour", "four", R),
    (f"<|channel>thought\n{R}<channel|>four", "four", R),
    ("<|channel>thought\n<channel|>four", "four", ""),
    ("<think>\n\n</think>\n\nfour", "four", ""),
    ("<think></think>four", "four", ""),
    ("<think>a</think><think>b</think>four", "four", "a\nb"),
    ("<think>a</think>\n<think>b</think>\n\nfour", "four", "a\nb"),
    ("fo<think>a</think>ur", "four", "a"),
    ("Let me see.\n<think>a</think>\nfour", "Let me see.\n\nfour", "a"),
    ("Sure. <think>a</think>four", "Sure. four", "a"),
    (f"<think>{R}", "", R),
    (f"[THINK]{R}", "", R),
    ("<think>\nThe user asks what </think> means. It ends reasoning.\n</think>\nIt ends it.", "It ends it.", "The user asks what </think> means. It ends reasoning."),
    ("<think>They ask about `</think>`.</think>It ends reasoning.", "It ends reasoning.", "They ask about `</think>`."),
    ('<think>I write {"a": 1} and "b</think>{"a": 1}', '{"a": 1}', 'I write {"a": 1} and "b'),
    ("<think>```py\nx = 1</think>four", "four", "```py\nx = 1"),
    ('<think>hm</think>{"a": "<think>", "b": "</think>"}', '{"a": "<think>", "b": "</think>"}', "hm"),
    ("<think>hm</think>The `<think>` tag and `</think>` are a pair.", "The `<think>` tag and `</think>` are a pair.", "hm"),
    ("<think>hm</think>Use <think> and </think>.", "Use <think> and </think>.", "hm"),
    # blocks within blocks, and reasoning that names a mark
    ('<think>He asks <think>x</think> hm</think>four', 'four', 'He asks <think>x</think> hm'),
    ('<think>The user asks about <think> tags.</think>\n\nIt marks reasoning.', 'It marks reasoning.', 'The user asks about <think> tags.'),
    ('<think>a <think>b</think> c <think>d</think> e</think>four', 'four', 'a <think>b</think> c <think>d</think> e'),
    ('[THINK]He [THINK]x[/THINK] y[/THINK]four', 'four', 'He [THINK]x[/THINK] y'),
    ('<think>\nthe user asks ...\n</think>\nfour', 'four', 'the user asks ...'),
    ('<think>... hm ...</think>four', 'four', '... hm ...'),
    ('<think> okay, so the user wants four.</think>four', 'four', 'okay, so the user wants four.'),
    ('<think> the user wants four.</think>\n\nfour', 'four', 'the user wants four.'),
    ('<think>a\n<think>\nb</think>four', 'four', 'a\n<think>\nb'),
    ('<think>x</think>four <think>y</think>', 'four <think>y</think>', 'x'),
    ('<|channel|>analysis<|message|>the user wants four.<|end|><|start|>assistant<|channel|>final<|message|>four', 'four', 'the user wants four.'),
    ('<|channel|>analysis<|message|> starts well<|end|><|start|>assistant<|channel|>final<|message|>four', 'four', 'starts well'),
    # the end of a block that the prompt began
    (f"{R}</think>\n\nfour", "four", R),
    (f"{R}\n</think>\n\nfour", "four", R),
    (f"{R}\n</think>four", "four", R),
    (f"{R}</think>four", "four", R),
    (f"{R} </think> four", "four", R),
    ("hm, five?</think>{}", "{}", "hm, five?"),
    ("</think>\n\nfour", "four", ""),
    ("</think>four", "four", ""),
    (f"{R}</thinking>four", "four", R),
    (f"{R}</seed:think>four", "four", R),
    (f"{R}[/THINK]four", "four", R),
    (f"{R}\u25c1/think\u25b7four", "four", R),
    (f"{R}<channel|>four", "four", R),
    ("所以是四。</think>\n\n四", "四", "所以是四。"),
    ("所以是四</think>\n\n四", "四", "所以是四"),
    ("Is it {1, 2}? It is 4.</think>4", "4", "Is it {1, 2}? It is 4."),
    ('He said "four"</think>\nfour', "four", 'He said "four"'),
    ("so `four`</think>\nfour", "four", "so `four`"),
    ("They ask what `<think>` means.</think>\nIt begins reasoning.", "It begins reasoning.", "They ask what `<think>` means."),
    ("```py\nx\n```\n</think>\nfour", "four", "```py\nx\n```"),
    ("It's four.</think>It's four", "It's four", "It's four."),
    ("They say 'so'.</think>It's four", "It's four", "They say 'so'."),
    ("Four, (as *said*)</think>four", "four", "Four, (as *said*)"),
    ('I close it with """.\n</think>\nfour', "four", 'I close it with """.'),
    ("So <b>four</b>.</think>four", "four", "So <b>four</b>."),
    (f"{R}</think>", "", R),
    # harmony
    (f"{H}{R}<|end|>{F}four<|return|>", "four", R),
    (f"{H}{R}<|end|>{F}four", "four", R),
    (f"<|start|>assistant{H}{R}<|end|>{F}four<|return|>", "four", R),
    (f"{H}{R}<|end|>assistant<|channel|>final<|message|>four", "four", R),
    (f"{H}{R}<|channel|>final<|message|>four", "four", R),
    ("<|channel|>final<|message|>four<|return|>", "four", ""),
    ('<|channel|>final <|constrain|>JSON<|message|>{"a": 4}<|return|>', '{"a": 4}', ""),
    (f"{H}{R}<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>{F}four<|return|>", "four", f"{R}\nI look."),
    (f'{H}{R}<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{}}<|call|>', "", f"{R}\n{{}}"),
    (f"{H}{R}", "", R),
    (f"{R}<|end|>{F}four<|return|>", "four", R),
    (f"{H}{R}<|end|>{F}It writes `{H}` first.<|return|>", f"It writes `{H}` first.", R),
    (f"analysis{R}assistantfinalfour", "four", R),
    (f"analysis\n{R}assistantfinal\nfour", "four", R),
    (f"assistantanalysis{R}assistantfinalfour", "four", R),
    ('analysisI look.assistantcommentary to=functions.f json{"q": 1}assistantfinalfour', "four", 'I look.assistantcommentary to=functions.f json{"q": 1}'),
    ('analysisI look.assistantcommentary to=functions.f json{"q": 1}', "", 'I look.assistantcommentary to=functions.f json{"q": 1}'),
    # tokens around the answer
    *((f"four{token}", "four", "") for token in (
        "<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<eos>", "<turn|>", "<|eom_id|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|END_OF_TURN_TOKEN|>", "<|return|>", "<|user|>", "\n<|im_end|>", "<|im_end|>\n", "<|im_end|><|endoftext|>",
        "</s></s>\n</s>",
    )),
    ("Four. <|im_end|>", "Four.", ""),
    ("So: `four`<|im_end|>", "So: `four`", ""),
    ("```\nfour\n```<|im_end|>", "```\nfour\n```", ""),
    ('{"a": 4}<|im_end|>', '{"a": 4}', ""),
    ("<|im_start|>assistant\nfour<|im_end|>", "four", ""),
    ("<|start_header_id|>assistant<|end_header_id|>\n\nfour<|eot_id|>", "four", ""),
    ("<start_of_turn>model\nfour<end_of_turn>", "four", ""),
    (f"<|im_start|>assistant\n<think>{R}</think>four<|im_end|>", "four", R),
    (f"<think>{R}</think><|im_end|>", "", R),
    (f"{R}</think>four<|im_end|>", "four", R),
]  # fmt: skip

WHOLE = [  # texts about marks, and other texts
    "four", "", " \n", "<b>four</b>", "a < b > c", "[think] about it", "analysis of the text", "analysis", "Analysis: four",
    "`<think>` begins the reasoning of R1, and `</think>` ends it.",
    "`<think>x</think>` is a tag",
    "The tag <think> begins reasoning.",
    "The tag </think> ends reasoning.",
    "The tags <think> and </think> stand around the reasoning.",
    "Put your reasoning between <think> and </think>, then answer.",
    "Put it between <thinking> and </thinking>.",
    "<think> and </think> are the tags of R1.",
    "<think> is the tag with which reasoning begins.",
    "<think>: begins reasoning.\n</think>: ends it.",
    "</think> is the tag that ends it.",
    "</think>",
    "The <think>/</think> tags",
    "R1 writes <think>reasoning</think> before its answer.",
    'R1 writes "<think>reasoning</think>" before its answer.',
    "R1 writes '<think>reasoning</think>' before its answer.",
    "R1 writes (<think>reasoning</think>) before its answer.",
    "**<think>** begins and **</think>** ends it.",
    "- <think> begins\n- </think> ends",
    "1. <think> begins it.\n2. </think> ends it.",
    "| tag | use |\n|---|---|\n| <think> | begins |\n| </think> | ends |",
    "The form is:\n\n<think>\nyour reasoning\n</think>\n\nyour answer",
    "The form is:\n```\n<think>\nyour reasoning\n</think>\nyour answer\n```",
    "~~~\n<think>x</think>\n~~~",
    "Write:\n```\nreasoning</think>\nanswer\n```\nand stop.",
    "Start with <think>\nreason\n</think>\nanswer",
    "使用<think>和</think>标签。",
    "用</think>结束",
    "Close it with </think>",
    "Close it with </think>\nand answer.",
    "Close it with </think>.",
    'text = re.sub("<think>.*?</think>", "", text)',
    "text = re.sub(r'<think>.*?</think>', '', text)",
    'answer = text.split("</think>")[-1]',
    "answer = text.split('</think>')[-1]",
    'START, END = "<think>", "</think>"',
    "START, END = '<think>', '</think>'",
    'if "</think>" in text:\n    text = text.partition("</think>")[2]',
    'def strip(text):\n    """Remove <think> blocks."""\n    return re.sub("<think>.*?</think>", "", text)\n',
    "grep -o '</think>' answers.txt",
    "sed 's/<think>.*<\\/think>//' answers.txt",
    "THINK_START=<think>\nTHINK_END=</think>",
    "+<think>\n+x\n+</think>",
    "{% if '</think>' in content %}{{ content.split('</think>')[1] }}{% endif %}",
    '{"a": "<think>", "b": "</think>"}',
    '{"a": "hm</think>four"}',
    '{"evidence": "it says <think>hm</think>", "score": 4}',
    '["x<think>y</think>"]',
    'So:\n{"a": "x\n<think>", "b": "</think>"}',
    "<root><think>x</think></root>",
    "<p>The &lt;think&gt; tag</p>",
    "<thinker>x</thinker>", "<rethink>x</rethink>", "< think >x< /think >",
    "SELECT * FROM t WHERE body LIKE '%</think>%';",
    "def test():\n    text = 'hm</think>four'\n    assert split(text) == ('four', 'hm')\n",
    "text.replace('a<think>hm</think>b', '')",
    "echo 'hm</think>four' | cut -c 3-",
    "pattern = re.compile(r'^.*</think>\\s*', re.S)",
    "const pattern = /[\\s\\S]*?</think>/;",
    "Pattern: ^(.*)</think>\\s*",
    "The server returns text such as 'hm</think>four', which is wrong.",
    'PROMPT = """\n<think>\nyour reasoning\n</think>\nyour answer\n"""\n',
    "PROMPT = '''\nSo\n<thinking>\nyour reasoning\n</thinking>\nyour answer\n'''\n",
    "It is called `</think>`, i.e. </think>.",
    "\u7ed3\u675f\u6807\u7b7e\u662f</think>",
    "\u4f8b\u5982\uff1a\n\n<think>\nhm\n</think>\nfour",
    "**Output:**\n\n<think>\nhm\n</think>\nfour",
    "prompt: |\n  <think>\n  hm\n  </think>\n  four\n",
    "<examples>\n<example>\n<thinking>\nhm\n</thinking>\n<answer>four</answer>\n</example>\n</examples>",
    "Use this.\n\n<format>\n<thinking>\nyour reasoning\n</thinking>\n</format>",
    "He paused. <thinking>Why me?</thinking> Then he ran.",
    "Dear diary,\n<thought>To be or not.</thought>\nGood night.",
    "<person>\n<name>Ann</name>\n<thoughts>\nHm.\n</thoughts>\n</person>",
    "`[THINK]` and `[/THINK]` are Mistral's.",
    "Mistral writes [THINK] and [/THINK].",
    "Kimi writes \u25c1think\u25b7 and \u25c1/think\u25b7.",
    "Harmony has the channels analysis, commentary and final.",
    "`<|channel|>analysis<|message|>` begins the analysis of gpt-oss.",
    "A message of gpt-oss begins with <|channel|>final<|message|>, as in the documents.",
    f"```\n{H}x<|end|>{F}y<|return|>\n```",
    f'prompt = "{H}x<|end|>{F}"',
    f"A message of gpt-oss looks so:\n\n{F}four<|return|>",
    "When markers are lost, one reads analysis, then assistantfinal, then the answer.",
    "analysis: it reads `assistantfinal` in the end",
    "analysisis is a misspelling",
    "<|im_end|>",
    "The token is <|im_end|>",
    "The tokens are <|im_start|> and <|im_end|>",
    "`<|im_end|>`",
    "Stop at `<|im_end|>`.",
    'eos_token = "<|im_end|>"',
    "stop = ['<|im_end|>', '</s>']",
    "<s>old</s>",
    "It costs <s>ten</s> four.",
    "Strike it with </s>",
    "```\nfour<|im_end|>\n```",
    "```\nfour<|im_end|>",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>",
    "four<|im_end|>\n<|im_start|>user\nNext?<|im_end|>",
    "x <| f |> y",
    # a mark, and then what is said of it
    '<think>...</think> is how DeepSeek marks its reasoning.',
    '<think>…</think> is how.',
    '<think> means that the model reasons. For example:\n\n<think>2+2 is 4</think>\n\n4',
    '<thinking> is XML-like. </thinking> closes it.',
    '[THINK] opens it. [/THINK] closes it.',
    '<|channel|>analysis<|message|> starts the analysis channel; <|channel|>final<|message|> the final one.',
    '<thinking>I must not be late</thinking>, she wrote in her diary. It was dark.',
    '<think> tags mark reasoning. </think> ends them.',
    '<think> and its end </think> are tokens of R1.',
    '<think>, then the thoughts, then </think>.',
    '<think> opens a block.\n</think> closes it.',
    '<seed:think> marks the beginning. </seed:think> the end.',
    '<think> ends with </think>\n\nThat is all.',
    '</think> ends it. <think> begins it.',
    '<thought>x</thought>, as Gemma writes.',
    '<|channel|>analysis<|message|> is the header of the analysis.',
    '<|channel|>final<|message|> marks the answer.',
    '<|channel|>analysis<|message|>, <|channel|>final<|message|> and <|end|> are harmony.',
    "[THINK]...[/THINK] is Mistral's.",
]  # fmt: skip


def test_the_table_has_both_sides():
    """At least sixty texts each way."""
    assert len(SPLIT) >= 60 and len(WHOLE) >= 60


@each_row(("text", "answer", "reasoning"), SPLIT, ids=[text[:40] for text, *_ in SPLIT])
def test_reasoning_is_split(text, answer, reasoning):
    """The answer is what remains, and the reasoning is kept."""
    assert split_reasoning(text)[:2] == (answer, reasoning)


@each_row("text", WHOLE, ids=[text[:40] for text in WHOLE])
def test_a_text_about_marks_is_whole(text):
    """In doubt, too; also if reasoning came before it."""
    assert split_reasoning(text) == (text, "", None)
    if text.strip() and text != "<|im_end|>":
        assert split_reasoning(f"<think>hm</think>\n{text}").answer == text.lstrip()


FORMS = {
    "<think>a</think>b": "block",
    "<think>\n</think>b": "empty",
    "a\n</think>b": "end_tag",
    "</think>\nb": "empty",
    "<think>a": "other",
    "<think>a</think><think>b</think>c": "other",
    "a<think>b</think>c": "other",
    f"{H}a<|end|>{F}b": "block",
    f"{F}b": None,
    f"{H}a": "other",
    "analysisA.assistantfinalb": "block",
    "b<|im_end|>": None,
}


@pytest.mark.parametrize("text", FORMS)
def test_the_form_is_told(text):
    """It says how the text contained its reasoning."""
    assert split_reasoning(text).form == FORMS[text]


def test_more_tags_are_known_only_where_they_are_asked_for():
    """Judges that are told to write their reasoning into tags of another name are read without
    it.
    """
    text = "<reasoning>a</reasoning>b"
    assert split_reasoning(text).answer == text
    assert split_reasoning(text, "reasoning") == ("b", "a", "block")


# ---- in parts


def shown(pieces):
    visible = VisibleText()
    return "".join([*map(visible.add, pieces), visible.flush()])


BEGUN_BEFORE = [text for text, answer, _ in SPLIT if shown(text).rstrip() != answer.rstrip()]
"""Texts that begin with reasoning without a mark: it was shown when its end arrived, and then the
whole answer is.
"""


@each_row("text", [*(text for text, *_ in SPLIT), *WHOLE], ids=lambda text: text[:40])
def test_parts_show_the_answer(text):
    """However the text is divided; nothing is shown twice, and no reasoning."""
    answer = split_reasoning(text).answer
    for size in (1, 2, 3, 7, len(text) or 1):
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        if text in BEGUN_BEFORE:
            assert shown(pieces).endswith(answer)
        else:
            assert shown(pieces).rstrip() == answer.rstrip()


def test_only_reasoning_without_a_beginning_is_shown():
    """All others are held back."""
    assert BEGUN_BEFORE
    assert not [
        text for text in BEGUN_BEFORE if text.lstrip().startswith(("<", "[", "\u25c1", "analysis"))
    ]


@pytest.mark.parametrize(
    "start",
    [
        "",
        "<think>hm</think>",
        "[THINK]hm[/THINK]\n",
        "<|channel>thought\nhm<channel|>",
        f"{H}hm<|end|>{F}",
        "analysisHm.assistantfinal",
    ],
)
def test_an_answer_is_shown_as_it_arrives(start):
    """It does not wait for the end of the stream once the reasoning has ended."""
    visible = VisibleText()
    assert "".join(visible.add(letter) for letter in start) == ""
    assert [visible.add(piece) for piece in ("One ", "two ", "a < b ", "three")] == [
        "One ",
        "two ",
        "a < b ",
        "three",
    ]
    assert visible.flush() == ""


MARKS = [
    "<think>",
    " is",
    "...",
    ", ",
    "</think>",
    "[THINK]",
    "[/THINK]",
    H,
    F,
    "<|end|>",
    "<|im_end|>",
    "<|channel>thought\n",
    "<channel|>",
    "analysis",
    "assistantfinal",
]
PIECES = st.lists(
    st.sampled_from([*MARKS, "`", "```", '"', "'", "{", "}", " ", "\n", "a", "So.", "b c", "四"]),
    max_size=12,
).map("".join)


@given(PIECES, st.integers(1, 9))
@example("a<think>b</think>c", 1)
def test_any_text_is_split_in_the_same_way_however_it_arrives(text, size):
    """What is shown ends with the answer, and is the answer unless reasoning without a beginning
    was shown before.
    """
    split = split_reasoning(text)
    parts = shown([text[n : n + size] for n in range(0, len(text), size)])
    assert parts.rstrip().endswith(split.answer.rstrip())
    if split.form is None and split.answer == text:
        assert parts == text


@given(PIECES)
def test_nothing_is_invented(text):
    """Answer and reasoning consist of parts of the text, in their order, and a text without
    reasoning loses only tokens at its ends.
    """
    split = split_reasoning(text)
    rest = iter(text)
    assert all(letter in rest for letter in split.answer if letter != "\n")
    assert set(split.reasoning) <= {*text, "\n"}
    if split.form is None:
        assert split.answer.strip() in text or "final" in text


WORST = [
    "<think>",
    "</think>",
    "x </think>",
    "<think></think>",
    "<think>a </think> ",
    "`</think>`x",
    "<|im_end|>",
    "<|end|> ",
    F,
    H,
    "<",
    "<|",
    "analysisX",
    "assistantfinal",
    " ",
    "\n",
    '"',
    "[THINK]x",
    "<think>x<think>y</think>",
    "<think> is",
    "<think>... ",
]


@pytest.mark.slow
@pytest.mark.parametrize("piece", WORST)
def test_any_text_is_split_in_linear_time(piece):
    """Eight times the text takes about eight times as long, whole and by letters; with its square
    it would be 64 times.
    """
    for start, end in (("", ""), ("x ", "x"), ("<think>", ""), ("analysisX", "x")):
        short, long = (start + piece * (size // len(piece)) + end for size in (25_000, 200_000))
        for read in (split_reasoning, shown):
            assert seconds(read, long) < 24 * seconds(read, short) + 0.1


def seconds(read, text):
    """Return the shortest CPU time of reading a text: other work can only make it longer."""
    times = []
    for _ in range(3):
        begun = thread_time()
        read(text)
        times.append(thread_time() - begun)
    return min(times)
