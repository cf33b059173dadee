"""From rollouts to new weights: rewards, advantages, objectives, trainer."""
