"""The smallest model and batch that can be timed."""

from loong_jax.bench import grid
from tests.doubles import tiny

SMALLEST = grid.Setting(
    name="smallest",
    reason="a test",
    config=tiny.smallest_config(num_layers=1, chunk_tokens=None),
    batch=2,
    length=8,
)
