"""A language model of half a megabyte with random weights, and llama.cpp's own server for it.

Its answers make no sense, but it behaves like a real model: it has a context that can overflow, an
end token, and a grammar that enforces a schema. `python tiny.py FILE [KEY]` serves FILE on a free
port and prints its address.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 128, 2, 4, 2, 8192
WORDS = (
    "the a of to and in is that it for on with as are this was be by at or an from which have not response answer clear"
    " score good better short long feedback model text question reason should improve"
).split()
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "

STRICT = (  # like Gemma's: no system role, and alternating roles
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}[assistant] "
)


def make(path: Path, template: str = TEMPLATE, likely: str = "") -> Path:
    """Write the model to a file; the characters in `likely` get most of the probability
    everywhere.
    """
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    words = _vocabulary(gguf.TokenType)
    _describe(writer, gguf, words, template)
    for name, tensor in _tensors(len(words), likely):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(kind) -> list[tuple[bytes, float, int]]:
    special = [
        ("<unk>", 0.0, kind.UNKNOWN),
        ("<s>", 0.0, kind.CONTROL),
        ("</s>", 0.0, kind.CONTROL),
    ]
    raw = [(f"<0x{b:02X}>", 0.0, kind.BYTE) for b in range(256)]
    words = [(f"\u2581{word}", -float(i + 1), kind.NORMAL) for i, word in enumerate(WORDS)]
    letters = [
        (c, -1000.0 - i, kind.NORMAL) for i, c in enumerate([*map(chr, range(33, 127)), "\u2581"])
    ]
    return [(text.encode(), score, type_) for text, score, type_ in special + raw + words + letters]


def _describe(writer, gguf, words, template) -> None:
    writer.add_name("tiny-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(words))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([w[0] for w in words])
    writer.add_token_scores([w[1] for w in words])
    writer.add_token_types([w[2] for w in words])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(template)


def _tensors(size: int, likely: str):
    """Return random weights; two dimensions are not random.

    Dimension 0 is constant and makes words likely, raw bytes unlikely and the end token possible.
    Dimension 1 says that the token is a space, which ends the prompt, and makes the end token
    impossible there: an empty answer is an error, and would be a rare one.
    """
    import numpy as np

    chance = np.random.default_rng(0)

    def noise(*shape):
        return (chance.standard_normal(shape) * 0.05).astype(np.float32)

    embedding, output = noise(size, WIDTH), noise(size, WIDTH) * 10
    embedding[:, 0], output[:, 0] = 1.0, 0.0
    output[:2, 0] = output[3:259, 0] = -20.0
    output[2, 0], output[259 : 259 + len(WORDS), 0] = 0.42, 0.8
    embedding[:, 1], output[:, 1] = 0.0, 0.0
    embedding[-1, 1], output[2, 1] = 3.0, -10.0
    for character in likely:
        output[259 + len(WORDS) + ord(character) - 33, 0] = 1.5
    yield "token_embd.weight", embedding
    yield "output_norm.weight", np.ones(WIDTH, np.float32)
    yield "output.weight", output
    for i in range(LAYERS):
        yield from ((f"blk.{i}.{name}.weight", tensor) for name, tensor in _layer(noise, np))


def _layer(noise, np):
    narrow = WIDTH // HEADS * KV_HEADS
    mixed, down = noise(WIDTH, WIDTH), noise(WIDTH, INNER)
    mixed[:2] = down[:2] = 0.0
    yield from (("attn_norm", np.ones(WIDTH, np.float32)), ("ffn_norm", np.ones(WIDTH, np.float32)))
    yield from (
        ("attn_q", noise(WIDTH, WIDTH)),
        ("attn_k", noise(narrow, WIDTH)),
        ("attn_v", noise(narrow, WIDTH)),
    )
    yield from (
        ("attn_output", mixed),
        ("ffn_gate", noise(INNER, WIDTH)),
        ("ffn_up", noise(INNER, WIDTH)),
        ("ffn_down", down),
    )


def serve(path: str, *keys: str) -> None:
    import xllamacpp

    wanted = xllamacpp.CommonParams()
    wanted.model.path = path
    wanted.hostnames, wanted.port, wanted.api_keys = ["127.0.0.1"], 0, list(keys)
    wanted.n_ctx, wanted.n_parallel, wanted.cpuparams.n_threads, wanted.verbosity = (
        4 * CONTEXT,
        4,
        1,
        -1,
    )
    server = xllamacpp.Server(wanted)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    serve(*sys.argv[1:])
