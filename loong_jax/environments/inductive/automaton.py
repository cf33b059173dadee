"""Automata from examples: a small deterministic automaton that sorts every word as shown."""

import itertools
import random
import re

from loong_jax.environments import answers
from loong_jax.environments.answers import Malformed
from loong_jax.environments.environment import Puzzle, State

SHAPES = {1: (2, 8), 2: (2, 12), 3: (3, 12), 4: (3, 18), 5: (4, 20)}
"""Level: states allowed, words shown."""
MAX_WORD = 6
LETTERS = "ab"


def _final(table: dict[tuple[int, str], int], word: str) -> int:
    state = 0
    for letter in word:
        state = table[state, letter]
    return state


def _search(words: dict[str, bool], num_states: int) -> dict[tuple[int, str], int] | None:
    """Transitions that keep accepted and rejected words in different states.

    Follows the words, shortest first, and chooses a transition when one is first needed; new
    states are taken in order.
    """
    ordered = sorted(words, key=lambda word: (len(word), word))

    def extend(index: int, table: dict[tuple[int, str], int], used: int, kinds: dict[int, bool]):
        if index == len(ordered):
            return table
        word, state = ordered[index], 0
        for letter in word:
            if (state, letter) not in table:
                for target in range(min(used + 1, num_states)):
                    found = extend(
                        index,
                        table | {(state, letter): target},
                        max(used, target + 1),
                        kinds,
                    )
                    if found is not None:
                        return found
                return None
            state = table[state, letter]
        if kinds.get(state, words[word]) != words[word]:
            return None
        return extend(index + 1, table, used, kinds | {state: words[word]})

    return extend(0, {}, 1, {})


class Automaton(Puzzle):
    """State: {"states", "accepted": words, "rejected": words}.

    No automaton with one state less fits.
    """

    name = "automaton_induction"

    def draw(self, level: int, rng: random.Random) -> State | None:
        num_states, num_words = SHAPES[level]
        table = {
            (state, letter): rng.randrange(num_states)
            for state in range(num_states)
            for letter in LETTERS
        }
        accepting = {state for state in range(num_states) if rng.random() < 0.5}
        every = [
            "".join(word)
            for length in range(1, MAX_WORD + 1)
            for word in itertools.product(LETTERS, repeat=length)
        ]
        words = {word: _final(table, word) in accepting for word in rng.sample(every, num_words)}
        if not num_words // 4 < sum(words.values()) < 3 * num_words // 4:
            return None
        if _search(words, num_states - 1) is not None:
            return None
        return {
            "states": num_states,
            "accepted": sorted(word for word, accept in words.items() if accept),
            "rejected": sorted(word for word, accept in words.items() if not accept),
        }

    def prompt(self, state: State) -> str:
        count = state["states"]
        return (
            f"A deterministic automaton with the states 0 to {count - 1} reads words of a and b "
            "from the left, starting in state 0. It accepts a word if it ends in an accepting "
            f"state. Find one that accepts {', '.join(state['accepted'])} and rejects "
            f"{', '.join(state['rejected'])}. Any such automaton is right. Answer with {count + 1} "
            "lines: for each state in order where a and b lead, then the accepting states, as in\n"
            "0: a=1 b=0\naccept: 0, 1"
        )

    def flaw(self, state: State, answer: str) -> str | None:
        count, found = state["states"], answers.lines(answer)
        if len(found) != count + 1:
            raise Malformed(f"{len(found)} lines, not {count + 1}")
        table: dict[tuple[int, str], int] = {}
        for number, line in enumerate(found[:-1]):
            match = re.fullmatch(r"([0-9]): ?a=([0-9]),? b=([0-9])", line)
            if match is None or int(match[1]) != number:
                raise Malformed(f"{line[:40]!r} is not '{number}: a=STATE b=STATE'")
            table |= {(number, "a"): int(match[2]), (number, "b"): int(match[3])}
        if max(table.values()) >= count:
            raise Malformed(f"a state above {count - 1}")
        head, colon, rest = found[-1].partition(":")
        if head != "accept" or not colon:
            raise Malformed("the last line does not start with 'accept:'")
        accepting = set(map(answers.integer, answers.items(rest) if rest.strip() else []))
        if not accepting <= set(range(count)):
            raise Malformed(f"an accepting state is not in 0 to {count - 1}")
        for kind, wanted in (("accepted", True), ("rejected", False)):
            for word in state[kind]:
                if (_final(table, word) in accepting) != wanted:
                    return f"{word} is not {kind}"
        return None

    def answer(self, state: State) -> str:
        words = dict.fromkeys(state["accepted"], True) | dict.fromkeys(state["rejected"], False)
        table = _search(words, state["states"])
        assert table is not None
        rows = []
        for number in range(state["states"]):
            a, b = (table.setdefault((number, letter), 0) for letter in LETTERS)
            rows.append(f"{number}: a={a} b={b}")
        accepting = sorted({_final(table, word) for word in state["accepted"]})
        return "\n".join([*rows, f"accept: {', '.join(map(str, accepting))}"])
