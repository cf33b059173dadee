"""A rollout for people: one line of a `rollouts/*.jsonl` file."""

from typing import Any

from loong_jax.data.response import FORMS, ResponseForm, read
from loong_jax.environments.problem import Problem
from loong_jax.rollout.records import Rollout


def readable(
    problem: Problem, rollout: Rollout, form: ResponseForm = FORMS["tagged"]
) -> dict[str, Any]:
    """JSON values; `thinking` and `answer` are null where the form of the response is broken."""
    found, verdict = read(rollout.text, form), rollout.verdict
    return {
        "uid": problem.uid,
        "domain": problem.domain,
        "level": problem.level,
        "prompt": problem.prompt,
        "text": rollout.text,
        "thinking": found.thinking if found.is_well_formed else None,
        "answer": found.answer if found.is_well_formed else None,
        "outcome": verdict.outcome if verdict else None,
        "reason": verdict.reason if verdict else "",
        "evidence": verdict.evidence if verdict else "",
        "isolation": verdict.isolation if verdict else "none",
        "version": rollout.version,
        "reward": rollout.reward,
        "num_tokens": len(rollout.tokens),
        "finish_reason": rollout.finish_reason,
    }
