"""Formal proofs: verifiers `lean`, `coq` and `metamath`."""

import re
from collections.abc import Collection

from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict


def refused(
    proof: str,
    *,
    max_chars: int,
    word: re.Pattern[str],
    forbidden: Collection[str],
    marks: Collection[str],
) -> Verdict | None:
    """A wrong verdict on a proof that no checker is to see, or None."""
    if len(proof) > max_chars:
        return verdict.wrong("format", f"more than {max_chars} characters")
    if bad := [c for c in proof if not c.isprintable() and c not in "\n\t"]:
        return verdict.wrong("format", f"the character {bad[0]!r}")
    words = sorted({*word.findall(proof)} & {*forbidden})
    if found := words + [mark for mark in marks if mark in proof]:
        return verdict.wrong("forbidden", f"the proof uses {', '.join(found)}")
    return None
