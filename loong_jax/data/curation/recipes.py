"""Chains by name, for `loong curate RECIPE`. Each is a function of what the command line gives.

Cheap rules come first, so that what is dear sees little; deduplication comes after the rules, so
that the record that is kept is one that passes them; what looks at proportions comes last.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from loong_jax.data.curation import (
    balance,
    code_problems,
    contamination,
    duplicates,
    instructions,
    outcomes,
    prompts,
    responses,
    safety,
    scorer,
    semantic,
    tool_need,
)
from loong_jax.data.curation.stages import Stage
from loong_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    against: tuple[Path, ...] = ()  # benchmarks, as JSON lines with prompts: none is kept
    rollouts: Path | None = None  # attempts: lines of id and correct, or of loong eval --json
    rollouts_without_tools: Path | None = None  # of the recipe tools
    embeddings: Path | None = None  # .npy, a row per id in the .ids beside it
    scorer: Path | None = None  # a trained scorer of difficulty and tags, which are noted
    seed: int = 0  # of what is drawn


def problems(given: Given) -> tuple[Stage, ...]:
    """Prompts with one checkable answer: rules, decontamination, deduplication.

    With --rollouts also the pass rate, of which more than 0.9 is too easy; with --scorer difficulty
    and tags are noted; with --embeddings what means the same goes too.
    """
    return (
        prompts.External(),
        prompts.TrueFalse(),
        prompts.MultipleChoice(),
        prompts.MultiPart(),
        prompts.Conceptual(),
        prompts.Incomplete(),
        *_once(given, ("prompt",)),
        *_scored(given),
        *([outcomes.PassRate(rollouts=given.rollouts)] if given.rollouts else []),
    )


def rl(given: Given) -> tuple[Stage, ...]:
    """Problems for RL: as `problems`, then only those that the policy solves sometimes.

    Outcomes come from --rollouts, or from `outcomes` in the records.
    """
    without = dataclasses.replace(given, rollouts=None)
    return (*problems(without), outcomes.Balanced(rollouts=given.rollouts))


def sft(given: Given) -> tuple[Stage, ...]:
    """Prompts with responses for SFT: rules on both, decontamination, deduplication, features."""
    return (
        prompts.Incomplete(),
        prompts.External(),
        responses.Truncation(),
        responses.Repetition(),
        responses.LanguageMixing(),
        responses.Form(form="plain"),
        *_once(given, ("prompt", "response")),
        instructions.KeepsConstraints(),
        *_scored(given),
        responses.Features(),
    )


def mid_training(given: Given) -> tuple[Stage, ...]:
    """As `sft`, with few answers of one prompt from each source, and the easy thinned (A.1).

    Thinning asks for --scorer trained on difficulties in [0, 1].
    """
    thinned = [balance.Stratified(seed=given.seed)] if given.scorer else []
    return (*sft(given), balance.AnswerSources(seed=given.seed), *thinned)


def voted(given: Given) -> tuple[Stage, ...]:
    """As `problems`, and the gold must stand against the `answers` of several models (2.2.1)."""
    return (*problems(given), outcomes.MajorityVote())


def code(given: Given) -> tuple[Stage, ...]:
    """Code problems: five tests and a full statement; tests must agree with programs that run.

    Programs are the `solution` and the `candidates` of a record; they run in the sandbox.
    """
    return (
        prompts.Incomplete(),
        code_problems.CodeStatement(),
        *_once(given, ("prompt",)),
        *([outcomes.PassRate(rollouts=given.rollouts)] if given.rollouts else []),
        code_problems.CodeExecution(),
    )


def tools(given: Given) -> tuple[Stage, ...]:
    """Queries that tools make solvable, by two sets of attempts: v_x and its thresholds (2.2.3).

    Attempts are --rollouts (with tools) and --rollouts-without-tools, or in the records.
    """
    return (
        prompts.Incomplete(),
        *_once(given, ("prompt",)),
        tool_need.ToolNecessity(
            with_tools=given.rollouts, without_tools=given.rollouts_without_tools
        ),
    )


def trajectories(given: Given) -> tuple[Stage, ...]:
    """Judged trajectories with tools: one form, a panel's scores, strata of complexity (2.2.3)."""
    return (*_decontamination(given), tool_need.Trajectories())


def safety_kinds(given: Given) -> tuple[Stage, ...]:
    """Prompts sorted by the safety policy into five kinds of responses (A.2.1).

    --scorer is a tagger of categories, unless the records name their own under `safety`.
    """
    return (*_once(given, ("prompt",)), safety.SafetyKind(tagger=given.scorer))


def _once(given: Given, keys: tuple[str, ...]) -> list[Stage]:
    """Neither what a benchmark poses nor what an earlier record says."""
    found: list[Stage] = [*_decontamination(given), duplicates.Duplicates(keys=keys)]
    if given.embeddings:
        embedder = semantic.VectorFile(path=given.embeddings)
        if given.against:
            found.append(semantic.SemanticContamination(embedder=embedder, against=given.against))
        found.append(semantic.Semantic(embedder=embedder, seed=given.seed))
    return found


def _decontamination(given: Given) -> list[Stage]:
    return [contamination.Contamination(against=given.against)] if given.against else []


def _scored(given: Given) -> list[Stage]:
    return [scorer.Scored(path=given.scorer)] if given.scorer else []


RECIPES: dict[str, Callable[[Given], tuple[Stage, ...]]] = {
    "problems": problems,
    "rl": rl,
    "voted": voted,
    "sft": sft,
    "mid-training": mid_training,
    "code": code,
    "tools": tools,
    "trajectories": trajectories,
    "safety": safety_kinds,
}


def get(name: str) -> Callable[[Given], tuple[Stage, ...]]:
    """The recipe of that name; ConfigError where there is none."""
    if name not in RECIPES:
        raise ConfigError(f"{name!r} is no recipe. Choose one of: {', '.join(RECIPES)}.")
    return RECIPES[name]
