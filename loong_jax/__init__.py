"""loong_jax: LongCat-Flash reasoners trained by asynchronous reinforcement learning on JAX."""

__version__ = "0.1.0"
