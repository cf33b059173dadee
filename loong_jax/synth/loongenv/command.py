"""`loong synth loongenv`: rounds of candidates through all stages, for every domain and strategy.

A run is a pure function of its settings, the seeds, the replies and the executions, and the last
two are kept on disk before they are used. So the run that goes on after a kill walks the same way
again, and pays for nothing twice; and two runs with one seed give the same files.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.synth import authors
from loong_jax.synth.authors import Author
from loong_jax.synth.calls import CallStore, Settings
from loong_jax.synth.loongenv import candidates, gates, judging, strategies, summary
from loong_jax.synth.loongenv.candidates import Candidate, Made, OverBudget, SeedSet, Workshop
from loong_jax.synth.loongenv.gates import Duplicates, Executions
from loong_jax.verifiers.judge.client import Budget
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


# Questions and solutions vary, programs and verdicts do not (facts of the original: T 0.7 and 0).
TEMPERATURES = {
    "question": 0.7, "solve": 0.7, "code": 0.0, "score": 0.0, "judge": 0.0, "match": 0.0,
}  # fmt: skip
BUDGET_SPENT = 3  # exit status


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoongEnvOptions:
    """Makes new verified problems out of seeds: an author model poses, execution answers.

    The author poses questions by three strategies and writes a program for each. The program runs
    in the sandbox, and what it prints is the answer, whatever the author says it is. A judge must
    find question and program sound, and a solver that sees no program must reach the same answer.
    Run the command again and it goes on where it stopped; no reply is paid for twice.

    OUT gets problems.jsonl (loong train problems --problems FILE), solutions.jsonl (the chains of
    thought that reach the answer), held_out.jsonl (seeds that no author saw), items.jsonl (each
    item with everything that was said), candidates.jsonl (where every candidate ended),
    summary.json and report.html (the funnel, difficulty, diversity, cost per kept item).

    Examples:
      loong synth loongenv --seeds loongbench --out runs/try
        --endpoint http://127.0.0.1:8000/v1 --model my-model
      loong synth loongenv --seeds loongbench --domains logic --items 100 --out runs/logic
        --endpoint http://127.0.0.1:8000/v1 --model my-model
    The key, where the endpoint wants one, is read from the variable LOONG_AUTHOR_API_KEY.
    """

    out: Path  # the run directory; one that exists is gone on with
    seeds: tuple[Path, ...]  # files or directories in LoongBench's schema, .json or .jsonl
    endpoint: str = ""  # an address that ends in /v1; else LOONG_AUTHOR_URL
    model: str = ""  # the name the endpoint knows; else LOONG_AUTHOR_MODEL
    models: Annotated[
        dict[str, str],
        tyro.conf.arg(help="other models by role: --models judge NAME (roles: question, code, "
                           "score, judge, match, solve)"),
    ] = dataclasses.field(default_factory=dict)  # fmt: skip
    settings: Annotated[LoongEnvConfig, tyro.conf.arg(name="")] = LoongEnvConfig()
    packages: Path | None = None  # for programs to import, as pip install --target fills it
    cpu_s: float = 10.0  # of one program
    # the budget, over all starts of this run
    max_requests: Annotated[int | None, tyro.conf.arg(aliases=["--max-calls"])] = None
    max_tokens: int | None = None  # of prompts and replies together
    prices: Annotated[summary.Prices, tyro.conf.arg(name="")] = summary.Prices()
    max_parallel: int = 16  # calls at a time
    timeout_s: float = 300.0  # of one attempt at a call
    max_reply_tokens: int = 8192
    json_mode: bool = False  # the server takes response_format json_object

    def __post_init__(self):
        if not self.seeds:
            raise ConfigError("seeds is empty. Name files or directories in LoongBench's schema.")
        if unknown := sorted(set(self.models) - set(TEMPERATURES)):
            raise ConfigError(f"models name the roles {unknown}. There are {list(TEMPERATURES)}.")


# Options that may differ from one start of a run to the next: they do not change its items.
FREE = (
    "out", "seeds", "endpoint", "max_requests", "max_tokens", "prices", "max_parallel", "timeout_s",
    # in older files: the budget, prices, and one of an author for tests
    "max_calls", "usd_per_million_prompt", "usd_per_million_reply", "defect_scale",
)  # fmt: skip


def main(options: LoongEnvOptions) -> int:
    """Runs, writes all files but the page, and says what came of it.

    Returns the exit status: 0, or BUDGET_SPENT where the budget ended the run early.
    """
    start = time.monotonic()
    say = functools.partial(print, flush=True)
    endpoint = authors.endpoint_of(
        options.endpoint, options.model, timeout_s=options.timeout_s,
        max_reply_tokens=options.max_reply_tokens, json_mode=options.json_mode,
    )  # fmt: skip
    seeds = candidates.load_seeds(options.seeds)
    domains = chosen_domains(options.settings, seeds)
    kept = dataclasses.asdict(options)
    kept |= kept.pop("settings")
    kept |= {"model": endpoint.model, "seeds_digest": candidates.digest_of(seeds)}
    authors.claim(options.out / "config.json", kept, FREE)
    roles = {
        role: Settings(temperature=temperature, model=options.models.get(role))
        for role, temperature in TEMPERATURES.items()
    }
    budget = Budget(max_requests=options.max_requests, max_tokens=options.max_tokens)
    with contextlib.ExitStack() as stack:
        author = stack.enter_context(
            authors.open_author(
                options.out, endpoint, settings=roles, budget=budget,
                max_parallel=options.max_parallel,
            )
        )  # fmt: skip
        shown = [f"{n} {len(seeds.shown(n))} shown and {len(seeds.held_out(n))} held out"
                 for n in domains]  # fmt: skip
        say(f"author {author.name}; seeds: {', '.join(shown)}")
        num_before = len(author.store)
        store = stack.enter_context(CallStore(options.out / "executions.jsonl"))
        executions = stack.enter_context(
            contextlib.closing(Executions(store, packages=options.packages, cpu_s=options.cpu_s))
        )
        if executions.note:
            say(f"note: {executions.note}")
        rules = stack.enter_context(contextlib.closing(LoongBenchVerifier()))
        made = _Run(options.settings, seeds, author, executions, rules).made()
        author.settle()
        figures = summary.write(options.out, made, seeds, domains, author, options.prices)
        num_calls = len(author.store) - num_before
    print(summary.as_text(figures))
    print(
        f"{len(made.kept)} items of {len(made.candidates)} candidates, {num_calls} new calls, "
        f"{time.monotonic() - start:.0f} s: {options.out / 'problems.jsonl'}"
    )
    return 0 if made.is_complete else BUDGET_SPENT


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


@dataclasses.dataclass(frozen=True)
class _Run:
    config: LoongEnvConfig
    seeds: SeedSet
    author: Author
    executions: Executions
    rules: LoongBenchVerifier

    def made(self) -> Made:
        """All domains and strategies. AuthorDown once the endpoint stops answering."""
        found: list[Candidate] = []
        is_spent = False
        for domain in chosen_domains(self.config, self.seeds):
            known = Duplicates()
            for seed in self.seeds.by_domain[domain]:
                known.add(f"seed {seed.id}", seed.question)
            shown = self.seeds.shown(domain)
            declared = {name for seed in shown for name in seed.packages} | set(EXTRA_PACKAGES)
            packages = self.executions.available(sorted(declared))
            workshop = Workshop(
                author=self.author, seed=self.config.seed, domain=domain, seeds=shown,
                packages=packages,
            )  # fmt: skip
            for strategy in self.config.strategies:
                if not is_spent:
                    made, is_spent = self._candidates(strategy, workshop, known)
                    found += made
        if is_spent:
            print("the budget is spent; raise it and run the same command to go on", flush=True)
        candidates = tuple(sorted(found, key=lambda one: one.id))
        return Made(candidates=candidates, is_complete=not is_spent)

    def _candidates(
        self, strategy: Strategy, workshop: Workshop, known: Duplicates
    ) -> tuple[list[Candidate], bool]:
        """All candidates of a strategy in a domain; true if the budget ended them."""
        config, found, num_kept = self.config, [], 0
        prefix = f"{workshop.domain}/{strategy}"
        while num_kept < config.items and len(found) < config.most_candidates:
            size = min(config.round_size, config.most_candidates - len(found))
            earlier = [one.question for one in found if one.state == "passed"]
            here = dataclasses.replace(workshop, earlier=earlier)
            progress = {
                name: Candidate(id=name, domain=here.domain, strategy=strategy)
                for name in (f"{prefix}/{len(found) + n:05d}" for n in range(size))
            }
            try:
                self._through(progress, here, strategy, known)
            except OverBudget:
                left = progress.values()
                ended = [one.ended("over_budget") if one.is_open else one for one in left]
                return found + ended, True
            ended = list(progress.values())
            assert not any(one.is_open for one in ended)
            found += ended
            num_kept += sum(one.state == "passed" for one in ended)
            print(
                f"{prefix}: {num_kept} of {config.items} kept, {len(found)} candidates, "
                f"{self.author.budget.num_requests} calls, {self.author.budget.num_tokens} tokens",
                flush=True,
            )
        return found, False

    def _through(
        self,
        progress: dict[str, Candidate],
        workshop: Workshop,
        strategy: Strategy,
        known: Duplicates,
    ) -> None:
        """One round through every stage, in an order that spends least on what ends early.

        `progress` has where the candidates stand, by id; a stage sees those that are open.
        """
        config = self.config

        def after(candidates: Iterable[Candidate]) -> list[Candidate]:
            progress.update((one.id, one) for one in candidates)
            return [one for one in progress.values() if one.is_open]

        ids, name = list(progress), next(iter(progress))
        if strategy == "evol_instruct":
            effort = {"generations": config.generations, "rewrites": config.rewrites}
            left = after(strategies.evol_instruct(workshop, ids, **effort))
        else:
            few_shot, own = strategies.few_shot, strategies.self_instruct
            left = after((few_shot if strategy == "few_shot" else own)(workshop, ids))
        left = after(
            one.ended("malformed_question", why) if (why := gates.malformed(one.question)) else one
            for one in left
        )
        left = after(_new(one, known) for one in left)
        left = after(strategies.coded(left, workshop))
        left = after(gates.executed(left, workshop.packages, self.executions))
        left = after(judging.gradable(one, self.rules) for one in left)
        left = after(judging.judged(left, workshop, name))
        after(
            judging.solved(
                left, workshop, self.rules, num_attempts=config.num_attempts,
                min_correct=config.min_correct, round_name=name,
            )
        )  # fmt: skip


def _new(one: Candidate, known: Duplicates) -> Candidate:
    """Ended where it repeats a seed (a held-out one, too) or a candidate before it."""
    repeated = known.find(one.question)
    if repeated is None:
        known.add(one.id, one.question)
        return one
    name, similarity = repeated
    state = "copies_seed" if name.startswith("seed ") else "copies_sibling"
    return one.ended(state, f"{name}, similarity {similarity:.2f}")
