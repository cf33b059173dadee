"""The stages of a recipe: cold start, reinforcement learning, fusion. Each can be interrupted.

Every stage leaves in its directory: `weights/` (a checkpoint of nothing else), `evaluation.json`,
`metrics.jsonl`, sample rollouts, and `checkpoints/` from which it resumes.
"""

import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from loong_jax import configs, interrupts
from loong_jax.data import json_files
from loong_jax.errors import CheckpointError, LoongError
from loong_jax.eval import evaluation
from loong_jax.merge import report as merge_report
from loong_jax.merge import search
from loong_jax.merge.checkpoints import longcat_stacks
from loong_jax.models import parameters
from loong_jax.models.hf import published
from loong_jax.models.parameters import Weights
from loong_jax.orchestrator.experience_maker import Scorers, TrainerWithGenerators
from loong_jax.orchestrator.journal import Journal
from loong_jax.orchestrator.loop import LoopSettings, Orchestrator
from loong_jax.orchestrator.tickets import MixedStream, TicketSource
from loong_jax.recipes import EvaluationStage, FusionStage, RlStage, SftStage, Stage
from loong_jax.report.metrics_log import MetricsLog, read_metrics
from loong_jax.report.progress import Progress, SignalWatch
from loong_jax.report.usage import StepProfile
from loong_jax.rl import checkpoint, local_trainer, lora, policy_model, rewards, sft, trainer
from loong_jax.rl.collapse import CollapseWatch
from loong_jax.rl.local_trainer import LocalTrainer, TrainerSettings
from loong_jax.rl.policy_model import PolicyModel
from loong_jax.rollout.records import Group
from loong_jax.rollout.versions import VersionStore, manifest_of
from loong_jax.run import demonstrations, placement, starting
from loong_jax.run.pipeline import StageDirectories
from loong_jax.run.session import Session
from loong_jax.verifiers.raised import RaisedWatch

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 60.0
MAX_NOT_FINITE = 10  # in a row, whose loss is not finite
FINITE = ("loss", "grad_norm")  # metrics of a step that learns
T = TypeVar("T", bound=Stage)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work(Generic[T]):
    """A stage on its way: its settings, what it shares with others, where it reads and writes."""

    session: Session
    name: str
    stage: T
    directories: StageDirectories
    progress: Progress

    @property
    def own(self) -> Path:
        return self.directories.own

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains whose problems the stage poses."""
        return getattr(self.stage, "domains", ()) or self.session.domains

    @property
    def num_steps(self) -> int | None:
        """The number of steps of a stage that trains; None where time ends it."""
        stage: Any = self.stage
        return None if stage.wall_time_of else stage.num_steps

    def weights_of(self, name: str) -> Weights:
        """The weights of an earlier stage, or from elsewhere as weights of the recipe's model."""
        session, given = self.session, self.directories.given
        if name in given:
            return starting.load_on(given[name], session.recipe.model, session.rules)
        return load_weights(self.directories.inputs[name], session.abstract_weights)

    def keep_going(self, earlier_s: float) -> Callable[[], bool]:
        """True until as much time has passed as `wall_time_of` trained for; always true for none.

        `earlier_s` of it had passed before an interruption.
        """
        stages: tuple[str, ...] = getattr(self.stage, "wall_time_of", ())
        if not stages:
            return lambda: True
        done = [json_files.read_json(self.directories.inputs[n] / "done.json") for n in stages]
        whole_s = sum(part["wall_s"] - part["evaluation_s"] for part in done)
        ends_s = time.monotonic() + whole_s - earlier_s
        return lambda: time.monotonic() < ends_s


def save_weights(directory: Path, step: int, weights: Weights, like: Weights | None = None) -> None:
    """Writes `weights/` of a stage, rounded to the dtypes of `like`.

    Where that loses bits they are there as "masters" too, for the stages that go on from here.
    """
    stored = weights if like is None else policy_model.in_dtypes_of(weights, like)
    arrays: dict[str, Any] = {"weights": stored}
    if manifest_of(stored) != manifest_of(weights):
        arrays["masters"] = weights
    checkpoint.save(directory / "weights", step, arrays, keep=1)


def load_weights(directory: Path, like: Weights | None = None) -> Weights:
    """Loads a finished stage's weights, as precise as there are, each where its fellow in `like`
    lies, or on the first device. CheckpointError where they are damaged.
    """
    known = parameters.by_path(like or {})

    def place(name: str) -> jax.sharding.Sharding | None:
        return getattr(known.get(name.partition("/")[2]), "sharding", None)

    try:
        arrays = checkpoint.restore(directory / "weights", shardings=place).arrays
    except CheckpointError as error:
        raise CheckpointError(
            f"the weights of stage {directory.name} cannot be read: {error} If {directory} is of "
            f"this run, delete {directory / 'done.json'} and {directory / 'weights'}, and the same "
            "command makes them again from the stage's last checkpoint."
        ) from error
    return jax.tree.map(jnp.asarray, arrays.get("masters", arrays["weights"]))


def run_sft(work: Work[SftStage]) -> dict[str, Any]:
    """Supervised fine-tuning on demonstrations."""
    session, settings, own = work.session, work.stage, work.own
    if settings.samples_of is None:
        pairs: Iterable[Any] = demonstrations.pairs_of(session.recipe, settings, session.texts)
    else:
        samples = work.directories.inputs[settings.samples_of]
        pairs = demonstrations.sampled(samples, session.recipe.seed)
    start = session.fresh_weights if settings.after is None else work.weights_of(settings.after)
    policy, start, frozen = _to_train(work, start)
    state, cursor = trainer.initial_state(policy, settings.optimizer, start), 0
    checkpoints = own / "checkpoints"
    if checkpoint.steps(checkpoints):
        places = trainer.shardings(policy, settings.optimizer, start, start)
        found = checkpoint.restore(checkpoints, fall_back=True, shardings=places)
        _say_skipped(found.skipped, found.step)
        state = trainer.from_arrays(policy, settings.optimizer, start, found.arrays)
        cursor = found.metadata["cursor"]
    first_step = int(state.step)
    work.progress.start(work.name, num_steps=work.num_steps, first_step=first_step)
    with (
        MetricsLog(own, stage=work.name, restored_step=first_step) as log,
        StepProfile(own / "profile") as profile,
        interrupts.between_steps(),
    ):

        def save(state, cursor) -> None:
            arrays = trainer.to_arrays(state)
            checkpoint.save(checkpoints, int(state.step), arrays, {"cursor": cursor}, keep=2)

        def on_step(state, cursor, metrics) -> None:
            step = int(state.step)
            log.step(step, metrics)
            work.progress.step(step, metrics)
            profile.step()
            if step % settings.checkpoint_every == 0 or interrupts.is_waiting():
                save(state, cursor)
            interrupts.let_through()

        state, cursor = sft.run(
            policy,
            configs.made_from(sft.SftSettings, settings),
            state,
            pairs,
            session.texts.example,
            cursor=cursor,
            frozen=frozen,
            on_step=on_step,
            keep_going=work.keep_going(log.earlier_s),
        )
        if int(state.step) not in checkpoint.steps(checkpoints):
            save(state, cursor)  # before it is evaluated
    _save_adapter(work, state.weights)
    found = _finish(work, policy.join(state.weights, frozen), int(state.step))
    return found | {"num_pairs": cursor, "earlier_s": log.earlier_s}


def _say_skipped(skipped: Sequence[str], step: int) -> None:
    for reason in skipped:
        logger.warning("passed over a damaged checkpoint, %s; going on from step %d", reason, step)


class _Trained(NamedTuple):
    """The trained part of some weights, and its policy."""

    policy: PolicyModel
    weights: Weights
    frozen: Any  # the part it leaves as it is


def _to_train(work: Work[Any], weights: Weights) -> _Trained:
    policy, config = work.session.policy, work.stage.lora
    if config is None:
        return _Trained(policy, weights, ())
    key = jax.random.key(work.session.recipe.seed)
    adapters = lora.initial_adapters(policy, config, weights, key)
    return _Trained(lora.lora_policy(policy, config), adapters, weights)


def run_rl(work: Work[RlStage]) -> dict[str, Any]:
    """Asynchronous reinforcement learning from the weights of `settings.after`."""
    session, settings, own = work.session, work.stage, work.own
    max_staleness, form = settings.scheduler.max_staleness, session.texts.form
    also = {"max_staleness": max_staleness, "form": form}
    trainer_settings = configs.made_from(TrainerSettings, settings, **also)
    weights = work.weights_of(settings.after)
    reference = None  # where the objective has a penalty: what the stage started from
    if settings.objective.kl is not None:
        reference = work.weights_of(settings.reference) if settings.reference else weights
    policy, trained, frozen = _to_train(work, weights)
    checkpoints = own / "checkpoints"
    if checkpoint.steps(checkpoints):
        state, versions, control, skipped = local_trainer.restore(
            policy, trainer_settings, trained, checkpoints, frozen=frozen
        )
        _say_skipped(skipped, int(state.step))
    else:
        state = trainer.initial_state(policy, settings.optimizer, trained)
        versions, control = {0: policy.published(weights)}, None
    del weights, trained
    first_step = int(state.step)
    store = VersionStore(max_staleness, offload=session.recipe.engine.offload_versions)
    for version in sorted(versions):
        store.put(version, versions.pop(version))  # the store alone keeps it alive
    work.progress.start(work.name, num_steps=work.num_steps, first_step=first_step)
    replicas = placement.start_replicas(
        session.recipe, settings, session.engines, store, trainer_settings, session.agent
    )
    learner = local = LocalTrainer(
        model=policy,
        settings=trainer_settings,
        state=state,
        versions=store,
        checkpoints=checkpoints,
        reference=reference,
        frozen=frozen,
    )
    del state, reference, frozen
    streams = [demonstrations.stream_of(session.recipe, name, "train") for name in work.domains]
    tickets = TicketSource(
        MixedStream(streams=tuple(stream.problem_at for stream in streams)),
        max_issues=settings.max_issues,
        curriculum=settings.curriculum,
    )
    if isinstance(replicas, Scorers):
        learner = TrainerWithGenerators(learner, replicas)

    def grade(group: Group) -> tuple[Group, rewards.Disposition]:
        """`rewards.grade`, save that equal rewards may train: by a penalty, advantages are 0."""
        graded, disposition = rewards.grade(group, settings.reward)
        is_kept = settings.learns_from_all and disposition == "filtered"
        return graded, "keep" if is_kept else disposition

    journal = Journal(own / "journal")
    with (
        MetricsLog(own, stage=work.name, restored_step=first_step, form=form) as log,
        StepProfile(own / "profile") as profile,
    ):
        orchestrator = Orchestrator(
            name=work.name,
            settings=configs.made_from(LoopSettings, settings, seed=session.recipe.seed),
            trainer=learner,
            replicas=replicas,
            verifiers=session.pool,
            tickets=tickets,
            versions=store,
            grade=grade,
            log=_ShownLog(work, log, profile),
            keep_going=work.keep_going(log.earlier_s),
            journal=journal,
        )
        try:
            orchestrator.restore(control)
            final = orchestrator.run()
        finally:
            replicas.close(CLOSE_TIMEOUT_S)
            learner.close(CLOSE_TIMEOUT_S)
            journal.close()
    _save_adapter(work, local.state.weights)
    return _finish(work, local.weights, final.step) | {
        "tickets": final.counts(),
        "earlier_s": log.earlier_s,
        "rollout": replicas.statistics(),
        **({"scored": learner.num_scored} if isinstance(learner, TrainerWithGenerators) else {}),
    }


def run_fusion(work: Work[FusionStage]) -> dict[str, Any]:
    """Fuses the experts, with scale and keep rate chosen on validation problems."""
    session, settings = work.session, work.stage
    base = work.weights_of(settings.base)
    experts = {expert: work.weights_of(expert) for expert in settings.experts}
    problems = {
        domain: demonstrations.held_out(session.recipe, domain, "validation", settings.num_problems)
        for domain in session.domains
    }
    grid = {"scales": settings.scales, "keep_rates": settings.keep_rates}
    points = search.candidates(settings.method, **grid)
    work.progress.start(work.name, num_steps=len(points))

    def pass_rates(weights: Weights) -> dict[str, float]:
        sample, found = session.sampler(weights), {}
        for domain, asked in problems.items():
            once = sample(asked, 1, session.recipe.evaluation.sampling)
            verdicts = session.judge(asked, [rollout for (rollout,) in once])
            graded = [verdict for verdict in verdicts if verdict.is_graded]
            found[domain] = sum(v.is_correct for v in graded) / max(len(graded), 1)
        return found

    own_domain = dict(session.recipe.experts)
    expert_rate = {(d := own_domain[name]): pass_rates(w)[d] for name, w in experts.items()}

    def score(weights: Weights) -> dict[str, float]:
        """By domain, how far the fused model is above the expert of that domain."""
        rates = pass_rates(weights)
        return {domain: rates[domain] - rate for domain, rate in expert_rate.items()}

    tried = itertools.count(1)
    result = search.grid_search(
        base,
        experts,
        score,
        method=settings.method,
        **grid,
        reduce=search.worst_score,
        on_point=lambda point: work.progress.step(next(tried), {}),
        batch_axes=longcat_stacks,
    )
    fused, report = merge_report.fuse_with_report(
        base, experts, method=result.method, batch_axes=longcat_stacks
    )
    found = result.to_json()
    chosen = {"grid": found["grid"], "chosen": found["chosen"]}
    json_files.write_json(work.own / "fusion.json", report | chosen)
    return _finish(work, fused, 0)


def _save_adapter(work: Work[Any], adapters: Weights) -> None:
    """`adapter/` of a stage that trains one, as the peft library reads it."""
    session, config = work.session, work.stage.lora
    if config is not None:
        model, leaves = session.recipe.model, parameters.by_path(session.abstract_weights)
        places = published.published_as(model).places(model, leaves)
        lora.save_peft(work.own / "adapter", config, adapters, session.policy, places)


def run_evaluation(work: Work[EvaluationStage]) -> dict[str, Any]:
    """Evaluates weights as they are, as engines sample them."""
    work.progress.start(work.name, num_steps=None)
    weights = work.session.policy.published(work.weights_of(work.stage.of))
    return _evaluate(work, weights, 0)


class _ShownLog:
    """A metrics log whose steps also appear on the terminal, and are watched: for a collapse, for
    what verifiers raise, and for groups that teach nothing where only rewards can."""

    def __init__(self, work: Work[RlStage], log: MetricsLog, profile: StepProfile):
        self._log, self._progress, self._profile = log, work.progress, profile
        self._collapse = CollapseWatch(work.stage.collapse, read_metrics(work.own))
        self._signal = None if work.stage.learns_from_all else SignalWatch(logger.warning)
        self._raised = RaisedWatch(logger.warning)
        self._num_judged = self._num_not_finite = 0
        self.event = log.event

    def judged(self, group: Group, disposition: rewards.Disposition) -> None:
        self._log.judged(group, disposition)
        self._num_judged += 1
        self._progress.meanwhile(f"{self._num_judged} groups judged since")
        self._raised.seen(one.verdict for one in group.rollouts if one.verdict is not None)
        if self._signal is not None:
            self._signal.judged(group)

    def step(self, step, metrics, groups) -> None:
        self._num_judged = 0
        record = self._log.step(step, metrics, groups)
        self._progress.step(step, record)
        self._profile.step()
        self._collapse.step(step, metrics)
        odd = [f"{k}={metrics[k]}" for k in FINITE if not math.isfinite(metrics.get(k, 0.0))]
        self._num_not_finite = self._num_not_finite + 1 if odd else 0
        if self._num_not_finite == 1:
            logger.warning("step %d has %s, so nothing was learnt", step, ", ".join(odd))
        if self._num_not_finite == MAX_NOT_FINITE:
            raise LoongError(
                f"{MAX_NOT_FINITE} steps in a row, up to {step}, had no finite loss or gradient, "
                "so nothing is learnt. Look at the objective, above all at parts of your own, and "
                "at the weights; the last checkpoint is intact."
            )


def _finish(work: Work[Any], weights: Weights, step: int) -> dict[str, Any]:
    """Saves the weights, evaluates them as engines sample them, and says what came of it."""
    session = work.session
    save_weights(work.own, step, weights, session.abstract_weights)
    return _evaluate(work, session.policy.published(weights), step)


def _evaluate(work: Work[Any], weights: Weights, step: int) -> dict[str, Any]:
    session, progress, domains = work.session, work.progress, work.domains
    if not domains:
        progress.finish(work.name)
        return {"steps": step, "evaluation_s": 0.0}
    progress.note("evaluating")
    started_s, posed = time.monotonic(), [len(session.posed[domain]) for domain in domains]
    counted = evaluation.counted(
        lambda done, total: progress.meanwhile(f"evaluating: {done} of {total} groups"),
        session.recipe.evaluation,
        posed,
    )
    result, samples = session.evaluate(weights, stage=work.name, domains=domains, progress=counted)
    result.save(work.own)
    json_files.write_jsonl(work.own / "rollouts" / "evaluation.jsonl", samples)
    shown = []
    for domain, part in result.to_json()["domains"].items():
        left_out = f" ({part['ungradable']} samples not graded)" if part["ungradable"] else ""
        shown.append(f"{domain} {part['pass@1']:.1%}{left_out}")
    progress.finish(work.name, f"pass@1: {', '.join(shown)}")
    return {"steps": step, "evaluation_s": round(time.monotonic() - started_s, 2)}
