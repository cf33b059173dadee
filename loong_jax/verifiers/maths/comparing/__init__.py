"""Comparisons of one kind each, for what is the same without looking the same.

Sets: `real_sets` on `lines`, `finite_sets`, `residues` that repeat themselves, `families` with one
parameter. Functions: `piecewise`, also by parity, and `ellipses`. `vectors` and matrices.
"""
