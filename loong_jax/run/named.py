"""Parts of a stage by name: `--rl.objective dapo --sft.optimizer muon`.

Each part is a dataclass of one kind or another, whose fields are options. What the command line
names takes the place of the recipe's own. `FILE.py:FUNCTION` is one of your own: a function that
takes the stage and returns its part, or a class of schedulers or of merge methods.
"""

import dataclasses
import difflib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp

from loong_jax import cli_help, own, verifiers
from loong_jax.errors import ConfigError, shown
from loong_jax.merge import METHODS, search
from loong_jax.merge.methods import OWN_METHOD, FusionMethod
from loong_jax.orchestrator import dora, faults, protocols
from loong_jax.orchestrator.ledger import Ledger, ReplicaState
from loong_jax.orchestrator.loop import LoopSettings
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.recipes import SCHEDULERS, FusionStage, Recipe, RlStage
from loong_jax.recipes.stages import OWN_SCHEDULER, Scheduler, of_sizes
from loong_jax.rl import rewards
from loong_jax.rl.objectives import OBJECTIVES, Objective, clipped_gain
from loong_jax.rl.optimizers import AdamW, Muon, Optimizer
from loong_jax.run import own_problems
from loong_jax.run.choosing import value_of

logger = logging.getLogger(__name__)

OPTIMIZERS: dict[str, type] = {"adamw": AdamW, "muon": Muon}
NAMES: Mapping[str, Mapping[str, Any]] = {  # field of a stage -> what can be named there
    "objective": OBJECTIVES,
    "scheduler": SCHEDULERS,
    "optimizer": OPTIMIZERS,
    "method": {name: kind for name, kind in METHODS.items() if kind in get_args(FusionMethod)},
}
_KINDS = {"objective": (Objective,), "optimizer": get_args(Optimizer)}
_CLASSES = {"scheduler": OWN_SCHEDULER, "method": OWN_METHOD}  # fields that a class may name


def choose(recipe: Recipe, arguments: Sequence[str]) -> tuple[Recipe, list[str]]:
    """The recipe with the parts that `arguments` name, and the arguments that are left.

    Raises ConfigError where a name is none, or a function of one's own returns something else.
    """
    left = list(arguments)
    stages = dict(recipe.stages)
    for stage_name, stage in recipe.stages.items():
        prefix = f"--{stage_name.replace('_', '-')}"
        if isinstance(stage, RlStage):
            stage = _sized(stage, prefix, left)
        for field in NAMES:
            option = f"{prefix}.{field}"
            name, others = cli_help.take(option, left)
            if name and hasattr(stage, field):
                left = others
                stage = dataclasses.replace(stage, **{field: _part(field, option, name, stage)})
        _refuse_misspelt(prefix, left)
        stages[stage_name] = stage
    return dataclasses.replace(recipe, stages=stages), left


def try_own_parts(recipe: Recipe) -> None:
    """Makes the parts of your own and asks each once: an error for what is wrong with them, before
    anything runs.
    """
    for stage in recipe.stages.values():
        if isinstance(stage, RlStage):
            _try_policy(stage.scheduler, recipe)
            _try_objective(stage.objective, stage.group_size)
        if isinstance(stage, FusionStage):
            _try_method(stage)
    verifiers.try_all(own_problems.verifiers_of(recipe.problems))


def _try_method(stage: FusionStage) -> None:
    """Makes its candidates. ConfigError for values of a setting that it lacks; a warning of a value
    of its own that is not among those tried.
    """
    search.candidates(stage.method, stage.scales, stage.keep_rates)
    usual = {field.name: field.default for field in dataclasses.fields(stage)}
    method: Any = own.part_of(stage.method)
    for name in ("scale", "keep_rate"):
        tried = getattr(stage, f"{name}s")
        field = next((one for one in dataclasses.fields(method) if one.name == name), None)
        if field is None and tried != usual[f"{name}s"]:
            raise ConfigError(
                f"{name}s={tried} would go unused: the method {own.name_of(stage.method)} has no "
                f"field `{name}`. Add one, or leave them out."
            )
        given = getattr(method, name, None)
        if field is not None and given != field.default and given not in tried:
            logger.warning(
                "%s=%s of the method is not tried: a fusion chooses among %ss=%s. Give those.",
                name, given, name, tried,
            )  # fmt: skip


def _try_policy(policy: Any, recipe: Recipe) -> None:
    """Lets it decide how a run begins."""
    own.part_of(policy)
    protocols.check_policy(policy)
    num_apart = recipe.engine.num_replicas - recipe.engine.num_elastic
    states = [ReplicaState(elastic=n >= num_apart) for n in range(recipe.engine.num_replicas)]
    no_problem: Any = None
    source, limit = TicketSource(no_problem), policy.groups_per_step
    begun = Ledger(source=source, replicas=states, total_steps=1, issue_limit=limit)
    actions = dora.decide(begun, policy)
    if not actions:
        faults.refuse_standstill(begun, policy)
    for action in actions[:1]:
        faults.refuse_action(action, begun, policy)
        faults.refuse_excess(action, begun, policy, LoopSettings.max_tickets_per_step)


def _try_objective(objective: Objective, group_size: int) -> None:
    """Gives its signal rewards, and traces its clip's gradient, which computes nothing."""
    rewards.group_advantages([float(n == 0) for n in range(group_size)], objective.signal)
    gain = jax.grad(lambda r, a, p: clipped_gain(r, a, objective.clip, logprob=p, step=0)[0].sum())
    jax.eval_shape(gain, *[jax.ShapeDtypeStruct((2, 3), jnp.float32)] * 3)


def _part(field: str, option: str, name: str, stage: Any) -> Any:
    if ".py" in name:
        found = own.own_function(name)
        if field in _CLASSES and isinstance(found, type):
            known = _shared(stage.scheduler, found) if field == "scheduler" else {}
            return own.named(name, _CLASSES[field], known)
        part = found if isinstance(found, type) else found(stage)
        if field in _CLASSES:
            return own.as_own(part, name, _CLASSES[field])
        if not isinstance(part, _KINDS[field]):
            kinds = ", ".join(kind.__name__ for kind in _KINDS[field])
            said = "is a class" if part is found else f"returned {shown(part)}"
            raise ConfigError(
                f"{option}={name} {said}. Name a function that takes the stage and returns one of "
                f"{kinds}."
            )
        return part
    if name not in NAMES[field]:
        raise ConfigError(
            f"{option}={name} is unknown. Choose one of: {', '.join(NAMES[field])}; or one of your "
            "own: FILE.py:FUNCTION, which is called with the stage"
            + (", or FILE.py:CLASS." if field in _CLASSES else ".")
        )
    if field == "objective":
        return OBJECTIVES[name](stage.group_size, stage.sampling.max_new_tokens)
    kind = NAMES[field][name]
    return kind(**_shared(getattr(stage, field), kind))


def _shared(old: Any, kind: Callable[..., Any]) -> Mapping[str, Any]:
    """Settings of `old` that `kind` has as well, by the same name and of the same type.

    Of a scheduler of ours that another follows, P and S: `max_ahead` has a meaning in each.
    """
    if isinstance(old, own.OwnPart):
        given, types = old.settings, {}
    else:
        given = {field.name: getattr(old, field.name) for field in dataclasses.fields(old)}
        if isinstance(old, get_args(Scheduler)) and kind is not type(old):
            given = {name: given[name] for name in given if name in OWN_SCHEDULER.needs}
        types = {field.name: field.type for field in dataclasses.fields(old)}
    return {
        name: given[name]
        for name, parameter in inspect.signature(kind).parameters.items()
        if name in given and types.get(name, parameter.annotation) == parameter.annotation
    }


def _sized(stage: RlStage, prefix: str, arguments: Sequence[str]) -> RlStage:
    """The stage with the sizes that the arguments override, in its objective too."""

    def given(option: str, default: int) -> int:
        word = value_of(f"{prefix}.{option}", arguments) or ""
        return int(word) if word.isdecimal() else default

    row_length = given("row-length", stage.row_length)
    return of_sizes(
        dataclasses.replace(stage, row_length=row_length),
        group_size=given("group-size", stage.group_size),
        max_new_tokens=given("sampling.max-new-tokens", stage.sampling.max_new_tokens),
    )


def _refuse_misspelt(prefix: str, arguments: Sequence[str]) -> None:
    """Refuses misspelt options whose value is a name, which no other parser knows."""
    for word in arguments:
        stage, _, name = word.partition("=")[0].rpartition(".")
        if stage == prefix and (meant := difflib.get_close_matches(name, NAMES, 1, 0.8)):
            raise ConfigError(f"{word} is not an option. Write {prefix}.{meant[0]}.")
