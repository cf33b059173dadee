"""The scripted author of the formal loop: it translates, tells in words, and judges.

It reads the problem's words as `formal.problems` tells them, and knows no more than they say.
"""

import json
import random
from collections.abc import Callable

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Atom, Formula, Implies, Not, Statement
from tests.synth.scripted import formal_words
from tests.synth.scripted.play import Ask, Defect, Said

TRANSLATED = ("formal/formalise",)

DEFECTS = (
    Defect(name="formula_syntax", about="a bracket too few", rate=0.02, prompts=TRANSLATED),
    Defect(name="foreign_atom", about="a letter of no clause", rate=0.02, prompts=TRANSLATED),
    Defect(name="wrong_connective", about="a negation for a plain end", rate=0.03,
           prompts=TRANSLATED),
    Defect(name="converse", about="an implication turned round", rate=0.03, prompts=TRANSLATED),
    Defect(name="dropped_hypothesis", about="one left out", rate=0.03, prompts=TRANSLATED),
    Defect(name="swapped_atoms", about="two letters exchanged in one hypothesis", rate=0.03,
           prompts=TRANSLATED),
    Defect(name="trivialised", about="the goal among the hypotheses", rate=0.02,
           prompts=TRANSLATED),
    Defect(name="contradiction", about="a hypothesis and its negation", rate=0.02,
           prompts=TRANSLATED),
    Defect(name="other_goal", about="another atom as the goal", rate=0.03, prompts=TRANSLATED),
    Defect(name="loose_words", about="a supposition left out on the way back", rate=0.02,
           prompts=("formal/back_translate",)),
    Defect(name="lenient_formal_judge", about="finds all problems the same", rate=0.05,
           prompts=("formal/judge",)),
    Defect(name="harsh_formal_judge", about="finds equal problems different", rate=0.02,
           prompts=("formal/judge",)),
)  # fmt: skip


def read_glossary(text: str) -> dict[str, str]:
    pairs = (line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return dict(pairs)


def formalise(ask: Ask) -> Said:
    meant = formal_words.read(ask.fields["problem"], read_glossary(ask.fields["glossary"]))
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
    first, second = (
        formal_words.read(ask.fields[name], glossary) for name in ("problem", "back_translation")
    )
    is_same = formulas.says_the_same(first, second)
    planted = None
    if ask.defect == "lenient_formal_judge" and not is_same:
        is_same, planted = True, ask.defect
    elif ask.defect == "harsh_formal_judge" and is_same:
        is_same, planted = False, ask.defect
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


def _foreign_atom(posed: Statement, rng: random.Random) -> Statement:
    name = rng.choice(sorted(posed.atoms))
    names = {n: n for n in posed.atoms} | {name: "zz"}
    place = _place(posed, rng)
    return _replaced(posed, place, formulas.rename(posed.hypotheses[place], names))


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
    place = rng.randrange(len(posed.hypotheses))
    kept = posed.hypotheses[:place] + posed.hypotheses[place + 1 :]
    return posed._replace(hypotheses=kept)


def _swapped(posed: Statement, rng: random.Random) -> Statement:
    if len(posed.atoms) < 2:
        return posed
    place = _place(posed, rng)
    inside = sorted(formulas.atoms_of([posed.hypotheses[place]]))
    one = rng.choice(inside)
    other = rng.choice(sorted(set(posed.atoms) - {one}))
    names = {n: n for n in posed.atoms} | {one: other, other: one}
    return _replaced(posed, place, formulas.rename(posed.hypotheses[place], names))


def _trivialised(posed: Statement, rng: random.Random) -> Statement:
    place = rng.randrange(len(posed.hypotheses) + 1)
    hypotheses = list(posed.hypotheses)
    hypotheses.insert(place, posed.goal)
    return posed._replace(hypotheses=tuple(hypotheses))


def _contradiction(posed: Statement, rng: random.Random) -> Statement:
    negated = Not(rng.choice(posed.hypotheses))
    return posed._replace(hypotheses=(*posed.hypotheses, negated))


def _other_goal(posed: Statement, rng: random.Random) -> Statement:
    return posed._replace(goal=Atom(rng.choice(sorted(posed.atoms))))


_SPOIL: dict[str, Callable[[Statement, random.Random], Statement]] = {
    "foreign_atom": _foreign_atom,
    "wrong_connective": _wrong_connective,
    "converse": _converse,
    "dropped_hypothesis": _dropped,
    "swapped_atoms": _swapped,
    "trivialised": _trivialised,
    "contradiction": _contradiction,
    "other_goal": _other_goal,
}
