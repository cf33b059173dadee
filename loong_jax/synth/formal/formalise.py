"""Problems in words become statements: an author translates, filters decide, all is kept on file.

Stages: the author's reply -> syntax (the backend) -> truth tables -> back into words by the author,
who does not see the problem -> a judge compares the two texts -> where it is known what is meant,
equality with that. Source: LongCat-Flash-Thinking 2.2.2, "Statement Formalization".
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from loong_jax.synth.authors import Author, Reply, Request, structured
from loong_jax.synth.formal import filters, formulas, wording
from loong_jax.synth.formal.backends import Backend
from loong_jax.synth.formal.filters import Decision
from loong_jax.synth.formal.statement import Statement

_LIST = {"type": "array", "items": {"type": "string"}, "maxItems": 26}
STATEMENT = structured.fields(hypotheses=_LIST, goal=str)
PROBLEM = structured.fields(problem=str)
JUDGEMENT = structured.fields(reasoning=str, is_same=bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordProblem:
    """A problem in words. `intended` is what it means, where that is known."""

    uid: str
    text: str
    glossary: dict[str, str]  # atom -> clause
    intended: Statement | None = None


class Formalised(NamedTuple):
    """What became of one problem; `statement` where there is one, kept or not."""

    problem: WordProblem
    statement: Statement | None
    decision: Decision
    calls: tuple[str, ...]  # keys of the author's transcripts
    first_call: Reply

    @property
    def is_kept(self) -> bool:
        return self.decision == filters.KEPT

    def record(self) -> dict[str, Any]:
        shown = None if self.statement is None else formulas.show(self.statement.formula)
        return {
            "uid": self.problem.uid,
            "problem": self.problem.text,
            "glossary": self.problem.glossary,
            "statement": shown,
            "stage": self.decision.stage,
            "detail": self.decision.detail,
            "calls": list(self.calls),
        }


def told(posed: Statement, rng: np.random.Generator) -> WordProblem:
    """A problem whose meaning is known, from its statement."""
    glossary = wording.draw_glossary(posed.atoms, rng)
    return WordProblem(
        uid=posed.uid, text=wording.tell(posed, glossary), glossary=glossary, intended=posed
    )


def formalise(
    problems: Sequence[WordProblem], author: Author, backend: Backend, *, seed: int = 0
) -> list[Formalised]:
    """One outcome a problem, in order; `is_kept` says which statements go on.

    Raises AuthorDown where the endpoint has stopped answering. Calls that were made before are
    read from the author's store.
    """
    translations = author.ask([_translate(problem, seed) for problem in problems])
    author.require_up()
    made = [
        _first_look(problem, reply, backend)
        for problem, reply in zip(problems, translations, strict=True)
    ]
    made = _back_and_judged(made, author, seed)
    return [_compared(one) for one in made]


def without_kin(made: Sequence[Formalised], known: Collection[str]) -> list[Formalised]:
    """The same outcomes; what is kept is kin to none of the `known` and to no earlier one.

    An author's other words for one meaning may be another problem's statement.
    """
    seen, result = set(known), []
    for one in made:
        if one.is_kept and one.statement is not None:
            kin = one.statement.kin
            if kin in seen:
                one = one._replace(decision=Decision("kin of another"))
            seen.add(kin)
        result.append(one)
    return result


def funnel(made: Sequence[Formalised]) -> dict[str, int]:
    """How many problems ended at each stage; the sum is all of them."""
    counts = Counter(one.decision.stage for one in made)
    return {stage: counts[stage] for stage in filters.STAGES}


# ---- stages


def _first_look(problem: WordProblem, reply: Reply, backend: Backend) -> Formalised:
    calls = (reply.transcript.key,)
    if reply.failure is not None:
        stopped = Decision("no reply", reply.failure)
        return Formalised(problem, None, stopped, calls, reply)
    read = filters.read(reply.parsed["hypotheses"], reply.parsed["goal"], backend)
    if isinstance(read, Decision):
        return Formalised(problem, None, read, calls, reply)
    return Formalised(problem, read, filters.look(read, problem.glossary), calls, reply)


def _back_and_judged(made: list[Formalised], author: Author, seed: int) -> list[Formalised]:
    """Those that are kept so far, told in words again and compared with the problem."""
    result = list(made)
    places = [place for place, one in enumerate(made) if one.is_kept]
    back = author.ask([_back_translate(made[place], seed) for place in places])
    author.require_up()
    asked, requests = [], []
    for place, reply in zip(places, back, strict=True):
        one = result[place] = _with_call(result[place], reply, "no back-translation")
        if one.is_kept:
            asked.append(place)
            requests.append(_judge(one.problem, reply.parsed["problem"], seed))
    judged = author.ask(requests)
    author.require_up()
    for place, reply in zip(asked, judged, strict=True):
        one = _with_call(result[place], reply, "judged different")
        if one.is_kept and not reply.parsed["is_same"]:
            one = one._replace(
                decision=Decision("judged different", reply.parsed["reasoning"][:200])
            )
        result[place] = one
    return result


def _with_call(one: Formalised, reply: Reply, stage: str) -> Formalised:
    """With one call more; a call that failed stops it, since nothing speaks for it then."""
    one = one._replace(calls=(*one.calls, reply.transcript.key))
    return one if reply.failure is None else one._replace(decision=Decision(stage, reply.failure))


def _compared(one: Formalised) -> Formalised:
    if not one.is_kept or one.problem.intended is None or one.statement is None:
        return one
    return one._replace(decision=filters.compare(one.statement, one.problem.intended))


# ---- requests


def _translate(problem: WordProblem, seed: int) -> Request:
    return Request(
        role="formaliser",
        prompt_name="formal/formalise",
        fields={"problem": problem.text, "glossary": wording.glossary_text(problem.glossary)},
        seed=seed,
        schema=STATEMENT,
    )


def _back_translate(one: Formalised, seed: int) -> Request:
    assert one.statement is not None
    return Request(
        role="back-translator",
        prompt_name="formal/back_translate",
        fields={
            "hypotheses": "\n".join(map(formulas.show, one.statement.hypotheses)),
            "goal": formulas.show(one.statement.goal),
            "glossary": wording.glossary_text(one.problem.glossary),
        },
        seed=seed,
        schema=PROBLEM,
    )


def _judge(problem: WordProblem, back_translation: str, seed: int) -> Request:
    return Request(
        role="formal-judge",
        prompt_name="formal/judge",
        fields={
            "problem": problem.text,
            "back_translation": back_translation,
            "glossary": wording.glossary_text(problem.glossary),
        },
        seed=seed,
        schema=JUDGEMENT,
    )
