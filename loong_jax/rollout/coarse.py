"""An engine of lower precision than the trainer, as far as its weights go.

Real engines differ from the trainer's program by kernels, order of summation and number formats.
Rounding the weights that an engine loads stands for all of that on a machine where both would
otherwise agree to the last bits, so that corrections for the difference can be measured.
"""

import functools
from typing import Any

import jax

MOST_BITS = 23  # of float32's mantissa, the leading one not counted


def rounded(weights: Any, mantissa_bits: int) -> Any:
    """Weights to the nearest number of so many mantissa bits (7 is bfloat16), ties to even.

    Routers keep theirs, as they do in engines of low precision: kernel and bias are float32 in the
    published model too.
    """
    return _round(weights, mantissa_bits=mantissa_bits)


@functools.partial(jax.jit, static_argnames="mantissa_bits")
def _round(weights, mantissa_bits):
    def leaf(path, a):
        if any(getattr(entry, "key", entry) == "router" for entry in path):
            return a
        return jax.lax.reduce_precision(a, exponent_bits=8, mantissa_bits=mantissa_bits)

    return jax.tree_util.tree_map_with_path(leaf, weights)
