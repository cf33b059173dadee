"""Random LongCat-Flash models in transformers, and their weights in the published layout.

transformers cannot load that layout where there are zero-computation experts (it allocates rows for
them), so the models are made in memory and written out from there, tensor by tensor.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

SIZES: dict[str, Any] = dict(
    vocab_size=61,
    hidden_size=32,
    num_layers=2,
    num_attention_heads=2,
    q_lora_rank=12,
    kv_lora_rank=20,
    qk_nope_head_dim=10,
    qk_rope_head_dim=6,
    head_dim=6,  # transformers builds its rotary table from this one
    v_head_dim=14,
    ffn_hidden_size=44,
    expert_ffn_hidden_size=18,
    n_routed_experts=5,
    zero_expert_num=3,
    moe_topk=3,
    routed_scaling_factor=2.5,
    max_position_embeddings=256,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4},
)
YARN = dict(
    rope_type="yarn",
    rope_theta=1e4,
    factor=8.0,
    original_max_position_embeddings=32,
    beta_fast=32,
    beta_slow=1,
    mscale=1,
    mscale_all_dim=1,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes that differ from `SIZES`, and how the random weights are drawn."""

    sizes: dict[str, Any] = dataclasses.field(default_factory=dict)
    latent_scale: float = 1.0  # of the projections down to the latents
    with_mtp: bool = False
    layout: str = "one file"  # or "index", several files


CASES = {
    "zero experts": Case(with_mtp=True, layout="index"),
    "no zero experts": Case(dict(zero_expert_num=0, num_layers=1, n_routed_experts=7, moe_topk=2)),
    "every target chosen, gate scale 1": Case(
        dict(n_routed_experts=3, zero_expert_num=4, moe_topk=7, routed_scaling_factor=1.0)
    ),
    "one expert of many zeros": Case(dict(n_routed_experts=1, zero_expert_num=9, moe_topk=4)),
    "ranks above width": Case(dict(q_lora_rank=40, kv_lora_rank=56, num_attention_heads=3)),
    "odd sizes": Case(
        dict(
            vocab_size=37,
            hidden_size=27,
            num_layers=3,
            num_attention_heads=5,
            q_lora_rank=11,
            kv_lora_rank=9,
            qk_nope_head_dim=7,
            qk_rope_head_dim=2,
            head_dim=2,
            v_head_dim=3,
            ffn_hidden_size=29,
            expert_ffn_hidden_size=13,
        )
    ),
    "published heads": Case(
        dict(
            num_layers=1,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            head_dim=64,
            v_head_dim=128,
            rms_norm_eps=1e-3,
            rope_parameters={"rope_type": "default", "rope_theta": 1e7},
        )
    ),
    "small latents": Case(latent_scale=1e-2),
    "yarn": Case(dict(rope_parameters=YARN, qk_rope_head_dim=16, head_dim=16)),
    "yarn, unequal mscale": Case(
        dict(
            rope_parameters=YARN | dict(factor=4.0, mscale=0.7, mscale_all_dim=1.3),
            qk_rope_head_dim=8,
            head_dim=8,
        )
    ),
    "yarn, no mscale": Case(
        dict(
            rope_parameters={k: v for k, v in YARN.items() if not k.startswith("mscale")},
            qk_rope_head_dim=8,
            head_dim=8,
        )
    ),
}


def make(case: Case, seed: int = 0):
    """A transformers model, float32, in evaluation mode; no two of its tensors are alike."""
    import torch
    from transformers import LongcatFlashConfig, LongcatFlashForCausalLM

    config = LongcatFlashConfig(**(SIZES | case.sizes))
    config._attn_implementation = "eager"
    model = LongcatFlashForCausalLM(config).eval()
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not name.endswith("inv_freq"):
                drawn = _draw(random, name, tuple(tensor.shape), case)
                tensor.copy_(torch.from_numpy(drawn))
    return model


def _draw(random: np.random.Generator, name: str, shape: tuple[int, ...], case: Case):
    drawn = random.normal(size=shape)
    if name.endswith("e_score_correction_bias"):
        drawn *= 0.3 / shape[0]  # on the scale of a score
    elif len(shape) == 1:
        drawn = 1 + 0.2 * drawn
    elif "embed" not in name:
        drawn /= np.sqrt(shape[-1])
    if name.endswith(("q_a_proj.weight", "kv_a_proj_with_mqa.weight")):
        drawn *= case.latent_scale
    return drawn.astype(np.float32)


def published_tensors(model) -> dict[str, np.ndarray]:
    """The model's tensors under their published names."""
    num_experts = model.config.n_routed_experts
    found = {}
    for name, tensor in model.state_dict().items():
        array = tensor.detach().numpy()
        if name.endswith("experts.gate_up_proj"):
            for expert in range(num_experts):
                prefix = name.removesuffix("gate_up_proj") + str(expert)
                gate, up = np.split(array[expert], 2)
                found |= {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            for expert in range(num_experts):
                prefix = name.removesuffix("down_proj") + str(expert)
                found[f"{prefix}.down_proj.weight"] = array[expert]
        else:
            found[name] = array
    return found


def mtp_tensors(tensors: dict[str, np.ndarray], seed: int = 1) -> dict[str, np.ndarray]:
    """Random tensors of a drafting head that fits a model."""
    random = np.random.default_rng(seed)
    embedding = tensors["model.embed_tokens.weight"]
    embed, own = embedding.shape[1], "model.mtp.layers.0"
    shapes = {"model.mtp.norm.weight": (embed,), f"{own}.eh_proj.weight": (embed, 2 * embed)}
    for norm in ("enorm.m", "hnorm.m", "input_layernorm", "post_attention_layernorm"):
        shapes[f"{own}.{norm}.weight"] = (embed,)
    for name, tensor in tensors.items():
        for prefix, theirs in (
            ("model.layers.0.self_attn.0", f"{own}.self_attn"),
            ("model.layers.0.mlps.0", f"{own}.transformer_layer.mlp"),
        ):
            if name.startswith(prefix):
                shapes[theirs + name.removeprefix(prefix)] = tensor.shape
    drawn = {name: _draw(random, name, shape, Case()) for name, shape in shapes.items()}
    return {"model.mtp.embed_tokens.weight": embedding, **drawn}


def write(model, directory: Path, case: Case) -> None:
    """The model in the published layout, by safetensors' own writer."""
    import safetensors.numpy

    tensors = published_tensors(model)
    if case.with_mtp:
        tensors |= mtp_tensors(tensors)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(model.config.to_json_string(use_diff=False))
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    if case.layout == "one file":
        safetensors.numpy.save_file(contiguous, directory / "model.safetensors")
        return
    names = sorted(contiguous)
    weight_map = {}
    for number in range(3):
        file = f"model_{number + 1:05}-of-00003.safetensors"
        own = names[number::3]
        safetensors.numpy.save_file({name: contiguous[name] for name in own}, directory / file)
        weight_map |= dict.fromkeys(own, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
