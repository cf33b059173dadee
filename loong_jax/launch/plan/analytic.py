"""A first estimate of memory and time per mesh, in closed form, to choose what to compile.

It knows nothing of fusions, copies or the schedule; its use is to rank meshes. Compiled plans
decide.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from loong_jax.launch.plan.request import Mode, TensorCuts, batch_axes
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

    dense: float  # all but experts and what is looked up
    attention: float  # of those, the attentions
    experts: float
    embedding: float
    tables: float  # of n-grams, cut over all devices that share them

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
        projections = 0 if c.ngram is None else c.hidden_size**2
        rows, splits = (0, 1) if c.ngram is None else (sum(c.ngram.rows), len(c.ngram.orders))
        return cls(
            dense=c.num_layers * (2 * attention + 2 * ffn + router) + embedding + projections,
            attention=float(c.num_layers * 2 * attention),
            experts=float(c.num_layers * c.num_experts * expert),
            embedding=float(embedding),
            tables=float(rows * (c.hidden_size // splits)),
        )

    def active(self, config: MoEConfig) -> float:
        """Weights that a token meets."""
        return self.dense + self.experts * config.mean_ffn_experts / config.num_experts


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


def meshes(
    config: MoEConfig, topology: Topology, mode: Mode, tensor_cuts: TensorCuts = "heads"
) -> Iterator[dict[str, int]]:
    """Every mesh whose axes divide the model: powers of two and what is left of the devices."""
    in_slice = topology.num_devices // topology.num_slices
    for expert in _divisors(math.gcd(in_slice, config.num_experts)):
        for tensor in _divisors(math.gcd(in_slice // expert, config.num_heads)):
            widths = config.ffn_hidden_size, config.expert_ffn_hidden_size, config.vocab_size
            if any(width % tensor for width in widths):
                continue
            if tensor_cuts == "sequences" and config.num_experts % (expert * tensor):
                continue
            rest = in_slice // (expert * tensor)
            spread = "data" if mode == "decode" else "fsdp"  # decoding gathers no weights
            if mode != "decode" and config.hidden_size % (rest * expert):
                continue
            mesh = {"slice": topology.num_slices, "data": 1, "fsdp": 1, "expert": expert}
            yield mesh | {"tensor": tensor, "context": 1, spread: rest}


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step:
    """One step of a mode on a mesh, from which memory, traffic and time follow; bytes are those of
    one device."""

    config: MoEConfig
    topology: Topology
    mode: Mode
    mesh: Mapping[str, int]
    batch: int
    length: int
    num_microbatches: int
    tensor_cuts: TensorCuts

    @property
    def own_sequences(self) -> bool:
        """Whether devices along `tensor` have sequences, caches and experts of their own."""
        return self.tensor_cuts == "sequences"

    @property
    def sharing(self) -> int:
        """Devices that have the same sequences."""
        return 1 if self.own_sequences else self.mesh["tensor"]

    @property
    def is_training(self) -> bool:
        return self.mode == "train"

    @property
    def counts(self) -> Counts:
        return Counts.of(self.config)

    @property
    def tokens(self) -> float:
        """Of one device, which may share them with those along `tensor`."""
        tokens = self.batch * (1 if self.mode == "decode" else self.length)
        return tokens / self.topology.num_devices * self.sharing

    @property
    def row(self) -> float:
        """Bytes of the residual stream of a micro-batch."""
        return 2 * self.config.hidden_size * self.tokens / self.num_microbatches

    @property
    def dense_parts(self) -> int:
        """Into how many parts dense weights are cut where they rest."""
        gathered = self.mesh["fsdp"] * (1 if self.mode == "decode" else self.mesh["expert"])
        return gathered * self.mesh["tensor"]

    @property
    def expert_parts(self) -> int:
        """Into how many parts experts, and tables of n-grams, are cut."""
        return self.mesh["fsdp"] * self.mesh["expert"] * self.mesh["tensor"]

    @property
    def passes(self) -> int:
        """Forward, its recomputation, and twice as much back."""
        return 4 if self.is_training else 1

    def resting_weights(self) -> float:
        """Their number on one device, without tables that are looked up."""
        counts, mesh = self.counts, self.mesh
        dense = (counts.dense + counts.embedding) / self.dense_parts
        if self.own_sequences:  # attend with all heads
            dense += counts.attention * (1 - 1 / mesh["tensor"])
        return dense + counts.experts / self.expert_parts

    def cache_bytes(self) -> float:
        if self.is_training:
            return 0.0
        width = self.config.kv_lora_rank + self.config.qk_rope_head_dim
        entries = self.config.num_layers * self.batch * self.length
        return 4 * width * entries * self.sharing / self.topology.num_devices

    def hbm_bytes(self) -> float:
        config, counts, tensor = self.config, self.counts, self.mesh["tensor"]
        weights = self.resting_weights() + counts.tables / self.expert_parts
        memory = (_STATE_BYTES if self.is_training else 2) * weights
        memory += self.cache_bytes()
        tokens = self.tokens / self.num_microbatches
        memory += tokens * (10 * config.vocab_size / tensor + 8 * config.ffn_hidden_size)
        memory += 4 * self.row * config.mean_ffn_experts
        if self.is_training:  # kept for the backward pass
            rows = 1 + _BUFFER_FACTOR * config.mean_ffn_experts
            memory += self.row * config.num_layers * rows
        if self.dense_parts > tensor:  # one layer's weights, gathered
            memory += 2 * (counts.dense / config.num_layers + counts.embedding) / tensor
        return memory

    def exchange_bytes(self) -> float:
        config = self.config
        trips = 4 if self.is_training else 2  # dispatch and combine, forward and back
        rows = self.tokens * config.mean_ffn_experts * _BUFFER_FACTOR
        away = 1 - self.sharing / (self.mesh["expert"] * self.mesh["tensor"])
        return trips * config.num_layers * rows * away * 2 * config.hidden_size

    def gather_bytes(self) -> float:
        counts, mesh = self.counts, self.mesh
        times = (3 if self.is_training else 1) * self.num_microbatches
        gathered = 0.0
        if mesh["fsdp"] > 1:
            shares = 2 * counts.experts / (mesh["expert"] * mesh["tensor"])
            gathered += shares * (1 - 1 / mesh["fsdp"])
        if self.dense_parts > mesh["tensor"]:
            gathered += 2 * counts.dense / mesh["tensor"]
        return times * gathered

    def tensor_bytes(self) -> float:
        if self.mesh["tensor"] == 1:
            return 0.0
        if self.own_sequences:  # a gather before each dense FFN and a scatter after it
            return 4 * self.config.num_layers * (self.mesh["tensor"] - 1) * self.row
        # Two all-reduces per pair of an attention and a dense FFN.
        return self.passes * 8 * self.config.num_layers * 2 * self.row * self.num_microbatches

    def compute_s(self) -> float:
        config, chip = self.config, self.topology.chip
        seen = self.length if self.mode == "decode" else self.length / 2
        head = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
        attention = 4 * config.num_layers * config.num_heads * seen * head
        per_token = 2 * self.counts.active(config) + attention
        flops = self.passes * self.tokens * per_token / self.sharing
        return flops * chip.num_devices / (chip.bf16_flops * PEAK_SHARE)

    def seconds(self) -> float:
        """The longer of products and, in decoding, memory traffic, and the links beyond it."""
        chip, compute_s = self.topology.chip, self.compute_s()
        traffic_s = 0.0
        if self.mode == "decode":
            read = 2 * self.resting_weights() + self.cache_bytes()
            traffic_s = read * chip.num_devices / (chip.hbm_bandwidth * HBM_SHARE)
        links = chip.ici_bandwidth * LINK_EFFICIENCY / chip.num_devices
        link_s = (self.gather_bytes() + self.tensor_bytes()) / links
        exchange_s = self.exchange_bytes() * chip.num_devices / _EXCHANGE_BANDWIDTH
        window_s = 0.6 * compute_s  # FFN 0, attention 1 and FFN 1 of a logical layer
        return max(compute_s, traffic_s) + link_s + max(0.0, exchange_s - window_s)


def estimate(
    config: MoEConfig,
    topology: Topology,
    mode: Mode,
    mesh: Mapping[str, int],
    *,
    batch: int,
    length: int,
    num_microbatches: int = 1,
    tensor_cuts: TensorCuts = "heads",
) -> Estimate:
    """Memory and time of a mode on a mesh; `batch` and `length` as in a request."""
    step = _Step(
        config=config,
        topology=topology,
        mode=mode,
        mesh=mesh,
        batch=batch,
        length=length,
        num_microbatches=num_microbatches,
        tensor_cuts=tensor_cuts,
    )
    return Estimate(
        mesh=dict(mesh),
        hbm_bytes=step.hbm_bytes(),
        step_s=step.seconds(),
        exchange_bytes=step.exchange_bytes(),
        gather_bytes=step.gather_bytes(),
        tensor_bytes=step.tensor_bytes(),
    )


def ranked(
    config: MoEConfig,
    topology: Topology,
    mode: Mode,
    *,
    batch: int | None,
    length: int,
    num_microbatches: int = 1,
    tensor_cuts: TensorCuts = "heads",
) -> list[Estimate]:
    """Estimates of all meshes: those that fit first, faster ones before slower ones.

    Without a batch every mesh gets one sequence for each device that takes any.
    """
    found = []
    for mesh in meshes(config, topology, mode, tensor_cuts):
        shards = math.prod(mesh[axis] for axis in batch_axes(tensor_cuts)) * num_microbatches
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
            tensor_cuts=tensor_cuts,
        )
        seconds = made.step_s / (batch or shards)
        found.append((not made.fits(topology), seconds, made))
    return [made for *_, made in sorted(found, key=lambda item: item[:2])]
