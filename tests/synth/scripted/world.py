"""Questions as the scripted author knows them: a family with its values, and steps after it.

Any role can read a question of ours back from its text, so judge and solver know the truth where
there is one. A text that does not read back is underspecified, tampered with, or somebody else's.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Mapping
from fractions import Fraction

from tests.synth.scripted.families import BY_DOMAIN, FAMILIES, Family

MODULI = (89, 97, 101, 997)
PERSONAS = (
    "", "A teacher writes on the board: ", "For a newsletter on puzzles: ",
    "An engineer notes on a napkin: ", "From an old exercise book: ",
)  # fmt: skip
STEPS = {  # words of a step, its line of program, and what it does to an integer
    "add": ("Then add {k} to the result.", "result = result + {k}", lambda r, k: r + k),
    "times": ("Then multiply the result by {k}.", "result = result * {k}", lambda r, k: r * k),
    "modulo": (
        "Then take the remainder of the result after division by {k}.", "result = result % {k}",
        lambda r, k: r - k * (r // k),
    ),
    "square": (
        "Then square the result and subtract {k}.", "result = result**2 - {k}",
        lambda r, k: r * r - k,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Puzzle:
    family: Family
    values: Mapping[str, int]
    wording: int = 0
    steps: tuple[tuple[str, int], ...] = ()  # name of a step, and its number
    persona: str = ""

    @property
    def question(self) -> str:
        base = self.family.wordings[self.wording].format(**self.values)
        said = [STEPS[name][0].format(k=k) for name, k in self.steps]
        return self.persona + " ".join([base, *said])

    @property
    def truth(self) -> str:
        value = self.family.truth(self.values)
        if isinstance(value, str):
            return value
        for name, k in self.steps:
            value = STEPS[name][2](value, k)
        if self.family.digits is None:
            return str(value)
        scale = 10**self.family.digits
        rounded = Fraction(round(Fraction(value) * scale), scale)
        return f"{float(rounded)} {self.family.unit}".strip()

    def program(self, *, is_wrong: bool = False) -> str:
        """A program that prints the answer, or, by the family's own mistake, another."""
        text = self.family.program
        if is_wrong:
            text = text.replace(*self.family.wrong)
        lines = [text.format(**self.values)]
        lines += [STEPS[name][1].format(k=k) for name, k in self.steps]
        shown = f'f"{{result}} {self.family.unit}"' if self.family.unit else "result"
        return "\n".join([*lines, f"print({shown})"])


def draw(domain: str, rng: random.Random, num_steps: int = 0) -> Puzzle:
    """A puzzle of this domain; of maths where the domain has none."""
    family = rng.choice(BY_DOMAIN.get(domain, BY_DOMAIN["advanced_math"]))
    puzzle = Puzzle(
        family=family, values=family.draw(rng), wording=rng.randrange(len(family.wordings))
    )
    for _ in range(num_steps):
        puzzle = deepened(puzzle, rng)
    return puzzle


def deepened(puzzle: Puzzle, rng: random.Random) -> Puzzle:
    """One step more; the same puzzle where its result takes no step."""
    if not puzzle.family.takes_steps:
        return dataclasses.replace(puzzle, values=puzzle.family.draw(rng))
    name = rng.choice(list(STEPS))
    k = rng.choice(MODULI) if name == "modulo" else rng.randint(3, 48)
    return dataclasses.replace(puzzle, steps=(*puzzle.steps, (name, k)))


def read(question: str) -> Puzzle | None:
    """The puzzle a text poses, if it is exactly one of ours."""
    text = question.strip()
    persona = next((p for p in PERSONAS if p and text.startswith(p)), "")
    text = text[len(persona) :]
    for family in FAMILIES:
        for index in range(len(family.wordings)):
            match = _pattern(family.name, index).match(text)
            if match is None:
                continue
            steps = _steps(text[match.end() :])
            if steps is None or (steps and not family.takes_steps):
                continue
            values = {name: int(value) for name, value in match.groupdict().items()}
            return Puzzle(family=family, values=values, wording=index, steps=steps, persona=persona)
    return None


def _steps(text: str) -> tuple[tuple[str, int], ...] | None:
    found: list[tuple[str, int]] = []
    while text:
        for name, (words, _, _) in STEPS.items():
            pattern = " " + re.escape(words).replace(r"\{k\}", r"(-?\d+)")
            if match := re.match(pattern, text):
                found.append((name, int(match[1])))
                text = text[match.end() :]
                break
        else:
            return None
    return tuple(found)


@functools.cache
def _pattern(name: str, wording: int) -> re.Pattern[str]:
    family = next(one for one in FAMILIES if one.name == name)
    text = re.escape(family.wordings[wording])
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>-?\\d+)", text))


def with_persona(puzzle: Puzzle, rng: random.Random) -> Puzzle:
    """The same puzzle in another voice."""
    return dataclasses.replace(puzzle, persona=rng.choice(PERSONAS[1:]))
