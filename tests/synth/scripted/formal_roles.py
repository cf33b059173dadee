"""The scripted author of the formal loop: it translates, tells in words, and judges.

It reads the problem's words as `formulas.tell` has them, and knows no more than they say.
"""

import json
import random
import re
from collections.abc import Callable, Mapping

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import NOT, Atom, Formula, Implies, Not, Statement
from tests.synth.scripted.play import Ask, Said, defects

DEFECTS = (
    *defects(
        "formal/formalise",
        formula_syntax=0.02,  # a bracket too many
        foreign_atom=0.02,  # a letter of no clause
        wrong_connective=0.03,  # a negation for a plain end
        converse=0.03,
        dropped_hypothesis=0.03,
        swapped_atoms=0.03,
        trivialised=0.02,  # the goal among the hypotheses
        contradiction=0.02,  # a hypothesis and its negation
        other_goal=0.03,
    ),
    *defects("formal/back_translate", loose_words=0.02),  # a supposition left out
    *defects("formal/judge", lenient_formal_judge=0.05, harsh_formal_judge=0.02),
)
_SIGNS = {"if ": "", " and ": " -> ", ", then ": " -> ", "[": "(", "]": ")", NOT: "~"}


def read(text: str, glossary: Mapping[str, str]) -> Statement:
    """Inverse of `formulas.tell`."""
    sign_of = _SIGNS | {clause: name for name, clause in glossary.items()}
    words = re.compile("|".join(map(re.escape, sorted(sign_of, key=len, reverse=True))))
    *supposed, shown = text.splitlines()
    lines = [re.fullmatch(r"Suppose that (.*)\.", line)[1] for line in supposed]
    lines.append(re.fullmatch(r"Show that (.*)\.", shown)[1])
    *hypotheses, goal = (words.sub(lambda found: sign_of[found[0]], line) for line in lines)
    parsed = map(formulas.parse, hypotheses)
    return Statement(tuple(parsed), formulas.parse(goal))


def read_glossary(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


def formalise(ask: Ask) -> Said:
    meant = read(ask.fields["problem"], read_glossary(ask.fields["glossary"]))
    if ask.defect == "formula_syntax":
        parts = _parts(meant)
        parts["goal"] = f"({parts['goal']}"
        return Said(json.dumps(parts), ask.defect)
    spoil = _SPOIL.get(ask.defect or "")
    if spoil is not None:
        for _ in range(20):
            spoilt = spoil(meant, ask.rng)
            if not formulas.says_the_same(spoilt, meant):
                return Said(json.dumps(_parts(spoilt)), ask.defect)
    return Said(json.dumps(_parts(meant)))


def back_translate(ask: Ask) -> Said:
    glossary = read_glossary(ask.fields["glossary"])
    posed = formulas.of_parts(ask.fields["hypotheses"].splitlines(), ask.fields["goal"])
    words = formulas.tell(posed, glossary)
    if ask.defect == "loose_words":
        return Said(json.dumps({"problem": words.split("\n", 1)[-1]}), ask.defect)
    return Said(json.dumps({"problem": words}))


def judge(ask: Ask) -> Said:
    glossary = read_glossary(ask.fields["glossary"])
    first, second = (read(ask.fields[name], glossary) for name in ("problem", "back_translation"))
    is_same = formulas.says_the_same(first, second)
    planted = None
    if ask.defect == ("harsh_formal_judge" if is_same else "lenient_formal_judge"):
        is_same, planted = not is_same, ask.defect
    said = {"reasoning": "Supposition by supposition.", "is_same": is_same}
    return Said(json.dumps(said), planted)


def _parts(posed: Statement) -> dict:
    return {
        "hypotheses": [formulas.show(h) for h in posed.hypotheses],
        "goal": formulas.show(posed.goal),
    }


# ---- wrong translations


def _replaced(posed: Statement, place: int, formula: Formula) -> Statement:
    hypotheses = list(posed.hypotheses)
    hypotheses[place] = formula
    return posed._replace(hypotheses=tuple(hypotheses))


def _place(posed: Statement, rng: random.Random) -> int:
    """Of a hypothesis, an implication where there is one."""
    rules = [i for i, h in enumerate(posed.hypotheses) if isinstance(h, Implies)]
    return rng.choice(rules or list(range(len(posed.hypotheses))))


def _renamed(posed: Statement, rng: random.Random, names: Mapping[str, str]) -> Statement:
    """With other names in one hypothesis."""
    place, name_of = _place(posed, rng), {n: n for n in posed.atoms} | names
    return _replaced(posed, place, formulas.rename(posed.hypotheses[place], name_of))


def _foreign_atom(posed: Statement, rng: random.Random) -> Statement:
    return _renamed(posed, rng, {rng.choice(sorted(posed.atoms)): "zz"})


def _swapped(posed: Statement, rng: random.Random) -> Statement:
    if len(posed.atoms) < 2:
        return posed
    one, other = rng.sample(sorted(posed.atoms), 2)
    return _renamed(posed, rng, {one: other, other: one})


def _wrong_connective(posed: Statement, rng: random.Random) -> Statement:
    place = _place(posed, rng)
    premises, end = formulas.premises_of(posed.hypotheses[place])
    return _replaced(posed, place, formulas.implication(premises, Not(end)))


def _converse(posed: Statement, rng: random.Random) -> Statement:
    place = _place(posed, rng)
    premises, end = formulas.premises_of(posed.hypotheses[place])
    if not premises:
        return posed
    return _replaced(posed, place, formulas.implication([end, *premises[1:]], premises[0]))


def _dropped(posed: Statement, rng: random.Random) -> Statement:
    gone = rng.choice(posed.hypotheses)
    return posed._replace(hypotheses=tuple(h for h in posed.hypotheses if h is not gone))


_SPOIL: dict[str, Callable[[Statement, random.Random], Statement]] = {
    "foreign_atom": _foreign_atom,
    "wrong_connective": _wrong_connective,
    "converse": _converse,
    "dropped_hypothesis": _dropped,
    "swapped_atoms": _swapped,
    "trivialised": lambda posed, _: posed._replace(hypotheses=(*posed.hypotheses, posed.goal)),
    "contradiction": lambda posed, rng: posed._replace(
        hypotheses=(*posed.hypotheses, Not(rng.choice(posed.hypotheses)))
    ),
    "other_goal": lambda posed, rng: posed._replace(goal=Atom(rng.choice(sorted(posed.atoms)))),
}
