"""What the compiled TPU program hides behind the dense path; compiles, runs nothing."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

ENVIRONMENT = dict(
    JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", XLA_FLAGS=""
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
# LOONG_TOPOLOGIES="v5p:4x4x2 v6e:4x8" for both; each takes minutes, tpu7x too many
@pytest.mark.parametrize("topology", os.environ.get("LOONG_TOPOLOGIES", "v5p:4x4x2").split())
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
