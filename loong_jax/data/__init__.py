"""Tokenizer, form of a response, packing of sequences.

Knows: configs, environments, errors, problems, remote, verifiers.
"""
