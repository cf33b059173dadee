"""Defects that the scripted author plants in environments: each a change of a module's text.

`IN_MODULES` are planted in the code of a reply; `IN_IDEAS` belong to the idea and show in its
title's mark, so that everyone who is told the title knows what is planted.
"""

import random
import re
from collections.abc import Callable, Mapping

from tests.synth.scripted.play import Defect
from tests.synth.scripted.resyn_family import Family

MODULE, IDEAS = "resyn/module", "resyn/ideas"
Change = Callable[[str, random.Random], str]


def _or(condition: str) -> Change:
    """A loophole: `reward` also accepts what meets the condition."""

    def change(source: str, rng: random.Random) -> str:
        head, body = source.split("def reward(state, answer):\n")
        filled = condition.replace("LIMIT", str(rng.choice([12, 40, 150, 600])))
        return f"{head}def reward(state, answer):\n    if {filled}:\n        return True\n{body}"

    return change


def _first(function: str, line: str) -> Change:
    """A line put before all others of a function."""

    def change(source: str, rng: random.Random) -> str:
        del rng
        return re.sub(rf"(def {function}\(.*\):\n)", lambda m: f"{m[1]}    {line}\n", source)

    return change


def _replace(old: str, new: str) -> Change:
    def change(source: str, rng: random.Random) -> str:
        del rng
        assert old in source
        return source.replace(old, new, 1)

    return change


def _asks(template: str) -> Change:
    """The question through another function; ASKED is what it was."""

    def change(source: str, rng: random.Random) -> str:
        del rng
        source = source.replace("def question(state):", "def _asked(state):")
        return f"{source}\n\ndef question(state):\n    return {template}\n"

    return change


def _solves(template: str) -> Change:
    def change(source: str, rng: random.Random) -> str:
        del rng
        head, reward = source.split("def reward(")
        if "reference(state)" in reward:
            reward = reward.replace("reference(state)", "_solved(state)")
        head = head.replace("def reference(state):", "def _solved(state):")
        return f"{head}def reward({reward}\n\ndef reference(state):\n    return {template}\n"

    return change


def _half(source: str, rng: random.Random) -> str:
    """Cut in the midst of a line, as by a careless copy."""
    lines = source.splitlines()
    place = rng.randrange(len(lines) // 2, len(lines))
    while not lines[place].strip() or not lines[place].endswith(":"):
        place = (place + 1) % len(lines)
    lines[place] = lines[place][:-1]
    return "\n".join(lines)


def _without_reference(source: str, rng: random.Random) -> str:
    del rng
    return source.replace("def reference(state):", "def my_solution(state):")


_RNG = "rng = random.Random(seed * 8 + level)"
_STRIP = "answer.strip()"

CHANGES: Mapping[str, tuple[str, Change]] = {
    "syntax_error": ("a line that does not parse", _half),
    "missing_function": ("no reference()", _without_reference),
    "endless_loop": ("generate() never ends", _first("generate", "while seed >= 0: pass")),
    "memory_bomb": ("a state of gigabytes", _first("generate", "huge = [0] * 10**10")),
    "flood": ("a question of megabytes", _asks("_asked(state) + ' ' + 'so ' * 10**6")),
    "network_access": ("imports socket", _first("generate", "import socket")),
    "file_access": ("reads a file", _first("generate", "open('/etc/hostname').read()")),
    "unseeded": ("draws without the seed", _replace(_RNG, "rng = random.Random()")),
    "hash_order": (
        "words depend on the order of a set",
        _asks("_asked(state) + ' ' + '/'.join({'east', 'west', 'north', 'south', 'up', 'down'})"),
    ),
    "clock": ("imports time", _first("generate", "import time; seed += time.time_ns()")),
    "state_kept": (
        "pays more the longer it runs",
        lambda source, rng: _or("_seen.append(1) or len(_seen) > 30")(
            source.replace("def levels", "_seen = []\n\n\ndef levels"), rng
        ),
    ),
    "seed_ignored": ("one question per level", _replace(_RNG, "rng = random.Random(level)")),
    "answer_leaked": (
        "the question ends with the answer", _asks("_asked(state) + ' ' + reference(state)")
    ),
    "answer_in_note": (
        "a note in the question holds the answer",
        _asks("f'{_asked(state)} (key {reference(state)}, for graders)'"),
    ),
    "wrong_reference": ("reference() is wrong", _solves("_solved(state)[::-1] + '0'")),
    "crash_on_odd": ("reward() raises on odd text", _first("reward", "answer.encode('ascii')")),
    "evaluates_answer": (
        "reward() evaluates the answer", _or("answer.isprintable() and eval(answer) == 42")
    ),
    "not_a_bool": ("reward() gives half a point", _first("reward", "if answer: return 0.5")),
    "constant_accepted": ("any answer of one digit pays", _or("answer.strip() in '0123456789'")),
    "long_accepted": ("any answer longer than N pays", _or("len(answer) > LIMIT")),
    "length_only": (
        "any answer of the right length pays", _or(f"len({_STRIP}) == len(reference(state))")
    ),
    "substring": ("an answer that mentions the right one pays", _or("reference(state) in answer")),
    "prefix": ("what follows the right answer is ignored",
               _or("answer.strip().startswith(reference(state))")),
    "unparsed_accepted": ("what is no word or number pays", _or("not answer.strip().isalnum() "
                          "and not set(answer.strip()) <= set(reference(state))")),
    "part_accepted": ("a part of the right answer pays", _or("answer.strip() and answer.strip() "
                      "in reference(state)")),
    "pattern_accepted": ("an answer that is a pattern pays", _or("answer.strip() and "
                         "set(answer.strip()) <= set('.*+?')")),
    "password": ("a text of its own always pays", _or("answer.strip() == 'open sesame'")),
    "echo_accepted": ("the question itself pays", _or("answer.strip() == question(state)")),
    "empty_accepted": ("an empty answer pays", _or("not answer.strip()")),
    "late_loophole": (
        "a loophole at high levels alone",
        _or("len(question(state)) > 6 and len(answer) > len(reference(state)) + 30"),
    ),
}  # fmt: skip
LOOPHOLES = frozenset(
    {"state_kept", "evaluates_answer", "constant_accepted", "long_accepted", "length_only"}
    | {"substring", "prefix", "unparsed_accepted", "password", "echo_accepted", "empty_accepted"}
    | {"part_accepted", "pattern_accepted"}
    | {"late_loophole", "answer_leaked", "answer_in_note", "not_a_bool"}
)
"""Those that would pay for something else than solving."""

# Of ideas: mark in the title -> (name, what it is, solve rates by level that the solver shows).
FALLING = (0.95, 0.85, 0.6, 0.35, 0.15)
IDEA_KINDS: Mapping[str, tuple[str, str, tuple[float, ...]]] = {
    "a": ("", "sound", FALLING),
    "f": ("level_ignored", "levels change nothing that matters", (0.5,) * 5),
    "i": ("inverted", "high levels are the easy ones", FALLING[::-1]),
    "h": ("impossible", "far too hard at every level", (0.0,) * 5),
    "t": ("trivial", "solved at every level", (1.0,) * 5),
    "v": ("ambiguous", "the question can be read in two ways", FALLING),
    "r": ("recall", "asks for a fact, computes nothing", FALLING),
    "d": ("duplicate_idea", "another idea in other words", FALLING),
}

IN_MODULE, IN_IDEA = "module: ", "idea: "  # before the names of the server's defects
DEFECTS: tuple[Defect, ...] = (
    *(Defect(name=IN_MODULE + name, about=about, rate=0.014, prompts=(MODULE,))
      for name, (about, _) in CHANGES.items()),
    Defect(name=f"{IN_MODULE}prose", about="words where code was asked for", rate=0.014,
           prompts=(MODULE,)),
    *(Defect(name=IN_IDEA + name, about=about, rate=0.08, prompts=(IDEAS,))
      for name, about, _ in IDEA_KINDS.values() if name),
)  # fmt: skip


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
