"""Exports with tool calls in the data pipelines of real trainers: TRL's (a step of training with a
tiny random model), Axolotl's and LLaMA-Factory's.
"""

import json
import sys
from types import ModuleType

import pytest

from redraft.tables.export.formats import ExportConfig, Provenance
from redraft.tables.export.writer import export
from runs.called_tools import WEATHER, rows

trl = pytest.importorskip("trl", reason="no trl")
pytestmark = pytest.mark.slow

TEMPLATE = """
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}
{%- for message in messages %}<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>{% endfor %}</end>
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}
"""
# what the first example teaches, as the template writes it
CALL = '<assistant>Wait.<call>weather {"city": "Oslo"}</call></end>'
TOOLS = f"<tools>{json.dumps(WEATHER)}</tools>"


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer of bytes, whose template is as strict about arguments as that of Llama 3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id for id, token in enumerate(["<pad>", "<eos>", *alphabet])}
    raw = Tokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = TEMPLATE
    return made


def model(tokenizer, kind="LlamaForCausalLM", **more):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=0,
        eos_token_id=1,
        **more,
    )
    return getattr(transformers, kind)(config)


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Load an export, as a folder with its card."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="no datasets")
    datasets.disable_progress_bars()

    def load(format, **settings):
        export(
            rows(),
            tmp_path / "data",
            ExportConfig(format, tool_calls=True, **settings),
            Provenance("r", "m"),
        )
        return datasets.load_dataset(
            str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"), split="train"
        )

    return load


TRAINERS = {  # the trainer, the format, and the column of tokens that has the answer
    "SFT": ("messages", "input_ids"),
    "SFT of completions": ("prompt-completion", "input_ids"),
    "DPO": ("preference", "chosen_ids"),
    "Reward": ("preference", "chosen_ids"),
    "KTO": ("unpaired", "completion_ids"),
}


@pytest.mark.parametrize("case", TRAINERS)
def test_trl_trains_on_tool_calls(case, dataset, tokenizer, tmp_path):
    """The tokens have the tools, the call and its arguments; a step of training gives a loss."""
    format, column = TRAINERS[case]
    name = case.split()[0]
    config = getattr(trl, f"{name}Config")(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=3,
        report_to="none",
        use_cpu=True,
        bf16=False,
        max_length=None,
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    more = {"num_labels": 1} if name == "Reward" else {}
    reference = {"ref_model": model(tokenizer)} if name in {"DPO", "KTO"} else {}
    kind = "LlamaForSequenceClassification" if name == "Reward" else "LlamaForCausalLM"
    trainer = getattr(trl, f"{name}Trainer")(
        model(tokenizer, kind, **more),
        args=config,
        train_dataset=dataset(format),
        processing_class=tokenizer,
        **reference,
    )
    first = trainer.train_dataset[0]
    prompt = first.get("prompt_ids") or first.get("prompt_input_ids") or []
    text = tokenizer.decode([*prompt, *first[column]])
    assert CALL in text.replace("<assistant></", "</") and TOOLS in text, text
    assert trainer.train().training_loss > 0


def test_axolotl_reads_messages(dataset, tokenizer):
    """By its strategy for chat templates, which trains on the answers of the assistant."""
    templates = pytest.importorskip("axolotl.prompt_strategies.chat_template", reason="no axolotl")
    prompter = templates.ChatTemplatePrompter(
        tokenizer, chat_template=TEMPLATE, max_length=4096, field_messages="messages"
    )
    strategy = templates.ChatTemplateStrategy(
        prompter,
        tokenizer=tokenizer,
        train_on_inputs=False,
        sequence_len=4096,
        roles_to_train=["assistant"],
    )
    tokens = strategy.tokenize_prompt(dict(dataset("messages")[0]))
    text = tokenizer.decode(tokens["input_ids"])
    assert CALL in text and TOOLS in text, text
    assert any(label != -100 for label in tokens["labels"])


def test_llama_factory_reads_messages(dataset, monkeypatch):
    """As "formatting": "openai" in its dataset_info.json; its calls have arguments as objects."""
    from transformers import audio_utils  # noqa: F401  (before torchaudio seems to be there)

    monkeypatch.setitem(sys.modules, "torchaudio", ModuleType("torchaudio"))  # for audio alone
    converter = pytest.importorskip("llamafactory.data.converter", reason="no llamafactory")
    formatter = pytest.importorskip("llamafactory.data.formatter")
    from llamafactory.data.parser import DatasetAttr

    attributes = DatasetAttr("file", "export", formatting="openai")
    attributes.messages, attributes.tools = "messages", "tools"
    attributes.role_tag, attributes.content_tag = "role", "content"
    attributes.user_tag, attributes.assistant_tag = "user", "assistant"
    attributes.observation_tag = "tool"
    convert = converter.OpenAIDatasetConverter(attributes, None)
    first, second, _ = [convert(example) for example in dataset("messages")]
    assert first["_response"][0]["role"] == "function"
    written = formatter.FunctionFormatter(slots=["{{content}}"], tool_format="qwen")
    [shown] = written.apply(content=first["_response"][0]["content"])
    assert '{"name": "weather", "arguments": {"city": "Oslo"}}' in shown
    assert json.loads(first["_tools"]) == [WEATHER]
    assert [turn["role"] for turn in second["_prompt"]] == ["user", "function", "observation"]
