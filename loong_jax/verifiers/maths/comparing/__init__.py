"""Comparisons of one kind each, for what is the same without looking the same."""
