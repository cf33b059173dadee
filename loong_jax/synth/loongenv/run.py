"""A run: rounds of candidates through all stages, for every domain and strategy.

A run is a pure function of its settings, the seeds, the replies and the executions, and the last
two are kept on disk before they are used. So the run that goes on after a kill walks the same way
again, and pays for nothing twice; and two runs with one seed give the same files.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.synth.authors import Author
from loong_jax.synth.loongenv import execution, gates, judging, strategies
from loong_jax.synth.loongenv.candidates import Asker, Candidate, OverBudget, Workshop
from loong_jax.synth.loongenv.execution import Executions
from loong_jax.synth.loongenv.gates import Duplicates
from loong_jax.synth.loongenv.seeds import Seed, SeedSet
from loong_jax.verifiers.loongbench import LoongBenchVerifier

Strategy = Literal["few_shot", "self_instruct", "evol_instruct"]
EXTRA_PACKAGES = ("numpy", "sympy")  # beside those that the seeds declare
MIN_SEEDS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoongEnvConfig:
    """Numbers of items, and gates. Costs: calls per candidate, see docs/how-to/synthesis.md."""

    domains: tuple[str, ...] = ()  # of the seeds; all unless named
    strategies: tuple[Strategy, ...] = get_args(Strategy)  # any of these, in this order
    items: int = 20  # to keep, per domain and strategy
    max_candidates: int = 0  # per domain and strategy; 0 means five times items
    num_attempts: int = 4  # of the solver at a candidate
    min_correct: int = 1  # attempts that must reach the executed answer
    generations: int = 2  # of evol-instruct
    rewrites: int = 2  # of a question in each generation
    round_size: int = 16  # candidates that go through together; part of what a run repeats
    seed: int = 0  # another one asks everything anew

    def __post_init__(self):
        refuse_below(self, 1, "items", "round_size", "num_attempts", "generations", "rewrites")
        refuse_below(self, 0, "max_candidates", "min_correct")
        if self.min_correct > self.num_attempts:
            raise ConfigError(
                f"min_correct={self.min_correct} is not in 0..num_attempts={self.num_attempts}."
            )
        if not self.strategies or len(set(self.strategies)) < len(self.strategies):
            raise ConfigError(f"strategies={self.strategies} must name each once. Choose some.")

    @property
    def most_candidates(self) -> int:
        return self.max_candidates or 5 * self.items

    def propose(
        self, strategy: Strategy, workshop: Workshop, ids: Sequence[str]
    ) -> list[Candidate]:
        """A candidate per id, open with a question, or ended."""
        if strategy == "evol_instruct":
            settings = {"generations": self.generations, "rewrites": self.rewrites}
            return strategies.evol_instruct(workshop, ids, **settings)
        made = {"few_shot": strategies.few_shot, "self_instruct": strategies.self_instruct}
        return made[strategy](workshop, ids)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """All candidates of a run in the order of their ids."""

    candidates: tuple[Candidate, ...]
    is_complete: bool  # False where the budget ended it

    @property
    def kept(self) -> list[Candidate]:
        return [one for one in self.candidates if one.state == "passed"]


Say = Callable[[str], None]


def make(
    config: LoongEnvConfig, seeds: SeedSet, author: Author, executions: Executions, say: Say = print
) -> Made:
    """Runs all domains and strategies. AuthorDown once the endpoint stops answering."""
    rules = LoongBenchVerifier()
    asker = Asker(author, seed=config.seed)
    found: list[Candidate] = []
    try:
        for domain in chosen_domains(config, seeds):
            known = Duplicates()
            for seed in seeds.by_domain[domain]:
                known.add(f"seed {seed.id}", seed.question)
            shown = seeds.shown(domain)
            workshop = Workshop(
                asker=asker, domain=domain, seeds=shown,
                packages=executions.available(declared(shown)),
            )  # fmt: skip
            for name in config.strategies:
                made, is_spent = _make_one(config, name, workshop, known, executions, rules, say)
                found += made
                if is_spent:
                    say("the budget is spent; raise it and run the same command to go on")
                    return Made(candidates=_sorted(found), is_complete=False)
    finally:
        rules.close()
    return Made(candidates=_sorted(found), is_complete=True)


def chosen_domains(config: LoongEnvConfig, seeds: SeedSet) -> list[str]:
    """Domains to work on; ConfigError for one without enough seeds to show."""
    if unknown := sorted(set(config.domains) - set(seeds.by_domain)):
        raise ConfigError(f"domains {unknown} have no seeds. There are {list(seeds.by_domain)}.")
    named = [name for name in seeds.by_domain if not config.domains or name in config.domains]
    for name in named:
        if len(seeds.shown(name)) < MIN_SEEDS:
            raise ConfigError(
                f"domain {name!r} has {len(seeds.shown(name))} seeds to show (a fifth is held "
                f"out), fewer than {MIN_SEEDS}. Add seeds, or name other domains."
            )
    return named


def declared(seeds: Sequence[Seed]) -> list[str]:
    """Packages that a program may import: what seeds of the domain declare, and the extra ones."""
    return sorted({name for seed in seeds for name in seed.packages} | set(EXTRA_PACKAGES))


def _make_one(
    config: LoongEnvConfig, strategy: Strategy, workshop: Workshop, known: Duplicates,
    executions: Executions, rules: LoongBenchVerifier, say: Say,
) -> tuple[list[Candidate], bool]:  # fmt: skip
    """Makes all candidates of a strategy in a domain; true if the budget ended them."""
    found: list[Candidate] = []
    prefix = f"{workshop.domain}/{strategy}"
    num_kept = 0
    while num_kept < config.items and len(found) < config.most_candidates:
        size = min(config.round_size, config.most_candidates - len(found))
        ids = [f"{prefix}/{len(found) + n:05d}" for n in range(size)]
        here = dataclasses.replace(
            workshop, earlier=[one.question for one in found if one.state == "passed"]
        )
        progress = {name: Candidate(id=name, domain=here.domain, strategy=strategy) for name in ids}
        try:
            _through(progress, here, config, strategy, known, executions, rules)
        except OverBudget:
            left = [one.ended("over_budget") if one.is_open else one for one in progress.values()]
            return found + left, True
        ended = list(progress.values())
        assert not any(one.is_open for one in ended)
        found += ended
        num_kept += sum(one.state == "passed" for one in ended)
        say(
            f"{prefix}: {num_kept} of {config.items} kept, {len(found)} candidates, "
            f"{workshop.asker.author.budget.num_requests} calls, "
            f"{workshop.asker.author.budget.num_tokens} tokens"
        )
    return found, False


def _through(
    progress: dict[str, Candidate], workshop: Workshop, config: LoongEnvConfig, strategy: Strategy,
    known: Duplicates, executions: Executions, rules: LoongBenchVerifier,
) -> None:  # fmt: skip
    """One round through every stage, in an order that spends least on what ends early.

    `progress` has where the candidates stand, by id; a stage sees those that are open.
    """

    def after(candidates: Iterable[Candidate]) -> list[Candidate]:
        progress.update((one.id, one) for one in candidates)
        return [one for one in progress.values() if one.is_open]

    name = next(iter(progress))
    left = after(config.propose(strategy, workshop, list(progress)))
    left = after(
        one.ended("malformed_question", why) if (why := gates.malformed(one.question)) else one
        for one in left
    )
    left = after(_deduplicated(left, known))
    left = after(strategies.coded(left, workshop))
    left = after(execution.executed(left, workshop.packages, executions))
    left = after(judging.gradable(left, rules))
    left = after(judging.judged(left, workshop, name))
    after(
        judging.solved(
            left, workshop, rules, num_attempts=config.num_attempts,
            min_correct=config.min_correct, round_name=name,
        )
    )  # fmt: skip


def _deduplicated(candidates: Sequence[Candidate], known: Duplicates) -> list[Candidate]:
    """In order of ids, each against the seeds (the held-out ones, too) and all before it."""
    found = []
    for one in candidates:
        repeated = known.find(one.question)
        if repeated is None:
            known.add(one.id, one.question)
            found.append(one)
            continue
        name, similarity = repeated
        state = "copies_seed" if name.startswith("seed ") else "copies_sibling"
        found.append(one.ended(state, f"{name}, similarity {similarity:.2f}"))
    return found


def _sorted(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(candidates, key=lambda one: one.id))
