"""Tokenizer, form of a response, packing of sequences.

Knows: configs, environments, errors, problems, remote, verifiers.
"""

from loong_jax.problems import response

__all__ = ["response"]
