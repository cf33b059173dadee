"""Compiler options by chip and exchange."""

import jax
import jax.numpy as jnp
import pytest

from loong_jax.models.moe import exchange
from loong_jax.recipes import MeshSettings
from loong_jax.run import devices
from loong_jax.run.devices import compiler_options, of_device
from loong_jax.sharding import CompilerOptions


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e", "tpu7x"])
def test_every_exchange_gets_its_options(chip):
    padded = compiler_options(f"{chip}:4x4x4", exchange.PaddedExchange())
    assert padded["xla_tpu_enable_async_all_to_all"] is True
    as_such = "xla_tpu_prefer_async_allgather_to_allreduce"
    assert (as_such in padded) == (chip == "tpu7x")  # v5p would wait for every gather
    gather = compiler_options(chip, exchange.GatherExchange())
    assert (len(gather) == 2) == (chip != "v5e")  # v5e has no SparseCore to carry collectives
    assert all("sparse_core" in name for name in gather)
    ragged = compiler_options(chip, exchange.RaggedExchange())
    by_sparse_core = "xla_tpu_enable_sparse_core_collective_offload_ragged_all_to_all"
    assert ragged.pop(by_sparse_core, False) is (chip == "v6e")
    assert ragged.items() < padded.items()
    assert "xla_tpu_enable_async_all_to_all" not in ragged
    assert ("xla_lhs_output_fusion_latency_multiplier" in ragged) == (chip != "tpu7x")
    assert compiler_options("v5p:4x4x4", exchange.RaggedExchange(), decodes=True) == {}
    dense = compiler_options(chip, None)
    scatters = dense.pop("xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", False)
    gathers = dense.pop("xla_tpu_enable_sparse_core_collective_offload_all_gather", False)
    assert scatters is gathers is (chip == "v6e")
    assert dense.items() < padded.items()
    assert not any("all_to_all" in name for name in dense)
    assert bool(dense) == (chip != "v5e")


def test_weights_that_every_step_reads_are_not_copied_into_other_tiles():
    tiles = "xla_tpu_control_large_2nd_minor_layout_for_x16"
    kinds = exchange.PaddedExchange(), exchange.RaggedExchange()
    for chip in ("v5e", "v5p", "v6e", "tpu7x"):
        for kind in kinds:
            options = compiler_options(chip, kind, decodes=True)
            assert options.pop(tiles, True) is (chip != "tpu7x")
            trained = compiler_options(chip, kind)
            assert options == ({} if isinstance(kind, exchange.RaggedExchange) else trained)


def test_runs_on_a_mesh_compile_under_the_options_that_plans_measure(monkeypatch):
    kind = exchange.PaddedExchange()
    found = of_device("TPU v6 lite", kind)
    assert dict(found.training) == compiler_options("v6e", kind)
    assert dict(found.decoding) == compiler_options("v6e", kind, decodes=True)
    assert of_device("cpu", kind) == ((), ())
    chosen = CompilerOptions(
        training=(("xla_of_training", True),), decoding=(("xla_of_blocks", 1),)
    )
    monkeypatch.setattr("loong_jax.run.devices.of_device", lambda *_: chosen)
    devices.rules_on.cache_clear()
    rules = devices.rules_on(MeshSettings(fsdp=2), 0, kind)
    devices.rules_on.cache_clear()
    for decodes, name in ((False, "xla_of_training"), (True, "xla_of_blocks")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=name):  # a CPU's compiler has none
            rules.jit(jnp.sin, decodes=decodes)(jnp.ones(2))
