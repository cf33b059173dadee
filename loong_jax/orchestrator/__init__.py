"""Who does what, when. Nothing here touches an array.

Knows: data, errors, interrupts, problems, rl, rollout, verifiers.
"""
