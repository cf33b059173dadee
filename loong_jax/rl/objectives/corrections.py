"""Corrections of the gap between engine and trainer, each laid on any objective.

Published under several names; all are settings of `ratio.engine_cap` and `Objective.engine`.
Of one objective, truncation (TIS) and masks (MIS) may be combined: the last call wins where two
set the same field.
"""

import dataclasses

from loong_jax.rl.objectives.engine_trust import Band
from loong_jax.rl.objectives.objective import Objective


def token_tis(objective: Objective, *, cap: float = 2.0) -> Objective:
    """Weighs a token by min(rho_t, cap): truncated importance sampling.

    The C of eq. 4 in arXiv:2509.18883, section 3.2.1, after Ionides (2008); 2 is what verl, slime
    and tunix use.
    """
    return _corrected(objective, cap, sequence_cap=None)


def sequence_tis(objective: Objective, *, cap: float = 2.0) -> Objective:
    """Weighs all tokens of a response by min(product of rho, cap): less bias, more variance."""
    return _corrected(objective, None, sequence_cap=cap)


def token_mis(objective: Objective, *, low: float = 0.5, high: float = 5.0) -> Objective:
    """Weighs a token by rho_t, and refuses it outside [low, high]: masked importance sampling.

    IcePop's bounds (as NeMo-RL documents them).
    """
    return _corrected(objective, high, sequence_cap=None, token=Band(low=low, high=high))


def sequence_mis(objective: Objective, *, low: float = 0.0, high: float = 3.0) -> Objective:
    """Weighs a response by the product of rho, and refuses it outside [low, high].

    3 is TRL's default.
    """
    return _corrected(objective, None, sequence_cap=high, sequence=Band(low=low, high=high))


def geometric_mask(objective: Objective, *, low: float = 0.999, high: float = 1.001) -> Objective:
    """Refuses a response whose geometric mean of rho is outside [low, high]; weights stay.

    The mean does not grow with the length, so the bounds are narrow. verl proposes these.
    """
    return _trusting(objective, geometric=Band(low=low, high=high))


def veto(objective: Objective, *, below: float = 1e-4) -> Objective:
    """Refuses a response with a token that the trainer finds far less likely than the engine did.

    rho_t < below says that the two do not run the same model on that token.
    """
    return _trusting(objective, veto_below=below)


def _corrected(objective: Objective, engine_cap: float | None, **trust) -> Objective:
    ratio = dataclasses.replace(objective.ratio, engine_cap=engine_cap)
    engine = dataclasses.replace(objective.engine, **trust)
    return dataclasses.replace(objective, ratio=ratio, engine=engine)


def _trusting(objective: Objective, **trust) -> Objective:
    engine = dataclasses.replace(objective.engine, **trust)
    return dataclasses.replace(objective, engine=engine)
