"""Objects that the stages of a run share: model, engine programs, verifier pool, problems.

Built once per process, so that stages of equal shapes share compiled programs and one pool.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import jax

from loong_jax.errors import ConfigError
from loong_jax.eval import evaluation
from loong_jax.models.families import family_of
from loong_jax.models.parameters import Weights
from loong_jax.orchestrator.protocols import refuse_unable
from loong_jax.own import part_of
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict
from loong_jax.recipes import FileProblems, RayReplicas, RayVerifiers, Recipe, RlStage
from loong_jax.recipes import problems as problem_kinds
from loong_jax.rl.objectives import clips
from loong_jax.rl.policy_model import policy_of
from loong_jax.rollout import sampling
from loong_jax.rollout.records import Rollout
from loong_jax.run import demonstrations, devices
from loong_jax.run.own_problems import verifiers_of
from loong_jax.run.placement import engine_on, group_kind
from loong_jax.run.texts import Texts, texts_of
from loong_jax.verifiers import admission
from loong_jax.verifiers.pool import FormedPool, LocalVerifierPool, VerifierPool, VerifierRequest
from loong_jax.verifiers.raised import RaisedWatch
from loong_jax.verifiers.worker import WorkerConfig

logger = logging.getLogger(__name__)

DEADLINE_S, TIMEOUT_S = 20.0, 600.0  # of one verdict, of a batch


class Session(contextlib.AbstractContextManager):
    """Use as a context manager; `close` ends the verifier pool."""

    def __init__(self, recipe: Recipe, texts: Texts | None = None):
        """`texts` are those of the recipe unless given."""
        for name, stage in recipe.stages.items():
            if isinstance(stage, RlStage):
                kind = group_kind(recipe.engine.placement)
                refuse_unable(part_of(stage.scheduler), kind, where=f"{name}.scheduler")
        self.recipe = recipe
        self.texts = texts or texts_of(recipe)
        self.agent = self.texts.agent
        self.tokenizer = self.texts.tokenizer
        self.posed = evaluation_problems(recipe, self.texts)
        self.domains = tuple(self.posed)
        self.verifiers = _start_pool(recipe)  # before JAX has threads, since Ray forks
        self.pool = FormedPool(self.verifiers, self.texts.form)
        self.judge = Judge(self.pool)
        shares = devices.shares_of(recipe)
        self.rules = shares.trainer
        abstract_weights = family_of(recipe.model).abstract_weights
        graphdef, self.abstract_weights = abstract_weights(recipe.model, self.rules)
        self.policy = policy_of(graphdef, recipe.model, recipe.bias, rules=self.rules)
        rules_of_engines = (*shares.replicas, self.rules)
        engines = {r: engine_on(recipe, r, self.tokenizer) for r in rules_of_engines}
        self.engines = [engines[rules] for rules in shares.replicas]
        self.engine = engines[self.rules]  # that evaluates
        refuse_odd_clips(recipe)

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.pool.close(timeout_s=10.0)

    @property
    def fresh_weights(self) -> Weights:
        """Made anew at every look, so that a run which starts from others does not hold them."""
        model, key = self.recipe.model, jax.random.key(self.recipe.seed)
        with self.rules.scope():
            return family_of(model).init_weights(model, key, self.rules)[1]

    def evaluate(
        self,
        weights: Weights,
        *,
        stage: str,
        domains: Sequence[str],
        progress: sampling.Progress | None = None,
    ) -> tuple[evaluation.EvaluationResult, list[dict[str, Any]]]:
        """Held-out problems of `domains`, the same for every stage.

        Of a file that holds fewer than `evaluation.num_problems` back, all of them.
        """
        posed = {name: self.posed[name] for name in domains}
        sampler, asked = self.sampler(weights, progress), self.recipe.evaluation
        form = self.texts.form
        return evaluation.evaluate(sampler, self.judge, posed, asked, stage=stage, form=form)

    def sampler(
        self, weights: Weights, progress: sampling.Progress | None = None
    ) -> sampling.ProblemSampler:
        """`sample(problems, num_samples, sampling)` of these weights, as evaluation wants it."""
        return sampling.ProblemSampler(
            self.engine,
            self.engine.devices.load(weights),
            seed=self.recipe.seed,
            num_threads=2 if self.rules.mesh is None else 1,
            agent=self.agent,
            encode_prompt=self.texts.prompt,
            progress=progress,
        )


class Judge:
    """`judge(problems, rollouts)` gives the verdict on each rollout, in order.

    `judge.of_texts(problems, texts)` gives those on whole responses. `name` begins the keys of its
    requests: judges that share a pool have different ones.
    """

    def __init__(self, pool: VerifierPool, *, name: str = "evaluation"):
        self._pool, self._name, self._num_batches = pool, name, 0
        self._raised = RaisedWatch(logger.warning)

    def __call__(self, problems: Sequence[Problem], rollouts: Sequence[Rollout]) -> list[Verdict]:
        verdicts = self.of_texts(problems, [rollout.text for rollout in rollouts])
        self._raised.seen(verdicts)
        return verdicts

    def of_texts(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        self._num_batches += 1
        requests = [
            VerifierRequest(
                key=f"{self._name}/{self._num_batches}/{index}",
                problem=problem,
                response_text=text,
                deadline_s=DEADLINE_S,
            )
            for index, (problem, text) in enumerate(zip(problems, texts, strict=True))
        ]
        futures = self._pool.submit(requests)
        deadline = time.monotonic() + TIMEOUT_S
        return [future.result(max(deadline - time.monotonic(), 0.1)) for future in futures]


def evaluation_problems(recipe: Recipe, texts: Texts) -> dict[str, list[Problem]]:
    """The problems of every evaluation, by domain.

    Raises ConfigError where an environment is unsound, there are too few problems, they have no
    tokens, or stages ask for others.
    """
    if not isinstance(recipe.problems, FileProblems | None):
        made = recipe.problems.by_domain().values()
        ours = (one for one in made if not problem_kinds.is_package(one.environment))
        admission.require_environments((one.environment, one.levels) for one in ours)
        problem_kinds.require_sound(made)
    domains = demonstrations.domains_of(recipe.problems)
    _refuse_unfit(recipe, domains)
    side, count = recipe.evaluation.side, recipe.evaluation.num_problems
    found = {name: demonstrations.held_out(recipe, name, side, count) for name in domains}
    for posed in filter(None, found.values()):
        texts.prompt(posed[0])
    return found


def refuse_odd_clips(recipe: Recipe) -> None:
    """ConfigError for a clip of your own by which nothing is learnt; JAX takes its devices."""
    for stage in recipe.stages.values():
        if isinstance(stage, RlStage):
            clips.refuse_odd(stage.objective.clip)


def _refuse_unfit(recipe: Recipe, domains: Sequence[str]) -> None:
    """Raises ConfigError where stages ask for domains or lengths that the recipe does not have."""
    drawn = {"evaluation": recipe.evaluation.sampling}
    for name, stage in recipe.stages.items():
        if isinstance(stage, RlStage):
            drawn[name] = stage.sampling
            if unknown := sorted(set(stage.domains) - set(domains)):
                raise ConfigError(
                    f"{name}.domains={stage.domains} names {unknown}, and the recipe poses "
                    f"problems of {tuple(domains)}. Choose among these, or none for all."
                )
    for name, settings in drawn.items():
        if recipe.engine.cache_length <= settings.max_new_tokens:
            raise ConfigError(
                f"engine.cache_length={recipe.engine.cache_length} has no room for a prompt beside "
                f"the {name}.sampling.max_new_tokens={settings.max_new_tokens} of a response. "
                "Raise it."
            )


def _start_pool(recipe: Recipe) -> VerifierPool:
    config = WorkerConfig(table=verifiers_of(recipe.problems))
    if isinstance(recipe.verifiers, RayVerifiers) and recipe.problems is not None:
        from loong_jax.verifiers.ray_pool import RayVerifierPool

        placement = recipe.engine.placement  # whose Ray is that of the verifiers
        address = placement.address if isinstance(placement, RayReplicas) else None
        return RayVerifierPool(recipe.verifiers.num_workers, config, address=address)
    return LocalVerifierPool(recipe.verifiers.num_workers, config)
