"""Lean 4 sources from a statement of ours and a proof of the model's, and what a proof may hold.

The statement is written by us, under a name that nobody can guess; the proof is what follows `:=`.
A proof that starts a new command, or uses what reaches the elaborator, the file system or the
trusted base, is refused by name. Source of the list: the known cheats of REPL-based graders.
"""

import re
from typing import NamedTuple

from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict

MAX_PROOF_CHARS = 200_000
ALLOWED_AXIOMS = frozenset({"propext", "Classical.choice", "Quot.sound"})
_STATEMENT = re.compile(
    r"\s*(?:theorem|lemma)\s+(?P<name>[^\s:({\[⦃]+)(?P<rest>.*?)(?:\s*:=\s*(?:by\s+)?(?:sorry)?)?\s*",
    re.DOTALL,
)
_FORBIDDEN = frozenset(
    [
        *("sorry", "admit", "sorryAx", "axiom", "opaque", "constant", "unsafe", "partial"),
        *("native_decide", "ofReduceBool", "reduceBool", "ofReduceNat", "trustCompiler"),
        *("implemented_by", "extern", "csimp", "skipKernelTC", "set_option", "initialize"),
        *("macro", "macro_rules", "syntax", "notation", "infix", "infixl", "infixr", "prefix"),
        *("postfix", "elab", "elab_rules", "declare_syntax_cat", "instance", "attribute", "local"),
        *("run_cmd", "run_tac", "run_elab", "run_meta", "by_elab", "eval_term", "IO", "Lean"),
        *("import", "open", "namespace", "section", "end", "universe", "variable", "export"),
        *("theorem", "lemma", "def", "abbrev", "example", "structure", "inductive", "class"),
        *("deriving", "mutual", "include", "omit", "alias", "addDecl", "elabCommand"),
    ]
)
_WORD = re.compile(r"[^\W\d][\w'!?]*")
_AXIOMS = re.compile(r"'(?P<name>[^']+)' depends on axioms: \[(?P<axioms>[^\]]*)\]", re.DOTALL)
_NO_AXIOMS = re.compile(r"'(?P<name>[^']+)' does not depend on any axioms")


class Statement(NamedTuple):
    """A theorem without its proof: `rest` is its binders and type."""

    header: str  # imports and options of ours
    rest: str


def read_statement(statement: str, header: str = "import Mathlib") -> Statement | None:
    """The statement `theorem name binders : type`, with or without `:= by sorry` after it."""
    match = _STATEMENT.fullmatch(statement)
    if match is None or ":" not in match["rest"] or ":=" in match["rest"]:
        return None
    return Statement(header, match["rest"])


def source(statement: Statement, name: str, proof: str) -> str:
    """The whole file: our statement under `name`, the proof, and the question for its axioms."""
    proof = proof.strip().removeprefix(":=").strip()
    if not re.match(r"by\b", proof):
        proof = f"({proof})"
    return (
        f"{statement.header}\n\ntheorem {name}{statement.rest} := {proof}\n\n#print axioms {name}\n"
    )


def syntax_probe(statement: Statement, name: str) -> str:
    """The file that tells whether a statement elaborates: its proof is `by sorry`."""
    return f"{statement.header}\n\ntheorem {name}{statement.rest} := by sorry\n"


def refused(proof: str) -> Verdict | None:
    """A wrong verdict on a proof that is not even sent, or None."""
    if len(proof) > MAX_PROOF_CHARS:
        return verdict.wrong("format", f"more than {MAX_PROOF_CHARS} characters")
    if bad := [c for c in proof if not c.isprintable() and c not in "\n\t"]:
        return verdict.wrong("format", f"the character {bad[0]!r}")
    if found := sorted(set(_WORD.findall(proof)) & _FORBIDDEN):
        return verdict.wrong("forbidden", f"the proof uses {', '.join(found)}")
    for mark in ("#", "@[", "«", "/-", "-/"):
        if mark in proof:
            return verdict.wrong("forbidden", f"the proof holds {mark}")
    return None


def axioms_of(name: str, messages: list[str]) -> frozenset[str] | None:
    """The axioms that the checker reported for `name`; None where it said nothing, or twice."""
    reports = []
    for text in messages:
        if (match := _AXIOMS.search(text)) and match["name"] == name:
            reports.append(frozenset(a.strip() for a in match["axioms"].split(",") if a.strip()))
        if (match := _NO_AXIOMS.search(text)) and match["name"] == name:
            reports.append(frozenset())
    return reports[0] if len(reports) == 1 else None
