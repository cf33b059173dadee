"""A first estimate of memory and time per mesh, in closed form, to choose what to compile.

It knows nothing of fusions, copies or the schedule; its use is to rank meshes. Compiled plans
decide.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from loong_jax.launch.plan.request import Mode
from loong_jax.launch.plan.times import HBM_SHARE, PEAK_SHARE
from loong_jax.launch.plan.topology import Topology
from loong_jax.launch.plan.torus import LINK_EFFICIENCY
from loong_jax.models.moe.config import MoEConfig

_STATE_BYTES = 12 + 2 + 2  # per weight: masters and two moments, the bf16 copy, its gradient
_EXCHANGE_BANDWIDTH = 200e9  # of the expert all-to-all, per chip
_BUFFER_FACTOR = 1.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of weights, in closed form."""

    dense: float  # all but experts and the embedding table
    experts: float
    embedding: float

    @classmethod
    def of(cls, config: MoEConfig) -> "Counts":
        c = config
        head = c.qk_nope_head_dim + c.qk_rope_head_dim
        attention = (
            c.hidden_size * (c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim)
            + c.q_lora_rank * c.num_heads * head
            + c.kv_lora_rank * c.num_heads * (c.qk_nope_head_dim + c.v_head_dim)
            + c.num_heads * c.v_head_dim * c.hidden_size
        )
        ffn = 3 * c.hidden_size * c.ffn_hidden_size
        router = c.hidden_size * c.num_targets
        embedding = c.vocab_size * c.hidden_size
        expert = 3 * c.hidden_size * c.expert_ffn_hidden_size
        return cls(
            dense=c.num_layers * (2 * attention + 2 * ffn + router) + embedding,
            experts=float(c.num_layers * c.num_experts * expert),
            embedding=float(embedding),
        )

    def active(self, config: MoEConfig) -> float:
        """Weights that a token meets."""
        return self.dense + self.experts * config.target_ffn_experts / config.num_experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes on one device and seconds of one step."""

    mesh: Mapping[str, int]
    hbm_bytes: float
    step_s: float
    exchange_bytes: float  # sent by a device along `expert`
    gather_bytes: float  # received by a device along `fsdp` and `expert`
    tensor_bytes: float  # sent along `tensor`

    def fits(self, topology: Topology) -> bool:
        return self.hbm_bytes <= topology.chip.hbm_bytes / topology.chip.num_devices


def meshes(config: MoEConfig, topology: Topology, mode: Mode) -> Iterator[dict[str, int]]:
    """Every mesh whose axes divide the model: powers of two and what is left of the devices."""
    in_slice = topology.num_devices // topology.num_slices
    for expert in _divisors(math.gcd(in_slice, config.num_experts)):
        for tensor in _divisors(math.gcd(in_slice // expert, config.num_heads)):
            if config.ffn_hidden_size % tensor or config.expert_ffn_hidden_size % tensor:
                continue
            rest = in_slice // (expert * tensor)
            spread = "data" if mode == "decode" else "fsdp"  # decoding gathers no weights
            if mode != "decode" and config.hidden_size % (rest * expert):
                continue
            mesh = {"slice": topology.num_slices, "data": 1, "fsdp": 1, "expert": expert}
            yield mesh | {"tensor": tensor, "context": 1, spread: rest}


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def estimate(
    config: MoEConfig,
    topology: Topology,
    mode: Mode,
    mesh: Mapping[str, int],
    *,
    batch: int,
    length: int,
    num_microbatches: int = 1,
) -> Estimate:
    """Memory and time of a mode on a mesh; `batch` and `length` as in a request."""
    counts, chip = Counts.of(config), topology.chip
    tokens = batch * (1 if mode == "decode" else length) / topology.num_devices * mesh["tensor"]
    seen = length if mode == "decode" else length / 2
    is_training = mode == "train"
    passes = 4 if is_training else 1  # forward, its recomputation, and twice as much back
    attention = 4 * config.num_layers * config.num_heads * seen
    head = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    flops = passes * tokens * (2 * counts.active(config) + attention * head) / mesh["tensor"]
    compute_s = flops * chip.num_devices / (chip.bf16_flops * PEAK_SHARE)

    cut = mesh["fsdp"] * (1 if mode == "decode" else mesh["expert"]) * mesh["tensor"]
    dense = (counts.dense + counts.embedding) / cut
    experts = counts.experts / (mesh["expert"] * mesh["fsdp"] * mesh["tensor"])
    memory = (_STATE_BYTES if is_training else 2) * (dense + experts)
    cache = 0.0
    if mode != "train":
        width = config.kv_lora_rank + config.qk_rope_head_dim
        cache = 4 * config.num_layers * width * batch * length * mesh["tensor"]
        cache /= topology.num_devices
    micro_tokens = tokens / num_microbatches
    row = 2 * config.hidden_size * micro_tokens
    kept = row * config.num_layers * (1 + _BUFFER_FACTOR * config.target_ffn_experts)
    working = micro_tokens * (10 * config.vocab_size / mesh["tensor"] + 8 * config.ffn_hidden_size)
    working += 4 * row * config.target_ffn_experts
    memory += cache + working + (kept if is_training else 0.0)
    gathered = 2 * (counts.dense / config.num_layers + counts.embedding) / mesh["tensor"]
    memory += gathered if cut > mesh["tensor"] else 0.0

    trips = 4 if is_training else 2  # dispatch and combine, forward and back
    rows = tokens * config.target_ffn_experts * _BUFFER_FACTOR * (1 - 1 / mesh["expert"])
    exchange = trips * config.num_layers * rows * 2 * config.hidden_size
    exchange_s = exchange * chip.num_devices / _EXCHANGE_BANDWIDTH
    gather = 0.0
    if mesh["fsdp"] > 1:
        shares = 2 * counts.experts / (mesh["expert"] * mesh["tensor"])
        gather += (3 if is_training else 1) * shares * (1 - 1 / mesh["fsdp"])
    if cut > mesh["tensor"]:
        gather += (3 if is_training else 1) * 2 * counts.dense / mesh["tensor"]
    tensor = 0.0
    if mesh["tensor"] > 1:  # two all-reduces per attention and dense FFN pair
        tensor = passes * 8 * config.num_layers * 2 * row * num_microbatches
    links = chip.ici_bandwidth * LINK_EFFICIENCY / chip.num_devices
    link_s = (gather * num_microbatches + tensor) / links
    window_s = 0.6 * compute_s  # FFN 0, attention 1 and FFN 1 of a logical layer
    traffic_s = 0.0
    if mode == "decode":
        read = 2 * (dense + experts) + cache
        traffic_s = read * chip.num_devices / (chip.hbm_bandwidth * HBM_SHARE)
    step_s = max(compute_s, traffic_s) + link_s + max(0.0, exchange_s - window_s)
    return Estimate(
        mesh=dict(mesh),
        hbm_bytes=memory,
        step_s=step_s,
        exchange_bytes=exchange,
        gather_bytes=gather * num_microbatches,
        tensor_bytes=tensor,
    )


def ranked(
    config: MoEConfig,
    topology: Topology,
    mode: Mode,
    *,
    batch: int | None,
    length: int,
    num_microbatches: int = 1,
) -> list[Estimate]:
    """Estimates of all meshes: those that fit first, faster ones before slower ones.

    Without a batch every mesh gets one sequence for each device that takes any.
    """
    found = []
    for mesh in meshes(config, topology, mode):
        shards = mesh["slice"] * mesh["data"] * mesh["fsdp"] * mesh["expert"] * num_microbatches
        if batch is not None and batch % shards:
            continue
        made = estimate(
            config,
            topology,
            mode,
            mesh,
            batch=batch or shards,
            length=length,
            num_microbatches=num_microbatches,
        )
        seconds = made.step_s / (batch or shards)
        found.append((not made.fits(topology), seconds, made))
    return [made for *_, made in sorted(found, key=lambda item: item[:2])]
