"""From prompts and weights to rollouts: engine, replicas, policy versions, buffer."""
