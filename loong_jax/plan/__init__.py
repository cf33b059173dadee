"""Pod plans: a program compiled ahead of time for a TPU slice, read, timed and explained.

Knows: config_kinds, configs, errors, launch, models, options, rl, run, sharding.
"""
