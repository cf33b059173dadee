"""Problems in words become statements: an author translates, filters decide, all is kept on file.

Stages: the author's reply -> syntax (the backend) -> truth tables -> back into words by the author,
who does not see the problem -> a judge compares the two texts -> where it is known what is meant,
equality with that. Truth tables decide for propositional logic what the paper leaves to a model;
what they cannot tell is whether the statement is the one that was meant. Source:
LongCat-Flash-Thinking 2.2.2, "Statement Formalization".
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from loong_jax.synth import calls
from loong_jax.synth.authors import Author
from loong_jax.synth.calls import Reply, Request
from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.backends import Backend
from loong_jax.synth.formal.formulas import Statement

# Every way to leave, in the order of the stages; the last word is for those that stay.
STAGES = (
    *("no reply", "syntax", "foreign atom", "contradictory", "trivial", "refutable"),
    *("no back-translation", "judged different", "not as intended", "kin of another", "kept"),
)
_LIST = {"type": "array", "items": {"type": "string"}, "maxItems": 26}
STATEMENT = calls.fields(hypotheses=_LIST, goal=str)
PROBLEM = calls.fields(problem=str)
JUDGEMENT = calls.fields(reasoning=str, is_same=bool)


class Decision(NamedTuple):
    stage: str  # of STAGES: where it was stopped, or "kept"
    detail: str = ""


KEPT = Decision("kept")
ASKED = {  # where a failed call stops a problem -> role, prompt, shape of the reply
    "no reply": ("formaliser", "formalise", STATEMENT),
    "no back-translation": ("back-translator", "back_translate", PROBLEM),
    "judged different": ("formal-judge", "judge", JUDGEMENT),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordProblem:
    """A problem in words. `intended` is what it means, where that is known."""

    uid: str
    text: str
    glossary: dict[str, str]  # atom -> clause
    intended: Statement | None = None


@dataclasses.dataclass
class Formalised:
    """The result for one problem; `statement` where there is one, kept or not."""

    problem: WordProblem
    statement: Statement | None = None
    decision: Decision = KEPT
    replies: list[Reply] = dataclasses.field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        return self.decision == KEPT

    def record(self) -> dict[str, Any]:
        shown = None if self.statement is None else formulas.show(self.statement.formula)
        return {
            "uid": self.problem.uid,
            "problem": self.problem.text,
            "glossary": self.problem.glossary,
            "statement": shown,
            **self.decision._asdict(),
            "calls": [reply.transcript.key for reply in self.replies],
        }


Decide = Callable[[Formalised, Any], Decision]  # by what was replied


def told(posed: Statement, rng: np.random.Generator) -> WordProblem:
    """A problem whose meaning is known, from its statement."""
    drawn = rng.permutation(len(formulas.CLAUSES))
    glossary = {
        name: formulas.CLAUSES[i] for name, i in zip(sorted(posed.atoms), drawn, strict=False)
    }
    text = formulas.tell(posed, glossary)
    return WordProblem(uid=posed.uid, text=text, glossary=glossary, intended=posed)


def formalise(
    problems: Sequence[WordProblem], author: Author, backend: Backend, *, seed: int = 0
) -> list[Formalised]:
    """One outcome a problem, in order; `is_kept` says which statements go on.

    Raises AuthorDown where the endpoint has stopped answering. Calls that were made before are
    read from the author's store.
    """
    made = [Formalised(problem) for problem in problems]

    def ask(stage: str, fields: Callable[[Formalised], dict[str, str]], decide: Decide) -> None:
        """One call for each that is kept so far; where it fails, nothing speaks for that one."""
        role, prompt, schema = ASKED[stage]
        kept = [one for one in made if one.is_kept]
        glossaries = [formulas.glossary_text(one.problem.glossary) for one in kept]
        given = [{**fields(one), "glossary": g} for one, g in zip(kept, glossaries, strict=True)]
        name = f"formal/{prompt}"
        requests = [
            Request(role=role, prompt_name=name, seed=seed, schema=schema, fields=one)
            for one in given
        ]
        replies = author.ask(requests)
        author.require_up()
        for one, reply in zip(kept, replies, strict=True):
            one.replies.append(reply)
            failed = reply.failure is not None
            one.decision = (
                Decision(stage, reply.failure or "") if failed else decide(one, reply.parsed)
            )

    def first_look(one: Formalised, parsed: Any) -> Decision:
        found = read(parsed["hypotheses"], parsed["goal"], backend)
        if isinstance(found, Decision):
            return found
        one.statement = found
        return look(found, one.problem.glossary)

    def told_back(one: Formalised) -> dict[str, str]:
        said = one.replies[-1].parsed["problem"]
        return {"problem": one.problem.text, "back_translation": said}

    def judged(_: Formalised, parsed: Any) -> Decision:
        if parsed["is_same"]:
            return KEPT
        return Decision("judged different", parsed["reasoning"][:200])

    ask("no reply", lambda one: {"problem": one.problem.text}, first_look)
    ask("no back-translation", _in_formulas, lambda one, parsed: KEPT)
    ask("judged different", told_back, judged)
    for one in made:
        intended = one.problem.intended
        if not one.is_kept or intended is None or one.statement is None:
            continue
        if not formulas.says_the_same(one.statement, intended):
            one.decision = Decision("not as intended", formulas.show(intended.formula)[:200])
    return made


def _in_formulas(one: Formalised) -> dict[str, str]:
    assert one.statement is not None
    hypotheses = "\n".join(map(formulas.show, one.statement.hypotheses))
    return {"hypotheses": hypotheses, "goal": formulas.show(one.statement.goal)}


def drop_kin(made: Sequence[Formalised], known: Collection[str]) -> None:
    """Keeps what is kin to none of the `known` and to no earlier one.

    An author's other words for one meaning may be another problem's statement.
    """
    seen = set(known)
    for one in made:
        if one.is_kept and one.statement is not None:
            if one.statement.kin in seen:
                one.decision = Decision("kin of another")
            seen.add(one.statement.kin)


def funnel(made: Sequence[Formalised]) -> dict[str, int]:
    """The number of problems that ended at each stage; the sum is all of them."""
    counts = Counter(one.decision.stage for one in made)
    return {stage: counts[stage] for stage in STAGES}


# ---- filters, which ask nobody


def read(hypotheses: Sequence[str], goal: str, backend: Backend) -> Statement | Decision:
    """The syntax filter: the parts are formulas, and the whole is a statement of the backend."""
    try:
        found = formulas.of_parts(hypotheses, goal)
        text = backend.statement_text(found)
    except ValueError as error:
        return Decision("syntax", str(error)[:200])
    [judged] = backend.check_statements([text])
    if not judged.is_correct:
        return Decision("syntax", f"{judged.reason}: {judged.evidence}"[:200])
    return found


def look(posed: Statement, atoms: Collection[str]) -> Decision:
    """The mechanical part of the semantic filter; `atoms` are those that the problem speaks of."""
    if foreign := sorted(set(posed.atoms) - set(atoms)):
        return Decision("foreign atom", ", ".join(foreign))
    if len(posed.atoms) > formulas.MAX_ATOMS:
        return Decision("syntax", f"{len(posed.atoms)} atoms are too many for a truth table")
    if not formulas.is_satisfiable(posed.hypotheses):
        return Decision("contradictory", "no row of the truth table makes all hypotheses true")
    if formulas.follows([], posed.goal):
        return Decision("trivial", "the goal needs no hypothesis")
    if same := [h for h in posed.hypotheses if formulas.are_equivalent(h, posed.goal)]:
        return Decision("trivial", f"the goal is the hypothesis {formulas.show(same[0])}")
    if not formulas.follows(posed.hypotheses, posed.goal):
        return Decision("refutable", "a row of the truth table makes the goal alone false")
    return KEPT
