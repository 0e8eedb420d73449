"""Ten steps of GRPO on a CPU: a tiny random model, and one reward of a sync grader, an async one
and a judge that fails on every third call. Run by test_libraries.py with the Python of TRL.

Writes JSON: the log of each step, and each batch of rewards.
"""

import json
import sys

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from redraft import ScriptedModel, rewards
from redraft.errors import ModelTimeoutError

WORDS = [f"w{n}" for n in range(40)]
CRITERIA = ("instructions", "correctness", "completeness", "clarity")


def judge():
    """Return a model that fails on every third call."""
    answers = []
    for n in range(120):
        scores = {name: {"evidence": "", "change": "", "score": n % 6} for name in CRITERIA}
        verdict = json.dumps({"reason": "So.", "criteria": scores, "done": False})
        answers.append(ModelTimeoutError("too late") if n % 3 == 2 else verdict)
    return ScriptedModel(answers)


def diverse(text):
    return len({*text.split()}) / len(text.split())


async def short(text):
    return 1.0 if len(text.split()) < 6 else 0.2


def tiny_model():
    vocabulary = {word: n for n, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    return LlamaForCausalLM(config), wrapped


def main(folder):
    """Train, and write what was logged."""
    model, tokenizer = tiny_model()
    reward = rewards.trl([diverse, short, "judge"], judge(), name="quality", retries=0)
    batches = []

    async def quality(prompts, completions, **columns):
        batches.append(await reward(prompts, completions, **columns))
        return batches[-1]

    rows = [{"prompt": f"w{n} w{n + 1}", "reference": "w1"} for n in range(8)]
    config = GRPOConfig(
        output_dir=folder,
        max_steps=10,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        report_to=[],
        logging_steps=1,
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[quality],
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    print(json.dumps({"steps": trainer.state.log_history, "batches": batches}))


if __name__ == "__main__":
    main(sys.argv[1])
