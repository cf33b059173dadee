"""Problems of reasoning-gym (`pip install reasoning-gym`, extra `gym`), judged by ours.

`get_environment("gym/chain_sum")` is one of its datasets. `DATASETS` says which are allowed and
which function of `gym_answers` judges each; `REFUSED` says why the others are not. Its scorers are
never called. The package is needed to draw problems, not to judge them. Level n sets every
parameter of the dataset's own curriculum to its n-th step, or to the last it has.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment, gym_answers
from loong_jax.environments.answers import MAX_ANSWER_CHARS, Malformed
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.errors import ConfigError
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

PREFIX = "gym/"
REMEDY = "pip install reasoning-gym, or the extra `gym` of loong_jax"
NUM_ITEMS = 256**3  # of a dataset: its seed is 0, and ours says which item
MAX_DRAWS = 50  # of one problem, where the library draws one that cannot be judged


class Dataset(NamedTuple):
    domain: Domain
    judge: str  # a name of gym_answers.JUDGES


DATASETS: dict[str, Dataset] = {
    "aiw": Dataset("logic", "integer"),
    "ab": Dataset("code", "words"),
    "arc_1d": Dataset("logic", "words"),
    "base_conversion": Dataset("stem", "word"),
    "basic_arithmetic": Dataset("stem", "number"),
    "binary_alternation": Dataset("code", "integer"),
    "binary_matrix": Dataset("code", "rows"),
    "bitwise_arithmetic": Dataset("code", "word"),
    "calendar_arithmetic": Dataset("stem", "word"),
    "chain_sum": Dataset("stem", "integer"),
    "coin_flip": Dataset("stem", "number"),
    "color_cube_rotation": Dataset("logic", "word"),
    "count_bits": Dataset("code", "integer"),
    "count_primes": Dataset("stem", "integer"),
    "countdown": Dataset("stem", "arithmetic"),
    "decimal_arithmetic": Dataset("stem", "number"),
    "decimal_chain_sum": Dataset("stem", "number"),
    "dice": Dataset("stem", "reduced"),
    "family_relationships": Dataset("logic", "word"),
    "gcd": Dataset("stem", "integer"),
    "graph_color": Dataset("logic", "colouring"),
    "largest_island": Dataset("code", "integer"),
    "lcm": Dataset("stem", "integer"),
    "leg_counting": Dataset("stem", "integer"),
    "letter_counting": Dataset("code", "integer"),
    "manipulate_matrix": Dataset("code", "rows"),
    "maze": Dataset("code", "integer"),
    "n_queens": Dataset("logic", "queens"),
    "needle_haystack": Dataset("logic", "word"),
    "number_filtering": Dataset("code", "items"),
    "number_format": Dataset("stem", "number"),
    "number_sequence": Dataset("logic", "integer"),
    "number_sorting": Dataset("code", "items"),
    "palindrome_generation": Dataset("code", "palindrome"),
    "path_star": Dataset("code", "words"),
    "prime_factorization": Dataset("stem", "factors"),
    "products": Dataset("stem", "integer"),
    "puzzle24": Dataset("stem", "arithmetic"),
    "rectangle_count": Dataset("code", "integer"),
    "rotate_matrix": Dataset("code", "rows"),
    "rotten_oranges": Dataset("code", "integer"),
    "simple_equations": Dataset("stem", "integer"),
    "spell_backward": Dataset("code", "words"),
    "spiral_matrix": Dataset("code", "words"),
    "string_insertion": Dataset("code", "words"),
    "string_manipulation": Dataset("code", "words"),
    "string_splitting": Dataset("code", "words"),
    "string_synthesis": Dataset("code", "words"),
    "word_sequence_reversal": Dataset("code", "items"),
    "word_sorting": Dataset("code", "items"),
}

_TWO = "has two or three possible answers, so that guessing pays"
_MANY = "has many right answers, and we have no rules of it that would find them"
_NO_LEVELS = "has no levels"
_BENCHMARK = "is made of the tasks of a benchmark, which training on it would spoil"
_ROUNDED = "asks for rounded numbers and holds golds rounded in another way"
_OURS = "is a task of ours (environments/tasks.py), which proves that its answer is unique"
_SLOW = "takes seconds for a problem"
_STEPS = "has steps in its curriculum that its own generator refuses"
REFUSED: dict[str, str] = {
    "acre": _NO_LEVELS,
    "advanced_geometry": _ROUNDED,
    "arc_agi": _BENCHMARK,
    "bf": _SLOW,
    "boxnet": _MANY,
    "caesar_cipher": _STEPS,
    "circuit_logic": _TWO,
    "codeio": "needs programs of others to be run",
    "complex_arithmetic": "has answers of more forms than our readers know",
    "composite": "is a mixture of others: mix streams instead",
    "course_schedule": _TWO,
    "cryptarithm": _OURS,
    "emoji_mystery": "hides its text in characters that tokenizers drop",
    "figlet_font": "has golds that its pictures of letters do not determine",
    "fraction_simplification": "has golds in LaTeX and in plain text by turns",
    "futoshiki": _OURS,
    "game_of_life": _SLOW,
    "game_of_life_halting": _TWO,
    "group_anagrams": "has answers of more forms than our readers know",
    "gsm_symbolic": _NO_LEVELS,
    "intermediate_integration": "has golds that are unsolved integrals",
    "isomorphic_strings": _TWO,
    "jugs": _MANY,
    "kakurasu": _MANY,
    "knight_swap": _STEPS,
    "knights_knaves": _OURS,
    "letter_jumble": _MANY,
    "list_functions": _NO_LEVELS,
    "mahjong_puzzle": _TWO,
    "mini_sudoku": _OURS,
    "modulo_grid": "draws with emoji, which tokenizers cut differently",
    "palindrome_partitioning": "has answers of more forms than our readers know",
    "polynomial_equations": _ROUNDED,
    "polynomial_multiplication": "has golds of thousands of characters; verifier `math` reads it",
    "pool_matrix": _ROUNDED,
    "power_function": _ROUNDED,
    "propositional_logic": _MANY,
    "quantum_lock": _MANY,
    "ransom_note": _TWO,
    "rearc": _BENCHMARK,
    "rubiks_cube": _STEPS,
    "rush_hour": _MANY,
    "self_reference": "has levels that do not differ",
    "sentence_reordering": _MANY,
    "shortest_path": _MANY,
    "simple_geometry": "asks for angles of polygons that do not exist, such as 510 degrees",
    "simple_integration": "has many right answers; verifier `math` compares antiderivatives",
    "sokoban": _MANY,
    "sudoku": _OURS,
    "survo": _STEPS,
    "syllogism": _TWO,
    "time_intervals": "has golds that are a millisecond off where floats are",
    "tower_of_hanoi": _MANY,
    "tsumego": "has one gold where several moves win",
    "word_ladder": _MANY,
    "zebra_puzzles": _SLOW,
}

# What a judge must know beside the gold, from the library's metadata.
KNOWN: dict[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {
    "countdown": lambda _, found: {"numbers": found["numbers"], "target": found["target"]},
    "puzzle24": lambda _, found: {"numbers": found["numbers"], "target": 24},
    "palindrome_generation": lambda _, found: {"letters": "".join(found["letters"])},
    "n_queens": lambda question, _: {"board": _board(question)},
    "graph_color": lambda _, found: {
        "vertices": found["puzzle"]["vertices"],
        "edges": found["puzzle"]["edges"],
        "colours": found["puzzle"]["color_options"],
    },
}
GOLDS: dict[str, Callable[[Mapping[str, Any]], str]] = {  # where the library states none
    "graph_color": lambda found: json.dumps(found["possible_answer"]),
}


def _board(question: str) -> str:
    rows = (line.strip() for line in question.splitlines())
    return "\n".join(row for row in rows if row and not set(row) - set("Q_ "))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gym:
    """State: what its judge must know beside the gold; `Problem.gold` holds one right answer."""

    dataset: str

    def __post_init__(self):
        if self.dataset in REFUSED:
            raise ConfigError(
                f"dataset {self.dataset!r} of reasoning-gym is not used here: it"
                f" {REFUSED[self.dataset]}. Choose one of environments.gym.DATASETS."
            )
        if self.dataset not in DATASETS:
            raise ConfigError(
                f"dataset {self.dataset!r} of reasoning-gym is unknown. Choose one of"
                f" {sorted(DATASETS)}."
            )

    @property
    def name(self) -> str:
        return PREFIX + self.dataset

    @property
    def domain(self) -> Domain:
        return DATASETS[self.dataset].domain

    def problem(self, level: int, seed: int) -> Problem:
        """Raises ConfigError without the package; its draws that cannot be judged are skipped."""
        environment.check_level(level)
        for draw in range(MAX_DRAWS):
            digest = hashlib.blake2b(f"{self.name}/{level}/{seed}/{draw}".encode(), digest_size=3)
            number = int.from_bytes(digest.digest(), "big")
            drawn = _drawn(_dataset(self.dataset, level), self.dataset, number)
            if drawn is not None and self._flaw(drawn.gold, drawn.gold, drawn.known) is None:
                break
        else:
            raise AssertionError(f"{self.name} drew no problem of level {level} and seed {seed}")
        question, gold, known = drawn
        posed = environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=" ".join(question.split()),
            prompt=question,
            state=known,
        )
        return dataclasses.replace(posed, gold=gold, origin="reasoning-gym")

    def gold(self, problem: Problem) -> str:
        environment.state_of(problem, self)
        if problem.gold is None:
            raise ValueError(f"problem {problem.uid} has no gold. Draw it again.")
        return problem.gold

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        """The answer with nothing before it: the library works nothing out."""
        del rng, style
        return Response("", self.gold(problem))

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        if not isinstance(answer, str):
            return verdict.wrong("format", "not a text")
        known = environment.state_of(problem, self)
        return self._flaw(answer, self.gold(problem), known) or verdict.correct()

    def _flaw(self, answer: str, gold: str, known: Mapping[str, Any]) -> Verdict | None:
        """What is wrong with an answer; of a gold: why the problem cannot be judged."""
        if not 0 < len(answer) <= MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of 1 to {MAX_ANSWER_CHARS} characters")
        try:
            flaw = gym_answers.JUDGES[DATASETS[self.dataset].judge](answer.strip(), gold, known)
        except Malformed as error:
            return verdict.wrong("format", str(error))
        return verdict.wrong("value", flaw) if flaw else None

    def num_distinct(self, level: int) -> int:
        raise ValueError(f"how many problems {self.name} has is not known. Count by drawing.")


class _Drawn(NamedTuple):
    question: str
    gold: str
    known: dict[str, Any]  # what else a judge must know


def _drawn(source: Any, dataset: str, number: int) -> _Drawn | None:
    """Item `number`; None where the library's own search for one ends without."""
    try:
        item = source[number]
    except ValueError:
        return None
    question, metadata = item["question"], item["metadata"]
    gold = GOLDS[dataset](metadata) if dataset in GOLDS else str(item["answer"])
    known = KNOWN[dataset](question, metadata) if dataset in KNOWN else {}
    return _Drawn(question, gold.strip(), json.loads(json.dumps(known)))


@functools.cache
def _dataset(dataset: str, level: int) -> Any:
    """The library's endless sequence of items of this level: item i is a pure function of i."""
    try:
        from reasoning_gym import factory  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"environment {PREFIX}{dataset} needs reasoning-gym ({error}). {REMEDY}."
        ) from error
    steps = factory.CURRICULA[dataset]()
    for attribute, found in steps.attributes.items():
        steps.set_attr_level(attribute, min(level, len(found.levels)) - 1)
    config = steps.generate_configuration({"seed": 0, "size": NUM_ITEMS})
    return factory.DATASETS[dataset][0](config=config)
