"""The dual verification (arXiv 2509.03059, 2.2): a judge's opinion, and a solver that must agree.

The judge says whether a question is well posed and its program solves it. Among the candidates of a
round are canaries, small problems whose verdict is known. A judge that errs on more than one of
them is asked again once about the whole round, and then not believed.

An answer counts once a solver that saw no program reaches it too; solutions that do are kept. Rules
compare first; a judge is asked where they see no equality, so that another form of the same answer
is not lost.
"""

import dataclasses
import random
import threading
from collections.abc import Mapping, Sequence

from loong_jax.synth import calls
from loong_jax.synth.authors import Author
from loong_jax.synth.loongenv.candidates import (
    Answer,
    Attempt,
    Candidate,
    OverBudget,
    Workshop,
    seed_of,
)
from loong_jax.verifiers.judge import Item, Judge, JudgeConfig
from loong_jax.verifiers.judge.client import Endpoint, JudgeUnavailable, content_hash
from loong_jax.verifiers.loongbench import LoongBenchVerifier
from loong_jax.verifiers.loongbench.domains import Row, get_domain

VERDICT = calls.fields(reasoning=str, is_clear=bool, is_correct=bool)
NUM_CANARY_PAIRS = 2
MAX_FAILED_CANARIES = 1
NUM_SITTINGS = 2


def judged(candidates: Sequence[Candidate], workshop: Workshop, round_name: str) -> list[Candidate]:
    """Open candidates that the judge accepts; the others ended."""
    if not candidates:
        return []
    calls: dict[str, tuple[str, ...]] = {one.id: () for one in candidates}
    for sitting in range(NUM_SITTINGS):
        answers, num_failed = _sit(candidates, workshop, f"{round_name}/judge{sitting}")
        for one in candidates:
            calls[one.id] += answers[one.id].calls
        if num_failed <= MAX_FAILED_CANARIES:
            return [_ended(one.after(calls[one.id]), answers[one.id]) for one in candidates]
    return [
        one.after(calls[one.id]).ended("judge_untrusted", f"{num_failed} canaries failed")
        for one in candidates
    ]


def canaries(rng: random.Random, domain: str) -> list[tuple[dict[str, str], bool]]:
    """Pairs of a right and a wrong solution of plain arithmetic; True beside the right ones."""
    found = []
    for is_right in (True, False) * NUM_CANARY_PAIRS:
        a, b = rng.randint(12, 99), rng.randint(12, 99)
        operation = "a * b" if is_right else "a * b + a"
        answer = a * b if is_right else a * b + a
        code = f"a, b = {a}, {b}\nprint({operation})"
        found.append((_fields(domain, f"What is {a} * {b}?", code, str(answer)), is_right))
    return found


def _sit(
    candidates: Sequence[Candidate], workshop: Workshop, name: str
) -> tuple[dict[str, Answer], int]:
    """One sitting: what was said of every candidate, and how many canaries failed."""
    known = canaries(workshop.rng(name), workshop.domain)
    asked = {f"{name}/canary{n}": fields for n, (fields, _) in enumerate(known)}
    for one in candidates:
        asked[f"{name}/{one.id}"] = _fields(workshop.domain, one.question, one.code, one.answer)
    order = list(asked)
    workshop.rng(f"{name}/order").shuffle(order)
    answers = workshop.ask("judge", {key: asked[key] for key in order}, VERDICT)
    num_failed = 0
    for n, (_, is_right) in enumerate(known):
        said = answers[f"{name}/canary{n}"].parsed
        num_failed += said is None or (said["is_clear"] and said["is_correct"]) is not is_right
    return {one.id: answers[f"{name}/{one.id}"] for one in candidates}, num_failed


def _ended(candidate: Candidate, answer: Answer) -> Candidate:
    if answer.failure:
        return candidate.ended("judge_failed", answer.failure)
    said = answer.parsed
    if not said["is_clear"]:
        return candidate.ended("judged_unclear", said["reasoning"])
    if not said["is_correct"]:
        return candidate.ended("judged_wrong", said["reasoning"])
    return candidate


def _fields(domain: str, question: str, code: str, answer: str) -> dict[str, str]:
    return {"domain": domain, "question": question, "code": code, "answer": answer}


# ---- solutions


SOLUTION = calls.fields(reasoning=str, answer=str)
PROBES = ("", "unknown", "7", "-1.6180339", "(1, 2)")  # rewarded by chance at most
MAX_PROBES_PASSED = 1


def gradable(candidate: Candidate, rules: LoongBenchVerifier) -> Candidate:
    """Ended unless the verifier takes its answer for itself and for nothing else."""
    row = row_of(candidate)
    if not rules.judge(row, candidate.answer).is_correct:
        return candidate.ended("ungradable_answer", candidate.answer)
    passed = [probe for probe in PROBES if rules.judge(row, probe).is_correct]
    if len(passed) > MAX_PROBES_PASSED:
        return candidate.ended("ungradable_answer", f"{passed} pass as well")
    return candidate


def solved(
    candidates: Sequence[Candidate], workshop: Workshop, rules: LoongBenchVerifier,
    *, num_attempts: int, min_correct: int, round_name: str,
) -> list[Candidate]:  # fmt: skip
    """Candidates with their attempts: passed, or ended without agreement."""
    asked = {
        f"{one.id}/{n}": {"domain": one.domain, "question": one.question}
        for one in candidates
        for n in range(num_attempts)
    }
    answers = workshop.ask("solve", asked, SOLUTION)
    attempts: dict[str, Attempt] = {}
    disputed: dict[str, Item] = {}
    by_id = {one.id: one for one in candidates}
    for name, answer in answers.items():
        candidate = by_id[name.rpartition("/")[0]]
        if answer.failure:
            attempts[name] = Attempt(verdict=answer.failure)
            continue
        said = answer.parsed["answer"]
        verdict = rules.judge(row_of(candidate), said).outcome
        attempts[name] = Attempt(
            answer=said, reasoning=answer.parsed["reasoning"], verdict=verdict, by="rules"
        )
        if verdict != "correct":
            disputed[name] = Item(candidate.question, candidate.answer, said)
    matched = _matched(disputed, workshop.author, seed_of(workshop.seed, round_name))
    for name in matched:
        attempts[name] = dataclasses.replace(attempts[name], verdict="correct", by="judge")
    found = []
    for one in candidates:
        names = [f"{one.id}/{n}" for n in range(num_attempts)]
        calls = [key for name in names for key in answers[name].calls]
        tried = one.after(calls, attempts=tuple(attempts[name] for name in names))
        num_correct = sum(attempt.verdict == "correct" for attempt in tried.attempts)
        if num_correct >= min_correct:
            found.append(tried.ended("passed"))
        else:
            detail = f"{num_correct} of {num_attempts} attempts reach {one.answer[:80]}"
            found.append(tried.ended("unsolved", detail))
    return found


def row_of(candidate: Candidate) -> Row:
    return Row(
        domain=get_domain(candidate.domain), question=candidate.question, gold=candidate.answer,
        tolerance=candidate.notes.get("tolerance", 0.0),
    )  # fmt: skip


def _matched(disputed: Mapping[str, Item], author: Author, seed: int) -> list[str]:
    """Names of those that the judge calls equal to the executed answer."""
    if not disputed:
        return []
    items = list(dict.fromkeys(disputed.values()))
    client = StoredClient(author, seed)
    judge = Judge(author.endpoint, JudgeConfig(seed=seed), client=client)
    verdicts = dict(zip(items, judge.judge_batch(items), strict=True))
    author.require_up()
    if client.is_over_budget:
        raise OverBudget
    return [name for name, item in disputed.items() if verdicts[item].is_correct]


class StoredClient:
    """The judge's way to the author: through its store, so that no call is paid for twice.

    A chat that is asked again gets another seed, as a malformed reply does; canaries of another
    round have another, too.
    """

    def __init__(self, author: Author, seed: int):
        self._author = author
        self._seed = seed
        self._lock = threading.Lock()
        self._asked: dict[str, int] = {}
        self.is_over_budget = False

    @property
    def endpoint(self) -> Endpoint:
        return self._author.endpoint

    def ask(self, messages: Sequence[Mapping[str, str]]) -> str:
        key = content_hash(list(messages))
        with self._lock:
            number = self._asked[key] = self._asked.get(key, -1) + 1
        seed = seed_of(self._seed, key, number)
        reply = self._author.ask_chat("match", "judge/reasoning", messages, seed)
        if reply.text is not None:
            return reply.text
        if reply.failure == "over_budget":
            self.is_over_budget = True
        if reply.failure in ("malformed", "truncated", "refused"):
            return reply.transcript.reply or ""
        raise JudgeUnavailable(reply.failure or "endpoint", reply.transcript.detail)

    def close(self) -> None:
        """The author is closed by who opened it."""
