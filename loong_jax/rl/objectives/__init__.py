"""Policy objectives as data, and the one loss that reads them.

An `Objective` has four parts: signal (`rl.advantages`), ratio, clip and reduction. `published` has
those of the field by name, `corrections` lays a correction of the engine's gap on any of them, and
`policy_loss` is loss and metrics. docs/reference/objectives.md says which to choose.
"""

from loong_jax.rl.objectives.bound_schedules import (
    BoundSchedule,
    LinearBound,
    SteppedBound,
    bound_at,
)
from loong_jax.rl.objectives.clips import (
    AsymmetricClip,
    Clip,
    DetachedClip,
    SymmetricClip,
    TripletClip,
    clipped_gain,
    pos_high_at,
)
from loong_jax.rl.objectives.corrections import (
    geometric_mask,
    sequence_mis,
    sequence_tis,
    token_mis,
    token_tis,
    veto,
)
from loong_jax.rl.objectives.engine_trust import Band, EngineTrust
from loong_jax.rl.objectives.loss import policy_loss
from loong_jax.rl.objectives.objective import K2KL, K3KL, Objective
from loong_jax.rl.objectives.published import (
    OBJECTIVES,
    cispo_objective,
    dapo_objective,
    decoupled_ppo_objective,
    dr_grpo_objective,
    dual_clip_objective,
    grpo_objective,
    gspo_objective,
    gspo_token_objective,
    longcat_objective,
    objective_of,
)
from loong_jax.rl.objectives.ratios import (
    DecoupledRatio,
    Ratio,
    SequenceRatio,
    SequenceTokenRatio,
    TokenRatio,
)
from loong_jax.rl.objectives.reductions import (
    MeanOfSequenceMeans,
    Reduction,
    TokenMean,
    TokenSumOverConstant,
)
from loong_jax.rl.objectives.sums import LossSums, empty_sums, summarise

__all__ = [
    "K2KL",
    "K3KL",
    "OBJECTIVES",
    "AsymmetricClip",
    "Band",
    "BoundSchedule",
    "Clip",
    "DecoupledRatio",
    "DetachedClip",
    "EngineTrust",
    "LinearBound",
    "LossSums",
    "MeanOfSequenceMeans",
    "Objective",
    "Ratio",
    "Reduction",
    "SequenceRatio",
    "SequenceTokenRatio",
    "SteppedBound",
    "SymmetricClip",
    "TokenMean",
    "TokenRatio",
    "TokenSumOverConstant",
    "TripletClip",
    "bound_at",
    "cispo_objective",
    "clipped_gain",
    "dapo_objective",
    "decoupled_ppo_objective",
    "dr_grpo_objective",
    "dual_clip_objective",
    "empty_sums",
    "geometric_mask",
    "grpo_objective",
    "gspo_objective",
    "gspo_token_objective",
    "longcat_objective",
    "objective_of",
    "policy_loss",
    "pos_high_at",
    "sequence_mis",
    "sequence_tis",
    "summarise",
    "token_mis",
    "token_tis",
    "veto",
]
