"""Problems of reasoning-gym (`pip install reasoning-gym`, extra `gym`), judged by ours.

`get_environment("gym/chain_sum")` is one of its datasets. `DATASETS` says which are allowed and
which function of `gym_answers` judges each; `REFUSED` says why the others are not. Its scorers are
never called. The package is needed to draw problems, not to judge them. Level n sets every
parameter of the dataset's own curriculum to its n-th step, or to the last it has.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from loong_jax.environments import gym_answers
from loong_jax.environments.answers import MAX_ANSWER_CHARS, Malformed
from loong_jax.environments.environment import LEVELS, Solution, check_level, posed, state_of
from loong_jax.errors import ConfigError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Domain, Problem
from loong_jax.problems.verdict import Verdict

PREFIX = "gym/"
REMEDY = "pip install reasoning-gym, or the extra `gym` of loong_jax"
NUM_ITEMS = 256**3  # of a dataset: its seed is 0, and ours says which item
MAX_DRAWS = 50  # of one problem, where the library draws one that cannot be judged


class Dataset(NamedTuple):
    domain: Domain
    judge: str  # a name of gym_answers.JUDGES


_ALLOWED: dict[tuple[Domain, str], tuple[str, ...]] = {
    ("code", "integer"): (
        "binary_alternation", "count_bits", "largest_island", "letter_counting", "maze",
        "rectangle_count", "rotten_oranges",
    ),
    ("code", "items"): (
        "number_filtering", "number_sorting", "word_sequence_reversal", "word_sorting",
    ),
    ("code", "palindrome"): ("palindrome_generation",),
    ("code", "rows"): ("binary_matrix", "manipulate_matrix", "rotate_matrix"),
    ("code", "word"): ("bitwise_arithmetic",),
    ("code", "words"): (
        "ab", "path_star", "spell_backward", "spiral_matrix", "string_insertion",
        "string_manipulation", "string_splitting", "string_synthesis",
    ),
    ("logic", "colouring"): ("graph_color",),
    ("logic", "integer"): ("aiw", "number_sequence"),
    ("logic", "queens"): ("n_queens",),
    ("logic", "word"): ("color_cube_rotation", "family_relationships", "needle_haystack"),
    ("logic", "words"): ("arc_1d",),
    ("stem", "arithmetic"): ("countdown", "puzzle24"),
    ("stem", "factors"): ("prime_factorization",),
    ("stem", "integer"): (
        "chain_sum", "count_primes", "gcd", "lcm", "leg_counting", "products", "simple_equations",
    ),
    ("stem", "number"): (
        "basic_arithmetic", "coin_flip", "decimal_arithmetic", "decimal_chain_sum",
        "number_format",
    ),
    ("stem", "reduced"): ("dice",),
    ("stem", "word"): ("base_conversion", "calendar_arithmetic"),
}  # fmt: skip
DATASETS = {name: Dataset(*kind) for kind, names in _ALLOWED.items() for name in names}

_REASONS: dict[str, tuple[str, ...]] = {
    "has no levels": ("acre", "gsm_symbolic", "list_functions"),
    "asks for rounded numbers and holds golds rounded in another way": (
        "advanced_geometry", "polynomial_equations", "pool_matrix", "power_function",
    ),
    "is made of the tasks of a benchmark, which training on it would spoil": ("arc_agi", "rearc"),
    "takes seconds for a problem": ("bf", "game_of_life", "zebra_puzzles"),
    "has many right answers, and we have no rules of it that would find them": (
        "boxnet", "jugs", "kakurasu", "letter_jumble", "propositional_logic", "quantum_lock",
        "rush_hour", "sentence_reordering", "shortest_path", "sokoban", "tower_of_hanoi",
        "word_ladder",
    ),
    "has steps in its curriculum that its own generator refuses": (
        "caesar_cipher", "knight_swap", "rubiks_cube", "survo",
    ),
    "has two or three possible answers, so that guessing pays": (
        "circuit_logic", "course_schedule", "game_of_life_halting", "isomorphic_strings",
        "mahjong_puzzle", "ransom_note", "syllogism",
    ),
    "needs programs of others to be run": ("codeio",),
    "has answers of more forms than our readers know": (
        "complex_arithmetic", "group_anagrams", "palindrome_partitioning",
    ),
    "is a mixture of others: mix streams instead": ("composite",),
    "is a task of ours (environments.PUZZLES), which proves that its answer is unique": (
        "cryptarithm", "futoshiki", "knights_knaves", "mini_sudoku", "sudoku",
    ),
    "hides its text in characters that tokenizers drop": ("emoji_mystery",),
    "has golds that its pictures of letters do not determine": ("figlet_font",),
    "has golds in LaTeX and in plain text by turns": ("fraction_simplification",),
    "has golds that are unsolved integrals": ("intermediate_integration",),
    "draws with emoji, which tokenizers cut differently": ("modulo_grid",),
    "has golds of thousands of characters; verifier `math` reads it": (
        "polynomial_multiplication",
    ),
    "has levels that do not differ": ("self_reference",),
    "asks for angles of polygons that do not exist, such as 510 degrees": ("simple_geometry",),
    "has many right answers; verifier `math` compares antiderivatives": ("simple_integration",),
    "has golds that are a millisecond off where floats are": ("time_intervals",),
    "has one gold where several moves win": ("tsumego",),
}  # fmt: skip
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names}

# Inputs of a judge beside the gold, from the library's metadata.
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


class Gym:
    """State: what its judge must know beside the gold; `Problem.gold` holds one right answer."""

    version = 1
    levels = LEVELS
    is_marked = True

    def __init__(self, dataset: str):
        if dataset in REFUSED:
            raise ConfigError(
                f"dataset {dataset!r} of reasoning-gym is not used here: it"
                f" {REFUSED[dataset]}. Choose one of environments.gym.DATASETS."
            )
        if dataset not in DATASETS:
            raise ConfigError(
                f"dataset {dataset!r} of reasoning-gym is unknown. Choose one of"
                f" {sorted(DATASETS)}."
            )
        self.dataset, self.name = dataset, PREFIX + dataset
        self.domain, self._judge = DATASETS[dataset]

    def problem(self, level: int, seed: int) -> Problem:
        """Raises ConfigError without the package; its draws that cannot be judged are skipped."""
        check_level(level, LEVELS)
        source = _dataset(self.dataset, level)
        for draw in range(MAX_DRAWS):
            digest = hashlib.blake2b(f"{self.name}/{level}/{seed}/{draw}".encode(), digest_size=3)
            try:
                item = source[int.from_bytes(digest.digest(), "big")]
            except ValueError:  # the library's own search for one ends without
                continue
            question, metadata = item["question"], item["metadata"]
            given = GOLDS[self.dataset](metadata) if self.dataset in GOLDS else str(item["answer"])
            gold = given.strip()
            known = KNOWN[self.dataset](question, metadata) if self.dataset in KNOWN else {}
            known = json.loads(json.dumps(known))
            if self._flaw(gold, gold, known) is None:
                break
        else:
            raise AssertionError(f"{self.name} drew no problem of level {level} and seed {seed}")
        return posed(
            self,
            level=level,
            seed=seed,
            canonical=" ".join(question.split()),
            prompt=question,
            state=known,
            gold=gold,
            origin="reasoning-gym",
        )

    def solve(self, problem: Problem) -> Solution:
        """The answer alone: the library works nothing out."""
        state_of(problem, self)
        assert problem.gold is not None, f"problem {problem.uid} has no gold"
        return Solution((), problem.gold)

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        if not isinstance(answer, str):
            return verdict.wrong("format", "not a text")
        known = state_of(problem, self)
        return self._flaw(answer, self.solve(problem).answer, known) or verdict.correct()

    def _flaw(self, answer: str, gold: str, known: Mapping[str, Any]) -> Verdict | None:
        """The fault of an answer; of a gold answer, the reason why the problem cannot be judged."""
        if not 0 < len(answer) <= MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of 1 to {MAX_ANSWER_CHARS} characters")
        try:
            flaw = gym_answers.JUDGES[self._judge](answer.strip(), gold, known)
        except Malformed as error:
            return verdict.wrong("format", str(error))
        return verdict.wrong("value", flaw) if flaw else None


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
