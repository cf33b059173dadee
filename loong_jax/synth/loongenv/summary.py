"""The files of a run: candidates, items with their transcripts, problems to train on; a summary.

The summary has, per domain and strategy: funnel, difficulty, diversity, cost.
"""

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.problems.problem import Domain
from loong_jax.synth.authors import Author
from loong_jax.synth.calls import CallStore
from loong_jax.synth.loongenv import candidates
from loong_jax.synth.loongenv.candidates import OUTCOMES, Candidate, Made, Seed, SeedSet
from loong_jax.synth.loongenv.gates import Duplicates, shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a million tokens, in dollars; 0 where unknown."""

    usd_per_million_prompt: float = 0.0
    usd_per_million_reply: float = 0.0


def write(
    directory: Path, made: Made, seeds: SeedSet, domains: Iterable[str], author: Author,
    prices: Prices,
) -> dict[str, Any]:  # fmt: skip
    """Writes all files anew; returns what summary.json says.

    The bytes of the others depend on settings, seeds and replies alone.
    """
    by_id = {seed.id: seed for found in seeds.by_domain.values() for seed in found}
    kept = made.kept
    files: dict[str, Iterable[dict[str, Any]]] = {
        "candidates": map(dataclasses.asdict, made.candidates),
        "items": (item(one, by_id, author.store) for one in kept),
        "problems": (problem(one, by_id, author.name) for one in kept),
        "solutions": (line for one in kept for line in solutions(one)),
        "held_out": (held_out(seed) for name in domains for seed in seeds.held_out(name)),
    }
    for name, lines in files.items():
        json_files.write_jsonl(directory / f"{name}.jsonl", lines)
    figures = figures_of(made, seeds, author, prices)
    json_files.write_json(directory / "summary.json", figures)
    return figures


def figures_of(made: Made, seeds: SeedSet, author: Author, prices: Prices) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for one in made.candidates:
        groups.setdefault((one.domain, one.strategy), []).append(one)
    counts = candidates.funnel(made.candidates)
    num_tokens = sum(r["prompt_tokens"] + r["reply_tokens"] for r in author.store.records())
    failed = Counter(r["failure"] for r in author.store.records() if r["failure"])
    return {
        "author": author.name,
        "is_complete": made.is_complete,
        "num_candidates": len(made.candidates),
        "num_kept": len(made.kept),
        "funnel": counts,
        "outcomes": candidates.outcomes(counts),
        "num_calls": len(author.store),
        "num_tokens": num_tokens,
        "tokens_per_item": _ratio(num_tokens, len(made.kept)),
        # calls that came to nothing on the way; malformed replies are counted by candidate
        "failed_calls": dict(sorted(failed.items())),
        "skipped_seeds": dict(seeds.skipped),
        "rows": [
            {"domain": domain, "strategy": strategy}
            | row(found, seeds.by_domain[domain], author.store, prices)
            for (domain, strategy), found in groups.items()
        ],
    }


def row(
    found: Sequence[Candidate], seeds: Sequence[Seed], calls: CallStore, prices: Prices
) -> dict[str, Any]:
    """One domain and strategy. Shares are of the candidates that reached execution, as in Fig. 2
    of arXiv:2509.03059; accuracy is over all attempts at candidates that the judge accepted, as in
    its Table 3."""
    counts = candidates.funnel(found)
    outcomes = candidates.outcomes(counts)
    shown = [outcomes[name] for name in ("non-executable", "rejected", "passed")]
    attempted = [one for one in found if one.attempts]
    kept = [one for one in found if one.state == "passed"]
    verdicts = [a.verdict == "correct" for one in attempted for a in one.attempts]
    return {
        "candidates": len(found),
        "kept": len(kept),
        "funnel": counts,
        "outcomes": outcomes,
        "shares": {
            name: value / sum(shown) if sum(shown) else None
            for name, value in zip(("non-executable", "rejected", "passed"), shown, strict=True)
        },
        "solver_accuracy": _mean(verdicts),
        "accuracy_of_kept": _mean([one.accuracy or 0.0 for one in kept]),
        "num_solutions": sum(a.verdict == "correct" for one in kept for a in one.attempts),
        "rescued_by_judge": sum(a.by == "judge" for one in attempted for a in one.attempts),
        "question_chars": (statistics.median(len(one.question) for one in kept) if kept else None),
        "diversity": diversity(kept, seeds),
        "cost": cost(found, len(kept), calls, prices),
    }


def diversity(kept: Sequence[Candidate], seeds: Sequence[Seed]) -> dict[str, float | int | None]:
    """Distances of the kept questions from the seeds and from each other.

    `distance_to_seeds` and `distance_to_siblings`: mean over questions of one minus the Jaccard
    similarity (word 3-grams) to the nearest other. `distinct_shapes`: different texts once numbers
    are masked. `distinct_bigrams`: share of word pairs that occur once (distinct-2).
    """
    if not kept:
        return dict.fromkeys(
            ("distance_to_seeds", "distance_to_siblings", "distinct_shapes", "distinct_bigrams")
        )
    known, siblings = Duplicates(), Duplicates()
    for index, some in ((known, seeds), (siblings, kept)):
        for one in some:
            index.add(one.id, one.question)
    to_seeds = [1 - known.nearest(one.question)[1] for one in kept]
    to_siblings = [1 - siblings.nearest(one.question, besides=one.id)[1] for one in kept]
    pairs = Counter(pair for one in kept for pair in itertools.pairwise(shape(one.question)))
    return {
        "distance_to_seeds": _mean(to_seeds),
        "distance_to_siblings": _mean(to_siblings),
        "distinct_shapes": len({shape(one.question) for one in kept}),
        "distinct_bigrams": len(pairs) / max(1, pairs.total()),
    }


def cost(
    found: Sequence[Candidate], num_kept: int, calls: CallStore, prices: Prices
) -> dict[str, float | int | None]:
    """Calls and tokens of all candidates, the lost ones too, per one that was kept.

    Canaries and comparisons serve a whole round, so they are in the run's sums alone.
    """
    asked = said = num_calls = 0
    for key in dict.fromkeys(key for one in found for key in one.calls):
        if (record := calls.get(key)) is not None:
            num_calls += 1
            asked, said = asked + record["prompt_tokens"], said + record["reply_tokens"]
    usd = (asked * prices.usd_per_million_prompt + said * prices.usd_per_million_reply) / 1e6
    return {
        "calls": num_calls,
        "prompt_tokens": asked,
        "reply_tokens": said,
        "usd": usd,
        "calls_per_item": _ratio(num_calls, num_kept),
        "tokens_per_item": _ratio(asked + said, num_kept),
        "usd_per_item": _ratio(usd, num_kept),
    }


def as_text(figures: dict[str, Any]) -> str:
    head = ["domain", "strategy", "candidates", *OUTCOMES, "accuracy", "tokens/item"]
    lines = [head]
    for one in figures["rows"]:
        accuracy, tokens = one["solver_accuracy"], one["cost"]["tokens_per_item"]
        lines.append(
            [
                one["domain"], one["strategy"], str(one["candidates"]),
                *(str(one["outcomes"][name]) for name in OUTCOMES),
                "-" if accuracy is None else f"{100 * accuracy:.1f} %",
                "-" if tokens is None else f"{tokens:.0f}",
            ]
        )  # fmt: skip
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    shown = [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
    ]
    return f"author: {figures['author']}\n" + "\n".join(line.rstrip() for line in shown)


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


NUM_LEVELS = 5
_ROOMS: dict[str, Domain] = {"logic": "logic", "programming": "code"}  # of others: stem


def problem(one: Candidate, seeds: Mapping[str, Seed], author: str) -> dict[str, Any]:
    """A line of problems.jsonl, in the format of data/problem_files."""
    return _line(one.id, one.question, one.answer, one.domain) | {
        "level": level(one),
        "origin": f"loongenv/{one.strategy}, author {author}",
        "licence": licence(one, seeds),
    }


def held_out(seed: Seed) -> dict[str, Any]:
    """A seed that no author saw, as a problem to measure on."""
    tolerance = {"tolerance": seed.tolerance} if seed.tolerance else {}
    told = {"origin": "loongbench, held out", "licence": seed.licence}
    return _line(seed.id, seed.question, seed.gold, seed.domain, **tolerance) | told


def _line(name: str, prompt: str, gold: str, domain: str, **arguments: float) -> dict[str, Any]:
    return {
        "id": name, "prompt": prompt, "gold": gold, "verifier": "loongbench",
        "arguments": {"domain": domain, **arguments}, "domain": _ROOMS.get(domain, "stem"),
    }  # fmt: skip


def item(one: Candidate, seeds: Mapping[str, Seed], calls: CallStore) -> dict[str, Any]:
    """A kept candidate with everything that was said about it."""
    transcripts = [calls.get(key) for key in one.calls]
    return {
        **dataclasses.asdict(one),
        "accuracy": one.accuracy,
        "level": level(one),
        "licence": licence(one, seeds),
        "transcripts": [said for said in transcripts if said is not None],
    }


def solutions(one: Candidate) -> list[dict[str, Any]]:
    """The accepted chains of thought, each reasoning once."""
    right = {a.reasoning: a for a in one.attempts if a.verdict == "correct"}
    known = {"id": one.id, "prompt": one.question}
    return [known | {"thinking": a.reasoning, "answer": a.answer} for a in right.values()]


def level(one: Candidate) -> int:
    """1 where every attempt was right, 5 where hardly one was."""
    return 1 + round((NUM_LEVELS - 1) * (1 - (one.accuracy or 0.0)))


def licence(one: Candidate, seeds: Mapping[str, Seed]) -> str:
    """The licences of the seeds that were shown, since an item may stay close to them."""
    return " AND ".join(sorted({seeds[name].licence for name in one.seeds}))
