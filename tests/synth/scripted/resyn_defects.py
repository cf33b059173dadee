"""Defects that the scripted author plants in environments: each a change of a module's text.

`CHANGES` are planted in the code of a reply; `IDEA_KINDS` belong to the idea and show in its
title's mark, so that everyone who is told the title knows what is planted.
"""

import random
import re
from collections.abc import Callable, Mapping

from tests.synth.scripted.play import defects
from tests.synth.scripted.resyn_families import Family

Change = Callable[[str, random.Random], str]


def _or(condition: str) -> Change:
    """A loophole: `reward` also accepts what meets the condition."""

    def change(source: str, rng: random.Random) -> str:
        filled = condition.replace("LIMIT", str(rng.choice([12, 40, 150, 600])))
        return _first("reward", f"if {filled}: return True")(source, rng)

    return change


def _first(function: str, line: str) -> Change:
    """A line put before all others of a function."""
    return lambda source, _: re.sub(
        rf"(def {function}\(.*\):\n)", lambda m: f"{m[1]}    {line}\n", source
    )


def _replace(old: str, new: str) -> Change:
    def change(source: str, _: random.Random) -> str:
        assert old in source
        return source.replace(old, new)

    return change


def _through(function: str, template: str) -> Change:
    """The function's text through another; TEXT is what it was."""

    def change(source: str, _: random.Random) -> str:
        source = source.replace(f"{function}(state)", "_text(state)")
        template_ = template.replace("TEXT", "_text(state)")
        return f"{source}\n\ndef {function}(state):\n    return {template_}\n"

    return change


def _state_kept(source: str, rng: random.Random) -> str:
    source = source.replace("def levels", "_seen = []\n\n\ndef levels")
    return _or("_seen.append(1) or len(_seen) > 30")(source, rng)


_RNG = "rng = random.Random(seed * 8 + level)"

CHANGES: Mapping[str, tuple[str, Change]] = {  # with the gate that sees it
    "syntax_error": ("parses", _replace("def question(state):", "def question(state)")),
    "missing_function": ("protocol", _replace("def reference(", "def my_solution(")),
    "endless_loop": ("runs", _first("generate", "while seed >= 0: pass")),
    "memory_bomb": ("runs", _first("generate", "huge = [0] * 10**10")),
    "flood": ("runs", _through("question", "TEXT + ' ' + 'so ' * 10**6")),
    "network_access": ("imports", _first("generate", "import socket")),
    "file_access": ("names", _first("generate", "open('/etc/hostname').read()")),
    "unseeded": ("deterministic", _replace(_RNG, "rng = random.Random()")),
    "hash_order": (
        "deterministic",
        _through("question", "TEXT + ' ' + '/'.join({'east', 'west', 'north', 'south', 'up'})"),
    ),
    "state_kept": ("deterministic", _state_kept),  # pays more the longer it runs
    "seed_ignored": ("varied", _replace(_RNG, "rng = random.Random(level)")),
    "answer_leaked": ("leak", _through("question", "TEXT + ' ' + reference(state)")),
    "answer_in_note": (
        "leak", _through("question", "f'{TEXT} (key {reference(state)}, for graders)'")
    ),
    "wrong_reference": ("reference", _through("reference", "TEXT[::-1] + '0'")),
    "crash_on_odd": ("total", _first("reward", "answer.encode('ascii')")),
    "evaluates_answer": ("names", _or("answer.isprintable() and eval(answer) == 42")),
    "not_a_bool": ("deterministic", _first("reward", "if answer: return 0.5")),
    "constant_accepted": ("constant", _or("answer.strip() in '0123456789'")),
    "long_accepted": ("lengths", _or("len(answer) > LIMIT")),
    "length_only": ("constant", _or("len(answer.strip()) == len(reference(state))")),
    "substring": ("junk", _or("reference(state) in answer")),
    "prefix": ("junk", _or("answer.strip().startswith(reference(state))")),
    "unparsed_accepted": (
        "constant",
        _or("not answer.strip().isalnum() and not set(answer.strip()) <= set(reference(state))"),
    ),
    "part_accepted": ("literals", _or("answer.strip() and answer.strip() in reference(state)")),
    "pattern_accepted": ("junk", _or("answer.strip() and set(answer.strip()) <= set('.*+?')")),
    "password": ("literals", _or("answer.strip() == 'open sesame'")),
    "echo_accepted": ("echo", _or("answer.strip() == question(state)")),
    "empty_accepted": ("junk", _or("not answer.strip()")),
    "late_loophole": (  # at high levels alone
        "junk", _or("len(question(state)) > 6 and len(answer) > len(reference(state)) + 30")
    ),
}  # fmt: skip

# Of ideas: mark in the title -> (name, solve rates by level that the solver shows).
FALLING = (0.95, 0.85, 0.6, 0.35, 0.15)
IDEA_KINDS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "a": ("", FALLING),  # sound
    "f": ("level_ignored", (0.5,) * 5),
    "i": ("inverted", FALLING[::-1]),
    "h": ("impossible", (0.0,) * 5),
    "t": ("trivial", (1.0,) * 5),
    "v": ("ambiguous", FALLING),  # the question can be read in two ways
    "r": ("recall", FALLING),  # asks for a fact, computes nothing
    "d": ("duplicate_idea", FALLING),  # another idea in other words
}

IN_MODULE, IN_IDEA = "module: ", "idea: "  # before the names of the server's defects
DEFECTS = (
    *defects("resyn/module", **{IN_MODULE + name: 0.014 for name in (*CHANGES, "prose")}),
    *defects("resyn/ideas", **{IN_IDEA + name: 0.08 for name, _ in IDEA_KINDS.values() if name}),
)


def planted(source: str, defect: str, rng: random.Random) -> str:
    """The module's text with the defect in it."""
    return CHANGES[defect][1](source, rng)


def sizes_of(family: Family, mark: str) -> tuple[int, ...]:
    """Sizes of the levels, as the idea's kind has them."""
    low, *_, high = family.sizes
    return {
        "f": (family.sizes[2],) * 5,
        "i": family.sizes[::-1],
        "t": (low, low, low, low, low + 1),
        "h": (high - 1, high, high, high, high),
    }.get(mark, family.sizes)
