"""A first estimate of memory and time per mesh, in closed form, to choose what to compile.

It knows nothing of fusions, copies or the schedule; its use is to rank meshes. Compiled plans
decide.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from loong_jax.models.families import ModelConfig
from loong_jax.plan import counts, request
from loong_jax.plan.request import Mode, Request, TensorCuts
from loong_jax.plan.roofline import HBM_SHARE, PEAK_SHARE
from loong_jax.plan.topology import LINK_EFFICIENCY, Topology
from loong_jax.sharding import MESH_AXES

_CUTS = ("fsdp", "expert", "tensor")  # mesh axes
_STATE_BYTES = 8  # per weight, in float32: the master and its gradient
_MOMENT_BYTES = 8  # per weight: both, unless they lie in host memory
_EXCHANGE_BANDWIDTH = 200e9  # of the expert all-to-all, per chip
_BUFFER_FACTOR = 1.25


def meshes(
    config: ModelConfig, topology: Topology, mode: Mode, tensor_cuts: TensorCuts = "heads"
) -> Iterator[dict[str, int]]:
    """Every mesh whose axes divide the model: powers of two and what is left of the devices."""
    in_slice = topology.num_devices // topology.num_slices
    spread = "data" if mode == "decode" else "fsdp"  # decoding gathers no weights
    for expert in _divisors(math.gcd(in_slice, getattr(config, "num_experts", 1))):
        for tensor in _divisors(math.gcd(in_slice // expert, config.num_heads)):
            mesh = dict.fromkeys(MESH_AXES, 1) | {"slice": topology.num_slices, "expert": expert}
            mesh |= {"tensor": tensor, spread: in_slice // (expert * tensor)}
            if request.misfit(config, mesh, mode, tensor_cuts):
                continue
            if mode == "decode" or config.hidden_size % (mesh["fsdp"] * expert) == 0:
                yield mesh


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


class Estimate(NamedTuple):
    """Memory, traffic and time of one step of a request; bytes are those of one device."""

    request: Request
    hbm_bytes: float
    exchange_bytes: float
    gather_bytes: float
    tensor_bytes: float
    step_s: float

    @property
    def mesh(self) -> Mapping[str, int]:
        return self.request.mesh

    @property
    def fits(self) -> bool:
        chip = self.request.topology.chip
        return self.hbm_bytes <= chip.hbm_bytes / chip.num_devices


def estimate(asked: Request) -> Estimate:
    """The estimate of a request."""
    config: Any = asked.config
    made, mesh, num_devices = counts.of(config), asked.mesh, asked.topology.num_devices
    fsdp, expert, tensor, micro = *map(mesh.__getitem__, _CUTS), asked.num_microbatches
    is_training, decodes = asked.mode == "train", asked.mode == "decode"
    # devices along `tensor` have sequences, caches and experts of their own, or share sequences
    own_sequences = asked.tensor_cuts == "sequences"
    sharing = 1 if own_sequences else tensor
    tokens = asked.batch * (1 if decodes else asked.length) / num_devices * sharing
    row = 2 * config.hidden_size * tokens / micro  # of the residual stream of a micro-batch
    # into how many parts dense weights are cut where they rest, and experts and tables of n-grams
    dense_parts = fsdp * (1 if decodes else expert) * tensor
    expert_parts = fsdp * expert * tensor
    passes = 4 if is_training else 1  # forward, its recomputation, and twice as much back

    resting = (made.dense + made.looked_up) / dense_parts  # weights, without those tables
    if own_sequences:  # attend with all heads
        resting += made.attention * (1 - 1 / tensor)
    resting += made.experts / expert_parts
    cache_bytes = 0.0
    if not is_training:
        heads = getattr(config, "num_kv_heads", 1)  # a latent has no heads to be cut
        entries = asked.batch * asked.length / num_devices
        copies = sharing / math.gcd(sharing, heads)
        cache_bytes = 2 * counts.cache_width(config) * entries * copies

    per_weight = _STATE_BYTES + (0 if asked.offload_moments else _MOMENT_BYTES)
    hbm_bytes = (per_weight if is_training else 2) * (resting + made.tables / expert_parts)
    hbm_bytes += cache_bytes
    hbm_bytes += tokens / micro * (10 * config.vocab_size / tensor + 8 * config.ffn_hidden_size)
    hbm_bytes += 4 * row * made.experts_met
    if is_training:  # kept for the backward pass
        hbm_bytes += row * config.num_layers * (1 + _BUFFER_FACTOR * made.experts_met)
    if dense_parts > tensor:  # one layer's weights, gathered
        hbm_bytes += 2 * (made.dense / config.num_layers + made.looked_up) / tensor

    trips = 4 if is_training else 2  # dispatch and combine, forward and back
    rows, away = tokens * made.experts_met * _BUFFER_FACTOR, 1 - sharing / (expert * tensor)
    exchange_bytes = trips * config.num_layers * rows * away * 2 * config.hidden_size
    gather_bytes = 0.0
    if fsdp > 1:
        gather_bytes += 2 * made.experts / (expert * tensor) * (1 - 1 / fsdp)
    if dense_parts > tensor:
        gather_bytes += 2 * made.dense / tensor
    gather_bytes *= (3 if is_training else 1) * micro
    # Two all-reduces per pair of an attention and a dense FFN, or where tensor cuts sequences a
    # gather before each dense FFN and a scatter after it.
    tensor_bytes = passes * 4 * config.num_attentions * 2 * row * micro if tensor > 1 else 0.0
    if own_sequences:
        tensor_bytes = 2 * config.num_attentions * (tensor - 1) * row

    chip, traffic_s = asked.topology.chip, 0.0
    seen = asked.length if decodes else asked.length / 2
    per_token = 2 * made.active + counts.attention_flops(config, seen)
    flops = passes * tokens * per_token / sharing
    compute_s = flops * chip.num_devices / (chip.bf16_flops * PEAK_SHARE)
    if decodes:
        read = 2 * resting + cache_bytes
        traffic_s = read * chip.num_devices / (chip.hbm_bandwidth * HBM_SHARE)
    links = chip.ici_bandwidth * LINK_EFFICIENCY / chip.num_devices
    exchange_s = exchange_bytes * chip.num_devices / _EXCHANGE_BANDWIDTH
    window_s = 0.6 * compute_s  # FFN 0, attention 1 and FFN 1 of a logical layer
    step_s = max(compute_s, traffic_s) + (gather_bytes + tensor_bytes) / links
    step_s += max(0.0, exchange_s - window_s)
    return Estimate(asked, hbm_bytes, exchange_bytes, gather_bytes, tensor_bytes, step_s)


def ranked(requests: Iterable[Request]) -> list[Estimate]:
    """Estimates of requests on several meshes: those that fit first, then by time per sequence."""
    return sorted(
        map(estimate, requests), key=lambda made: (not made.fits, made.step_s / made.request.batch)
    )
