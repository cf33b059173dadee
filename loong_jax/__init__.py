"""loong_jax: LongCat-Flash reasoning models trained by asynchronous reinforcement learning on JAX."""

__version__ = "0.1.0"
