"""Tokenizer, form of a response, packing of sequences."""
