"""Cases on which each registered verifier is tried before it may reward, by its name.

Those of environments and logic tasks are drawn, all others are in admission_cases.toml. A verifier
without cases is not admitted: whoever adds one adds its cases.
"""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax import environments, own, verifiers
from loong_jax.errors import VerifierError, shown
from loong_jax.problems.problem import Problem
from loong_jax.verifiers.admission import Case, Report, admit, environment_cases, in_box, in_tags

_RENDER = {"": str, "box": in_box, "tags": in_tags}
_LOGIC = ("sudoku", "knights_and_knaves", "sequence")
_WITH_GOLD = ("judge", "loongbench", "math")


@functools.cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def cases_of(name: str) -> Sequence[Case]:
    """Cases of a registered verifier; VerifierError where nobody wrote any."""
    if name in ("environment", "logic"):
        drawn, levels = (environments.WORKED, (1, 5)) if name == "environment" else (_LOGIC, (2,))
        found = map(environments.get_environment, drawn)
        return [case for one in found for case in environment_cases(one, levels, 1)]
    if name not in _table():
        raise VerifierError(
            f"verifier {name!r} is not admitted: it has no cases. Write some in "
            "admission_cases.toml."
        )
    return [_case(name, number, row) for number, row in enumerate(_table()[name])]


_KEYS: dict[str, Any] = {
    "question": str, "gold": str | None, "answer": str, "perturbed": list | tuple, "render": str,
    "arguments": Mapping,
}  # fmt: skip


def of_own(name: str, verifier: Any) -> Sequence[Case]:
    """Cases of a verifier of your own: `cases` of its class, rows with the keys of the file here.

    VerifierError where there are none, or where a row has other keys or values of other types.
    """
    rows = getattr(verifier, "cases", ())
    if not isinstance(rows, list | tuple) or not rows:
        raise VerifierError(
            f"verifier {name!r} is not admitted: its class has no cases, or not as a list. Write "
            'there: `cases = [{"question": ..., "gold": ..., "answer": ...}]`.'
        )
    for row in rows:
        if not _is_case(row):
            raise VerifierError(
                f"a case of verifier {name!r} is {shown(row, 200)}. Give question and answer, and "
                f"of {sorted(_KEYS)} what else it has: perturbed is a list of strings, arguments a "
                f"dict, render one of {sorted(_RENDER)}, and all others are strings."
            )
    return [_case(name, number, row) for number, row in enumerate(rows)]


def _is_case(row: Any) -> bool:
    return (
        isinstance(row, Mapping)
        and {"question", "answer"} <= row.keys() <= _KEYS.keys()
        and all(isinstance(value, _KEYS[key]) for key, value in row.items())
        and all(isinstance(answer, str) for answer in row.get("perturbed", ()))
        and row.get("render", "") in _RENDER
    )


def _case(name: str, number: int, row: dict[str, Any]) -> Case:
    gold = row.get("gold", row["answer"] if name in _WITH_GOLD else None)
    problem = Problem(
        uid=f"admission-{name}/1/{number}", domain="stem", environment="admission", level=1,
        seed=number, canonical=f"admission:{name}:{number}", prompt=row["question"], verifier=name,
        gold=gold, arguments=row.get("arguments", {}),
    )  # fmt: skip
    return Case(
        problem=problem,
        answer=row["answer"],
        perturbed=tuple(row["perturbed"]) if "perturbed" in row else None,
        render=_RENDER[row.get("render", "")],
    )


def admit_registered(name: str, table: Mapping[str, str] | None = None, **options: Any) -> Report:
    """The report of a registered verifier on its own cases; `options` are its arguments.

    `table` has those of your own, as of `get_verifier`.
    """
    verifier = verifiers.get_verifier(name, table=table, **options)
    try:
        cases = of_own(name, verifier) if name in (table or {}) else cases_of(name)
        return admit(verifier, cases, name=f"verifier {name!r}")
    finally:
        own.call(verifier, "close")
