"""From rollouts to new weights: rewards, advantages, objectives, trainer.

Knows: checksums, data, errors, models, own, problems, process, rollout, sharding.
"""
