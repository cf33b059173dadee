"""What a process that computes on CPU does with the memory it frees."""

import subprocess
import sys

import pytest

FAULTS_OF_A_RUN = """
import resource
from loong_jax import process
{keep}
import jax
import jax.numpy as jnp

@jax.jit
def run(x, w):
    def last(x, w):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0])

    return jax.grad(last, argnums=(0, 1))(x, w)


x, w = jnp.ones(({rows}, 64)), jnp.full((8, 64, 64), 0.01)
least = 2**31
for _ in range(8):  # what a run returned is freed before or after the next one allocates
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(run(x, w))
    least = min(least, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(least)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sets glibc's malloc")
@pytest.mark.parametrize(
    ("rows", "keep"),
    [(5_000, ""), pytest.param(20_000, "one_arena=True", marks=pytest.mark.release)],
)
def test_a_later_run_needs_no_new_pages(rows, keep):
    """The states kept for a backward pass, 10 and 41 MB, otherwise come anew from the kernel."""

    def faults(keep: str) -> int:
        code = FAULTS_OF_A_RUN.format(keep=keep, rows=rows)
        return int(subprocess.check_output([sys.executable, "-c", code], text=True))

    assert faults(f"process.keep_freed_memory({keep})") < 500 < 2000 < faults("")
