"""transformers' LongCat-Flash with our weights, as fast as its own parts make it on CPU.

transformers dispatches the experts of most models to one of several implementations
(`transformers.integrations.moe`), but not those of LongCat-Flash, which always loop. Here they may:
choices of zero-computation experts are handed over as the sentinels that the implementations skip,
and the identity is added afterwards. The rows that transformers allocates for zero-computation
experts and never reads are left out.
"""

# pyright: reportMissingImports=false
import contextlib
import dataclasses
import functools
import logging
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from transformers.integrations import moe
from transformers.models.longcat_flash import modeling_longcat_flash as modeling

from loong_jax.models.moe.config import MoEConfig

HfWeights = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way of running the model."""

    experts: str  # "loop", "grouped_mm" or "batched_mm"
    attention: str  # "sdpa" or "eager"
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.experts}, {self.attention}, {'compiled' if self.compiled else 'eager'}"


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def set_num_threads(count: int) -> None:
    torch.set_num_threads(count)


def build(config: MoEConfig, weights: HfWeights, variant: Variant) -> torch.nn.Module:
    """The model in float32; `weights` are ours, as a nested dict of NumPy arrays."""
    transformers.logging.set_verbosity_error()
    hf_config = _hf_config(config, variant.attention)
    with torch.device("meta"):
        model = transformers.LongcatFlashForCausalLM(hf_config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = modeling.LongcatFlashRotaryEmbedding(hf_config)
    for layer in model.model.layers:
        layer.mlp.experts.gate_up_proj = torch.nn.Parameter(
            torch.empty(config.num_experts, 2 * config.expert_ffn_hidden_size, config.hidden_size)
        )
    state = {name: torch.tensor(array) for name, array in _state(config, weights)}
    model.load_state_dict(state, strict=True)
    if variant.experts != "loop":
        forward = functools.partial(_forward, moe.ALL_EXPERTS_FUNCTIONS[variant.experts])
        for layer in model.model.layers:
            layer.mlp.experts.forward = types.MethodType(forward, layer.mlp.experts)
    return model


def _forward(function, experts, x_TD, target_TK, gate_TK):
    """LongcatFlashExperts.forward by one of the common implementations."""
    num_experts = experts.num_routed_experts
    parts = types.SimpleNamespace(
        num_experts=num_experts,
        gate_up_proj=experts.gate_up_proj,
        down_proj=experts.down_proj,
        act_fn=experts.act_fn,
        has_gate=True,
        has_bias=False,
        has_post_expert_norm=False,
        is_transposed=False,
        _is_expert_parallel=experts.zero_expert_num > 0,  # there are sentinels
    )
    parts._apply_gate = functools.partial(moe._default_apply_gate, parts)
    if not experts.zero_expert_num:
        return function(parts, x_TD, target_TK, gate_TK)
    is_zero_TK = target_TK >= num_experts
    mixed_TD = function(
        parts, x_TD, target_TK.clamp(max=num_experts), gate_TK.masked_fill(is_zero_TK, 0.0)
    )
    return mixed_TD + (gate_TK * is_zero_TK).sum(dim=-1, keepdim=True) * x_TD


def forward(model: torch.nn.Module, variant: Variant, tokens_BT: np.ndarray) -> Callable[[], Any]:
    """A run that returns the logits."""
    tokens = torch.tensor(tokens_BT, dtype=torch.long)
    call = _call(model, variant)

    def run():
        with torch.inference_mode():
            return call(tokens)

    return run


def train_step(
    model: torch.nn.Module,
    variant: Variant,
    tokens_BT: np.ndarray,
    labels_BT: np.ndarray,
    *,
    rate: float,
    betas: tuple[float, float],
    eps: float,
) -> Callable[[], torch.Tensor]:
    """A run that updates the model once by AdamW on the mean cross-entropy, which it returns."""
    tokens = torch.tensor(tokens_BT, dtype=torch.long)
    labels = torch.tensor(labels_BT, dtype=torch.long).reshape(-1)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=betas, eps=eps, weight_decay=0.0, fused=True
    )
    call = _call(model, variant)

    def run():
        logits = call(tokens)
        loss = torch.nn.functional.cross_entropy(logits.reshape(len(labels), -1), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return run


def _call(model, variant):
    def logits(tokens):
        return model(input_ids=tokens, use_cache=False).logits

    if not variant.compiled:
        return logits
    torch._dynamo.reset()
    return torch.compile(logits, dynamic=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides what torch.compile says about graphs that break."""
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch").setLevel(level)


def _hf_config(config: MoEConfig, attention: str) -> transformers.PreTrainedConfig:
    c = config
    same = (
        "vocab_size", "hidden_size", "num_layers", "ffn_hidden_size", "expert_ffn_hidden_size",
        "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "rms_norm_eps",
    )  # fmt: skip
    return transformers.LongcatFlashConfig(
        **{name: getattr(c, name) for name in same},
        num_attention_heads=c.num_heads,
        head_dim=c.qk_rope_head_dim,
        moe_topk=c.num_chosen,
        n_routed_experts=c.num_experts,
        zero_expert_num=c.num_zero_experts,
        routed_scaling_factor=c.gate_scale,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        max_position_embeddings=c.max_position,
        attn_implementation=attention,
    )


def _state(config: MoEConfig, weights: HfWeights) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of transformers' state; its matrices are [out, in], ours [in, out]."""
    yield "model.embed_tokens.weight", weights["embedding"]
    yield "model.norm.weight", weights["final_norm"]
    yield "lm_head.weight", weights["head"].T
    for index in range(config.num_layers):
        layer = _layer(weights["layers"], index)
        prefix = f"model.layers.{index}."
        for i in (0, 1):
            yield f"{prefix}input_layernorm.{i}.weight", layer[f"attention_norm_{i}"]
            yield f"{prefix}post_attention_layernorm.{i}.weight", layer[f"ffn_norm_{i}"]
            attention, ffn = layer[f"attention_{i}"], layer[f"ffn_{i}"]
            own = f"{prefix}self_attn.{i}."
            yield f"{own}q_a_proj.weight", attention["query_down"].T
            yield f"{own}q_a_layernorm.weight", attention["query_norm"]
            yield f"{own}q_b_proj.weight", attention["query_up"].reshape(config.q_lora_rank, -1).T
            yield f"{own}kv_a_proj_with_mqa.weight", attention["latent_down"].T
            yield f"{own}kv_a_layernorm.weight", attention["latent_norm"]
            up_Ck = attention["latent_up"].reshape(config.kv_lora_rank, -1)
            yield f"{own}kv_b_proj.weight", up_Ck.T
            yield f"{own}o_proj.weight", attention["out"].reshape(-1, config.hidden_size).T
            for name in ("gate", "up", "down"):
                yield f"{prefix}mlps.{i}.{name}_proj.weight", ffn[name].T
        yield f"{prefix}mlp.router.classifier.weight", layer["router"]["kernel"].T
        yield f"{prefix}mlp.router.e_score_correction_bias", layer["router"]["bias"]
        gate_up_EcMD = np.moveaxis(layer["experts"]["gate_up"], 1, 3)
        gate_up_EmD = gate_up_EcMD.reshape(config.num_experts, -1, config.hidden_size)
        yield f"{prefix}mlp.experts.gate_up_proj", gate_up_EmD
        yield f"{prefix}mlp.experts.down_proj", np.swapaxes(layer["experts"]["down"], 1, 2)


def _layer(tree: Any, index: int) -> Any:
    if isinstance(tree, Mapping):
        return {name: _layer(branch, index) for name, branch in tree.items()}
    return tree[index]


def generate(
    model: Any, prompts: np.ndarray, *, new_tokens: int, cache: str
) -> tuple[float, np.ndarray]:
    """Greedy decoding of int32 prompts [B, T]: seconds, and the new tokens [B, new_tokens].

    `cache` is "dynamic" or "static".
    """
    tokens = torch.tensor(prompts, dtype=torch.long)
    arguments: dict[str, Any] = dict(
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        eos_token_id=None,
        use_cache=True,
    )
    if cache == "static":
        arguments["cache_implementation"] = "static"
    start_s = time.perf_counter()
    with torch.inference_mode():
        found = model.generate(tokens, **arguments)
    seconds = time.perf_counter() - start_s
    return seconds, found[:, prompts.shape[1] :].numpy().astype(np.int32)
