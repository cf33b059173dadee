"""Proofs of the implicational fragment as terms: what the prover writes, and how it is read.

A proof is a tree. At each node stands the goal and the hypothesis that proves it, and below it a
proof of each premise of that hypothesis. In text, depth first: `rC pA qB pA` says that C proves r,
that A and B prove its premises p and q, and that B's own premise is p again. Where a premise is an
implication, its left sides become hypotheses: `D:p` names one. Blanks and colons may be left out.

This is natural deduction in eta-long normal form: every provable statement of the fragment has such
a proof (Prawitz), and a text is a proof or not by one pass from left to right.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from loong_jax.synth.formal import formulas
from loong_jax.synth.formal.formulas import Formula
from loong_jax.synth.formal.statement import Statement

LETTERS = string.ascii_uppercase  # names of hypotheses, in order; more than 26 are refused
MAX_NODES = 500


class NoProof(ValueError):
    """The text is no proof of the statement; the message says where it goes wrong."""


class Node(NamedTuple):
    """Proves `goal`, no implication, by the hypothesis `head` and proofs of its premises."""

    goal: Formula
    head: str
    arguments: "tuple[Argument, ...]"

    @property
    def size(self) -> int:
        """Number of nodes."""
        return 1 + sum(argument.node.size for argument in self.arguments)


class Argument(NamedTuple):
    """A proof of a premise: `node` under the hypotheses `assumed`, the premise's own left sides."""

    assumed: tuple[tuple[str, Formula], ...]
    node: Node


def sequent(statement: Statement) -> str:
    """The statement as the prover reads it: `A:p B:p>q |-q`, every hypothesis with its letter."""
    named = zip(LETTERS, statement.hypotheses, strict=False)
    return " ".join([*(f"{name}:{_short(h)}" for name, h in named), f"|-{_short(statement.goal)}"])


def read_sequent(text: str) -> Statement:
    """Inverse of `sequent`. Raises formulas.Malformed."""
    *named, goal = text.split() or [""]
    right = [f"{letter}:" for letter in LETTERS[: len(named)]]
    if not goal.startswith("|-") or [part[:2] for part in named] != right:
        raise formulas.Malformed(f"{text[:60]!r} is no sequent such as `A:p B:p>q |-q`")
    hypotheses, goal = [[p[2:].replace(">", "->") for p in part] for part in (named, [goal])]
    return Statement(tuple(map(formulas.parse, hypotheses)), formulas.parse(goal[0]))


def is_in_fragment(statement: Statement) -> bool:
    """Whether statement and hypotheses can be written: arrows alone, one letter an atom."""
    return (
        formulas.is_implicational(statement.formula)
        and len(statement.hypotheses) <= len(LETTERS)
        and all(len(name) == 1 and name in string.ascii_lowercase for name in statement.atoms)
    )


def read(text: str, statement: Statement) -> Node:
    """The proof that the whole text is, every step checked. Raises NoProof."""
    context = dict(zip(LETTERS, statement.hypotheses, strict=False))
    reader = _Reader(text)
    node = reader.node(statement.goal, context)
    if reader.rest:
        raise NoProof(f"{reader.rest[:10]!r} follows a whole proof")
    return node


def write(node: Node) -> str:
    """The text that `read` reads."""
    return " ".join(_pieces(node))


def moved(node: Node, letter_of: Mapping[str, str], name_of: Mapping[str, str]) -> Node:
    """The same proof of the statement with other letters and names.

    `letter_of` holds the statement's own hypotheses; those assumed on the way keep their letters.
    """
    arguments = tuple(
        Argument(
            tuple((letter, formulas.rename(f, name_of)) for letter, f in a.assumed),
            moved(a.node, letter_of, name_of),
        )
        for a in node.arguments
    )
    goal = formulas.rename(node.goal, name_of)
    return Node(goal, letter_of.get(node.head, node.head), arguments)


def _pieces(node: Node) -> Iterator[str]:
    yield f"{_short(node.goal)}{node.head}"
    for argument in node.arguments:
        for name, formula in argument.assumed:
            yield f"{name}:{_short(formula)}"
        yield from _pieces(argument.node)


def _short(formula: Formula) -> str:
    return formulas.show(formula).replace(" -> ", ">")


class _Reader:
    """Reads from left to right; what a step must be is known before it is read."""

    def __init__(self, text: str):
        self.rest = "".join(text.replace(":", " ").split())
        self._num_nodes = 0

    def node(self, goal: Formula, context: Mapping[str, Formula]) -> Node:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise NoProof(f"it has more than {MAX_NODES} steps")
        self._take(_short(goal), "the goal here is")
        head, self.rest = self.rest[:1], self.rest[1:]
        if not head or head not in context:
            raise NoProof(f"{head!r} names no hypothesis here")
        premises, target = formulas.premises_of(context[head])
        if target != goal:
            raise NoProof(f"{head} proves {_short(target)}, not {_short(goal)}")
        return Node(goal, head, tuple(self._argument(p, context) for p in premises))

    def _argument(self, premise: Formula, context: Mapping[str, Formula]) -> Argument:
        assumed, goal = formulas.premises_of(premise)
        inner, named = dict(context), []
        for formula in assumed:
            if len(inner) == len(LETTERS):
                raise NoProof("all letters are in use")
            letter = LETTERS[len(inner)]
            self._take(f"{letter}{_short(formula)}", "what is assumed here is")
            inner[letter] = formula
            named.append((letter, formula))
        return Argument(tuple(named), self.node(goal, inner))

    def _take(self, expected: str, what: str) -> None:
        if not self.rest.startswith(expected):
            raise NoProof(f"{what} {expected}, not {self.rest[: len(expected)]!r}")
        self.rest = self.rest[len(expected) :]


def search(statement: Statement, max_nodes: int) -> Node | None:
    """A smallest proof of at most `max_nodes` nodes, by trying all; None where there is none.

    The existing tool that the cold start rests on. Its time grows exponentially with the size.
    """
    context = dict(zip(LETTERS, statement.hypotheses, strict=False))
    for size in range(1, max_nodes + 1):
        found = next(_proofs(statement.goal, context, size), None)
        if found is not None:
            return found
    return None


def _proofs(goal: Formula, context: Mapping[str, Formula], size: int) -> Iterator[Node]:
    """All proofs of exactly `size` nodes."""
    for head, formula in context.items():
        premises, target = formulas.premises_of(formula)
        if target == goal and len(premises) <= size - 1 and (premises or size == 1):
            for arguments in _all_arguments(premises, context, size - 1):
                yield Node(goal, head, arguments)


def _all_arguments(
    premises: Sequence[Formula], context: Mapping[str, Formula], size: int
) -> Iterator[tuple[Argument, ...]]:
    if not premises:
        if size == 0:
            yield ()
        return
    assumed, goal = formulas.premises_of(premises[0])
    if len(context) + len(assumed) > len(LETTERS):
        return
    named = tuple(zip(LETTERS[len(context) :], assumed, strict=False))
    inner = {**context, **dict(named)} if named else context
    for first in range(1, size - len(premises) + 2):
        for node in _proofs(goal, inner, first):
            for rest in _all_arguments(premises[1:], context, size - first):
                yield (Argument(named, node), *rest)
