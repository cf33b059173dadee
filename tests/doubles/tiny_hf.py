"""Tiny random checkpoints in the layout of Hugging Face, each with a byte-level BPE tokenizer."""

from pathlib import Path
from typing import Any

import jax

from loong_jax.models import dense, moe
from loong_jax.models.dense import DenseConfig
from loong_jax.models.hf import save_weights_hf
from loong_jax.models.moe import MoEConfig
from tests.doubles import bpe, tiny

TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\n# Tools\n' }}"
    "{%- for tool in tools %}{{ tool | tojson }}{{ '\n' }}{%- endfor %}{{ '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (
    "add sum plus what is the of and to prices basket apples pears round \u00e9t\u00e9 \u6570\u5b66"
)


def write_tokenizer(directory: Path, *, vocab_size: int = 512) -> int:
    """Trains a tokenizer and writes it with its template; returns the size of its vocabulary."""
    words = WORDS.split()
    texts = [f"{a} {b} {n}+{m}={n + m} " for n, a in enumerate(words) for m, b in enumerate(words)]
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiouy"]
    made_up = [" ".join(a + b + c for c in syllables[:6]) for a in syllables for b in syllables]
    made = bpe.trained([*texts, *made_up], vocab_size, SPECIAL)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # else transformers cuts texts as Llama does
        "chat_template": TEMPLATE,
    }
    ends = (made.token_to_id("<|im_end|>"), made.token_to_id("<|endoftext|>"))
    bpe.write(directory, made, settings, ends)
    return made.get_vocab_size()


def write_longcat(directory: Path, *, vocab_size: int = 512, **changes: Any) -> MoEConfig:
    """LongCat-Flash; with `ngram` Flash-Lite."""
    write_tokenizer(directory, vocab_size=vocab_size)
    config = tiny.smallest_config(vocab_size=vocab_size, max_position=2048, **changes)
    _, weights = moe.init_weights(config, jax.random.key(3))
    save_weights_hf(config, weights, directory)
    return config


def write_qwen2(directory: Path, *, vocab_size: int = 512) -> DenseConfig:
    """Qwen2: biases of queries, keys and values, grouped heads, a tied embedding."""
    write_tokenizer(directory, vocab_size=vocab_size)
    config = DenseConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        ffn_hidden_size=48,
        qkv_bias=True,
        tied=True,
    )
    _, weights = dense.init_weights(config, jax.random.key(3))
    save_weights_hf(config, weights, directory)
    return config
