"""A language model of one layer with random weights, and pairs that it can learn."""

import random

WORDS = ("<pad>", "<eos>", "<unk>", "user", "assistant", ":", "good", "bad")


def save_tiny_base(folder):
    """Write a model and its tokenizer of a few words, without a chat template, into a folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=raw, **special).save_pretrained(folder)
    torch.manual_seed(0)
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
    LlamaForCausalLM(config).save_pretrained(folder)


def answer(good):
    """Ten words, of which so many are good."""
    return "good " * good + "bad " * (10 - good)


def pair_rows(n=90, *, noise=False):
    """Pairs of answers, of which the one with more good words is better. If `noise`, both are the
    same to the model, which does not know their last words.
    """
    rng, rows = random.Random(1), []
    for task in range(n):
        a, b = rng.sample(range(11), 2)
        label = "a" if a > b else "b"
        texts = {"response_a": answer(a), "response_b": answer(b)}
        if noise:
            texts = {name: f"{answer(a)} {name}" for name in texts}
        rows.append({"prompt": f"Task {task}", **texts, "label": label})
    return rows


def scored_rows(tasks=60, answers=3):
    """Several answers to each prompt, with the share of good words as the score."""
    rng, rows = random.Random(1), []
    for task in range(tasks):
        for good in rng.sample(range(11), answers):
            rows.append({"prompt": f"Task {task}", "response": answer(good), "label": good})
    return rows
