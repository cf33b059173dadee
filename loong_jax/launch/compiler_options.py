"""Options of the TPU compiler under which an expert exchange runs beside the dense path.

Without them the collectives of an exchange are synchronous on every chip, whatever the order in
which the program is written. Names are those of libtpu; an unknown one is an error of the compiler.
"""

from loong_jax.models.moe.exchange import Exchange, GatherExchange, PaddedExchange


def compiler_options(topology: str, exchange: Exchange) -> dict[str, bool]:
    """For `jax.jit(...).lower(...).compile(compiler_options=...)`.

    `topology` begins with the name of the chip: `v5p:4x4x4`. A ragged exchange needs no option on
    tpu7x, where the SparseCores carry it, and none helps it elsewhere.
    """
    chip = topology.split(":")[0]
    if isinstance(exchange, PaddedExchange):
        return {"xla_tpu_enable_async_all_to_all": True}
    if isinstance(exchange, GatherExchange) and chip != "v5e":  # which has no SparseCore
        prefix = "xla_tpu_enable_sparse_core_collective_offload_"
        return {prefix + "all_gather": True, prefix + "reduce_scatter": True}
    return {}
