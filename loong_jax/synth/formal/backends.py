"""Proof checkers behind one small protocol: Lean by address, Coq, and Metamath's two kernels.

Each says how it writes a statement and a proof term, whether a statement is one (the syntax
filter), and whether proofs hold. The judging is that of `loong_jax.verifiers.formal`.
"""

import dataclasses
import re
import shutil
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, NamedTuple, Protocol

from loong_jax.errors import ConfigError, VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict
from loong_jax.synth.formal import formulas, hilbert, proofs
from loong_jax.synth.formal.expert_iteration import Solution
from loong_jax.synth.formal.formulas import Atom, Formula, Implies, Malformed, Not, Statement
from loong_jax.synth.formal.proofs import LETTERS, Node, NoProof
from loong_jax.verifiers.formal import isolated
from loong_jax.verifiers.formal.coq import CoqVerifier
from loong_jax.verifiers.formal.lean import LeanVerifier
from loong_jax.verifiers.formal.metamath import MetamathVerifier

_ALL_VERIFIED = "All proofs in the database were verified"
BUNDLE = 25  # proofs that Coq and the metamath program are given at once


class Claim(NamedTuple):
    """A statement with what is said to be its proof, both as the backend writes them."""

    statement: str
    proof: str


class Backend(Protocol):
    """A proof checker. Verdicts come in order; what cannot be judged is ungradable."""

    name: str

    def statement_text(self, statement: Statement) -> str: ...

    def proof_text(self, statement: Statement, node: Node) -> str: ...

    def check_statements(self, statements: Sequence[str]) -> list[Verdict]:
        """Verdicts on well-formed statements, proved or not."""
        ...

    def check_proofs(self, claims: Sequence[Claim]) -> list[Verdict]: ...

    def close(self) -> None: ...


def get_backend(name: str, **options: Any) -> Backend:
    """The backend of this name; `options` are its arguments. ConfigError for an unknown name."""
    kinds = (MetamathBackend, MetamathProgram, CoqBackend, LeanBackend)
    for kind in kinds:
        if kind.name == name:
            return kind(**options)
    known = ", ".join(kind.name for kind in kinds)
    raise ConfigError(f"{name!r} is no backend. Choose one of: {known}.")


@dataclasses.dataclass(frozen=True)
class TextChecker:
    """The loop's check where goals and proofs are in the backend's own language, as Lean's are."""

    backend: Backend

    def __call__(self, claims: Sequence[Solution]) -> list[Verdict]:
        return self.backend.check_proofs([Claim(c.goal.text, c.proof) for c in claims])


@dataclasses.dataclass(frozen=True)
class ProofChecker:
    """The check of proofs in letters: read, then written for the backend, whose verdict counts."""

    backend: Backend

    def __call__(self, claims: Sequence[Solution]) -> list[Verdict]:
        read = [self._claim(claim) for claim in claims]
        judged = iter(self.backend.check_proofs([c for c in read if isinstance(c, Claim)]))
        return [next(judged) if isinstance(c, Claim) else c for c in read]

    def _claim(self, claim: Solution) -> Claim | Verdict:
        posed = proofs.read_sequent(claim.goal.text)
        try:
            node = proofs.read(claim.proof, posed)
        except NoProof as error:
            return verdict.wrong("proof", str(error)[:200])
        return Claim(self.backend.statement_text(posed), self.backend.proof_text(posed, node))


# ---- Metamath


class MetamathBackend:
    """Our kernel, over the database of propositional calculus that the verifier brings."""

    name = "metamath"

    def __init__(self) -> None:
        self._verifier = MetamathVerifier()

    def statement_text(self, statement: Statement) -> str:
        return hilbert.theorem(statement, hilbert.variables_of(statement))

    def proof_text(self, statement: Statement, node: Node) -> str:
        return hilbert.proof(statement, node, hilbert.variables_of(statement))

    def check_statements(self, statements: Sequence[str]) -> list[Verdict]:
        return list(map(self._check_statement, statements))

    def check_proofs(self, claims: Sequence[Claim]) -> list[Verdict]:
        return [self._judged(claim.statement, claim.proof) for claim in claims]

    def close(self) -> None:
        self._verifier.close()

    def _check_statement(self, text: str) -> Verdict:
        """The kernel must accept a proof, made here, that what is claimed is a formula."""
        try:
            formula = _formula_of_theorem(text)
        except Malformed as error:
            return verdict.wrong("statement", str(error))
        names = {name: name for name in formulas.atoms_of([formula])}
        kind = text.replace("|-", "wff", 1)
        return self._judged(kind, hilbert.wff_proof(formula, names))

    def _judged(self, statement: str, proof: str) -> Verdict:
        record = {"statement": statement, "answer": proof, "frame": _frame([statement])}
        return self._verifier.verify_record(record)


class MetamathProgram(MetamathBackend):
    """The metamath program (Debian's package of that name), in the sandbox."""

    name = "metamath-exe"

    def __init__(self, *, cpu_s: int = 20):
        super().__init__()
        self._limits = isolated.limits(cpu_s)

    def check_proofs(self, claims: Sequence[Claim]) -> list[Verdict]:
        if shutil.which("metamath") is None:
            why = verdict.ungradable("no checker", "metamath is not installed")
            return [why for _ in claims]
        return in_bundles(claims, self._all_hold)

    def _all_hold(self, claims: Sequence[Claim]) -> Verdict:
        package = resources.files("loong_jax.verifiers.formal")
        lines = [package.joinpath("propositional.mm").read_text(), _frame(c[0] for c in claims)]
        for number, claim in enumerate(claims):
            if "$" in claim.statement + claim.proof:
                return verdict.wrong("format", "a claim holds a keyword of Metamath")
            lines.append(f"claim{number} $p {claim.statement} $= {claim.proof} $.")
        command = ["metamath", "read x.mm", "verify proof *", "exit"]
        files = {"x.mm": "\n".join([*lines, ""]).encode()}
        try:
            ran = isolated.run(command, files, [], self._limits)
        except VerifierError as error:
            return verdict.ungradable("sandbox", str(error))
        if ran.end in ("wall", "cpu"):
            return verdict.ungradable("timeout", "the program was not done in time")
        said = " ".join(isolated.said(ran).split())
        if re.search(r"\?(Error|Warning|Fatal)", said) or _ALL_VERIFIED not in said:
            return verdict.wrong("proof", said[-300:], isolation="namespaces")
        return verdict.correct("all proofs were verified", isolation="namespaces")


def _formula_of_theorem(text: str) -> Formula:
    """The formula of `|- ( ph -> ps )`. Raises Malformed, for brackets too many or too few too."""
    kind, _, rest = text.strip().partition(" ")
    if kind != "|-":
        raise Malformed("a theorem starts with |-")
    formula = formulas.parse(rest.replace("-.", "~"))
    names = {name: name for name in formulas.atoms_of([formula])}
    if unknown := sorted(set(names) - set(hilbert.VARIABLES)):
        raise Malformed(f"{unknown[0]!r} is no variable of the database")
    written = hilbert.theorem(Statement((), formula), names)
    if written.split() != text.split():
        raise Malformed(f"Metamath writes it {written[:200]}")
    return formula


def _frame(statements: Any) -> str:
    """Declarations for all variables that the statements use."""
    used = {symbol for text in statements for symbol in text.split()}
    places = [i for i, name in enumerate(hilbert.VARIABLES, 1) if name in used]
    return hilbert.frame(max(places, default=0))


# ---- Coq and Lean: propositions as types, proofs as terms


class CoqBackend:
    """coqc, in the sandbox. Proof terms of many claims go to it together."""

    name = "coq"

    def __init__(self, *, cpu_s: int = 20):
        self._verifier = CoqVerifier(cpu_s=cpu_s)

    def statement_text(self, statement: Statement) -> str:
        atoms = " ".join(statement.atoms)
        return f"forall {atoms} : Prop, {_typed(statement.formula, '~ ')}"

    def proof_text(self, statement: Statement, node: Node) -> str:
        binders = "".join(
            f" ({letter} : {_typed(hypothesis, '~ ')})"
            for letter, hypothesis in zip(LETTERS, statement.hypotheses, strict=False)
        )
        atoms = " ".join(statement.atoms)
        return f"Proof. exact (fun ({atoms} : Prop){binders} => {_term(node)}). Qed."

    def check_statements(self, statements: Sequence[str]) -> list[Verdict]:
        return self._verifier.check_statements(statements)

    def check_proofs(self, claims: Sequence[Claim]) -> list[Verdict]:
        return in_bundles(claims, self._all_hold)

    def close(self) -> None:
        self._verifier.close()

    def _all_hold(self, claims: Sequence[Claim]) -> Verdict:
        """One claim as it is; several terms as one proof of a conjunction."""
        if len(claims) == 1:
            statement, proof = claims[0]
            return self._verifier.verify_record({"statement": statement, "answer": proof})
        terms = [_EXACT.fullmatch(claim.proof) for claim in claims]
        if not all(terms):
            return verdict.wrong("proof", "some are no terms")
        whole = ""
        for match in reversed(terms):
            assert match is not None
            whole = f"(conj ({match[1]}) {whole})" if whole else f"({match[1]})"
        statement = " /\\ ".join(f"({claim.statement})" for claim in claims)
        record = {"statement": statement, "answer": f"Proof. exact {whole}. Qed."}
        return self._verifier.verify_record(record)


_EXACT = re.compile(r"Proof\. exact \((fun [^.]*)\)\. Qed\.")


class LeanBackend:
    """Lean 4 by the address of a server, or by REPLs of this machine; see `LeanVerifier`.

    `header` is what stands before every statement, such as `import Mathlib`.
    """

    name = "lean"

    def __init__(self, *, header: str = "", **verifier: Any):
        self._header, self._verifier = header, LeanVerifier(**verifier)

    def statement_text(self, statement: Statement) -> str:
        atoms = " ".join(statement.atoms)
        return f"theorem goal ({atoms} : Prop) : {_typed(statement.formula, '¬')}"

    def proof_text(self, statement: Statement, node: Node) -> str:
        letters = " ".join(LETTERS[: len(statement.hypotheses)])
        return f"fun {letters} => {_term(node)}" if letters else _term(node)

    def check_statements(self, statements: Sequence[str]) -> list[Verdict]:
        return self._verifier.check_statements(statements, self._header)

    def check_proofs(self, claims: Sequence[Claim]) -> list[Verdict]:
        return self._verifier.verify_records(
            [{"statement": c.statement, "answer": c.proof, "header": self._header} for c in claims]
        )

    def close(self) -> None:
        self._verifier.close()


def _typed(formula: Formula, negation: str) -> str:
    match formula:
        case Atom(name):
            return name
        case Not(inner):
            return f"{negation}({_typed(inner, negation)})"
        case Implies(premise, conclusion):
            left = _typed(premise, negation)
            left = f"({left})" if isinstance(premise, Implies) else left
            return f"{left} -> {_typed(conclusion, negation)}"


def _term(node: Node) -> str:
    """Lambda notation that Coq and Lean share."""
    words = [node.rule.letter]
    for premise, argument in zip(node.rule.premises, node.arguments, strict=True):
        inner = _term(argument)
        for rule in reversed(premise.assumed):
            inner = f"fun ({rule.letter} : {_typed(rule.formula, '~ ')}) => {inner}"
        words.append(f"({inner})" if premise.assumed or argument.arguments else inner)
    return " ".join(words)


def in_bundles(
    claims: Sequence[Claim], all_hold: Callable[[Sequence[Claim]], Verdict], size: int = BUNDLE
) -> list[Verdict]:
    """Verdicts in order, from a check that says at once whether all of several claims hold.

    Where not all do, halves are tried, down to single claims.
    """
    found: list[Verdict] = []
    for start in range(0, len(claims), size):
        some = claims[start : start + size]
        judged = all_hold(some)
        if len(some) == 1 or judged.is_correct:
            found += [judged] * len(some)
        else:
            found += in_bundles(some, all_hold, -(-len(some) // 2))
    return found
