"""What the TPU compiler makes of exchanges and attention; compiles, runs nothing."""

import importlib.util
import os

import jax
import numpy as np
import pytest

from loong_jax.plan import figures, plan
from tests.plan.asking import asked, printed_for_tpu


@pytest.mark.release
@pytest.mark.timeout(1800)
# LOONG_TOPOLOGIES="v5p:2x2x2 v6e:2x4" for both; each takes two minutes
@pytest.mark.parametrize("topology", os.environ.get("LOONG_TOPOLOGIES", "v5p:2x2x2").split())
def test_dense_products_run_inside_the_windows_of_both_exchanges(topology):
    windows = printed_for_tpu("tests.models.moe.compile_for_tpu", topology)
    # Those of later rounds stand in loops of their own and hide nothing.
    first_rounds = [w for w in windows if "shard_map/while" not in w["scope"]]
    forward = [w["inside"] for w in first_rounds if "transpose" not in w["scope"]]
    backward = [w["inside"] for w in first_rounds if "transpose" in w["scope"]]
    assert len(forward) == len(backward) == 2
    dispatch, combine = forward
    assert "ffn_0" in dispatch
    assert "ffn_1" in combine
    combine, dispatch = backward
    assert "ffn_1" in combine or "attention_1" in combine
    assert "ffn_0" in dispatch


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
def test_rows_of_a_ragged_exchange_travel_beside_dense_products_in_decoding():
    """With rows in another form than TPUs exchange, nothing runs in either window."""
    if jax.__version_info__ < (0, 12):
        pytest.skip("the libtpu of earlier versions makes these exchanges synchronous on v5p")
    line = "longcat-flash --num-layers 2 --mode decode --num-steps 2 --exchange ragged"
    line += " --topology v5p:2x2x1 --mesh expert=4 --batch 624 --length 1024"
    rows = figures.to_json(plan.make(asked(line), timeout_s=1400))["collectives"]
    large = [row for row in rows if row["kind"] == "ragged-all-to-all" and row["sent_mb"] > 10]
    first_round = [row for row in large if row["trips"] > 0]
    assert len(first_round) == 2
    assert all(row["is_asynchronous"] and row["inside"] for row in first_round)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_exchange_and_cache_of_the_compiled_programs():
    (facts,) = printed_for_tpu("tests.models.moe.tpu_programs")
    for name, kernels in (("forward", 1), ("backward", 3)):
        assert facts[f"{name}_kernels"] == kernels  # splash attention: the value, dq, dk and dv
        growth = np.diff(facts[name]) / [1024, 2048]
        assert growth.max() < 1.5 * growth.min(), facts[name]
    latents = "bf16[1,{},576]"
    assert sorted(map(tuple, facts["exchanged"])) == [
        (latents.format(1024), "reduce-scatter"),
        (latents.format(4096), "all-gather"),
    ]
    assert facts["decode_alias"] >= facts["cache"]
    assert facts["decode_temporary"] < 0.1 * facts["cache"]
    assert not facts["decode_copies"]
    assert facts["decode_kernels"] == 2  # one per attention of the loop's layer
