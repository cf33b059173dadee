"""The smallest model and batch that can be timed."""

from loong_jax.bench import ours
from tests.doubles import tiny

SMALLEST = ours.Setting(
    name="smallest",
    reason="a test",
    config=tiny.smallest_config(num_layers=1, chunk_tokens=None),
    batch=2,
    length=8,
)
