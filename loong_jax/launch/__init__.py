"""Ways onto clusters.

Knows: cli_help, errors, options, recipes, run.
"""
