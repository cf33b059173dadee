"""Seeds, a candidate on its way through the funnel, and the resources of a strategy on that way.

Seeds are in LoongBench's schema. As published: one JSON array per domain
(`<domain>/seed_dataset.json`), or JSON lines. A row has question, final_answer, rationale (the
program) and metadata: license, domain, required_dependencies, answer_tolerance and more.

A candidate ends in one state.
"""

import dataclasses
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.errors import ConfigError, VerifierError
from loong_jax.problems.problem import split_of
from loong_jax.synth import calls
from loong_jax.synth.authors import Author
from loong_jax.synth.calls import Request
from loong_jax.verifiers.judge.client import content_hash
from loong_jax.verifiers.loongbench import domains
from loong_jax.verifiers.loongbench.rationales import package_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seed:
    id: str
    domain: str  # a name of verifiers.loongbench.domains
    question: str
    gold: str
    code: str
    packages: tuple[str, ...]  # names alone
    licence: str
    tolerance: float = 0.0

    @property
    def is_held_out(self) -> bool:
        """True for a fifth of all seeds, which no author ever sees, by a hash of the question."""
        return split_of(f"loongenv:{' '.join(self.question.split())}") != "train"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedSet:
    by_domain: Mapping[str, tuple[Seed, ...]]
    skipped: Mapping[str, int]  # why rows were left out -> how many

    def shown(self, domain: str) -> list[Seed]:
        return [seed for seed in self.by_domain[domain] if not seed.is_held_out]

    def held_out(self, domain: str) -> list[Seed]:
        return [seed for seed in self.by_domain[domain] if seed.is_held_out]


def load_seeds(paths: Sequence[Path]) -> SeedSet:
    """All rows of files and directories, each question once, in the order of names and lines.

    ConfigError for a path without rows. Rows without question, program or answer are counted.
    """
    found: dict[str, Seed] = {}
    skipped: Counter[str] = Counter()
    for path in paths:
        num_before = len(found) + skipped.total()
        for file in _files(path):
            for number, row in enumerate(_rows(file)):
                seed = _seed(row, f"{file.parent.name}/{file.stem}/{number:04d}")
                if isinstance(seed, str):
                    skipped[seed] += 1
                elif " ".join(seed.question.split()) in found:
                    skipped["asked before"] += 1
                else:
                    found[" ".join(seed.question.split())] = seed
        if len(found) + skipped.total() == num_before:
            raise ConfigError(f"{path} holds no seeds. Name .json or .jsonl files of LoongBench.")
    by_domain: dict[str, list[Seed]] = {}
    for seed in found.values():
        by_domain.setdefault(seed.domain, []).append(seed)
    return SeedSet(
        by_domain={name: tuple(seeds) for name, seeds in sorted(by_domain.items())},
        skipped=dict(skipped),
    )


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Name files or directories of seeds.")
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*.json*")
        if file.suffix in (".json", ".jsonl") and file.name.lower() != "manifest.json"
    )


def _rows(file: Path) -> Iterable[Any]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            rows = json.loads(text)
            return rows if isinstance(rows, list) else [rows]
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as seeds: {error}. Mend or remove it.") from None


def _seed(row: Any, place: str) -> Seed | str:
    if not isinstance(row, Mapping):
        return "no object"
    try:
        read = domains.read_row(row)
    except VerifierError as error:
        return str(error).partition("=")[0]
    if not read.question.strip():
        return "no question"
    if not read.rationale.strip():
        return "no program"
    metadata = row.get("metadata") or {}
    return Seed(
        id=str(row.get("uid") or row.get("id") or place),
        domain=read.domain.name,
        question=read.question.strip(),
        gold=read.gold,
        code=read.rationale,
        packages=tuple(sorted({package_name(name) for name in read.packages} - {""})),
        licence=str(metadata.get("license") or "unknown"),
        tolerance=read.tolerance,
    )


def digest_of(seeds: SeedSet) -> str:
    return content_hash(
        [dataclasses.astuple(seed) for found in seeds.by_domain.values() for seed in found]
    )


# state -> where Fig. 2 of the paper counts it. Its three classes are of candidates with a program;
# ours are of all candidates, so two more come first.
OUTCOME: dict[str, str] = {
    "author_failed": "not posed",
    "malformed_question": "not posed",
    "copies_seed": "duplicate",
    "copies_sibling": "duplicate",
    "undeclared_package": "non-executable",
    "not_executable": "non-executable",
    "no_answer": "non-executable",
    "not_deterministic": "non-executable",
    "hard_coded": "rejected",
    "answer_in_question": "rejected",
    "ungradable_answer": "rejected",
    "judged_unclear": "rejected",
    "judged_wrong": "rejected",
    "unsolved": "rejected",
    "sandbox_failed": "unfinished",
    "judge_failed": "unfinished",
    "judge_untrusted": "unfinished",
    "over_budget": "unfinished",
    "passed": "passed",
}
OUTCOMES = tuple(dict.fromkeys(OUTCOME.values()))
OPEN = "open"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One solution of the solver: what it stated, and whether that is the executed answer."""

    answer: str = ""
    reasoning: str = ""
    verdict: str = ""  # "correct", "wrong", "ungradable" or the author's failure
    by: str = ""  # "rules" or "judge"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    id: str  # "<domain>/<strategy>/<number>"
    domain: str
    strategy: str
    state: str = OPEN
    detail: str = ""
    question: str = ""
    code: str = ""
    stated: str = ""  # the answer by the author's own word; never used
    answer: str = ""  # printed by the program
    seeds: tuple[str, ...] = ()  # ids of those that were shown
    attempts: tuple[Attempt, ...] = ()
    calls: tuple[str, ...] = ()  # keys of all calls made for it, in order
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state == OPEN

    @property
    def accuracy(self) -> float | None:
        """Share of the solver's attempts that are right; None where nobody attempted it."""
        if not self.attempts:
            return None
        return sum(a.verdict == "correct" for a in self.attempts) / len(self.attempts)

    def ended(self, state: str, detail: str = "") -> "Candidate":
        assert state in OUTCOME
        assert self.is_open, self
        return dataclasses.replace(self, state=state, detail=detail[:300])

    def after(self, calls: Iterable[str], **changes: Any) -> "Candidate":
        return dataclasses.replace(self, calls=(*self.calls, *calls), **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """All candidates of a run in the order of their ids."""

    candidates: tuple[Candidate, ...]
    is_complete: bool  # False where the budget ended it

    @property
    def kept(self) -> list[Candidate]:
        return [one for one in self.candidates if one.state == "passed"]


def funnel(candidates: Iterable[Candidate]) -> dict[str, int]:
    """The number of candidates that ended in each state; every candidate is in exactly one."""
    counts = Counter(candidate.state for candidate in candidates)
    assert set(counts) <= set(OUTCOME), "a candidate is still open"
    return {state: counts[state] for state in OUTCOME}


def outcomes(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of a funnel in the classes of Fig. 2."""
    return {
        name: sum(count for state, count in counts.items() if OUTCOME[state] == name)
        for name in OUTCOMES
    }


NUM_SHOWN = 3  # seeds in a prompt (arXiv 2509.03059, appendix)
MAX_SHOWN_CHARS = 6000  # of one seed: longer ones are left out of prompts
QUESTION = calls.fields(question=str)

# Failures that another try may mend. A call that timed out or met an error was tried again already.
_MENDABLE = ("refused", "malformed", "truncated")


class OverBudget(Exception):
    """The budget is spent: what is open stays so until somebody raises it."""


class Answer(NamedTuple):
    parsed: Any  # None where it failed
    failure: str
    calls: tuple[str, ...]  # keys of every try


def seed_of(*parts: int | str) -> int:
    """A seed in 0..2^31-1 for these parts: the same here and everywhere."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workshop:
    """Resources of a strategy: one domain's seeds and packages, and the author.

    `seed` is the run's; a request's own follows from it, the name, and the try. A reply that is
    refused, malformed or cut off is asked for up to `max_tries` times. `earlier` are questions that
    this strategy posed in finished rounds, oldest first.
    """

    author: Author
    seed: int
    domain: str
    seeds: Sequence[Seed]
    packages: Mapping[str, str]  # name -> version, of what may be imported
    earlier: Sequence[str] = ()
    max_tries: int = 2

    def ask(
        self,
        role: str,
        asked: Mapping[str, Mapping[str, str]],
        schema: Mapping[str, Any],
        prompt: str = "",
    ) -> dict[str, Answer]:
        """Answers by name, such as a candidate's id; `asked` holds the fields of each.

        OverBudget once a call is refused for it, AuthorDown once nobody answers.
        """
        found: dict[str, Answer] = {}
        tries: dict[str, tuple[str, ...]] = dict.fromkeys(asked, ())
        for number in range(self.max_tries):
            names = [name for name in asked if name not in found]
            requests = [
                Request(
                    role=role, prompt_name=f"loongenv/{prompt or role}", fields=asked[name],
                    seed=seed_of(self.seed, name, role, number), schema=schema,
                )
                for name in names
            ]  # fmt: skip
            for name, reply in zip(names, self.author.ask(requests), strict=True):
                if reply.failure == "over_budget":
                    raise OverBudget
                tries[name] += (reply.transcript.key,)
                is_last = number + 1 == self.max_tries
                if reply.failure is None:
                    found[name] = Answer(reply.parsed, "", tries[name])
                elif reply.failure not in _MENDABLE or is_last:
                    found[name] = Answer(None, f"{role} {reply.failure}", tries[name])
            self.author.require_up()
        return found

    @property
    def packages_text(self) -> str:
        lines = [f"- {name} {version}" for name, version in sorted(self.packages.items())]
        return "\n".join(lines) or "none but the standard library"

    def shown(self, rng: random.Random) -> list[Seed]:
        short = [s for s in self.seeds if len(s.question) + len(s.code) <= MAX_SHOWN_CHARS]
        return rng.sample(short, min(NUM_SHOWN, len(short)))

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")
