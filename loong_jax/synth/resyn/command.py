"""`loong synth resyn`: from a list of keywords to environment packages."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from loong_jax.data import json_files
from loong_jax.synth import authors
from loong_jax.synth.calls import Settings
from loong_jax.synth.resyn import ideas, keywords, pipeline
from loong_jax.synth.resyn.ideas import ResynSettings
from loong_jax.verifiers.judge.client import Budget

CODE_TOKENS = 16_384  # a module of 20,000 characters, and thoughts before it
ANSWER_TOKENS = 8192
BUDGET_SPENT = 3  # exit status
ROLES = {
    "idea": Settings(temperature=1.0, max_reply_tokens=ANSWER_TOKENS),
    "coder": Settings(temperature=0.2, max_reply_tokens=CODE_TOKENS),
    "judge": Settings(temperature=0.0, max_reply_tokens=ANSWER_TOKENS),
    "solver": Settings(temperature=0.7, max_reply_tokens=ANSWER_TOKENS),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResynOptions:
    """Writes reasoning environments for keywords with an author model, and admits what holds.

    Each keyword gives ideas; each idea becomes a Python module that draws, words and judges
    problems. It is run in the sandbox alone, tried by mechanical gates, read by a judge in two
    stages, corrected once, and kept if a solver's success falls as its level rises.

    OUT gets packages/ (one directory per environment), report.html (where every idea ended, and the
    solve rates), report.json, items.jsonl, audit.json and calls.jsonl (every call, paid for once).
    A run that was stopped goes on when the same command runs again.

    Example: loong synth resyn --out envs --keywords words.txt
    --endpoint http://127.0.0.1:8000/v1 --model my-model

    Then: loong train environments --packages envs/packages
    """

    out: Path  # directory of the results; made, or gone on with
    keywords: Path  # one keyword a line, # for comments; or .json with a list
    endpoint: str = ""  # an address that ends in /v1; else LOONG_AUTHOR_URL
    model: str = ""  # the name the endpoint knows; else LOONG_AUTHOR_MODEL
    settings: Annotated[ResynSettings, tyro.conf.arg(name="")] = ResynSettings()
    evaluation_sets: tuple[Path, ...] = ()  # JSON lines to audit keywords and questions against
    # the budget, over all starts of this run
    max_requests: Annotated[int | None, tyro.conf.arg(aliases=["--max-calls"])] = None
    max_tokens: int | None = None  # of prompts and replies together
    max_parallel: int = 16  # calls at a time
    timeout_s: float = 300.0  # of one attempt at a call


def main(options: ResynOptions) -> int:
    """Runs, writes all files but the page, and says what came of it.

    Returns the exit status: 0, or BUDGET_SPENT where the budget ended the run early.
    """
    settings = options.settings
    sets = {path.name: keywords.read_texts(path) for path in options.evaluation_sets}
    words = _audited(keywords.read(options.keywords), sets, options)
    endpoint = authors.endpoint_of(options.endpoint, options.model, timeout_s=options.timeout_s)
    authors.claim(
        options.out / "run.json",
        {"settings": dataclasses.asdict(settings), "keywords": words, "model": endpoint.model},
    )
    budget = Budget(max_requests=options.max_requests, max_tokens=options.max_tokens)
    with authors.open_author(
        options.out, endpoint, settings=ROLES, budget=budget, max_parallel=options.max_parallel
    ) as author:
        report = pipeline.run(
            author, words, options.out, settings, sets,
            lambda stage, count: print(f"{stage:<12}{count:6}", file=sys.stderr, flush=True),
        )  # fmt: skip
    print(ideas.as_text(report["funnel"]))
    figures = report["diversity"]
    print(
        f"{figures['distinct_both']} differ in verifier and question; {report['calls']} calls, "
        f"{budget.num_tokens} tokens, written by {report['author']}"
    )
    print(f"packages: {options.out / 'packages'}")
    if not report["is_complete"]:
        print("the budget ended this run; the same command with a larger one goes on")
        return BUDGET_SPENT
    return 0


def _audited(words: list[str], sets: dict[str, list[str]], options: ResynOptions) -> list[str]:
    """The keywords without those that name an evaluated task, unless they are wanted."""
    rows = keywords.audit(words, sets)
    left_out = [row["keyword"] for row in rows if row["names_tasks"]]
    left_out = [] if options.settings.keeps_overlapping else left_out
    json_files.write_json(options.out / "audit.json", {"keywords": rows, "left_out": left_out})
    if left_out:
        print(
            f"left out, since they name evaluated tasks: {', '.join(left_out)} (audit.json)",
            file=sys.stderr,
        )
    return keywords.cleaned(word for word in words if word not in left_out)
