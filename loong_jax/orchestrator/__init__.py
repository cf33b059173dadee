"""Who does what, when. Nothing here touches an array.

Knows: data, errors, interrupts, own, problems, rl, rollout, verifiers.
"""
