"""Comparisons of one kind each, for what is the same without looking the same.

Sets: `real_sets` on `lines`, `finite_sets`, `residues` that repeat themselves, `families` with one
parameter. Functions: `piecewise`, `parity`, `halves` of curves, `ellipses`. Names: `binders` and
arbitrary `constants`. Values with more than a number: `vectors`, `temperatures`.
"""
