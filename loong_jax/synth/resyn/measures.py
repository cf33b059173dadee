"""Measures of environments: how the solve rate falls as the level rises; how much two differ.

ReSyn keeps an environment if logit P(solved) = a + b * level has b < 0 by a one-sided Wald test at
0.05. Where solved and failed attempts are separated by level the estimate of b is infinite and its
standard error explodes, so a perfect step would be dropped: there the exact conditional trend test
decides. Both ask too little of a large sample, so a fall must also be worth having (`min_drop`),
and a policy must have something to learn (`target_band`).

Environments differ in their verifier's code and their question's template. Both are normalised, so
that renaming, other numbers or other words do not make a second environment out of one: an
environment is new only if both its forms are. `measure` says how varied a set is.
"""

import ast
import builtins
import dataclasses
import functools
import hashlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from loong_jax import syntax
from loong_jax.errors import ConfigError

Decision = Literal["kept", "flat", "inverted", "impossible", "trivial"]
_MAX_ITERATIONS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationRule:
    """The condition to keep an environment. Rates are shares of attempts that were graded."""

    # of the solver, each on an instance of its own; docs/how-to/synthesis.md: power of each number
    attempts_per_level: Annotated[int, tyro.conf.arg(aliases=["--attempts"])] = 32
    alpha: float = 0.05  # one-sided
    min_drop: float = 0.25  # of the fitted rate, from the first to the last level
    target_band: tuple[float, float] = (0.05, 0.95)  # of the mean rate over levels

    def __post_init__(self):
        low, high = self.target_band
        if not 0 <= low < high <= 1:
            raise ConfigError(f"target_band={self.target_band} is no interval in 0..1. Correct it.")
        if self.attempts_per_level < 4:
            raise ConfigError(
                f"attempts_per_level={self.attempts_per_level} shows nothing. Use 4 or more; "
                "docs/how-to/synthesis.md has the power of each number."
            )
        if not 0 < self.alpha < 0.5 or not 0 <= self.min_drop < 1:
            raise ConfigError(
                f"alpha={self.alpha} must be in (0, 0.5) and min_drop={self.min_drop} in [0, 1)."
            )


class LevelCount(NamedTuple):
    level: int
    num_solved: int
    num_attempts: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    decision: Decision
    test: Literal["wald", "exact", "none"]
    p_falling: float  # one-sided, of the slope being zero
    drop: float  # fitted rate at the first level minus that at the last
    rate: float  # mean over levels
    counts: tuple[LevelCount, ...]


class Fit(NamedTuple):
    """Logistic regression of solved on level, by maximum likelihood."""

    intercept: float
    slope: float
    slope_error: float  # standard error, from the information matrix


def fit_logistic(counts: Sequence[LevelCount]) -> Fit | None:
    """The fit by Newton's method, or None where none exists, because levels separate outcomes."""
    if is_separated(counts):
        return None
    level, solved, tried = (np.array(column, float) for column in zip(*counts, strict=True))
    centre = float(np.average(level, weights=tried))
    design = np.stack([np.ones_like(level), level - centre], axis=1)
    beta = np.zeros(2)
    for _ in range(_MAX_ITERATIONS):
        rate = 1 / (1 + np.exp(-design @ beta))
        information = design.T @ (design * (tried * rate * (1 - rate))[:, None])
        step = np.linalg.solve(information, design.T @ (solved - tried * rate))
        step *= min(1.0, 4.0 / max(np.abs(step).max(), 1e-300))  # stays where curvature is
        beta = beta + step
        if np.abs(step).max() < 1e-12:
            break
    rate = 1 / (1 + np.exp(-design @ beta))
    information = design.T @ (design * (tried * rate * (1 - rate))[:, None])
    error = math.sqrt(float(np.linalg.inv(information)[1, 1]))
    return Fit(float(beta[0] - beta[1] * centre), float(beta[1]), error)


def is_separated(counts: Sequence[LevelCount]) -> bool:
    """True if some level divides solved from failed, the dividing level itself aside.

    Also true where all attempts end alike, or all levels with attempts are one.
    """
    solved = [c.level for c in counts if c.num_solved]
    failed = [c.level for c in counts if c.num_solved < c.num_attempts]
    if not solved or not failed:
        return True
    return max(solved) <= min(failed) or max(failed) <= min(solved)


def wald_p_falling(fit: Fit) -> float:
    """P(Z <= slope / error): small where the rate falls with the level."""
    return 0.5 * math.erfc(-fit.slope / fit.slope_error / math.sqrt(2))


def exact_p_falling(counts: Sequence[LevelCount]) -> float:
    """Exact conditional trend test: P(sum of solved levels <= the one seen | number solved).

    With no effect of the level, every choice of that many attempts out of all is equally likely to
    be the solved ones (the conditional form of Cochran's and Armitage's test). Choices are counted
    by dynamic programming over levels, scaled by powers of two.
    """
    first = counts[0].level
    total = sum(c.num_solved for c in counts)
    seen = sum((c.level - first) * c.num_solved for c in counts)
    top = total * (counts[-1].level - first)
    ways = np.zeros((total + 1, top + 1))  # [number solved, sum of levels] -> choices
    ways[0, 0] = 1.0
    for c in counts:
        after = np.zeros_like(ways)
        for k in range(min(c.num_attempts, total) + 1):
            shift = k * (c.level - first)
            if shift > top:
                break
            choices = math.comb(c.num_attempts, k) / 2**c.num_attempts
            after[k:, shift:] += choices * ways[: total + 1 - k, : top + 1 - shift]
        ways = after
    return float(ways[total, : seen + 1].sum() / ways[total].sum())


def calibrate(counts: Sequence[LevelCount], rule: CalibrationRule) -> Calibration:
    """The decision on an environment from its solved attempts per level.

    Levels ascend; there are two at least, each with attempts.
    """
    rates = [c.num_solved / c.num_attempts for c in counts]
    mean = sum(rates) / len(rates)
    low, high = rule.target_band
    made = functools.partial(Calibration, rate=mean, counts=tuple(counts))
    drop = rates[0] - rates[-1]
    if not low <= mean <= high:  # too few of one outcome to ask for a slope
        end: Decision = "impossible" if mean < low else "trivial"
        return made(decision=end, test="none", p_falling=1.0, drop=drop)
    if (fit := fit_logistic(counts)) is None:
        test = "exact"
        failed = [c._replace(num_solved=c.num_attempts - c.num_solved) for c in counts]
        p_falling, p_rising = exact_p_falling(counts), exact_p_falling(failed)
    else:
        test, ends = "wald", (fit.intercept + fit.slope * counts[i].level for i in (0, -1))
        first, last = (1 / (1 + math.exp(-logit)) for logit in ends)
        drop = first - last
        p_falling = wald_p_falling(fit)
        p_rising = 1 - p_falling
    decision: Decision = "flat"
    if p_falling < rule.alpha and drop >= rule.min_drop:
        decision = "kept"
    elif p_rising < rule.alpha and -drop >= rule.min_drop:
        decision = "inverted"
    return made(decision=decision, test=test, p_falling=p_falling, drop=drop)


# ---- differences


MIN_WORD_SHARE = 0.8  # of the questions a word stands in, to be part of their template
_SHINGLE = 4


class Form(NamedTuple):
    """The normalised text of a verifier and the template of a question."""

    verifier: str
    template: str

    @property
    def digests(self) -> tuple[str, str]:
        return _digest(self.verifier), _digest(self.template)


def form_of(source: str, questions: Sequence[str]) -> Form:
    return Form(verifier_form(source), template(questions))


def verifier_form(source: str) -> str:
    """`reward` and all it calls, without docstrings, with names by order and values by kind."""
    tree = syntax.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    waiting, seen = ["reward"], dict.fromkeys(["reward"])
    while waiting:
        for node in ast.walk(functions[waiting.pop(0)]):
            if isinstance(node, ast.Name) and node.id in functions and node.id not in seen:
                seen[node.id] = None
                waiting.append(node.id)
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    normal = _Normal(frozenset(imported | set(dir(builtins))))  # names that carry meaning
    return "\n".join(ast.dump(normal.visit(functions[name]), annotate_fields=False)
                     for name in seen)  # fmt: skip


def template(questions: Sequence[str]) -> str:
    """The pattern that a level's questions share: numbers as 0, words that vary as w, runs once."""
    worded = [re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", q.lower()) for q in questions]
    counts = Counter(word for words in worded for word in set(words))
    often = {word for word, n in counts.items() if n >= MIN_WORD_SHARE * len(worded)}
    found: list[str] = []
    for word in worded[0]:
        shape = "0" if word.isdigit() else word if word in often or not word.isalnum() else "w"
        if not found or found[-1] != shape:
            found.append(shape)
    return " ".join(found)


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of four-word shingles of two forms, 0 to 1."""
    a, b = _shingles(one), _shingles(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def measure(forms: Mapping[str, Form], keywords: Mapping[str, str]) -> dict[str, Any]:
    """Figures on a set of environments by name; `keywords` says what each came from."""
    texts = [forms[name].verifier for name in sorted(forms)]
    verifiers, templates, num_both = set(), set(), 0
    for verifier, template_ in (form.digests for form in forms.values()):
        num_both += verifier not in verifiers and template_ not in templates
        verifiers.add(verifier)
        templates.add(template_)
    nearest = [
        max((similarity(a, b) for j, b in enumerate(texts) if j != i), default=0.0)
        for i, a in enumerate(texts)
    ]
    return {
        "environments": len(forms),
        "distinct_verifiers": len(verifiers),
        "distinct_templates": len(templates),
        "distinct_both": num_both,  # that differ from all before them in both
        "nearest_similarity": {
            "median": round(statistics.median(nearest), 3) if nearest else None,
            "max": round(max(nearest), 3) if nearest else None,
        },
        "keywords": len(set(keywords.values())),
        "most_of_one_keyword": max(Counter(keywords.values()).values(), default=0),
    }


class _Normal(ast.NodeTransformer):
    """Names in the order of their first use, constants by kind, no docstrings, no annotations."""

    def __init__(self, kept: frozenset[str]):
        self._kept = kept
        self._names: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return name if name in self._kept else self._names.setdefault(name, f"v{len(self._names)}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = self._name(node.name), None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self._name(node.arg), None
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Name(id=type(node.value).__name__, ctx=ast.Load()), node)


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+|\S", text)
    return {tuple(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
