"""Strategies that pose questions, and the code agent that writes a program for each.

few-shot: three seeds with program and answer, asked for one more such triple; the answer that comes
with it is thrown away, since executing the program gives it. self-instruct: three seeds and one
earlier question of ours, asked for a new one. evol-instruct: a seed rewritten for some generations
by named operators; a scorer marks each rewrite, and the best becomes the next parent, the last one
the candidate. The original adds marks of 1-5 for diversity and 1-10 for difficulty and solvability,
so difficulty outweighs diversity two to one unsaid; here each mark is brought to 0..1 first.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.synth import calls
from loong_jax.synth.loongenv.candidates import QUESTION, Candidate, Seed, Workshop

TRIPLE = calls.fields(question=str, code=str, answer=str)
CODE = calls.fields(code=str)


def coded(candidates: Sequence[Candidate], workshop: Workshop) -> list[Candidate]:
    """Open candidates with a program, which the coder wrote from the question alone."""
    asked = {
        one.id: {
            "question": one.question, "domain": one.domain, "packages": workshop.packages_text
        }
        for one in candidates
        if not one.code
    }  # fmt: skip
    answers = workshop.ask("code", asked, CODE)
    found = []
    for one in candidates:
        if (answer := answers.get(one.id)) is not None:
            said = answer.parsed or {"code": ""}
            one = one.after(answer.calls, code=said["code"])
            one = one.ended("author_failed", answer.failure) if answer.failure else one
        found.append(one)
    return found


def few_shot(workshop: Workshop, ids: Sequence[str]) -> list[Candidate]:
    shown = {name: workshop.shown(workshop.rng(name)) for name in ids}
    examples = {
        name: [{"question": s.question, "code": s.code, "answer": s.gold} for s in seeds]
        for name, seeds in shown.items()
    }
    return _posed("few_shot", TRIPLE, workshop, shown, examples)


def self_instruct(workshop: Workshop, ids: Sequence[str]) -> list[Candidate]:
    shown, examples = {}, {}
    for name in ids:
        rng = workshop.rng(name)
        shown[name] = workshop.shown(rng)
        examples[name] = [seed.question for seed in shown[name]]
        if workshop.earlier:
            examples[name].append(rng.choice(workshop.earlier))
    return _posed("self_instruct", QUESTION, workshop, shown, examples)


def _posed(
    strategy: str, schema: Mapping[str, Any], workshop: Workshop,
    shown: Mapping[str, Sequence[Seed]], examples: Mapping[str, Sequence[Any]],
) -> list[Candidate]:  # fmt: skip
    asked = {
        name: {
            "domain": workshop.domain,
            "packages": workshop.packages_text,
            "examples": json.dumps(some, indent=1, ensure_ascii=False),
        }
        for name, some in examples.items()
    }
    answers = workshop.ask("question", asked, schema, prompt=strategy)
    found = []
    for name, seeds in shown.items():
        answer, said = answers[name], answers[name].parsed or {}
        one = Candidate(
            id=name, domain=workshop.domain, strategy=strategy, calls=answer.calls,
            seeds=tuple(seed.id for seed in seeds), question=said.get("question", "").strip(),
            code=said.get("code", ""), stated=said.get("answer", ""),
        )  # fmt: skip
        found.append(one.ended("author_failed", answer.failure) if answer.failure else one)
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
MARKS = calls.fields(
    diversity={"type": "number", "minimum": 1, "maximum": 5},
    difficulty={"type": "number", "minimum": 1, "maximum": 10},
    solvability={"type": "number", "minimum": 1, "maximum": 10},
)
_HIGHEST = {"diversity": 5, "difficulty": 10, "solvability": 10}
BREADTH_SHARE = 0.3  # of the operators drawn
MIN_SOLVABILITY = 4  # of 10; a rewrite below it is nobody's parent


def evol_instruct(
    workshop: Workshop, ids: Sequence[str], *, generations: int, rewrites: int
) -> list[Candidate]:
    """`rewrites` of each question in every generation; the best is the next one's parent."""
    found = {}
    for name in ids:
        [seed] = workshop.rng(name).sample(list(workshop.seeds), 1)
        found[name] = Candidate(
            id=name, domain=workshop.domain, strategy="evol_instruct", question=seed.question,
            seeds=(seed.id,), notes={"operators": ()},
        )  # fmt: skip
    for generation in range(generations):
        alive = {name: one for name, one in found.items() if one.is_open}
        found |= _evolved(workshop, alive, generation, rewrites)
    return [found[name] for name in ids]


def _evolved(
    workshop: Workshop, parents: Mapping[str, Candidate], generation: int, rewrites: int
) -> dict[str, Candidate]:
    """Each parent's best rewrite, or the parent ended where it has none."""
    names = {f"{name}/{generation}/{n}": name for name in parents for n in range(rewrites)}
    drawn = {key: _operator(workshop, key) for key in names}
    domain, ask = workshop.domain, workshop.ask
    asked = {
        key: {"domain": domain, "operator": one.words, "question": parents[names[key]].question}
        for key, one in drawn.items()
    }
    rewritten = ask("question", asked, QUESTION, prompt="evolve")
    posed = {key: a.parsed["question"].strip() for key, a in rewritten.items() if not a.failure}
    asked = {
        key: {"domain": domain, "parent": parents[names[key]].question, "question": question}
        for key, question in posed.items()
    }
    marked = ask("score", asked, MARKS)
    found = {}
    for name, parent in parents.items():
        keys = [key for key in names if names[key] == name]
        calls = [c for key in keys for c in rewritten[key].calls]
        calls += [c for key in keys if key in marked for c in marked[key].calls]
        scores = {key: score(marked[key].parsed) for key in keys if key in marked}
        best = max(scores, default="", key=scores.__getitem__)
        if scores.get(best, -1) >= 0:
            operators = (*parent.notes["operators"], drawn[best].name)
            notes = {"operators": operators, "marks": marked[best].parsed}
            found[name] = parent.after(calls, question=posed[best], notes=notes)
            continue
        failures = [rewritten[k].failure for k in keys if k not in posed]
        failures += [marked[k].failure for k in keys if k in posed and marked[k].failure]
        end = ("malformed_question", "no rewrite is solvable")
        if len(failures) == len(keys):
            end = ("author_failed", failures[0])
        found[name] = parent.after(calls).ended(*end)
    return found


def score(marks: Mapping[str, Any] | None) -> float:
    """Mean of the marks in 0..1; -1 for a rewrite that is out of the question."""
    if marks is None or marks["solvability"] < MIN_SOLVABILITY:
        return -1.0
    return sum((marks[name] - 1) / (high - 1) for name, high in _HIGHEST.items()) / len(_HIGHEST)


def _operator(workshop: Workshop, key: str) -> Operator:
    rng = workshop.rng(key)
    if workshop.domain == "advanced_math":
        return rng.choice(FOR_MATHS)
    return rng.choice(IN_BREADTH if rng.random() < BREADTH_SHARE else IN_DEPTH)
