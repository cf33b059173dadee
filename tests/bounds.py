"""Bounds of work that machines of any speed keep: only what explodes breaks them."""

EXPLODES_S = 30.0  # of CPU; what is bounded takes a hundredth of it on a machine of today
