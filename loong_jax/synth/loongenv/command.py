"""`loong synth loongenv`: settings from the command line, one run, and the files it leaves."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from loong_jax.errors import ConfigError
from loong_jax.synth import opening
from loong_jax.synth.authors import Author, CallStore, Settings
from loong_jax.synth.loongenv import run, summary
from loong_jax.synth.loongenv import seeds as seed_files
from loong_jax.synth.loongenv.execution import Executions
from loong_jax.synth.loongenv.run import LoongEnvConfig
from loong_jax.synth.loongenv.seeds import SeedSet
from loong_jax.verifiers.judge.client import Budget

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
    endpoint = opening.endpoint_of(
        options.endpoint, options.model, timeout_s=options.timeout_s,
        max_reply_tokens=options.max_reply_tokens, json_mode=options.json_mode,
    )  # fmt: skip
    seeds = seed_files.load(options.seeds)
    domains = run.chosen_domains(options.settings, seeds)
    kept = dataclasses.asdict(options)
    kept |= kept.pop("settings")
    kept |= {"model": endpoint.model, "seeds_digest": seed_files.digest(seeds)}
    opening.claim(options.out / "config.json", kept, FREE)
    roles = {
        role: Settings(temperature=temperature, model=options.models.get(role))
        for role, temperature in TEMPERATURES.items()
    }
    budget = Budget(max_requests=options.max_requests, max_tokens=options.max_tokens)
    with opening.open_author(
        options.out, endpoint, settings=roles, budget=budget, max_parallel=options.max_parallel
    ) as author:
        print(f"author {author.name}; seeds: {_counts(seeds, domains)}", flush=True)
        num_before = len(author.store)
        made = _made(options, seeds, author)
        author.settle()
        figures = summary.write(options.out, made, seeds, domains, author, options.prices)
        num_calls = len(author.store) - num_before
    print(summary.as_text(figures))
    print(
        f"{len(made.kept)} items of {len(made.candidates)} candidates, {num_calls} new calls, "
        f"{time.monotonic() - start:.0f} s: {options.out / 'problems.jsonl'}"
    )
    return 0 if made.is_complete else BUDGET_SPENT


def _made(options: LoongEnvOptions, seeds: SeedSet, author: Author) -> run.Made:
    with (
        CallStore(options.out / "executions.jsonl") as store,
        contextlib.closing(
            Executions(store, packages=options.packages, cpu_s=options.cpu_s)
        ) as executions,
    ):
        say = functools.partial(print, flush=True)
        if executions.note:
            say(f"note: {executions.note}")
        return run.make(options.settings, seeds, author, executions, say)


def _counts(seeds: SeedSet, domains: Sequence[str]) -> str:
    return ", ".join(
        f"{name} {len(seeds.shown(name))} shown and {len(seeds.held_out(name))} held out"
        for name in domains
    )
