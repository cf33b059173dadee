"""Carries out a recipe: stages, session, run directory, and the commands around them.

Knows: cli_help, configs, data, environments, errors, eval, interrupts, merge, models, options,
orchestrator, own, problems, process, recipes, remote, report, rl, rollout, sharding, synth,
verifiers.
"""
