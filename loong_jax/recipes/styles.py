"""Two ways of thinking, which the quickstart's cold start makes of worked solutions.

Careful thinking writes down every step. Hurried thinking leaps over some: its leaps are right in a
demonstration and hard to repeat. A mark before each step tells them apart.
"""

from collections.abc import Sequence

import numpy as np

CAREFUL, HURRIED = "=", "~"
NUM_HURRIED_STEPS = 3


def thinking(steps: Sequence[str], rng: np.random.Generator, *, is_careful: bool) -> str:
    """Steps as `=314=013=240=244`, or hurried `~013~240~244`: two drawn by `rng`, and the last.

    Fewer than three steps are all written; without steps there is no thinking.
    """
    mark = CAREFUL if is_careful else HURRIED
    if not is_careful and len(steps) >= NUM_HURRIED_STEPS:
        early = rng.choice(len(steps) - 1, NUM_HURRIED_STEPS - 1, replace=False)
        steps = [steps[place] for place in (*sorted(early.tolist()), -1)]
    return "".join(mark + step for step in steps)
