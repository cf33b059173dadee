"""A dense decoder in NumPy and float64 over tensors under their published names.

Written from the papers, one token, head and pair at a time where that is plainest.
"""

import math
from typing import Any

import numpy as np


def logits(tensors: dict[str, np.ndarray], config: dict[str, Any], tokens: np.ndarray):
    """[T, V] of one sequence; `config` is a config.json in the layout of transformers 4."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    width, eps = config["head_dim"], config["rms_norm_eps"]
    x = tensors["model.embed_tokens.weight"][tokens]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * tensors[name]

    def linear(x, name):
        return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0.0)

    def rotated(x, name):  # [T, heads, width]
        if f"{name}.weight" in tensors:
            x = norm(x, f"{name}.weight")
        out = np.empty_like(x)
        for position in range(len(x)):
            for pair, (turn, scale) in enumerate(turns(config)):
                angle, other = position * turn, pair + width // 2
                a, b = x[position, :, pair], x[position, :, other]
                out[position, :, pair] = scale * (a * math.cos(angle) - b * math.sin(angle))
                out[position, :, other] = scale * (b * math.cos(angle) + a * math.sin(angle))
        return out

    for layer in range(config["num_hidden_layers"]):
        own = f"model.layers.{layer}"
        normed = norm(x, f"{own}.input_layernorm.weight")
        q, k, v = (
            linear(normed, f"{own}.self_attn.{name}_proj").reshape(len(tokens), -1, width)
            for name in "qkv"
        )
        q, k = (rotated(a, f"{own}.self_attn.{name}_norm") for a, name in ((q, "q"), (k, "k")))
        mixed = np.zeros_like(q)
        for head in range(heads):
            key = head // (heads // kv)
            for t in range(len(tokens)):
                score = k[: t + 1, key] @ q[t, head] / math.sqrt(width)
                weight = np.exp(score - score.max())
                mixed[t, head] = weight @ v[: t + 1, key] / weight.sum()
        x = x + linear(mixed.reshape(len(tokens), -1), f"{own}.self_attn.o_proj")
        normed = norm(x, f"{own}.post_attention_layernorm.weight")
        gate = linear(normed, f"{own}.mlp.gate_proj")
        hidden = gate / (1 + np.exp(-gate)) * linear(normed, f"{own}.mlp.up_proj")
        x = x + linear(hidden, f"{own}.mlp.down_proj")
    x = norm(x, "model.norm.weight")
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return x @ head.T


def turns(config: dict[str, Any]) -> list[tuple[float, float]]:
    """By pair: radians per position, and what cosine and sine are multiplied by."""
    width, theta = config["head_dim"], config["rope_theta"]
    rope = config.get("rope_scaling") or {"rope_type": "default"}
    kind, factor = rope["rope_type"], rope.get("factor", 1.0)
    made = []
    for pair in range(width // 2):
        turn = theta ** (-2 * pair / width)
        length = rope.get("original_max_position_embeddings", 0)
        if kind == "linear":
            turn /= factor
        elif kind == "llama3":
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            whole = length * turn / (2 * math.pi)  # turns within the original length
            kept = min(max((whole - low) / (high - low), 0), 1)
            turn = (1 - kept) * turn / factor + kept * turn
        elif kind == "yarn":
            first, last = (
                width * math.log(length / (beta * 2 * math.pi)) / (2 * math.log(theta))
                for beta in (rope["beta_fast"], rope["beta_slow"])
            )
            if rope.get("truncate", True):
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, width - 1)
            slowed = min(max((pair - first) / (last - first), 0), 1)
            turn = slowed * turn / factor + (1 - slowed) * turn
        scale = rope["attention_factor"] if kind == "yarn" else 1.0
        made.append((turn, scale))
    return made
