"""Helpers of tests: a model small enough to compile in a second or two, and its tokenizer."""

from loong_jax.testing.tiny import smallest_config, tokenizer

__all__ = ["smallest_config", "tokenizer"]
