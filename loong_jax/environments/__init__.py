"""Generators of problems whose answers are checked without a reference."""
