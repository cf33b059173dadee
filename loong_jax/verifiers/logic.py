"""Verifier "logic": the task that posed a problem checks the answer against its conditions.

Deterministic, without a reference answer; nothing of an answer is evaluated. An answer that does
not have the form its prompt states is wrong with reason `format` (ReSyn rewards the form in the
same way); a problem that cannot be read is ours and ungradable. Known false classes: a right answer
in another form than the stated one is wrong.
"""

import dataclasses
import functools
import re
import time
from collections.abc import Mapping
from typing import Any

from loong_jax.environments import environment, task, tasks
from loong_jax.environments.problem import Problem
from loong_jax.verifiers import extract, verdict
from loong_jax.verifiers.verdict import Verdict

MAX_EVIDENCE_CHARS = 300
_MARK = re.compile(r"(?im)^[ \t]*(?:\*\*)?(?:final )?answer(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*")
_FENCE = re.compile(r"```[a-z]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


def answer_span(text: str) -> str | Verdict:
    """The final answer of a response, or why it has none.

    Of what stands between the answer's tags, or follows the thinking, it is all that follows the
    only line that starts with `Answer:` (or `Final answer:`), or the whole where there is no such
    line. A code fence around all of it is taken off. Two such lines are two answers, and wrong.
    """
    found = extract.answer_of(text)
    if isinstance(found, Verdict):
        return found
    parts = _MARK.split(found)
    if len(parts) > 2:
        return verdict.wrong("format", f"{len(parts) - 1} answers are marked, not one")
    span = parts[-1].strip()
    if fenced := _FENCE.fullmatch(span):
        span = fenced[1]
    return span if span.strip() else verdict.wrong("no answer", "the answer is empty")


class LogicVerifier:
    """Judges answers to the tasks of `loong_jax.environments.tasks`; safe in any thread."""

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        """Judges a whole response; `ungradable` where the problem is not one of ours."""
        return self._judge(problem.arguments, response_text)

    def verify_record(self, record: Mapping[str, Any]) -> Verdict:
        """Verdict of one line of `loong verify logic`.

        That is {"task", "level", "seed", "answer"}, which draws the problem again, or {"problem",
        "answer"} with the problem itself, as `Problem.to_json` writes it.
        """
        answer = record.get("answer")
        if not isinstance(answer, str):
            return verdict.ungradable("record", "answer is missing or no text")
        if "problem" in record:
            problem = record["problem"]
            arguments = problem.get("arguments") if isinstance(problem, dict) else None
            if not isinstance(arguments, dict):
                return verdict.ungradable("record", "problem holds no arguments")
            return self._judge(arguments, answer)
        name, level, seed = (record.get(key) for key in ("task", "level", "seed"))
        if name not in tasks.TASKS:
            known = ", ".join(sorted(tasks.TASKS))
            return verdict.ungradable("record", f"task {name!r} is not one of {known}")
        if type(level) is not int or level not in environment.LEVELS or type(seed) is not int:
            return verdict.ungradable("record", f"level={level!r}, seed={seed!r} draw no problem")
        return self._judge(_arguments(name, level, seed), answer)

    def close(self) -> None:
        """Holds nothing."""

    def _judge(self, arguments: Mapping[str, Any], response_text: str) -> Verdict:
        start = time.perf_counter()
        span = answer_span(response_text)
        if isinstance(span, Verdict):
            judged = span
        else:
            try:
                of = tasks.get_task(arguments["task"])
                judged = task.check(of, arguments["state"], span)
            except Exception as error:  # whatever a broken state makes of our code is no answer's
                judged = verdict.ungradable("problem", f"{type(error).__name__}: {error}")
        return dataclasses.replace(
            judged,
            evidence=judged.evidence[:MAX_EVIDENCE_CHARS],
            cost_s=time.perf_counter() - start,
        )


@functools.lru_cache(maxsize=4096)
def _arguments(name: str, level: int, seed: int) -> Mapping[str, Any]:
    return tasks.generate(name, level, seed).arguments
