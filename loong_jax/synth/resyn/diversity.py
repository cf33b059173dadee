"""Differences between environments: in their verifier's code and their question's template.

Both are normalised, so that renaming, other numbers or other words do not make a second environment
out of one: an environment is new only if both its forms are. `measure` says how varied a set is.
"""

import ast
import builtins
import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax import syntax

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
