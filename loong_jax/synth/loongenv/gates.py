"""Gates of questions and programs; programs run in the sandbox, and what they print is the answer.

Most need no request and no execution. Among them are duplicates: equal texts, or nearly equal ones
by word n-grams; exact and quadratic in the worst case, which serves some ten thousand questions.
"""

import ast
import concurrent.futures
import dataclasses
import functools
import importlib.metadata
import os
import queue
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from loong_jax import syntax
from loong_jax.errors import ConfigError
from loong_jax.synth.calls import CallStore
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.verifiers.judge.client import content_hash
from loong_jax.verifiers.loongbench import rationales
from loong_jax.verifiers.loongbench.rationales import Execution, RationaleRunner, package_name

MIN_QUESTION_CHARS, MAX_QUESTION_CHARS = 12, 6000
MAX_CODE_CHARS = 20_000
MIN_TELLING_CHARS = 3  # a shorter answer stands in many questions by chance
_ORDERS = re.compile(
    r"(?:ignore|disregard|forget) (?:all|any|the|your|everything)\b.{0,40}\b(?:instruction|prompt|"
    r"above|previous|rule)|\b(?:verdict|is_clear|is_correct)\b|\byou are (?:a|the) judge\b",
    re.IGNORECASE | re.DOTALL,
)
_TOLD = re.compile(  # "The answer is 5", "answer: blue"; not "a solution is needed"
    r"\b(?:answer|result|solution)\s*(?:[=:]\s*\S|is\s*(?:[-+$\\({\[\"'\d]|(?:yes|no|true|false)\b))|"
    r"\banswer\s+is\s+\w",
    re.IGNORECASE,
)
_SECOND = re.compile(r"(?:^|[.?!]\s+)(?:also|additionally|furthermore),?\s", re.IGNORECASE)
_PARTS = re.compile(r"(?:^|\s)\(?(?:a|i|1)\)\s.+(?:\s)\(?(?:b|ii|2)\)\s.+\?.*\?", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def malformed(question: str) -> str:
    """The reason why a question cannot be posed, or ""."""
    if not MIN_QUESTION_CHARS <= len(question) <= MAX_QUESTION_CHARS:
        return f"{len(question)} characters"
    if found := _ORDERS.search(question):
        return f"speaks to the judge: {found[0][:60]!r}"
    if question.count("?") > 1 or _SECOND.search(question) or _PARTS.search(question):
        return "asks for several things"
    if found := _TOLD.search(question):
        return f"tells an answer: {found[0][:60]!r}"
    return ""


def tells(question: str, answer: str) -> bool:
    """True if the executed answer stands in the question word for word."""
    answer = answer.strip()
    if len(answer) < MIN_TELLING_CHARS or "\n" in answer:
        return False
    return re.search(rf"(?<![\w.]){re.escape(answer)}(?![\w.]*\w)", question) is not None


def undeclared(code: str, packages: Collection[str], where: Path) -> str:
    """The first import that is neither declared nor of the standard library, or "".

    `packages` are names as installed in `where`. "" too for a program that does not compile, which
    its execution tells.
    """
    try:
        tree = syntax.parse(code)
    except syntax.UNREADABLE:
        return ""
    modules = modules_of(where)
    for _, name in syntax.imported(tree):
        top = name.lstrip(".").partition(".")[0]
        if top in ("importlib", "imp"):
            return top
        is_known = top in sys.stdlib_module_names
        if not is_known and not modules.get(top, frozenset({top})) & set(packages):
            return top
    if any(isinstance(node, ast.Name) and node.id == "__import__" for node in ast.walk(tree)):
        return "__import__"
    return ""


def hard_coded(code: str, answer: str, question: str) -> str:
    """The way in which a program holds its answer instead of computing it, or "".

    A constant equal to the whole answer that the question does not give, or a program in which
    nothing is computed at all.
    """
    try:
        tree = syntax.parse(code)
    except syntax.UNREADABLE:
        return ""
    kinds = (ast.BinOp, ast.Call, ast.Compare, ast.UnaryOp, ast.BoolOp, ast.comprehension, ast.For)
    if not any(isinstance(node, kinds) and not _is_shown(node) for node in ast.walk(tree)):
        return "nothing is computed"
    given = set(_NUMBER.findall(question))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool | bytes):
            continue
        held = str(node.value).strip()
        if len(held) >= MIN_TELLING_CHARS and held == answer.strip() and held not in given:
            return f"holds {held[:60]!r}"
    return ""


@functools.cache
def modules_of(where: Path) -> Mapping[str, frozenset[str]]:
    """Top-level module -> names of the packages in this directory that bring it."""
    found: dict[str, set[str]] = {}
    for distribution in importlib.metadata.distributions(path=[str(where)]):
        name = package_name(distribution.metadata["Name"] or "")
        for file in distribution.files or ():
            top = file.parts[0].removesuffix(".py").partition(".")[0]
            if file.suffix == ".py" and top.isidentifier():
                found.setdefault(top, set()).add(name)
    return {top: frozenset(names) for top, names in found.items()}


def _is_shown(node: ast.AST) -> bool:
    """True if a node computes nothing: it prints, or is the sign of a constant."""
    match node:
        case ast.Call(func=ast.Name(id="print" | "str" | "repr")):
            return True
        case ast.UnaryOp(operand=ast.Constant()):
            return True
    return False


# ---- duplicates


N = 3  # words in a gram
SAME_NUMBERS_SHARE = 0.6  # Jaccard similarity from which equal numbers make a duplicate
ANY_NUMBERS_SHARE = 0.95
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+")


class Duplicates:
    """Questions by name. `find` names the nearest earlier one that is too near."""

    def __init__(self):
        self._exact: dict[tuple[str, ...], str] = {}
        self._grams: dict[str, frozenset[tuple[str, ...]]] = {}
        self._numbers: dict[str, tuple[str, ...]] = {}
        self._holders: dict[tuple[str, ...], list[str]] = {}  # gram -> names

    def __len__(self) -> int:
        return len(self._grams)

    def add(self, name: str, question: str) -> None:
        words = words_of(question)
        self._exact.setdefault(tuple(words), name)
        self._grams[name] = grams(words)
        self._numbers[name] = _numbers(words)
        for gram in self._grams[name]:
            self._holders.setdefault(gram, []).append(name)

    def find(self, question: str) -> tuple[str, float] | None:
        """The earlier question that this one repeats, and their similarity; None for a new one."""
        words = words_of(question)
        if (name := self._exact.get(tuple(words))) is not None:
            return name, 1.0
        name, similarity = self.nearest(question)
        is_same = similarity >= ANY_NUMBERS_SHARE or (
            similarity >= SAME_NUMBERS_SHARE and self._numbers[name] == _numbers(words)
        )
        return (name, similarity) if is_same else None

    def nearest(self, question: str, besides: str = "") -> tuple[str, float]:
        """The most similar question, and the Jaccard similarity of their n-grams."""
        own = grams(words_of(question))
        shared: Counter[str] = Counter()
        for gram in own:
            shared.update(self._holders.get(gram, ()))
        scored = (
            (count / (len(own) + len(self._grams[name]) - count), name)
            for name, count in shared.items()
            if name != besides
        )
        similarity, name = max(scored, default=(0.0, ""))
        return name, similarity


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def grams(words: list[str]) -> frozenset[tuple[str, ...]]:
    """All runs of N words; the whole text where it is shorter."""
    if len(words) <= N:
        return frozenset({tuple(words)})
    return frozenset(tuple(words[n : n + N]) for n in range(len(words) - N + 1))


def shape(question: str) -> tuple[str, ...]:
    """The words of a question with every number as #: equal for questions of one template."""
    return tuple("#" if word[-1].isdigit() else word for word in words_of(question))


def _numbers(words: list[str]) -> tuple[str, ...]:
    return tuple(sorted(word for word in words if word[-1].isdigit()))


MAX_ANSWER_CHARS = 2000
NUM_WORKERS = 2  # sandboxes
NUM_RUNS = 2  # a program that prints two things is no gold


class Executions:
    """Runs programs on some sandboxes at once; what was run once is read from the store.

    `packages` is a directory as `pip install --target` fills it: this interpreter's own unless
    given, where the sandbox reads it.
    """

    def __init__(self, store: CallStore, *, packages: Path | None, cpu_s: float):
        if not cpu_s > 0:
            raise ConfigError(f"cpu_s={cpu_s} is not above 0. Raise it.")
        self._limits = dataclasses.replace(rationales.LIMITS, cpu_s=cpu_s, wall_s=30 + 5 * cpu_s)
        self._store = store
        self._empty = None
        self.where = rationales.directory(packages)
        if packages is None and not _sandbox_reads(self.where):
            self._empty = tempfile.TemporaryDirectory(prefix="no-packages-")
            os.chmod(self._empty.name, 0o755)
            self.where = Path(self._empty.name)
        self._runners: queue.SimpleQueue[RationaleRunner] = queue.SimpleQueue()
        self._made = [RationaleRunner(self.where, self._limits) for _ in range(NUM_WORKERS)]
        for runner in self._made:
            self._runners.put(runner)
        self._pool = concurrent.futures.ThreadPoolExecutor(NUM_WORKERS, "execution")

    @property
    def note(self) -> str:
        """The reason why programs have no packages, where that is so; else ""."""
        if self._empty is None:
            return ""
        return (
            f"programs may import the standard library alone: {rationales.directory(None)} cannot "
            "be read by the sandbox's user. Fill a directory with pip install --target and name it "
            "by --packages"
        )

    def available(self, packages: Sequence[str]) -> dict[str, str]:
        """The packages among these that are installed, with their versions."""
        installed = rationales.installed(self.where)
        found = {name: installed[name] for name in packages if name in installed}
        return {name: what for name, what in found.items() if what != "standard library"}

    def run(self, programs: Sequence[str]) -> list[list[Execution]]:
        """NUM_RUNS executions of each program, in order; one where the first one failed."""
        return list(self._pool.map(self._run, programs))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for runner in self._made:
            runner.close()
        if self._empty is not None:
            self._empty.cleanup()

    def _run(self, code: str) -> list[Execution]:
        packages = sorted(rationales.installed(self.where).items())
        key = content_hash(code, packages, dataclasses.asdict(self._limits), NUM_RUNS)
        if (record := self._store.get(key)) is not None:
            return [Execution(**one) for one in record["runs"]]
        runner = self._runners.get()
        try:
            runs = [runner.run(code)]
            while runs[-1].is_done and len(runs) < NUM_RUNS:
                runs.append(runner.run(code))
        finally:
            self._runners.put(runner)
        if not any(one.is_ours for one in runs):
            self._store.put(key, {"runs": [dataclasses.asdict(one) for one in runs]})
        return runs


def executed(
    candidates: Sequence[Candidate], packages: Mapping[str, str], executions: Executions
) -> list[Candidate]:
    """Every open candidate with the answer that its program prints, or ended without one."""
    found = {}
    for candidate in candidates:
        if len(candidate.code) > MAX_CODE_CHARS:
            detail = f"a program of {len(candidate.code)} characters"
            found[candidate.id] = candidate.ended("not_executable", detail)
        elif module := undeclared(candidate.code, set(packages), executions.where):
            found[candidate.id] = candidate.ended("undeclared_package", module)
    running = [one for one in candidates if one.id not in found]
    all_runs = executions.run([one.code for one in running])
    for candidate, runs in zip(running, all_runs, strict=True):
        found[candidate.id] = _answered(candidate, runs)
    return [found[candidate.id] for candidate in candidates]


def _answered(candidate: Candidate, runs: Sequence[Execution]) -> Candidate:
    last = runs[-1]
    if last.missing:
        return candidate.ended("undeclared_package", last.missing)
    if last.failure:
        return candidate.ended("sandbox_failed" if last.is_ours else "not_executable", last.failure)
    answers = {answer_of(one.output, candidate.domain) for one in runs}
    if len(answers) > 1:
        # They are in the store, and not told here: another run of it would have others.
        return candidate.ended("not_deterministic", f"{len(answers)} answers in {len(runs)} runs")
    [answer] = answers
    if len(answer) > MAX_ANSWER_CHARS:
        return candidate.ended("no_answer", f"an answer of {len(answer)} characters")
    if answer.casefold() in ("", "none", "nan", "inf", "-inf", "[]", "{}"):
        return candidate.ended("no_answer", f"the program prints {answer or 'nothing'}")
    answered = dataclasses.replace(candidate, answer=answer)
    if how := hard_coded(candidate.code, answer, candidate.question):
        return answered.ended("hard_coded", how)
    if tells(candidate.question, answer):
        return answered.ended("answer_in_question", answer)
    return answered


def answer_of(output: str, domain: str) -> str:
    """The last line of what was printed; all of it where the answer is a program's output."""
    if domain == "programming":
        return output.strip("\n").rstrip()
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _sandbox_reads(directory: Path) -> bool:
    """True if the user of the sandbox reaches a directory: our own, but nobody for root."""
    if os.geteuid() != 0:
        return os.access(directory, os.R_OK | os.X_OK)
    return all(place.stat().st_mode & 0o001 for place in (directory, *directory.parents))
