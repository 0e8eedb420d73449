"""Ten steps of GRPO with TRL on a CPU, without a key: a tiny model of random weights is trained
with one reward of two computing graders and a judge that fails on every third call.

python examples/training/grpo.py [FOLDER]   FOLDER: for the files of TRL. Default: grpo.
"""

import json
import sys

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from redraft import ScriptedModel, rewards
from redraft.errors import ModelTimeoutError

WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(40))]
CRITERIA = ("instructions", "correctness", "completeness", "clarity")


def diverse(text: str) -> float:
    """Score the share of words that are no repetition."""
    return len({*text.split()}) / len(text.split())


async def short(text: str) -> float:
    """Score 1 for less than six words. Graders may be async, or not."""
    return 1.0 if len(text.split()) < 6 else 0.2


def scripted_judge() -> ScriptedModel:
    """Return a judge that fails on every third call."""
    replies = []
    for n in range(120):
        scores = {name: {"evidence": "", "change": "", "score": n % 6} for name in CRITERIA}
        verdict = json.dumps({"reason": "So.", "criteria": scores, "done": False})
        replies.append(ModelTimeoutError("too late") if n % 3 == 2 else verdict)
    return ScriptedModel(replies)


def tiny_model() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return a model of one layer, and a tokenizer of a few words."""
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    config = LlamaConfig(
        vocab_size=len(WORDS),
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
    return LlamaForCausalLM(config), PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def main(folder: str = "grpo") -> list[dict[str, float]]:
    """Train, and return what TRL logged of each step."""
    model, tokenizer = tiny_model()
    reward = rewards.trl([diverse, short, "judge"], scripted_judge(), name="quality", retries=0)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=folder,
            max_steps=10,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"w{n} w{n + 1}"} for n in range(8)]),
        processing_class=tokenizer,
    )
    trainer.train()
    steps = [step for step in trainer.state.log_history if "loss" in step]
    for n, step in enumerate(steps, 1):
        print(
            f"step {n}: mean reward {step['rewards/quality/mean']:.2f}, "
            f"{step['quality/unknown']:.0%} unknown"
        )
    return steps


if __name__ == "__main__":
    main(*sys.argv[1:2])
