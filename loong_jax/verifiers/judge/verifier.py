"""Verifier "judge": an LLM judge or generative reward model, over HTTP."""

import dataclasses
import hashlib
import random
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Score, Verdict
from loong_jax.verifiers.judge import gate, replies
from loong_jax.verifiers.judge.client import Budget, Endpoint
from loong_jax.verifiers.judge.genrm import Item, Judge, JudgeConfig

MAX_RUBRIC_ANSWER_CHARS = 20_000
MAX_CRITERIA = 50
_LINE = re.compile(
    r"\s*(?:[-*]|\d{1,2}[.)])?\s*(?:\[(?P<weight>\d+(?:\.\d+)?)\])?\s*(?P<text>\S.*)"
)


class JudgeVerifier:
    """Judges answers against a gold, and scores them by a rubric, through a model.

    `endpoint` holds settings of `Endpoint`; LOONG_JUDGE_URL and LOONG_JUDGE_MODEL fill what it
    leaves out, and without either it raises VerifierError. `budget` and `config` are settings of
    `Budget` and `JudgeConfig`. Safe in threads.

    The endpoint is asked at temperature 0; with `config["cache_dir"]` a rerun repeats itself. Known
    false classes are those of the model; against them stand gate, canaries and rules.
    """

    def __init__(
        self,
        *,
        endpoint: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
    ):
        settings = dict(config or {})
        for name in ("cache_dir", "ledger_path"):
            if settings.get(name) is not None:
                settings[name] = Path(settings[name])
        limits = Budget(**(budget or {}))
        self.judge = Judge(Endpoint.from_environment(endpoint), JudgeConfig(**settings), limits)

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        """Judges a response by the problem's gold, or, where it has none, by its rubric.

        By a rubric, correct is a score of at least `arguments["threshold"]`, 1 unless given.
        """
        if problem.gold is not None and problem.gold.strip():
            return self.judge_response(problem.prompt, problem.gold, response_text)
        if problem.rubric is None:
            return verdict.ungradable("no gold", "the problem has neither gold nor rubric")
        scored = self.score(problem.prompt, problem.rubric, response_text)
        if scored.value is None:
            return verdict.ungradable(scored.reason, scored.evidence, cost_s=scored.cost_s)
        threshold = float(problem.arguments.get("threshold", 1.0))
        if scored.value >= threshold:
            return verdict.correct(scored.evidence, cost_s=scored.cost_s)
        return verdict.wrong("rubric", scored.evidence, cost_s=scored.cost_s)

    def judge_response(self, question: str, gold: str, response_text: str) -> Verdict:
        """Verdict on the answer that a response states."""
        start = time.perf_counter()
        answer = gate.extracted(response_text)
        if not isinstance(answer, Verdict):
            answer = self.judge.judge(Item(question, gold, answer))
        return dataclasses.replace(answer, cost_s=time.perf_counter() - start)

    def rescue(self, rule: Verdict, question: str, gold: str, response_text: str) -> Verdict:
        """One verdict out of that of rules, which did not accept, and the judge's.

        Rules are precise and miss other forms (arXiv 2505.22203), so the judge may turn what they
        did not accept into correct, and grade what they could not. The ledger keeps both verdicts.
        """
        judged = self.judge_response(question, gold, response_text)
        answer = gate.extracted(response_text)
        self.judge.ledger.record(
            question=question,
            gold=gold,
            answer=answer if isinstance(answer, str) else "",
            rule=rule,
            judged=judged,
            model=self.judge.client.endpoint.model,
        )
        takes_judge = judged.is_correct or (judged.is_graded and not rule.is_graded)
        return judged if takes_judge else rule

    def score(self, question: str, rubric_text: str, response_text: str) -> Score:
        """Share of a rubric's weight that an answer meets; VerifierError for a malformed rubric."""
        start = time.perf_counter()
        criteria = read_rubric(rubric_text)
        answer = gate.extracted(response_text, whole=True)
        if not isinstance(answer, Verdict):
            refused = gate.refuse(answer, None, max_chars=MAX_RUBRIC_ANSWER_CHARS)
            answer = refused or answer
        if isinstance(answer, Verdict):
            return Score(value=0.0, evidence=f"{answer.reason}: {answer.evidence}")
        sheet = sheet_of(criteria, answer)
        data = {"question": question, "criteria": sheet.texts, "answer": answer}
        found = self.judge.ask("rubric", data, lambda text: replies.met(text, list(sheet.texts)))
        cost_s = time.perf_counter() - start
        if isinstance(found, Verdict):
            return Score(value=None, reason=found.reason, evidence=found.evidence, cost_s=cost_s)
        met, reasoning = found
        if failed := sheet.failed_canary(met):
            return Score(value=None, reason="canary", evidence=failed, cost_s=cost_s)
        missed = ", ".join(map(str, sheet.missed(met))) or "none"
        return Score(
            value=sheet.value(met),
            evidence=f"missed criteria: {missed}. {reasoning}"[:300],
            cost_s=cost_s,
        )

    def verify_record(self, record: Mapping[str, Any]) -> Verdict | Score:
        """Verdict of a line with `question`, `answer` and `gold`, or a score by its `rubric`."""
        texts = {name: record.get(name) for name in ("question", "answer", "gold", "rubric")}
        for name in ("question", "answer"):
            if not isinstance(texts[name], str):
                return verdict.ungradable("record", f"{name} is missing or no text")
        question, answer = str(texts["question"]), str(texts["answer"])
        if isinstance(gold := texts["gold"], str) and gold.strip():
            return self.judge_response(question, gold, answer)
        if isinstance(text := texts["rubric"], str):
            try:
                return self.score(question, text, answer)
            except VerifierError as error:
                return Score(value=None, reason="record", evidence=str(error))
        return verdict.ungradable("record", "neither gold nor rubric is a text")

    def close(self) -> None:
        self.judge.close()


# ---- rubrics: numbered criteria with weights


class Criterion(NamedTuple):
    text: str
    weight: float


def read_rubric(text: str) -> tuple[Criterion, ...]:
    """One criterion a line: `- [2] names the theorem`; the weight in brackets is 1 if left out."""
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        weight = float(match["weight"] or 1)
        if not 0 < weight <= 1000:
            raise VerifierError(f"weight {match['weight']} of {line!r:.80} is not in (0, 1000].")
        found.append(Criterion(match["text"].strip(), weight))
    if not 0 < len(found) <= MAX_CRITERIA:
        raise VerifierError(
            f"the rubric has {len(found)} criteria, not 1 to {MAX_CRITERIA}. Write one a line."
        )
    return tuple(found)


class Sheet(NamedTuple):
    """Criteria as they are asked: shuffled, with two canaries among them."""

    criteria: tuple[Criterion, ...]
    texts: dict[str, str]  # by number
    places: tuple[str, ...]  # the number of each criterion
    known: dict[str, bool]  # canaries: whether they are met

    def failed_canary(self, met: Mapping[str, bool]) -> str | None:
        """A sentence on the first canary that the judge got wrong; None where all are right."""
        for number, is_met in self.known.items():
            if met[number] != is_met:
                return f"{self.texts[number]!r} is {'' if is_met else 'not '}met"
        return None

    def missed(self, met: Mapping[str, bool]) -> list[int]:
        """Criteria that are not met, counted from 1 as the rubric lists them."""
        return [n for n, place in enumerate(self.places, 1) if not met[place]]

    def value(self, met: Mapping[str, bool]) -> float:
        """Share of the weight that is met, in [0, 1]."""
        pairs = list(zip(self.criteria, self.places, strict=True))
        return sum(c.weight for c, place in pairs if met[place]) / sum(c.weight for c, _ in pairs)


def sheet_of(criteria: Sequence[Criterion], answer: str) -> Sheet:
    """The sheet for this answer: a pure function, so that its reply can be cached.

    One canary quotes a word of the answer, one a code that is not in it: a judge that calls
    everything met, or nothing, fails.
    """
    digest = hashlib.blake2b(answer.encode("utf-8", "replace"), digest_size=8).hexdigest()
    word = max(re.findall(r"\w{1,40}", answer)[:50], key=len, default=answer.strip()[:40])
    known = {
        f"The answer contains the text {word}": True,
        f"The answer contains the text {digest}": digest in answer,
    }
    texts = [criterion.text for criterion in criteria] + list(known)
    order = random.Random(digest).sample(range(len(texts)), len(texts))
    number_of = {index: str(number) for number, index in enumerate(order, 1)}
    return Sheet(
        criteria=tuple(criteria),
        texts={str(number): texts[index] for number, index in enumerate(order, 1)},
        places=tuple(number_of[index] for index in range(len(criteria))),
        known={number_of[len(criteria) + n]: is_met for n, is_met in enumerate(known.values())},
    )
