"""What the TPU compiler makes of attention, without a TPU."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

ENVIRONMENT = dict(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu to compile")
def test_memory_exchange_and_cache_of_the_compiled_programs():
    command = [sys.executable, "-m", "tests.models.moe.tpu_programs"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        command, env=environment | ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
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
