"""The judge: whether a question is well posed and its program solves it.

Among the candidates of a round are canaries, small problems whose verdict is known. A judge that
errs on more than one of them is asked again once about the whole round, and then not believed.
"""

import random
from collections.abc import Sequence

from loong_jax.synth.authors import structured
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.synth.loongenv.workshop import Answer, Workshop

VERDICT = structured.fields(reasoning=str, is_clear=bool, is_correct=bool)
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
    answers = workshop.asker.ask("judge", {key: asked[key] for key in order}, VERDICT)
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
