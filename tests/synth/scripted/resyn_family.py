"""How the scripted author writes environments: families of puzzles as module texts.

A family is the parts of a module that differ: how a state is drawn, worded and solved. `source`
puts them together under the protocol of `environments.modules`.
"""

import dataclasses
import textwrap

HEAD = '''"""{title}."""
{imports}
SIZES = {sizes}


def levels():
    return [1, 2, 3, 4, 5]


def generate(level, seed):
    rng = random.Random(seed * 8 + level)
    n = SIZES[level - 1]
{draw}


def question(state):
    return {asks}


def reference(state):
{solve}


def reward(state, answer):
{judge}
'''
EXACT = "return answer.strip() == reference(state)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Python texts: `draw` sees rng, n and returns a state; the others see `state`, `answer`."""

    name: str
    title: str
    keywords: tuple[str, ...]  # that make a scripted author think of it
    draw: str
    asks: str  # an expression
    solve: str
    judge: str = EXACT
    sizes: tuple[int, ...] = (2, 3, 4, 5, 6)
    imports: tuple[str, ...] = ()

    def source(self, sizes: tuple[int, ...] | None = None) -> str:
        """The module's text, with other sizes of the levels if given."""
        return HEAD.format(
            title=self.title,
            imports="\n".join(f"import {name}" for name in sorted({"random", *self.imports}))
            + "\n",
            sizes=sizes or self.sizes,
            draw=_block(self.draw),
            asks=self.asks,
            solve=_block(self.solve),
            judge=_block(self.judge),
        )


def _block(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
