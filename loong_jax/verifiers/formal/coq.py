"""Verifier "coq": a proof script for a statement that we wrote, checked by coqc in the sandbox.

Three runs of coqc, each in namespaces of its own. Statement.v is ours alone and defines the goal as
a proposition. Answer.v is our statement again, followed by the answer's script. Check.v is ours:
it takes the compiled answer as a term of the compiled goal and prints the assumptions it rests on.
So whatever notations, coercions or names the script changes, the term must have the type that was
fixed before, and the assumptions are told by a process in which nothing of the answer's text runs.

A record has `statement` (`Theorem name : forall n : nat, n + 0 = n.`, or the proposition alone),
`answer` (a script such as `Proof. ... Qed.`), and perhaps `preamble`: our own imports and
definitions.

Deterministic up to limits of time. Scripts hold tactics and lemmas; commands that reach files,
plugins or flags are refused by name before anything runs. Known false classes: a script that names
such a command in a tactic argument is refused too.
"""

import dataclasses
import functools
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict, answer_span
from loong_jax.sandbox import Ended, Limits
from loong_jax.verifiers import OfRecords, formal
from loong_jax.verifiers.formal import isolated

_CLOSED = "Closed under the global context"
# Words of no use to a proof. The first rows reach files, plugins or the checker's settings; the
# others would fail the check of assumptions or of the type as well.
_FORBIDDEN = frozenset(
    [
        *("Load", "Require", "Import", "Export", "Declare", "Redirect", "Cd", "Pwd", "Extraction"),
        *("Drop", "Quit", "Back", "BackTo", "Add", "Remove", "Set", "Unset", "Test", "Separate"),
        *("Recursive", "Time", "Timeout", "Fail", "Comments", "native_compute"),
        *("Axiom", "Axioms", "Parameter", "Parameters", "Conjecture", "Conjectures", "Hypothesis"),
        *("Hypotheses", "Variable", "Variables", "Context", "Admitted", "Abort", "Primitive"),
        *("Register", "Universe", "Universes", "Constraint", "admit", "give_up"),
    ]
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_']*")
_HEADER = re.compile(
    r"\s*(?:Theorem|Lemma)\s+([A-Za-z][A-Za-z0-9_]*)\s*:\s*(.*?)\s*\.?\s*", re.DOTALL
)


class BrokenStatement(ValueError):
    """Our own statement does not compile."""


class CoqVerifier(OfRecords):
    """Judges proof scripts. `axioms` are the assumptions that a proof may rest on (full names)."""

    def __init__(self, *, axioms: tuple[str, ...] | list[str] = (), cpu_s: int = 20):
        self._axioms = frozenset(axioms)
        self._limits = isolated.limits(cpu_s)
        self._coqc = shutil.which("coqc") or ""

    def judged(self, record: Mapping[str, Any]) -> Verdict:
        statement, answer = record.get("statement"), record.get("answer")
        preamble = record.get("preamble", "")
        if not all(isinstance(text, str) for text in (statement, answer, preamble)):
            return verdict.ungradable("record", "statement, answer or preamble is no text")
        script = answer_span(str(answer))
        if isinstance(script, Verdict):
            return script
        if (refused := self._refused(script)) is not None:
            return refused
        name, goal = _named_goal(str(statement))
        try:
            compiled = _statement(self._coqc, str(preamble), goal, self._limits)
            judged = self._check(compiled, str(preamble), name, goal, script)
        except BrokenStatement as error:
            judged = verdict.ungradable("statement", str(error))
        except VerifierError as error:
            return verdict.ungradable("sandbox", str(error))
        return dataclasses.replace(judged, isolation="namespaces")

    def check_statements(self, statements: Sequence[str], preamble: str = "") -> list[Verdict]:
        """A verdict per statement: correct if it compiles as a proposition, proved or not."""
        return [self._check_statement(str(text), preamble) for text in statements]

    def _check_statement(self, text: str, preamble: str) -> Verdict:
        if (refused := self._refused(text)) is not None:
            return refused
        try:
            _statement(self._coqc, preamble, _named_goal(text)[1], self._limits)
        except BrokenStatement as error:
            return verdict.wrong("statement", str(error)[:300], isolation="namespaces")
        except VerifierError as error:
            return verdict.ungradable("sandbox", str(error)[:300])
        return verdict.correct("it compiles", isolation="namespaces")

    def _refused(self, script: str) -> Verdict | None:
        """A verdict on a script that is not run, or None."""
        found = formal.refused(
            script, max_chars=100_000, word=_WORD, forbidden=_FORBIDDEN, marks=["bypass_check"]
        )
        if found is None and not self._coqc:
            return verdict.ungradable("no checker", "coqc is not installed")
        return found

    def _check(self, compiled: bytes, preamble: str, name: str, goal: str, script: str) -> Verdict:
        answer_v = f"{preamble}\nTheorem {name} : {goal}.\n{script}\n"
        files = {"Answer.v": answer_v.encode(errors="replace")}
        ran = _coqc(self._coqc, "Answer", files, self._limits)
        if (late := _late(ran)) is not None:
            return late
        if ran.status != 0 or "Answer.vo" not in ran.files:
            return verdict.wrong("proof", _last_words(ran))
        check = (
            "Require Statement Answer.\n"
            f"Definition checked : Statement.goal := Answer.{name}.\n"
            "Print Assumptions checked.\n"
        )
        files = {
            "Statement.vo": compiled,
            "Answer.vo": ran.files["Answer.vo"][0],
            "Check.v": check.encode(),
        }
        ran = _coqc(self._coqc, "Check", files, self._limits)
        if (late := _late(ran)) is not None:
            return late
        if ran.status != 0:
            return verdict.wrong("statement changed", _last_words(ran))
        if (said := isolated.said(ran).strip()) == _CLOSED:
            return verdict.correct("no assumptions")
        assumed = _axioms(said)
        if assumed is not None and self._axioms.issuperset(assumed):
            return verdict.correct(f"assumes {', '.join(assumed)}")
        return verdict.wrong("assumptions", said)


def _axioms(output: str) -> list[str] | None:
    """The axioms that `Print Assumptions` lists; None where it tells anything else as well."""
    head, *rest = output.strip().splitlines()
    heads = [line for line in rest if not line[:1].isspace()]
    names = [re.fullmatch(r"([\w.']+)(?: :.*)?", line) for line in heads]
    if head != "Axioms:" or not all(names):
        return None
    return [name[1] for name in names if name]


def _named_goal(statement: str) -> tuple[str, str]:
    """The name and the proposition of `Theorem name : proposition.`, or of a proposition alone."""
    match = _HEADER.fullmatch(statement)
    return (match[1], match[2]) if match else ("solution", statement.strip(". \n"))


@functools.lru_cache(maxsize=256)
def _statement(coqc: str, preamble: str, goal: str, limits: Limits) -> bytes:
    """The compiled goal; the same one is compiled once. Raises BrokenStatement."""
    source = f"{preamble}\nDefinition goal : Prop := ({goal}).\n"
    ran = _coqc(coqc, "Statement", {"Statement.v": source.encode(errors="replace")}, limits)
    if ran.status != 0 or "Statement.vo" not in ran.files:
        raise BrokenStatement(_last_words(ran))
    return ran.files["Statement.vo"][0]


def _coqc(coqc: str, module: str, files: Mapping[str, bytes], limits: Limits) -> Ended:
    command = [coqc, "-q", "-noglob", "-w", "none", "-R", ".", "", f"{module}.v"]
    return isolated.run(command, files, [f"{module}.vo"], limits)


def _late(ran: Ended) -> Verdict | None:
    if ran.end == "cpu":
        return verdict.wrong("timeout", "its CPU time is used up")
    if ran.end == "wall":
        return verdict.ungradable("timeout", "its wall time passed; the machine may be overloaded")
    return None


def _last_words(ran: Ended) -> str:
    return " ".join(isolated.said(ran).split())[-300:] or f"exit status {ran.status}"
