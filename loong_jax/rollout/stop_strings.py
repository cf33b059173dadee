"""Texts that end a sample, found between two blocks of decode steps.

A stop may be complete within a block; what the block wrote behind it is cut off, so that the same
tokens are kept however long blocks are.
"""

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.rollout.attempts import Attempt

MAX_TOKENS = 4  # that a character takes


def cut(attempt: Attempt, tokenizer: Tokenizer, num_new: int) -> bool:
    """Cuts off what stands behind the token that completes a stop of the sample.

    Nothing is cut where False is returned. Looks at the turn that ends with the `num_new` tokens
    that a block wrote, and at the one that a prefill may have written before.
    """
    stops = attempt.job.sampling.stops
    if not stops:
        return False
    behind = MAX_TOKENS * max(map(len, stops)) + 1
    tokens = attempt.turn_tokens[-(num_new + behind) :]
    for end in range(max(1, len(tokens) - num_new), len(tokens) + 1):
        text = tokenizer.decode(tokens[:end])
        if any(stop in text for stop in stops):
            attempt.cut(len(tokens) - end)
            return True
    return False
