"""Evaluation of a policy: sampling problems, pass@k, intervals.

`evaluation.evaluate` judges one set of weights, `compare.write_gains` sets stages beside each other
by problem, `metrics` holds the estimates.

Knows: data, errors, problems, rollout.
"""
