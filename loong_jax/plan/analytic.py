"""A first estimate of memory and time per mesh, in closed form, to choose what to compile.

It knows nothing of fusions, copies or the schedule; its use is to rank meshes. Compiled plans
decide.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from loong_jax.models.families import ModelConfig
from loong_jax.plan import counts, request
from loong_jax.plan.counts import Counts
from loong_jax.plan.request import Mode, Request, TensorCuts
from loong_jax.plan.roofline import HBM_SHARE, PEAK_SHARE
from loong_jax.plan.topology import LINK_EFFICIENCY, Topology
from loong_jax.sharding import MESH_AXES

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


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Memory, traffic and time of one step of a request; bytes are those of one device."""

    request: Request

    @property
    def config(self) -> Any:
        return self.request.config

    @property
    def mesh(self) -> Mapping[str, int]:
        return self.request.mesh

    @property
    def fits(self) -> bool:
        chip = self.request.topology.chip
        return self.hbm_bytes <= chip.hbm_bytes / chip.num_devices

    @property
    def own_sequences(self) -> bool:
        """True if devices along `tensor` have sequences, caches and experts of their own."""
        return self.request.tensor_cuts == "sequences"

    @property
    def sharing(self) -> int:
        """Devices that have the same sequences."""
        return 1 if self.own_sequences else self.mesh["tensor"]

    @property
    def is_training(self) -> bool:
        return self.request.mode == "train"

    @property
    def decodes(self) -> bool:
        return self.request.mode == "decode"

    @property
    def counts(self) -> Counts:
        return counts.of(self.config)

    @property
    def tokens(self) -> float:
        """The tokens of one device, which may share them with those along `tensor`."""
        tokens = self.request.batch * (1 if self.decodes else self.request.length)
        return tokens / self.request.topology.num_devices * self.sharing

    @property
    def row(self) -> float:
        """Bytes of the residual stream of a micro-batch."""
        return 2 * self.config.hidden_size * self.tokens / self.request.num_microbatches

    @property
    def dense_parts(self) -> int:
        """Into how many parts dense weights are cut where they rest."""
        gathered = self.mesh["fsdp"] * (1 if self.decodes else self.mesh["expert"])
        return gathered * self.mesh["tensor"]

    @property
    def expert_parts(self) -> int:
        """Into how many parts experts, and tables of n-grams, are cut."""
        return self.mesh["fsdp"] * self.mesh["expert"] * self.mesh["tensor"]

    @property
    def passes(self) -> int:
        """Forward, its recomputation, and twice as much back."""
        return 4 if self.is_training else 1

    @property
    def resting_weights(self) -> float:
        """Their number on one device, without tables that are looked up."""
        made = self.counts
        dense = (made.dense + made.looked_up) / self.dense_parts
        if self.own_sequences:  # attend with all heads
            dense += made.attention * (1 - 1 / self.mesh["tensor"])
        return dense + made.experts / self.expert_parts

    @property
    def cache_bytes(self) -> float:
        if self.is_training:
            return 0.0
        heads = getattr(self.config, "num_kv_heads", 1)  # a latent has no heads to be cut
        copies = self.sharing / math.gcd(self.sharing, heads)
        entries = self.request.batch * self.request.length / self.request.topology.num_devices
        return 2 * counts.cache_width(self.config) * entries * copies

    @functools.cached_property
    def hbm_bytes(self) -> float:
        config, made, tensor = self.config, self.counts, self.mesh["tensor"]
        weights = self.resting_weights + made.tables / self.expert_parts
        per_weight = _STATE_BYTES + (0 if self.request.offload_moments else _MOMENT_BYTES)
        memory = (per_weight if self.is_training else 2) * weights
        memory += self.cache_bytes
        tokens = self.tokens / self.request.num_microbatches
        memory += tokens * (10 * config.vocab_size / tensor + 8 * config.ffn_hidden_size)
        memory += 4 * self.row * made.experts_met
        if self.is_training:  # kept for the backward pass
            rows = 1 + _BUFFER_FACTOR * made.experts_met
            memory += self.row * config.num_layers * rows
        if self.dense_parts > tensor:  # one layer's weights, gathered
            memory += 2 * (made.dense / config.num_layers + made.looked_up) / tensor
        return memory

    @property
    def exchange_bytes(self) -> float:
        config = self.config
        trips = 4 if self.is_training else 2  # dispatch and combine, forward and back
        rows = self.tokens * self.counts.experts_met * _BUFFER_FACTOR
        away = 1 - self.sharing / (self.mesh["expert"] * self.mesh["tensor"])
        return trips * config.num_layers * rows * away * 2 * config.hidden_size

    @property
    def gather_bytes(self) -> float:
        made, mesh = self.counts, self.mesh
        times = (3 if self.is_training else 1) * self.request.num_microbatches
        gathered = 0.0
        if mesh["fsdp"] > 1:
            shares = 2 * made.experts / (mesh["expert"] * mesh["tensor"])
            gathered += shares * (1 - 1 / mesh["fsdp"])
        if self.dense_parts > mesh["tensor"]:
            gathered += 2 * made.dense / mesh["tensor"]
        return times * gathered

    @property
    def tensor_bytes(self) -> float:
        if self.mesh["tensor"] == 1:
            return 0.0
        if self.own_sequences:  # a gather before each dense FFN and a scatter after it
            return 2 * self.config.num_attentions * (self.mesh["tensor"] - 1) * self.row
        # Two all-reduces per pair of an attention and a dense FFN.
        reduced = self.passes * 4 * self.config.num_attentions
        return reduced * 2 * self.row * self.request.num_microbatches

    @property
    def compute_s(self) -> float:
        chip = self.request.topology.chip
        seen = self.request.length if self.decodes else self.request.length / 2
        per_token = 2 * self.counts.active + counts.attention_flops(self.config, seen)
        flops = self.passes * self.tokens * per_token / self.sharing
        return flops * chip.num_devices / (chip.bf16_flops * PEAK_SHARE)

    @property
    def step_s(self) -> float:
        """The longer of products and, in decoding, memory traffic, and the links beyond it."""
        chip, compute_s = self.request.topology.chip, self.compute_s
        traffic_s = 0.0
        if self.decodes:
            read = 2 * self.resting_weights + self.cache_bytes
            traffic_s = read * chip.num_devices / (chip.hbm_bandwidth * HBM_SHARE)
        links = chip.ici_bandwidth * LINK_EFFICIENCY / chip.num_devices
        link_s = (self.gather_bytes + self.tensor_bytes) / links
        exchange_s = self.exchange_bytes * chip.num_devices / _EXCHANGE_BANDWIDTH
        window_s = 0.6 * compute_s  # FFN 0, attention 1 and FFN 1 of a logical layer
        return max(compute_s, traffic_s) + link_s + max(0.0, exchange_s - window_s)


def ranked(requests: Iterable[Request]) -> list[Estimate]:
    """Estimates of requests on several meshes: those that fit first, then by time per sequence."""
    return sorted(
        map(Estimate, requests), key=lambda made: (not made.fits, made.step_s / made.request.batch)
    )
