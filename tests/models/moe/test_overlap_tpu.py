"""What the compiled TPU program hides behind the dense path; compiles, runs nothing."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import pytest

from loong_jax.plan import figures, plan
from tests.plan.asking import asked

ENVIRONMENT = dict(
    JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", XLA_FLAGS=""
)
needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"), reason="libtpu is not installed"
)


@pytest.mark.release
@pytest.mark.timeout(1800)
@needs_libtpu
# LOONG_TOPOLOGIES="v5p:2x2x2 v6e:2x4" for both; each takes two minutes
@pytest.mark.parametrize("topology", os.environ.get("LOONG_TOPOLOGIES", "v5p:2x2x2").split())
def test_dense_products_run_inside_the_windows_of_both_exchanges(topology):
    child = subprocess.run(
        [sys.executable, "-m", "tests.models.moe.compile_for_tpu", topology],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    windows = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
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
@needs_libtpu
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
