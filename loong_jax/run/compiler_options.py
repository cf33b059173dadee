"""Options of the TPU compiler under which what travels between devices runs beside products.

Without them the collectives of an exchange are synchronous, whatever the order in which the program
is written; ragged ones alone are asynchronous by themselves, on tpu7x and, from libtpu 0.0.50 on,
on v5p. Names are those of libtpu; an unknown one is an error of the compiler.
"""

from loong_jax.models.moe.exchange import Exchange, GatherExchange, PaddedExchange, RaggedExchange
from loong_jax.sharding import CompilerOptions

# The scheduler starts a collective as late as its own estimate of the links allows: with libtpu
# 0.0.42 on v5p one of the three products of an FFN ran inside the window of 258 MB over 32 devices.
# Told that products take a quarter of their time, it starts the collective before all three.
# No other value was tried, and v6e and tpu7x were not compiled without it.
_START_EARLY = {"xla_lhs_output_fusion_latency_multiplier": 0.25}

# Dense weights that rest on more than 64 devices are gathered by an all-reduce, and v5p and v6e
# wait for it unless their SparseCores carry it; tpu7x does so by itself.
_DENSE_BESIDE_WORK = {"xla_tpu_enable_sparse_core_collective_offload_all_reduce": True}

# Gathers and scatters of weights over a few devices: a step of Qwen2.5-7B on eight v6e chips takes
# 0.28 s with these and 0.36 s without. v5e has no SparseCore.
_BY_SPARSECORE = {
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
}

# v6e waits for a ragged exchange unless its SparseCores carry it. In decoding nothing ran beside it
# even then, and a step took 1 % more time.
_RAGGED_BESIDE_WORK = {"xla_tpu_enable_sparse_core_collective_offload_ragged_all_to_all": True}

# tpu7x gathers them as such when told to, which moves half the bytes. v5p does so only where its
# SparseCores carry gathers, and then waits for each of them.
_GATHERED_AS_SUCH = {"xla_tpu_prefer_async_allgather_to_allreduce": True}

# Sums over devices are put together up to this size, so a large gradient need not wait for the last
# ones of its layer: the whole model's step takes 2.502 s on 512 devices and 2.518 s without this.
_LARGE_SUMS_APART = {"xla_jf_crs_combiner_threshold_in_bytes": 2**25}

# tpu7x multiplies from tiles of 16 rows, while arguments come in tiles of 8: without this a call
# of decoding begins by copying all weights, and keeps both (39.5 GB of dense ones, whole).
_TILES_OF_ARGUMENTS = {"xla_tpu_control_large_2nd_minor_layout_for_x16": False}


CHIPS = {  # `device_kind`, as JAX has it
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}


def of_device(kind: str, exchange: Exchange | None) -> CompilerOptions:
    """The compiler options of `ShardingRules`, by `device_kind`; none for other devices."""
    if (chip := CHIPS.get(kind)) is None:
        return CompilerOptions()
    both = (compiler_options(chip, exchange, decodes=decodes) for decodes in (False, True))
    return CompilerOptions(*(tuple(options.items()) for options in both))


def compiler_options(
    topology: str, exchange: Exchange | None, *, decodes: bool = False
) -> dict[str, bool | float]:
    """The compiler options for `jax.jit(...).lower(...).compile(compiler_options=...)`.

    `topology` begins with the name of the chip: `v5p:4x4x4`. A model without experts has no
    `exchange`. `decodes` is said of programs that read the same weights step after step, which need
    none for dense weights or a ragged exchange: those of docs/measurements/plan.md are without.
    """
    chip = topology.split(":")[0]
    resting = _TILES_OF_ARGUMENTS if decodes and chip == "tpu7x" else {}
    return resting | _of_exchange(chip, exchange, decodes)


def _of_exchange(chip: str, exchange: Exchange | None, decodes: bool) -> dict[str, bool | float]:
    dense = {
        "v5p": _DENSE_BESIDE_WORK,
        "v6e": _DENSE_BESIDE_WORK,
        "tpu7x": _GATHERED_AS_SUCH | _LARGE_SUMS_APART,
    }.get(chip, {})
    if exchange is None:
        return {} if decodes else dense | (_BY_SPARSECORE if chip == "v6e" else {})
    if isinstance(exchange, PaddedExchange):
        return {"xla_tpu_enable_async_all_to_all": True, **_START_EARLY, **dense}
    if isinstance(exchange, GatherExchange) and chip != "v5e":
        return dict(_BY_SPARSECORE)
    if isinstance(exchange, RaggedExchange) and not decodes:
        by_chip = {"tpu7x": {}, "v6e": _START_EARLY | _RAGGED_BESIDE_WORK}
        return by_chip.get(chip, _START_EARLY) | dense
    return {}
