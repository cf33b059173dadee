"""Verifier "metamath": an answer is the proof of a statement that we wrote, checked by our kernel.

A record has `statement` (such as `|- ( ph -> ph )`) and `answer`; perhaps `database` (a name),
`frame` (`$e`, `$d`, `$v` and `$f` statements of the theorem), and `before`: the label of the first
statement that the proof may not use, such as the theorem itself in a library.

The answer holds proof steps only (labels, or a compressed proof): it is put into a theorem that is
rebuilt from the problem, so it can declare nothing. Deterministic; runs in process, since steps are
looked up and nothing is executed. No false class is known; proofs beyond the kernel's limits are
ungradable.
"""

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict, answer_span
from loong_jax.verifiers import OfRecords
from loong_jax.verifiers.formal import kernel
from loong_jax.verifiers.formal.kernel import CostExceeded, Database, MetamathError

BUILT_IN = "propositional"
MAX_PROOF_CHARS = 1_000_000
_FRAME = ("$e", "$f", "$d", "$v", "$.")  # no axiom, no theorem, no scope
_GOAL = "goal.of.this.problem"


class MetamathVerifier(OfRecords):
    """Checks proofs against named databases; safe in any thread.

    `databases` maps further names to files. A database is read, and its own proofs are checked,
    when it is first named; one that does not verify is refused with VerifierError.
    """

    def __init__(self, *, databases: Mapping[str, str | Path] | None = None):
        self._files = {name: Path(path) for name, path in (databases or {}).items()}

    def judged(self, record: Mapping[str, Any]) -> Verdict:
        texts = {key: record.get(key, "") for key in ("statement", "answer", "frame", "before")}
        if bad := [key for key, text in texts.items() if not isinstance(text, str)]:
            return verdict.ungradable("record", f"{bad[0]} is no text")
        if "answer" not in record or not texts["statement"]:
            return verdict.ungradable("record", "statement or answer is missing")
        try:
            source = self._text(record.get("database", BUILT_IN))
            database = _trusted(source)
        except (VerifierError, MetamathError, OSError) as error:
            return verdict.ungradable("database", str(error))
        span = answer_span(texts["answer"])
        if isinstance(span, Verdict):
            return span
        if len(span) > MAX_PROOF_CHARS:
            return verdict.wrong("format", f"more than {MAX_PROOF_CHARS} characters")
        steps = span.removesuffix("$.").split()
        if any("$" in step or not (step.isascii() and step.isprintable()) for step in steps):
            return verdict.wrong("format", "a proof holds labels, or a compressed proof, alone")
        return _check(database, texts["statement"], texts["frame"], texts["before"], steps)

    def _text(self, name: Any) -> str:
        if name == BUILT_IN:
            package = resources.files("loong_jax.verifiers.formal")
            return package.joinpath("propositional.mm").read_text()
        if not isinstance(name, str) or name not in self._files:
            known = ", ".join(sorted({BUILT_IN, *self._files}))
            raise VerifierError(f"database {name!r} is unknown. Choose one of {known}.")
        return _file(self._files[name])


@functools.lru_cache(maxsize=8)
def _file(path: Path) -> str:
    return path.read_text(encoding="ascii")


@functools.lru_cache(maxsize=8)
def _trusted(text: str) -> Database:
    """The database, all of its proofs checked."""
    database = Database()
    database.read(text, lambda theorem, active: kernel.verify(database, theorem, active))
    if database.depth:
        raise MetamathError("the database leaves a scope open")
    return database


def _check(
    database: Database, statement: str, frame: str, before: str, steps: Sequence[str]
) -> Verdict:
    """Reads our theorem in a scope of its own on a copy of the database, then checks the proof."""
    scratch = database.child()
    outcome: list[Verdict] = []

    def check(theorem: kernel.Assertion, active: frozenset[str]) -> None:
        try:
            used = kernel.verify(scratch, theorem, active)
        except MetamathError as error:
            outcome.append(verdict.wrong("proof", str(error)))
        except CostExceeded as error:
            outcome.append(verdict.ungradable("cost", str(error)))
        else:
            outcome.append(_by_use(scratch, before, used))

    proof = " ".join(steps)
    try:
        if other := [t for t in frame.split() if "$" in t and t not in _FRAME]:
            raise MetamathError(f"a frame holds {', '.join(_FRAME[:-1])} alone, not {other[0]}")
        if "$" in statement:
            raise MetamathError("the statement holds a keyword")
        scratch.read(f"${{ {frame}\n{_GOAL} $p {statement} $= {proof} $. $}}", check)
    except MetamathError as error:
        return verdict.ungradable("statement", str(error))
    return outcome[0]


def _by_use(database: Database, before: str, used: Sequence[str]) -> Verdict:
    if before:
        if before not in database.assertions:
            return verdict.ungradable("record", f"before={before!r} is no statement")
        order = {label: place for place, label in enumerate(database.assertions)}
        if late := [label for label in used if order[label] >= order[before]]:
            return verdict.wrong("forbidden", f"{late[0]} is not before {before}")
    axioms = [label for label in used if database.assertions[label].is_axiom]
    return verdict.correct(f"axioms used directly: {', '.join(axioms[:20])}")
