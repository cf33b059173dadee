"""Random Llama, Qwen2 and Qwen3 models in transformers, as it writes them."""

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = dict(
    vocab_size=67,
    hidden_size=36,
    intermediate_size=50,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=5e5,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
LINEAR = dict(rope_type="linear", rope_theta=1e4, factor=2.0)

# Name -> kind of model, sizes that differ from `SIZES`.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied, every bias, wide heads, one key": (
        "Llama",
        dict(
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
            head_dim=14,
            num_key_value_heads=1,
        ),
    ),
    "llama 3.1": ("Llama", dict(rope_parameters=LLAMA3, num_key_value_heads=6)),
    "llama, linear": ("Llama", dict(rope_parameters=LINEAR)),
    "qwen2, tied": ("Qwen2", dict(tie_word_embeddings=True, rope_parameters={"rope_theta": 1e6})),
    "qwen2, yarn": ("Qwen2", dict(rope_parameters=YARN)),
    "qwen3, wide heads": ("Qwen3", dict(head_dim=16, tie_word_embeddings=True)),
    "qwen3, biases, yarn that is not cut": (
        "Qwen3",
        dict(
            head_dim=20,
            attention_bias=True,
            rope_parameters=YARN
            | dict(truncate=False, beta_fast=24, beta_slow=2, mscale=0.7, mscale_all_dim=0.4),
        ),
    ),
}


def make(name: str, seed: int = 0) -> Any:
    """A model in float32 whose biases and norms are random too."""
    kind, sizes = CASES[name]
    config = getattr(transformers, f"{kind}Config")(**(SIZES | sizes))
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.normal_(0 if path.endswith("bias") else 1, 0.3)
            else:
                weight.normal_(0, 0.8 * weight.shape[1] ** -0.5)
    return model


def write(model: Any, directory: Path) -> None:
    model.save_pretrained(directory, max_shard_size="40KB")
