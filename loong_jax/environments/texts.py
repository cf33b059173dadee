"""Code: texts and digits after rules, and what describes or completes them."""

import itertools
import random
import re

from loong_jax.environments.environment import Generator, State

LENGTH = 6
PAIRS = ("aa", "ab", "ba", "bb")


class Rewriting(Generator):
    """Code: a text after rules of rewriting, `abbaba baaa bbab`.

    A rule (`baaa` writes aa for ba) is applied once, to the first place that it matches, and does
    nothing where it matches nowhere.

    State: {"start": "abbaba", "rules": [["ba", "aa"], ...]}; the two sides of a rule differ.
    """

    name, domain = "rewriting", "code"
    form = "[ab]{1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        return {
            "start": "".join(rng.choices("ab", k=LENGTH)),
            "rules": [rng.sample(PAIRS, 2) for _ in range(level + 3)],
        }

    def prompt(self, state: State) -> str:
        return " ".join([state["start"], *(left + right for left, right in state["rules"])])

    def steps(self, state: State) -> list[str]:
        found = itertools.accumulate(
            state["rules"], lambda text, rule: text.replace(*rule, 1), initial=state["start"]
        )
        return list(found)[1:]


LETTERS, MAX_RUN = "abcd", 6


class RunLength(Generator):
    """Code: the run-length code of a text, `aaabccdd` -> `3a1b2c2d`.

    Runs are as long as they can be, so the code is unique.

    State: {"text": "aaabccdd"}.
    """

    name, domain = "run_length", "code"
    template, form = "{text}", "(?:[1-9][a-z]){1,20}"

    def draw(self, level: int, rng: random.Random) -> State:
        text = ""
        for _ in range(level + 3):
            letter = rng.choice([one for one in LETTERS if one != text[-1:]])
            text += letter * rng.randint(1, MAX_RUN)
        return {"text": text}

    def steps(self, state: State) -> list[str]:
        return [f"{len(list(run))}{one}" for one, run in itertools.groupby(state["text"])]

    def answer(self, state: State) -> str:
        return "".join(self.steps(state))

    def flaw(self, state: State, answer: str) -> str | None:
        """Decodes the answer; neighbouring runs must differ, or they were one."""
        runs = re.findall("([0-9])([a-z])", answer)
        if any(one == other for (_, one), (_, other) in itertools.pairwise(runs)):
            return "two runs of one letter side by side"
        decoded = "".join(int(count) * letter for count, letter in runs)
        return None if decoded == state["text"] else f"it is the code of {decoded}"


CLOSER = {"(": ")", "[": "]", "{": "}"}
_MATCHED = re.compile(r"\(\)|\[\]|\{\}")


class Brackets(Generator):
    """Code: the closing brackets that a text lacks, `([]{(` -> `)})`.

    The text is the beginning of a balanced one; there is one shortest end.

    State: {"text": "([]{("}.
    """

    name, domain = "brackets", "code"
    template, form = "{text}", r"[)\]}]{1,40}"

    def draw(self, level: int, rng: random.Random) -> State:
        steps = [-1] * (level + 2) + [1] * (2 * level + 5)
        while True:  # until no bracket is closed before it opens
            rng.shuffle(steps)
            if all(sum(steps[:count]) >= 0 for count in range(1, len(steps))):
                break
        text, opened = "", ""
        for step in steps:
            if step > 0:
                opened += rng.choice(list(CLOSER))
                text += opened[-1]
            else:
                text += CLOSER[opened[-1]]
                opened = opened[:-1]
        return {"text": text}

    def steps(self, state: State) -> list[str]:
        """The text without its first matched pair, without the next, ... : what is left open."""
        text, found = state["text"], []
        while (shorter := _MATCHED.sub("", text, count=1)) != text:
            text = shorter
            found.append(text)
        return found

    def answer(self, state: State) -> str:
        return "".join(CLOSER[bracket] for bracket in reversed(self.steps(state)[-1]))

    def flaw(self, state: State, answer: str) -> str | None:
        """Reads text and answer with a stack: it ends empty, and was not empty before."""
        expected: list[str] = []
        for place, bracket in enumerate(state["text"] + answer):
            if bracket in CLOSER:
                expected.append(CLOSER[bracket])
            elif not expected:
                return f"nothing is open at {place}"
            elif (lacking := expected.pop()) != bracket:
                return f"{bracket} closes {lacking} at {place}"
        return f"{len(expected)} brackets are still open" if expected else None


def after_comparator(digits: str, comparator: str) -> str:
    i, j = (int(place) - 1 for place in comparator)
    low, high = sorted((digits[i], digits[j]))
    return f"{digits[:i]}{low}{digits[i + 1 : j]}{high}{digits[j + 1 :]}"


class Comparators(Generator):
    """Code: what a network of comparators makes of five digits, `83152:12 45 13 24`.

    A comparator `ij` (i < j, places counted from 1) swaps the digits at its places where they stand
    in the wrong order.

    State: {"digits": "83152", "comparators": ["12", "45", ...]}.
    """

    name, domain = "comparators", "code"
    form = "[0-9]{1,9}"

    def draw(self, level: int, rng: random.Random) -> State:
        pairs = list(itertools.combinations("12345", 2))
        comparators = ["".join(pair) for pair in rng.choices(pairs, k=level + 3)]
        return {
            "digits": "".join(rng.choices("0123456789", k=5)),
            "comparators": comparators,
        }

    def prompt(self, state: State) -> str:
        return f"{state['digits']}:{' '.join(state['comparators'])}"

    def steps(self, state: State) -> list[str]:
        return list(
            itertools.accumulate(state["comparators"], after_comparator, initial=state["digits"])
        )[1:]
