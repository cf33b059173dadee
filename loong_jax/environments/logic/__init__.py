"""Short problems of deduction, for environments; the long ones are tasks (tasks.py)."""
