"""What is compared: groups of arms, each a change to one stage of the quickstart.

All runs start from the same cold start, take as many steps of as many groups, and are judged on the
same held-out problems. Except where whole groups are replayed, scheduling is deterministic: a
response is then as stale as the bound allows once the run is under way, whatever the machine does,
and the same run gives the same figures.
"""

import dataclasses
from collections.abc import Mapping

from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.launch.recipe import LocalVerifiers, Recipe, RlStage, Stage
from loong_jax.launch.recipes.quickstart import GROUP_SIZE, MAX_NEW_TOKENS, quickstart
from loong_jax.orchestrator.policy import DoraPolicy
from loong_jax.rl import objectives
from loong_jax.rl.objectives import Objective, TokenRatio
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.reuse import GroupReuse

STAGE = "rl_stem"
DOMAIN = "stem"
STALENESS = 2  # of arms that are about something else
COARSE_BITS = 3  # of the mantissa of the weights that sample where the engine is perturbed
NEVER = 1_000_000  # tickets: no run may end early, or it would consume less than the others


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How long a run is and how closely it is looked at."""

    steps: int = 40
    groups_per_step: int = 32  # P; responses are P * 8
    problems: int = 512  # held out
    samples: int = 4  # of each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One run per seed. Arms of equal settings are one, whatever groups they stand in."""

    objective: Objective = objectives.longcat_objective(
        group_size=GROUP_SIZE, max_response_tokens=MAX_NEW_TOKENS
    )
    max_staleness: int = STALENESS
    is_deterministic: bool = True
    reuse_share: float = 0.0  # of a step's groups
    replays_routing: bool = False
    mantissa_bits: int | None = None  # of the weights that sample; None: the trainer's own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A question, and the arms that answer it; the first is what the others are compared with."""

    question: str
    arms: Mapping[str, Arm]

    @property
    def base(self) -> str:
        return next(iter(self.arms))


def _without_correction() -> Objective:
    """Eq. 4 without the truncated importance weight of the engine."""
    return objectives.longcat_objective(
        group_size=GROUP_SIZE,
        max_response_tokens=MAX_NEW_TOKENS,
        ratio=TokenRatio(engine_cap=None),
    )


def _free_running(share: float) -> Arm:
    """Written as the trainer goes, so that what was trained is young enough to be read again."""
    return Arm(max_staleness=4, is_deterministic=False, reuse_share=share)


COARSE = Arm(mantissa_bits=COARSE_BITS)

GROUPS: dict[str, Group] = {
    "objective": Group(
        question="which objective",
        arms={
            "eq. 4": Arm(),
            "GRPO": Arm(objective=objectives.grpo_objective(group_size=GROUP_SIZE)),
            "DAPO": Arm(objective=objectives.dapo_objective()),
            "CISPO": Arm(objective=objectives.cispo_objective()),
        },
    ),
    "staleness": Group(
        question="how stale responses may be, in steps",
        arms={str(bound): Arm(max_staleness=bound) for bound in (0, 1, 2, 4)},
    ),
    "replay": Group(
        question="which share of a step is trained for the second time",
        arms={f"{share:g}": _free_running(share) for share in (0.0, 0.25, 0.5)},
    ),
    "routing": Group(
        question="whether the trainer takes the engine's experts, weights rounded in the engine",
        arms={
            "own routing": COARSE,
            "replayed": dataclasses.replace(COARSE, replays_routing=True),
        },
    ),
    "tis": Group(
        question="truncated importance sampling, weights rounded in the engine",
        arms={
            "with TIS": COARSE,
            "without": dataclasses.replace(COARSE, objective=_without_correction()),
            "exact engine": Arm(),
        },
    ),
}


def recipe_of(arm: Arm, seed: int, size: Size) -> Recipe:
    """The quickstart with `STAGE` as the arm and the size say. The seed draws problems and tokens;
    weights come from the cold start.
    """
    whole = quickstart()
    return dataclasses.replace(
        whole,
        seed=seed,
        engine=dataclasses.replace(whole.engine, mantissa_bits=arm.mantissa_bits),
        verifiers=LocalVerifiers(num_workers=1),
        evaluation=EvaluationSettings(
            num_problems=size.problems,
            samples_per_problem=size.samples,
            sampling=SamplingSettings(max_new_tokens=MAX_NEW_TOKENS),
            greedy=False,
            pass_at=0,
        ),
        stages={**whole.stages, STAGE: _stage(whole.stages[STAGE], arm, size)},
    )


def _stage(stage: Stage, arm: Arm, size: Size) -> RlStage:
    assert isinstance(stage, RlStage)
    num_fresh = round(size.groups_per_step * (1 - arm.reuse_share))
    return dataclasses.replace(
        stage,
        num_steps=size.steps,
        scheduler=DoraPolicy(
            groups_per_step=num_fresh,
            max_staleness=arm.max_staleness,
            max_ahead=0.4,
            deterministic=arm.is_deterministic,
        ),
        objective=arm.objective,
        reuse=GroupReuse(share=arm.reuse_share),
        replays_routing=arm.replays_routing,
        checkpoint_every=max(10, size.steps // 2),
        solved_after=NEVER,
    )
