"""The twelve domains of LoongBench: how an answer of each is compared with its gold."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from loong_jax.errors import VerifierError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
    """The rules of equality in one domain. An absolute tolerance of the row comes on top."""

    name: str
    relative_of_decimals: float = 0.0  # share of a gold with a decimal point; integers are exact
    rounds_to: int | None = None  # golds are rounded to this many significant digits, or to more
    is_text: bool = False  # output of a program, compared line by line
    is_choice: bool = False  # a letter among those of the question
    is_maths: bool = False  # the maths verifier alone: [1, 2] and (1, 2) are not one literal here


_ALL = (
    Domain(name="advanced_math", is_maths=True),
    Domain(name="advanced_physics", rounds_to=2),
    Domain(name="chemistry", rounds_to=2),
    Domain(name="computational_biology", relative_of_decimals=1e-6),
    Domain(name="finance", relative_of_decimals=1e-4),
    Domain(name="game", relative_of_decimals=1e-6),
    Domain(name="graph_discrete_math", relative_of_decimals=1e-6),
    Domain(name="logic"),
    Domain(name="mathematical_programming", relative_of_decimals=1e-4),
    # MedCalc-Bench, where the rows come from, allows 5 % on what an equation gives, none on scores
    Domain(name="medicine", relative_of_decimals=0.05),
    Domain(name="security_and_safety", is_choice=True),
    Domain(name="programming", is_text=True),
)
DOMAINS: dict[str, Domain] = {domain.name: domain for domain in _ALL}

_ALIASES = {
    "quant": "finance",
    "quantitative_finance": "finance",
    "physics": "advanced_physics",
    "mathematics": "advanced_math",
    "maths": "advanced_math",
    "medical": "medicine",
    "games": "game",
    "blackjack": "game",
    "graph_and_discrete_math": "graph_discrete_math",
    "security_safety": "security_and_safety",
    "security": "security_and_safety",
    "biology": "computational_biology",
}


def get_domain(name: str) -> Domain:
    """The domain of this name, however a row spells it; VerifierError for another."""
    key = re.sub(r"[^a-z]+", "_", name.lower()).strip("_").removeprefix("loong_")
    key = _ALIASES.get(key, key)
    if key not in DOMAINS:
        raise VerifierError(f"domain={name!r} is unknown. Choose one of {', '.join(DOMAINS)}.")
    return DOMAINS[key]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of LoongBench, whatever its domain writes beside it."""

    domain: Domain
    question: str
    gold: str
    rationale: str = ""
    packages: tuple[str, ...] = ()  # declared, as `name==version`
    tolerance: float = 0.0  # absolute


def read_row(record: Mapping[str, Any]) -> Row:
    """Reads a row as published, or a record of `loong verify loongbench`.

    VerifierError for one without a gold, of no known domain, or with a malformed field.
    """
    metadata = record.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise VerifierError(f"metadata={metadata!r:.80} is no object. Give one, or leave it out.")
    gold = record.get("final_answer", record.get("gold"))
    if isinstance(gold, bool) or not isinstance(gold, str | int | float) or not str(gold).strip():
        raise VerifierError(f"gold={gold!r:.80} is no answer. Give `final_answer` or `gold`.")
    packages = metadata.get("required_dependencies", record.get("packages")) or ()
    if isinstance(packages, str):
        packages = [part.strip() for part in packages.split(",") if part.strip()]
    if not isinstance(packages, list | tuple) or not all(isinstance(one, str) for one in packages):
        raise VerifierError(f"required_dependencies={packages!r:.80} is no list of package names.")
    found = record.get("tolerance", metadata.get("answer_tolerance"))
    try:
        tolerance = float(found or 0.0)
    except (TypeError, ValueError):
        tolerance = -1.0
    if not 0 <= tolerance < 1e12:
        raise VerifierError(f"answer_tolerance={found!r:.80} is not a number of at least 0.")
    return Row(
        domain=get_domain(str(record.get("domain", metadata.get("domain", "")))),
        question=str(record.get("question") or ""),
        gold=str(gold),
        rationale=str(record.get("rationale") or ""),
        packages=tuple(packages),
        tolerance=tolerance,
    )
