"""Publishing: the trainer's weights become an immutable policy version."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
from jax.typing import DTypeLike

from loong_jax.rl.optimizers import Weights


@runtime_checkable
class Versions(Protocol):
    """The part of the version store that a trainer uses; see `loong_jax.rollout.versions`."""

    def put(self, version: int, weights: Weights) -> Any: ...

    def get(self, version: int) -> Weights: ...

    def acquire(self, version: int, holder: str) -> Any: ...

    def release(self, version: int, holder: str) -> Any: ...


def publish(
    store: Versions,
    version: int,
    weights: Weights,
    copy: Callable[[Weights], Weights],
    dtype: DTypeLike | None = None,
) -> None:
    """Stores a copy of `weights` as `version`, and returns once it is there.

    A copy, because the trainer gives its own buffers away at the next step. With `dtype`,
    floating-point weights are rounded to it, as engines of lower precision want them.
    """
    published = copy(weights)
    if dtype is not None:
        published = jax.tree.map(
            lambda w: w.astype(dtype) if jax.numpy.issubdtype(w.dtype, jax.numpy.floating) else w,
            published,
        )
    store.put(version, jax.block_until_ready(published))
