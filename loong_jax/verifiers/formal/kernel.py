"""A kernel for Metamath: reads a database and verifies proofs, normal and compressed.

Source: Megill and Wheeler, Metamath (2nd edition), section 4.2 (the language) and appendix B
(compressed proofs). File inclusion (`$[ $]`) is refused: a database is one text.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Symbols = tuple[str, ...]
MAX_STEPS = 1_000_000  # of one proof
MAX_SYMBOLS = 2_000_000  # that the expressions of one proof may hold, made one after the other
MAX_EXPRESSION = 100_000  # symbols of one expression


class MetamathError(ValueError):
    """The database or proof breaks a rule of Metamath; the message says which."""


class CostExceeded(Exception):
    """A proof is longer than the kernel is willing to check."""


class Assertion(NamedTuple):
    """An axiom or theorem with all that a proof step needs: its frame."""

    label: str
    statement: Symbols
    floating: tuple[tuple[str, str, str], ...]  # label, type, variable; mandatory, in order
    essential: tuple[tuple[str, Symbols], ...]  # label, hypothesis
    hypotheses: tuple[str, ...]  # labels of both, in order of appearance
    distinct: frozenset[tuple[str, str]]  # pairs of mandatory variables, sorted
    is_axiom: bool
    proof: Symbols = ()
    local_distinct: frozenset[tuple[str, str]] = frozenset()  # all pairs in scope


class _Scope:
    """The declarations of one `${ ... $}`."""

    def __init__(self) -> None:
        self.variables: set[str] = set()
        self.floating: dict[str, tuple[str, str]] = {}  # variable: label, type
        self.hypotheses: list[tuple[str, Symbols, bool]] = []  # label, expression, is floating
        self.distinct: set[tuple[str, str]] = set()


class Database:
    """Every statement of a database, by label. Reading checks all rules but the proofs."""

    def __init__(self) -> None:
        self.constants: set[str] = set()
        self.ever_variables: set[str] = set()
        self.assertions: dict[str, Assertion] = {}
        self.hypotheses: dict[str, tuple[Symbols, bool]] = {}  # expression, is floating
        self._scopes = [_Scope()]

    def child(self) -> "Database":
        """A database that starts with all of this one and leaves this one as it is."""
        found = Database()
        found.constants, found.ever_variables = set(self.constants), set(self.ever_variables)
        found.assertions, found.hypotheses = dict(self.assertions), dict(self.hypotheses)
        found._scopes = [*self._scopes, _Scope()]
        return found

    @property
    def depth(self) -> int:
        """The number of open scopes beside the outermost."""
        return len(self._scopes) - 1

    def read(
        self, text: str, on_theorem: Callable[[Assertion, frozenset[str]], Any] | None = None
    ) -> None:
        """Reads statements to the end of the text.

        Proofs are not checked here: `on_theorem` gets each theorem with the hypotheses in scope.
        """
        tokens = tokenize(text)
        label = ""
        for token in tokens:
            if token in ("$f", "$e", "$a", "$p"):
                if not label:
                    raise MetamathError(f"{token} has no label")
                assertion = self._labelled(label, token, tokens)
                label = ""
                if on_theorem is not None and assertion is not None and not assertion.is_axiom:
                    on_theorem(assertion, self.active_hypotheses())
            elif label:
                raise MetamathError(f"label {label} stands before {token}")
            elif token == "${":
                self._scopes.append(_Scope())
            elif token == "$}":
                if len(self._scopes) == 1:
                    raise MetamathError("$} closes nothing")
                self._scopes.pop()
            elif token in ("$c", "$v", "$d"):
                self._declare(token, _until(tokens, "$."))
            elif token.startswith("$"):
                raise MetamathError(f"{token} is not allowed here")
            else:
                label = token
        if label:
            raise MetamathError(f"label {label} names nothing")

    # ---- statements

    def _declare(self, kind: str, names: Sequence[str]) -> None:
        scope = self._scopes[-1]
        if kind == "$d":
            if len(names) < 2 or len(set(names)) < len(names):
                raise MetamathError("$d needs different variables, at least two")
            for name in names:
                if not self._is_variable(name):
                    raise MetamathError(f"$d names {name}, which is no active variable")
            scope.distinct |= {_pair(a, b) for a, b in itertools.combinations(names, 2)}
            return
        if not names:
            raise MetamathError(f"{kind} declares nothing")
        for name in names:
            taken = name in self.constants or (kind == "$c" and name in self.ever_variables)
            if taken or self._is_variable(name):
                raise MetamathError(f"{name} is declared twice")
            if kind == "$c":
                if self.depth:
                    raise MetamathError(f"constant {name} is declared in an inner scope")
                self.constants.add(name)
            else:
                scope.variables.add(name)
                self.ever_variables.add(name)

    def _labelled(self, label: str, kind: str, tokens: Iterator[str]) -> Assertion | None:
        if label in self.assertions or label in self.hypotheses:
            raise MetamathError(f"label {label} is used twice")
        if not all(c.isascii() and (c.isalnum() or c in "-_.") for c in label):
            raise MetamathError(f"label {label[:40]!r} has a character that labels may not have")
        expression = tuple(_until(tokens, "$=" if kind == "$p" else "$."))
        proof = tuple(_until(tokens, "$.")) if kind == "$p" else ()
        if not expression or expression[0] not in self.constants:
            raise MetamathError(f"{label} does not start with a constant")
        scope = self._scopes[-1]
        if kind == "$f":
            if len(expression) != 2 or not self._is_variable(expression[1]):
                raise MetamathError(f"{label} is not a type and an active variable")
            if self._type(expression[1]) is not None:
                raise MetamathError(f"{expression[1]} is given a type twice")
            scope.floating[expression[1]] = (label, expression[0])
        for symbol in expression[1:]:
            if symbol not in self.constants and self._type(symbol) is None:
                raise MetamathError(f"{label} uses {symbol}, which has no type or is unknown")
        if kind in ("$e", "$f"):
            scope.hypotheses.append((label, expression, kind == "$f"))
            self.hypotheses[label] = (expression, kind == "$f")
            return None
        assertion = self._frame(label, expression, kind == "$a", proof)
        self.assertions[label] = assertion
        return assertion

    def _frame(self, label: str, statement: Symbols, is_axiom: bool, proof: Symbols) -> Assertion:
        active = [hypothesis for scope in self._scopes for hypothesis in scope.hypotheses]
        used = {
            symbol
            for expression in (statement, *(e for _, e, floats in active if not floats))
            for symbol in expression
            if symbol not in self.constants
        }
        kept = [(name, e, floats) for name, e, floats in active if not floats or e[1] in used]
        distinct = frozenset().union(*(scope.distinct for scope in self._scopes))
        return Assertion(
            label=label,
            statement=statement,
            floating=tuple((name, e[0], e[1]) for name, e, floats in kept if floats),
            essential=tuple((name, e) for name, e, floats in kept if not floats),
            hypotheses=tuple(name for name, _, _ in kept),
            distinct=frozenset(p for p in distinct if p[0] in used and p[1] in used),
            is_axiom=is_axiom,
            proof=proof,
            local_distinct=distinct,
        )

    def _is_variable(self, name: str) -> bool:
        return any(name in scope.variables for scope in self._scopes)

    def _type(self, variable: str) -> str | None:
        found = (s.floating[variable][1] for s in self._scopes if variable in s.floating)
        return next(found, None)

    def active_hypotheses(self) -> frozenset[str]:
        """Labels of `$f` and `$e` that a proof at this place may use."""
        return frozenset(name for scope in self._scopes for name, _, _ in scope.hypotheses)


def tokenize(text: str) -> Iterator[str]:
    """Tokens without comments. Printable ASCII only; comments do not nest."""
    in_comment = False
    for token in text.split():
        if in_comment:
            if token == "$)":
                in_comment = False
            elif "$(" in token or "$)" in token:
                raise MetamathError("a comment holds a comment's bracket")
        elif token == "$(":
            in_comment = True
        elif token == "$[":
            raise MetamathError("files are not included ($[)")
        elif not token.isascii() or not token.isprintable():
            raise MetamathError(f"{token[:20]!r} is not printable ASCII")
        else:
            yield token
    if in_comment:
        raise MetamathError("a comment is not closed")


def verify(database: Database, theorem: Assertion, active: frozenset[str]) -> list[str]:
    """Checks a theorem's proof; returns the labels it used. Raises MetamathError or CostExceeded.

    `active` are the hypotheses in scope at the theorem (`Database.active_hypotheses` there). A step
    may use assertions that stand before the theorem, so call it before reading on.
    """
    machine = _Machine(database, theorem, active)
    if theorem.proof and theorem.proof[0] == "(":
        machine.compressed(theorem.proof)
    else:
        for label in theorem.proof:
            machine.step(label)
    if len(machine.stack) != 1:
        raise MetamathError(f"the proof leaves {len(machine.stack)} expressions, not one")
    if machine.stack[0] != theorem.statement:
        raise MetamathError(f"the proof shows {' '.join(machine.stack[0])[:200]}")
    return list(machine.used)


class _Machine:
    """The stack of one proof."""

    def __init__(self, database: Database, theorem: Assertion, active: frozenset[str]):
        self.stack: list[Symbols] = []
        self.used: dict[str, None] = {}
        self._database, self._theorem, self._active = database, theorem, active
        self._steps = self._symbols = 0

    def step(self, label: str) -> None:
        self._pay(1, 0)
        if label == "?":
            raise MetamathError("a step is unknown (?)")
        if label in self._active:
            self.stack.append(self._database.hypotheses[label][0])
            return
        assertion = self._database.assertions.get(label)
        if assertion is None or label == self._theorem.label:
            raise MetamathError(f"step {label[:40]!r} is no statement that may be used here")
        self.used[label] = None
        self._apply(assertion)

    def _apply(self, assertion: Assertion) -> None:
        count = len(assertion.hypotheses)
        if count > len(self.stack):
            raise MetamathError(f"{assertion.label} finds too few expressions")
        base = len(self.stack) - count
        given = dict(zip(assertion.hypotheses, self.stack[base:], strict=True))
        replaced: dict[str, Symbols] = {}
        for label, kind, variable in assertion.floating:
            if given[label][0] != kind:
                raise MetamathError(f"{assertion.label} gets a {given[label][0]} for {variable}")
            replaced[variable] = given[label][1:]
        for label, hypothesis in assertion.essential:
            if self._substitute(hypothesis, replaced) != given[label]:
                raise MetamathError(f"hypothesis {label} of {assertion.label} does not fit")
        for a, b in assertion.distinct:
            self._check_distinct(replaced[a], replaced[b], assertion.label)
        del self.stack[base:]
        self.stack.append(self._substitute(assertion.statement, replaced))

    def _substitute(self, expression: Symbols, replaced: Mapping[str, Symbols]) -> Symbols:
        found: list[str] = []
        for symbol in expression:
            found.extend(replaced.get(symbol, (symbol,)))
            if len(found) > MAX_EXPRESSION:
                raise CostExceeded(f"an expression of more than {MAX_EXPRESSION} symbols")
        self._pay(0, len(found))
        return tuple(found)

    def _check_distinct(self, left: Symbols, right: Symbols, label: str) -> None:
        constants, allowed = self._database.constants, self._theorem.local_distinct
        for a in {symbol for symbol in left if symbol not in constants}:
            for b in {symbol for symbol in right if symbol not in constants}:
                self._pay(0, 1)
                if a == b or _pair(a, b) not in allowed:
                    raise MetamathError(f"{label} needs {a} and {b} to be distinct ($d)")

    def _pay(self, steps: int, symbols: int) -> None:
        self._steps += steps
        self._symbols += symbols
        if self._steps > MAX_STEPS or self._symbols > MAX_SYMBOLS:
            raise CostExceeded(f"more than {MAX_STEPS} steps or {MAX_SYMBOLS} symbols")

    def compressed(self, proof: Symbols) -> None:
        """`( labels ) LETTERS`: A-T end a number whose other digits, base 5, are U-Y; Z saves."""
        if ")" not in proof:
            raise MetamathError("the labels of a compressed proof are not closed")
        end = proof.index(")")
        labels = proof[1:end]
        mandatory = self._theorem.hypotheses
        for label in labels:
            if label in mandatory:
                raise MetamathError(f"label {label} of a compressed proof is a mandatory one")
        steps = (*mandatory, *labels)
        saved: list[Symbols] = []
        number, fresh = 0, False  # fresh: a step was just made, so Z may save it
        for letter in "".join(proof[end + 1 :]):
            if "A" <= letter <= "T":
                number = number * 20 + ord(letter) - ord("A")
                if number < len(steps):
                    self.step(steps[number])
                elif number - len(steps) < len(saved):
                    self._pay(1, 0)
                    self.stack.append(saved[number - len(steps)])
                else:
                    raise MetamathError("a number of a compressed proof is too large")
                number, fresh = 0, True
            elif "U" <= letter <= "Y":
                number = number * 5 + ord(letter) - ord("U") + 1
                if number > MAX_STEPS:
                    raise MetamathError("a number of a compressed proof is too large")
                fresh = False
            elif letter == "Z" and fresh:
                saved.append(self.stack[-1])
                fresh = False
            else:
                raise MetamathError(f"{letter!r} has no meaning in a compressed proof")
        if number:
            raise MetamathError("a compressed proof ends within a number")


def _until(tokens: Iterator[str], end: str) -> list[str]:
    found = []
    for token in tokens:
        if token == end:
            return found
        if token.startswith("$") or "$" in token:
            raise MetamathError(f"{token} stands inside a statement")
        found.append(token)
    raise MetamathError(f"a statement is not closed by {end}")


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
