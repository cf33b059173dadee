"""The gates of a module, mechanical all of them, before a judge reads it; each with its reason.

Of what a module rewards: its reference, and none of the answers that nobody should pay. Attacks are
those of `verifiers.attacks`, made per case, and a few that aim at modules: answers of every length,
the module's own texts, the question itself. `deterministic` has shown that order does not matter.

`examine` tries all in order and stops at the first refusal, so that cheap gates spare dear ones and
a later gate may rely on what an earlier one has shown.
"""

import ast
import concurrent.futures
import dataclasses
import math
import os
import queue
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loong_jax import syntax
from loong_jax.data import json_files
from loong_jax.environments import modules
from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.sandbox import SandboxLost
from loong_jax.synth.resyn import instance_gates
from loong_jax.synth.resyn.instance_gates import Case, Trial
from loong_jax.verifiers import admission, attacks

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 101, 202, 404, 808, 1601, modules.MAX_ANSWER_CHARS)
WILDCARDS = (".*", ".+", "*", "?", "%", "[0-9]+", r"\d+", r"\w+", "^", "$", "{}", "{0}", "%s", "|")
_MARKER = Path("/marker")  # payloads name it; no file can be written where modules run


def reference(trial: Trial) -> str:
    """The module's own answer is right, also with space around it: each instance has a solution."""
    for pad in ("", " ", "\n"):
        pairs = [(case, f"{pad}{case.reference}{pad}") for case in trial.cases]
        for (case, _), found in zip(pairs, trial.rewards(pairs), strict=True):
            if found.status != "ok":
                return f"reward() of its own reference {found.status}: {found.detail}"
            if not found.value:
                return f"the reference {case.reference!r:.40} of level {case.level} is rejected"
    return ""


def total(trial: Trial) -> str:
    """`reward` judges any text: it neither raises nor hangs, whatever a policy writes."""
    odd = [*attacks.EMPTY, *attacks.WRONG_TYPES, *attacks.CONSTANTS, *attacks.payloads(_MARKER)]
    odd += [text for length in LENGTHS for text in _of_length(length)]
    odd += ["(" * 900, "[" * 900, "-" * 900 + "1", "9" * 1999, "1e999", "0x1f", "\u0665", "\u00b2"]
    for case in trial.few:
        extra = [case.reference * 2, case.reference[::-1], f"{case.reference},", case.question]
        pairs = [(case, text[: modules.MAX_ANSWER_CHARS]) for text in (*odd, *extra)]
        for (_, answer), found in zip(pairs, trial.rewards(pairs), strict=True):
            if found.status != "ok":
                return f"reward() of {answer!r:.40}: {found.status} ({found.detail})"
    return ""


def constant(trial: Trial) -> str:
    """One answer to everything earns little: at most half, as admission has it."""
    share, answer = guess(trial)
    if math.isnan(share):
        return f"{answer!r:.40} is not judged"
    if share > admission.MAX_CONSTANT_SHARE:
        return f"the answer {answer!r:.40} is right in {share:.0%} of the cases"
    return ""


def guess(trial: Trial) -> tuple[float, str]:
    """The largest share of cases that one constant answer is right for, and the answer.

    NaN where an answer was not judged.
    """
    candidates = [*attacks.CONSTANTS, *map(str, range(-2, 12))]
    candidates += sorted({case.reference for case in trial.cases})
    answers = list(dict.fromkeys(candidates))
    shares = trial.shares(answers, trial.cases)
    best = max(range(len(answers)), key=lambda i: (math.isnan(shares[i]), shares[i]))
    return shares[best], answers[best]


def junk(trial: Trial) -> str:
    """Empty, mistyped, sprayed, executable and decorated answers are wrong; so are patterns."""

    def answers(case: Case) -> Iterator[str]:
        others = [o.reference for o in trial.cases if o.reference != case.reference][:8]
        for attack in attacks.on_case(case.reference, others, _MARKER, is_first=False):
            if len(attack.answer) <= modules.MAX_ANSWER_CHARS:
                yield attack.answer
        yield from (text for text in WILDCARDS if text != case.reference.strip())

    return _first_rewarded(trial, answers)


def lengths(trial: Trial) -> str:
    """No length of nonsense is worth a reward."""

    def answers(case: Case) -> Iterator[str]:
        for length in LENGTHS:
            yield from (text for text in _of_length(length) if not _is_right(trial, case, text))

    return _first_rewarded(trial, answers)


def literals(trial: Trial) -> str:
    """The texts and numbers that the module itself holds are no password.

    Each may be right for as many cases as a constant answer may be, and no more.
    """
    held = set()
    for node in ast.walk(syntax.parse(trial.module.source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
            text = str(node.value)
            held |= {text, text.strip(), f"{text} {text}", f"{text}1", f"x{text}", f"x{text}x"}
    answers = sorted(text for text in held if 0 < len(text) <= modules.MAX_ANSWER_CHARS)[:400]
    for answer, share in zip(answers, trial.shares(answers, trial.few), strict=True):
        if not share <= admission.MAX_CONSTANT_SHARE:
            said = f"right in {share:.0%} of the cases"
            return f"{answer!r:.60}, made of its own texts, is {said}"
    return ""


def perturbed(trial: Trial) -> str:
    """Neighbours and parts of a right answer are wrong; some may be right where it has others."""
    return _mostly_wrong(trial, attacks.perturbed) or _mostly_wrong(trial, _parts)


def echo(trial: Trial) -> str:
    """The question given back, whole, in part or with the answer in it, is no answer."""

    def answers(case: Case) -> Iterator[str]:
        text = case.question[: modules.MAX_ANSWER_CHARS - 50]
        yield from (text, text[::-1], f"{text}\n{case.reference}", f"{case.reference}\n{text}")
        yield f"The answer is {case.reference}, I think, but it may be another."

    return _first_rewarded(trial, answers)


def _parts(reference: str) -> list[str]:
    parts = dict.fromkeys((reference[:1], reference[1:], reference[:-1]))
    return [text for text in parts if text.strip() and text != reference]


def _mostly_wrong(trial: Trial, changed: Callable[[str], list[str]]) -> str:
    pairs = [(case, wrong) for case in trial.cases for wrong in changed(case.reference)]
    judged = trial.rewards(pairs)
    if lost := next((one for one in judged if one.status != "ok"), None):
        return f"a changed reference is not judged: {lost.status} ({lost.detail})"
    right = [pair for pair, one in zip(pairs, judged, strict=True) if one.value]
    if len(right) > admission.MAX_OTHERS_SHARE * len(pairs):
        case, answer = right[0]
        return (
            f"{len(right)} of {len(pairs)} changed references are right, the first {answer!r:.40} "
            f"for {case.reference!r:.40}"
        )
    return ""


def _first_rewarded(trial: Trial, answers: Callable[[Case], Iterator[str]]) -> str:
    for case in trial.few:
        pairs = [(case, answer) for answer in answers(case)]
        for (_, answer), found in zip(pairs, trial.rewards(pairs), strict=True):
            if found.status != "ok" or found.value:
                said = "rewarded" if found.status == "ok" else found.status
                return f"{answer!r:.60} is {said}; right is {case.reference!r:.40}"
    return ""


def _of_length(length: int) -> list[str]:
    rng = random.Random(length)
    letters = "".join(rng.choice("abcdefghij klmnop") for _ in range(length))
    digits = "".join(rng.choice("0123456789") for _ in range(length))
    words = ("so it is then " * (length // 8 + 1))[:length]
    return ["x" * length, letters, digits, words, "7" * length]


def _is_right(trial: Trial, case: Case, text: str) -> bool:
    """True if a short nonsense text happens to be the reference, or another right answer's form."""
    return text.strip() == case.reference.strip() or len(text) <= len(case.reference)


# ---- all gates, in their order

IN_SANDBOX: dict[str, Callable[[Trial], str]] = {
    gate.__name__: gate
    for gate in (
        *(instance_gates.runs, instance_gates.bounded, instance_gates.varied),
        *(instance_gates.split, instance_gates.deterministic, instance_gates.leak),
        *(reference, total, constant, junk, lengths, echo, literals, perturbed),
    )
}
GATES = (*modules.SOURCE_RULES, *IN_SANDBOX)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examined:
    """The result of a module: the gate that refused it and why, or measures of an accepted one."""

    gate: str = ""  # "" for none
    detail: str = ""
    levels: tuple[int, ...] = ()
    guess_share: float = 0.0  # of the cases, for the best constant answer
    prompt_chars: tuple[int, ...] = ()  # of the longest question met, by level

    @property
    def is_accepted(self) -> bool:
        return not self.gate


def examine(module: Module, runner: ModuleRunner, second: ModuleRunner) -> Examined:
    """Tries every gate; the two runners must be two interpreters. Raises SandboxLost twice over."""
    for name, check in modules.SOURCE_RULES.items():
        if why := check(module.source):
            return Examined(gate=name, detail=why)
    trial = Trial(module, runner, second)
    for name, gate in IN_SANDBOX.items():
        try:
            why = gate(trial)
        except SandboxLost:  # ours, or a module that sleeps: told apart by a second try
            why = gate(trial)
        if why:
            return Examined(gate=name, detail=why)
    share, _ = guess(trial)
    asked = {level: [c.question for c in trial.cases if c.level == level] for level in trial.levels}
    longest = tuple(max(map(len, questions)) for questions in asked.values())
    return Examined(levels=trial.levels, guess_share=round(share, 4), prompt_chars=longest)


class Examiner:
    """Pairs of sandboxes, and what they found, kept in a directory by the module's hash."""

    def __init__(self, directory: Path):
        self._directory = directory / f"gates-{len(GATES)}"
        count = len(os.sched_getaffinity(0))
        self._pairs: queue.SimpleQueue[tuple[ModuleRunner, ModuleRunner]] = queue.SimpleQueue()
        self._runners = [ModuleRunner() for _ in range(2 * count)]
        for pair in zip(self._runners[::2], self._runners[1::2], strict=True):
            self._pairs.put(pair)
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "examiner")

    @property
    def runner(self) -> ModuleRunner:
        """One of the sandboxes, for other work between examinations."""
        return self._runners[0]

    def examine(self, modules: Sequence[Module]) -> list[Examined]:
        return list(self._threads.map(self._examine, modules))

    def _examine(self, module: Module) -> Examined:
        path = self._directory / f"{module.hash}.json"
        if (known := json_files.read_json(path)) is not None:
            tuples = {name: tuple(known[name]) for name in ("levels", "prompt_chars")}
            return Examined(**known | tuples)
        pair = self._pairs.get()
        try:
            found = examine(module, *pair)
        finally:
            self._pairs.put(pair)
        json_files.write_json(path, dataclasses.asdict(found))
        return found

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for runner in self._runners:
            runner.close()
