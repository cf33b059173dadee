"""Experiments: scripts over the package, run from a checkout."""
