"""Clips: what a token gains by its ratio, and where that stops.

Eq. 4 of arXiv:2509.18883 as printed applies its outer max to every advantage. For A > 0 and
eps_neg_high > 1 + eps_pos_high that max is the constant eps_neg_high * A, and no positive advantage
has a gradient. Here, as intended, it bounds the negative ones only:

    A > 0:   A min(r, 1 + eps_pos_high)
    A < 0:  -|A| min(max(r, 1 - eps_neg_low), eps_neg_high)

So dual clip (arXiv:1912.09729) is `TripletClip` with both distances equal to epsilon and
`eps_neg_high` its c. The report adjusts `eps_pos_high` while it trains (3.4.1) and says neither how
nor by how much: a schedule is data, and its value at a step a traced number, so that a step of
another bound runs the same program.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError, form_of, refuse_below, refuse_outside
from loong_jax.own import OwnPart

_DISTANCE = "a distance from a ratio of 1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearBound:
    """In a line from the clip's own value at step 0 to `end` at `num_steps`; `end` from there."""

    end: float
    num_steps: int

    def __post_init__(self):
        refuse_outside(self, "[0, inf)", "end")
        refuse_below(self, 1, "num_steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SteppedBound:
    """The clip's own value before steps[0], then values[i] from steps[i] on."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self):
        rises = all(a < b for a, b in zip(self.steps, self.steps[1:], strict=False))
        are_bounds = all(0 <= value < math.inf for value in self.values)
        fits = len(self.steps) == len(self.values) and are_bounds
        if not fits or not self.steps or not rises or self.steps[0] < 1:
            raise ConfigError(
                f"steps={self.steps} must rise from 1 or more, and values={self.values} hold for "
                "each a bound that is finite and >= 0. Correct the recipe."
            )


BoundSchedule = LinearBound | SteppedBound


def bound_at(schedule: BoundSchedule, start: float, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """The bound of the update that follows `step` updates; `start` is the clip's own value."""
    step = jnp.asarray(step, jnp.float32)
    if isinstance(schedule, LinearBound):
        share = jnp.clip(step / schedule.num_steps, 0.0, 1.0)
        return start + share * (schedule.end - start)
    values = jnp.array((start, *schedule.values), jnp.float32)
    return values[jnp.sum(step >= jnp.array(schedule.steps, jnp.float32)).astype(jnp.int32)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripletClip:
    """Eq. 4. `eps_neg_low` and `eps_pos_high` are distances from 1, `eps_neg_high` is a ratio.

    `pos_high_schedule` leads `eps_pos_high` elsewhere while the run goes on; None keeps it.
    """

    eps_neg_low: float = 0.2
    eps_neg_high: float = 3.0
    eps_pos_high: float = 0.28
    pos_high_schedule: BoundSchedule | None = None

    def __post_init__(self):
        refuse_outside(self, "[0, 1]", "eps_neg_low", why=_DISTANCE)
        refuse_outside(self, "[0, inf]", "eps_pos_high", why=_DISTANCE)
        cap = "a cap on the ratio of negative advantages, which below 1 stops on-policy tokens"
        refuse_outside(self, "[1, inf]", "eps_neg_high", why=cap)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SymmetricClip:
    """Eq. 3: the ratio is clipped to [1 - eps, 1 + eps] where that makes the objective smaller."""

    eps: float = 0.2

    def __post_init__(self):
        refuse_outside(self, "[0, 1]", "eps", why=_DISTANCE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsymmetricClip:
    """Clipped to [1 - eps_low, 1 + eps_high] where that makes the objective smaller: a wider upper
    side lets unlikely tokens grow (clip-higher, arXiv:2503.14476, eq. 8).
    """

    eps_low: float = 0.2
    eps_high: float = 0.28

    def __post_init__(self):
        refuse_outside(self, "[0, 1]", "eps_low", why=_DISTANCE)
        refuse_outside(self, "[0, inf]", "eps_high", why=_DISTANCE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetachedClip:
    """sg(clip(r, low, high)) * A * policy_logprob: every token keeps a gradient, of bounded weight
    (CISPO, arXiv:2506.13585, eq. 4 and 5). `low` and `high` are ratios.
    """

    low: float = 0.0
    high: float = 5.0

    def __post_init__(self):
        refuse_outside(self, "[0, 1]", "low", why="a bound of the ratio, no distance from 1")
        refuse_outside(self, "[1, inf]", "high", why="a bound of the ratio, no distance from 1")


Clip = TripletClip | SymmetricClip | AsymmetricClip | DetachedClip | OwnPart


def clipped_gain(
    ratio: Float[Array, "*S"],
    advantage: Float[Array, "*S"],
    clip: Clip,
    *,
    logprob: Float[Array, "*S"] | None = None,
    step: Int[Array, ""] | int | None = None,
) -> tuple[Float[Array, "*S"], Bool[Array, "*S"]]:
    """Per-token objective (to be maximised), and where the clip stops its gradient.

    `DetachedClip` needs `logprob`, that of the policy, and stops no gradient: there the second
    array says where it changed the weight. A clip with a schedule needs `step`, the number of
    updates so far. Raises ValueError where they are missing. A clip of your own has a method
    `gain(ratio, advantage, logprob)` that returns the same two.
    """
    if isinstance(clip, OwnPart):
        found = clip.gain(ratio, advantage, logprob)
        have = [form_of(one) for one in (found if isinstance(found, tuple) else (found,))]
        want = [form_of(ratio), f"bool{list(ratio.shape)}"]
        if have != want:
            raise ConfigError(
                f"{clip.kind}: `gain` gave {', '.join(have)}, and must give {', '.join(want)}: "
                "what a token gains, and True where the clip stops it. Return these two."
            )
        return found
    low, high = _bounds(clip, step)
    if isinstance(clip, DetachedClip):
        if logprob is None:
            raise ValueError(
                f"{clip} multiplies the policy's log-probability, which is missing. Pass logprob."
            )
        weight = jax.lax.stop_gradient(jnp.clip(ratio, low, high))
        return weight * advantage * logprob, (ratio < low) | (ratio > high)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    is_clipped = jnp.where(advantage > 0, ratio > high, (advantage < 0) & (ratio < low))
    if isinstance(clip, TripletClip):
        gain = jnp.where(advantage < 0, jnp.maximum(gain, clip.eps_neg_high * advantage), gain)
        is_clipped |= (advantage < 0) & (ratio > clip.eps_neg_high)
    return gain, is_clipped


def refuse_odd(clip: Clip) -> None:
    """ConfigError for one of your own whose gain or its slope is not finite, on policy or off it,
    or whose slope is 0 throughout.

    It is computed, so JAX takes its devices.
    """
    if not isinstance(clip, OwnPart):
        return
    ratio, advantage = jnp.array([[0.5, 1.0, 2.0]] * 2), jnp.array([[1.0] * 3, [-1.0] * 3])

    def gain(ratio: Float[Array, "*S"]) -> Float[Array, "*S"]:
        return clipped_gain(ratio, advantage, clip, logprob=jnp.log(ratio / 4))[0]

    slope = jax.grad(lambda ratio: gain(ratio).sum())(ratio)
    odd = ~(jnp.isfinite(gain(ratio)) & jnp.isfinite(slope))
    if odd.any():
        raise ConfigError(
            f"{clip.kind}: `gain` or its slope is not finite at ratios {ratio[odd].tolist()} with "
            f"advantages {advantage[odd].tolist()}, so nothing would be learnt. Correct it there: "
            "a branch that jnp.where leaves out must be finite too."
        )
    if not slope.any():
        raise ConfigError(
            f"{clip.kind}: the slope of `gain` is 0 at ratios 0.5, 1 and 2, so nothing would be "
            "learnt. Let it grow with ratio * advantage."
        )


def pos_high_at(clip: TripletClip, step: Int[Array, ""] | int | None) -> Float[Array, ""] | float:
    """`eps_pos_high` of the update that follows `step` updates."""
    if clip.pos_high_schedule is None:
        return clip.eps_pos_high
    if step is None:
        raise ValueError(
            f"pos_high_schedule={clip.pos_high_schedule} needs the step. Pass step, the number of "
            "updates so far, or use pos_high_schedule=None."
        )
    return bound_at(clip.pos_high_schedule, clip.eps_pos_high, step)


def _bounds(
    clip: TripletClip | SymmetricClip | AsymmetricClip | DetachedClip,
    step: Int[Array, ""] | int | None,
) -> tuple[float, float | Float[Array, ""]]:
    """The ratios below and above which a clip acts."""
    match clip:
        case TripletClip(eps_neg_low=low):
            return 1 - low, 1 + pos_high_at(clip, step)
        case SymmetricClip(eps=eps):
            return 1 - eps, 1 + eps
        case AsymmetricClip(eps_low=low, eps_high=high):
            return 1 - low, 1 + high
        case DetachedClip(low=low, high=high):
            return low, high
