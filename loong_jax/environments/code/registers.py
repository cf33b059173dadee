"""Code: registers of a small machine after a loop, `257 3[b+a c-b]`.

Registers a, b and c hold one digit each and count modulo 10; the instructions in brackets add one
register to another or subtract it, three times over. Working longer helps: a solution writes the
registers after every instruction, a leap skips some.
"""

import dataclasses
import random

from loong_jax.environments.problem import Domain
from loong_jax.environments.worked import State, Worked

NUM_INSTRUCTIONS = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6}
REGISTERS, NUM_PASSES, MODULUS = "abc", 3, 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registers(Worked):
    """State: {"start": "257", "loop": ["b+a", "c-b"]}; no instruction names a register twice."""

    name: str = "registers"
    domain: Domain = "code"
    form = "[0-9]{3}"

    def draw(self, level: int, rng: random.Random) -> State:
        loop = []
        for _ in range(NUM_INSTRUCTIONS[level]):
            target, source = rng.sample(REGISTERS, 2)
            loop.append(target + rng.choice("+-") + source)
        return {"start": "".join(str(rng.randrange(MODULUS)) for _ in REGISTERS), "loop": loop}

    def text(self, state: State) -> str:
        return f"{state['start']} {NUM_PASSES}[{' '.join(state['loop'])}]"

    def values(self, state: State) -> list[str]:
        held = dict(zip(REGISTERS, map(int, state["start"]), strict=True))
        found = []
        for target, sign, source in state["loop"] * NUM_PASSES:
            held[target] = (held[target] + int(f"{sign}1") * held[source]) % MODULUS
            found.append("".join(map(str, held.values())))
        return found

    def answer(self, state: State) -> str:
        return self.values(state)[-1]

    def flaw(self, state: State, answer: str) -> str | None:
        """Runs the loop backwards from the answer, each instruction undone: the start comes out."""
        held = [int(digit) for digit in answer]
        for target, sign, source in reversed(state["loop"] * NUM_PASSES):
            undone = held[REGISTERS.index(source)] * (-1 if sign == "+" else 1)
            place = REGISTERS.index(target)
            held[place] = (held[place] + undone) % MODULUS
        began = "".join(map(str, held))
        return None if began == state["start"] else f"that comes of {began}, not {state['start']}"

    def num_forms(self, level: int) -> int:
        count = len(REGISTERS)
        kinds = count * (count - 1) * 2
        return MODULUS**count * kinds ** NUM_INSTRUCTIONS[level]
