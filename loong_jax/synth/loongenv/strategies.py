"""Strategies that pose questions, and the code agent that writes a program for each.

few-shot: three seeds with program and answer, asked for one more such triple; the answer that comes
with it is thrown away, since executing the program gives it. self-instruct: three seeds and one
earlier question of ours, asked for a new one. evol-instruct: a seed rewritten for some generations
by named operators; a scorer marks each rewrite, and the best becomes the next parent, the last one
the candidate. The original adds marks of 1-5 for diversity and 1-10 for difficulty and solvability,
so difficulty outweighs diversity two to one unsaid; here each mark is brought to 0..1 first, with
stated weights.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.synth.authors import structured
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.synth.loongenv.seeds import Seed
from loong_jax.synth.loongenv.workshop import QUESTION, Workshop

TRIPLE = structured.fields(question=str, code=str, answer=str)
CODE = structured.fields(code=str)


def coded(candidates: Sequence[Candidate], workshop: Workshop) -> list[Candidate]:
    """Open candidates with a program, which the coder wrote from the question alone."""
    asked = {
        one.id: {
            "question": one.question, "domain": one.domain, "packages": workshop.packages_text
        }
        for one in candidates
        if not one.code
    }  # fmt: skip
    answers = workshop.asker.ask("code", asked, CODE)
    found = []
    for one in candidates:
        if (answer := answers.get(one.id)) is not None:
            one = one.after(answer.calls)
            if answer.failure:
                one = one.ended("author_failed", answer.failure)
            else:
                one = dataclasses.replace(one, code=answer.parsed["code"])
        found.append(one)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot:
    name: str = "few_shot"

    def propose(self, workshop: Workshop, ids: Sequence[str]) -> list[Candidate]:
        shown = {name: workshop.shown(workshop.rng(name)) for name in ids}
        examples = {
            name: [{"question": s.question, "code": s.code, "answer": s.gold} for s in seeds]
            for name, seeds in shown.items()
        }
        return _posed(self.name, TRIPLE, workshop, shown, examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfInstruct:
    name: str = "self_instruct"

    def propose(self, workshop: Workshop, ids: Sequence[str]) -> list[Candidate]:
        shown, examples = {}, {}
        for name in ids:
            rng = workshop.rng(name)
            shown[name] = workshop.shown(rng)
            examples[name] = [seed.question for seed in shown[name]]
            if workshop.earlier:
                examples[name].append(rng.choice(workshop.earlier))
        return _posed(self.name, QUESTION, workshop, shown, examples)


def _posed(
    strategy: str, schema: Mapping[str, Any], workshop: Workshop,
    shown: Mapping[str, Sequence[Seed]], examples: Mapping[str, Sequence[Any]],
) -> list[Candidate]:  # fmt: skip
    """A candidate per id out of its examples."""
    asked = {
        name: {
            "domain": workshop.domain,
            "packages": workshop.packages_text,
            "examples": json.dumps(some, indent=1, ensure_ascii=False),
        }
        for name, some in examples.items()
    }
    answers = workshop.asker.ask("question", asked, schema, prompt=strategy)
    found = []
    for name, seeds in shown.items():
        answer = answers[name]
        candidate = Candidate(
            id=name, domain=workshop.domain, strategy=strategy, calls=answer.calls,
            seeds=tuple(seed.id for seed in seeds),
        )  # fmt: skip
        if answer.failure:
            found.append(candidate.ended("author_failed", answer.failure))
            continue
        said = answer.parsed
        found.append(
            dataclasses.replace(
                candidate, question=said["question"].strip(), code=said.get("code", ""),
                stated=said.get("answer", ""),
            )
        )  # fmt: skip
    return found


class Operator(NamedTuple):
    name: str
    words: str  # how the prompt asks for it


IN_DEPTH = (
    Operator("constraints", "Add one more constraint or requirement."),
    Operator("deepening", "Deepen it: ask for more than it asks for, in the same field."),
    Operator("concretising", "Replace something general by something concrete, with its numbers."),
    Operator("reasoning", "Make its solution need one more step of reasoning."),
    Operator("expansion", "Add one more quantity that the answer depends on."),
)
IN_BREADTH = (
    Operator("persona", "Tell it in the voice of another person, in another setting."),
    Operator("shift_in", "Keep the method and move to another topic of the same field."),
    Operator("shift_out", "Keep the topic and ask for another quantity by another method."),
    Operator("mix", "Mix it with another idea of the field."),
    Operator("abstract", "Ask the general case of it, with the numbers given as parameters."),
)
# They keep it solvable by symbols (arXiv 2509.03059, appendix: the operators for mathematics).
FOR_MATHS = (
    *(one for one in IN_DEPTH if one.name in ("constraints", "deepening", "expansion")),
    Operator("condense", "Say the same in half the words, and keep it solvable by symbols."),
)
MARKS = structured.fields(
    diversity={"type": "number", "minimum": 1, "maximum": 5},
    difficulty={"type": "number", "minimum": 1, "maximum": 10},
    solvability={"type": "number", "minimum": 1, "maximum": 10},
)
_HIGHEST = {"diversity": 5, "difficulty": 10, "solvability": 10}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolInstruct:
    name: str = "evol_instruct"
    generations: int = 2
    rewrites: int = 2  # per generation
    breadth_share: float = 0.3  # of the operators drawn
    weights: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"diversity": 1.0, "difficulty": 1.0, "solvability": 1.0}
    )
    min_solvability: float = 4.0  # of 10; below it a rewrite is nobody's parent

    def __post_init__(self):
        refuse_below(self, 1, "generations", "rewrites")
        if not 0 <= self.breadth_share <= 1:
            raise ConfigError(f"breadth_share={self.breadth_share} is not in 0..1. Choose there.")
        if set(self.weights) != set(_HIGHEST):
            raise ConfigError(f"weights={dict(self.weights)} must name {sorted(_HIGHEST)}.")

    def propose(self, workshop: Workshop, ids: Sequence[str]) -> list[Candidate]:
        found = {}
        for name in ids:
            [seed] = workshop.rng(name).sample(list(workshop.seeds), 1)
            found[name] = Candidate(
                id=name, domain=workshop.domain, strategy=self.name, question=seed.question,
                seeds=(seed.id,), notes={"operators": ()},
            )  # fmt: skip
        for generation in range(self.generations):
            alive = {name: one for name, one in found.items() if one.is_open}
            found |= self._evolved(workshop, alive, generation)
        return [found[name] for name in ids]

    def _evolved(
        self, workshop: Workshop, parents: Mapping[str, Candidate], generation: int
    ) -> dict[str, Candidate]:
        """Each parent's best rewrite, or the parent ended where it has none."""
        drawn = {
            f"{name}/{generation}/{n}": self._operator(workshop, f"{name}/{generation}/{n}")
            for name in parents
            for n in range(self.rewrites)
        }
        parent_of = {key: parents[key.rsplit("/", 2)[0]] for key in drawn}
        rewritten = workshop.asker.ask(
            "question",
            {
                key: {
                    "domain": workshop.domain, "operator": operator.words,
                    "question": parent_of[key].question,
                }
                for key, operator in drawn.items()
            },
            QUESTION, prompt="evolve",
        )  # fmt: skip
        posed = {key: a.parsed["question"].strip() for key, a in rewritten.items() if not a.failure}
        marked = workshop.asker.ask(
            "score",
            {
                key: {
                    "domain": workshop.domain, "parent": parent_of[key].question,
                    "question": question,
                }
                for key, question in posed.items()
            },
            MARKS,
        )  # fmt: skip
        found = {}
        for name, parent in parents.items():
            keys = [key for key in drawn if parent_of[key] is parent]
            calls = [c for key in keys for c in rewritten[key].calls]
            calls += [c for key in keys if key in marked for c in marked[key].calls]
            scored = [(self.score(marked[k].parsed), k) for k in keys if k in marked]
            best = max(scored, default=(-1.0, ""), key=lambda pair: pair[0])
            if best[0] < 0:
                failed = parent.after(calls)
                failures = [rewritten[k].failure for k in keys if k not in posed]
                failures += [marked[k].failure for k in keys if k in posed and marked[k].failure]
                if len(failures) < len(keys):
                    found[name] = failed.ended("malformed_question", "no rewrite is solvable")
                else:
                    found[name] = failed.ended("author_failed", failures[0])
                continue
            operators = (*parent.notes["operators"], drawn[best[1]].name)
            notes = {"operators": operators, "marks": marked[best[1]].parsed}
            found[name] = parent.after(calls, question=posed[best[1]], notes=notes)
        return found

    def score(self, marks: Mapping[str, Any] | None) -> float:
        """Weighted mean of the marks in 0..1; -1 for a rewrite that is out of the question."""
        if marks is None or marks["solvability"] < self.min_solvability:
            return -1.0
        total = sum(self.weights.values())
        parts = ((marks[name] - 1) / (high - 1) for name, high in _HIGHEST.items())
        weights = (self.weights[name] for name in _HIGHEST)
        return sum(w * part for w, part in zip(weights, parts, strict=True)) / total

    def _operator(self, workshop: Workshop, key: str) -> Operator:
        rng = workshop.rng(key)
        if workshop.domain == "advanced_math":
            return rng.choice(FOR_MATHS)
        return rng.choice(IN_BREADTH if rng.random() < self.breadth_share else IN_DEPTH)
