"""Problems of reasoning-gym (`pip install reasoning-gym`, extra `gym`), judged by ours.

`get_environment("gym/chain_sum")` is one of its datasets. `DATASETS` says which are allowed and
which judge each has; `REFUSED` says why the others are not. The package is needed to draw problems,
not to judge them. Level n sets every parameter of the dataset's own curriculum to its n-th step, or
to the last it has.

Its scorers are never called: nine of them execute Python found in an answer, others give part of a
reward for a text that contains the gold. Here a judge reads the answer by a small grammar in linear
time and says what is wrong with it, or None; `Malformed` where it cannot be read. Most compare with
the gold; those of `known` check the rules of the problem, since it has many right answers.
"""

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from loong_jax.environments import answers
from loong_jax.environments.answers import MAX_ANSWER_CHARS, Malformed
from loong_jax.environments.environment import LEVELS, Solution, check_level, posed, state_of
from loong_jax.errors import ConfigError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Domain, Problem
from loong_jax.problems.verdict import Verdict

Judge = Callable[[str, str, Mapping[str, Any]], str | None]  # answer, gold, known -> flaw
MAX_DIGITS = 40
MAX_OPERANDS = 100  # of an expression, so that its value stays cheap
_MINUS = r"[-\u2212]"  # some of its questions write a real minus
_WHOLE = rf"(?:0|[1-9][0-9]{{0,{MAX_DIGITS}}})"
_TOKEN = re.compile(r"\d{1,12}|[-+*/()]", re.ASCII)


def integer(text: str) -> int:
    """Without leading zeros; there is no -0."""
    if not re.fullmatch(rf"(?!{_MINUS}0){_MINUS}?{_WHOLE}", text, re.ASCII):
        raise Malformed(f"{text[:20]!r} is no integer")
    return int(text.replace("\u2212", "-"))


def number(text: str) -> Fraction:
    """A decimal or a fraction, exactly."""
    form = rf"{_MINUS}?{_WHOLE}(?:\.[0-9]{{1,{MAX_DIGITS}}}|/{_WHOLE})?"
    if not re.fullmatch(form, text, re.ASCII) or re.fullmatch(f"{_MINUS}0", text):
        raise Malformed(f"{text[:20]!r} is no number")
    top, _, bottom = text.replace("\u2212", "-").partition("/")
    if bottom and not int(bottom):
        raise Malformed("a fraction of zero")
    return Fraction(top) / int(bottom or 1)


def reduced(text: str) -> tuple[int, int]:
    """`3/4`, with no factor in common; `3` is 3/1."""
    found = number(text)
    if str(found) != text and f"{found}/1" != text:
        raise Malformed(f"{text[:20]!r} is not in lowest terms")
    return found.numerator, found.denominator


def word(text: str) -> str:
    """Without regard to case, one full stop at the end left out."""
    return " ".join(text.split()).removesuffix(".").casefold()


def words(text: str) -> list[str]:
    """Parts between spaces and line ends."""
    return text.split()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in answers.lines(text)]


def items(text: str) -> list[str]:
    """Parts between commas, with or without brackets around all and quotes around each."""
    text = text.strip()
    if text[:1] == "[" and text[-1:] == "]":
        text = text[1:-1]
    quoted = re.compile(r"""(['"]?)([^'"\[\]]*)\1""")
    found = []
    for part in text.split(",") if text.strip() else []:
        match = quoted.fullmatch(part.strip())
        if match is None:
            raise Malformed(f"{part[:20]!r} is no item of a list")
        found.append(match[2])
    return found


def same(read: Callable[[str], Any]) -> Judge:
    """Compares what `read` makes of answer and gold."""

    def judge(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
        del known
        expected = read(gold)
        return None if read(answer) == expected else f"not {str(expected)[:80]}"

    return judge


def factors(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """Primes, in any order, whose product is that of the gold's."""
    del known
    wanted, found = (
        sorted(integer(part) for part in re.split(r"\s*[\u00d7*x]\s*", text))
        for text in (gold, answer)
    )
    return None if found == wanted else "not its prime factors"


def palindrome(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    letters = sorted(known["letters"])
    if sorted(answer) != letters:
        return "not all of the letters, each once"
    return None if answer == answer[::-1] else "not a palindrome"


def arithmetic(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """An expression of exactly the numbers given, worth the target."""
    value, used = evaluated(answer)
    if Counter(used) != Counter(known["numbers"]):
        return "not each of the numbers, once"
    return None if value == known["target"] else f"it is worth {value}"


def queens(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """All queens that the board shows still stand, and none attacks another."""
    board, found = rows(known["board"]), rows(answer)
    size = len(board)
    if len(found) != size or any(len(row) != size or set(row) - {"Q", "_"} for row in found):
        raise Malformed(f"not {size} rows of {size} of Q and _")
    places = [(r, c) for r in range(size) for c in range(size) if found[r][c] == "Q"]
    if any(board[r][c] == "Q" != found[r][c] for r in range(size) for c in range(size)):
        return "a queen of the board was moved"
    lines = ({r for r, _ in places}, {c for _, c in places}, {r + c for r, c in places},
             {r - c for r, c in places})  # fmt: skip
    if len(places) != size or any(len(line) != size for line in lines):
        return "not a queen in every row, none attacked"
    return None


def colouring(answer: str, gold: str, known: Mapping[str, Any]) -> str | None:
    """`{"0": 1, ...}`: a colour of those allowed for every vertex, two at every edge."""
    found: dict[str, str] = {}
    text = answer.strip()
    if text[:1] != "{" or text[-1:] != "}":
        raise Malformed("no JSON object")
    for part in text[1:-1].split(","):
        match = re.fullmatch(r'\s*"([0-9]{1,6})"\s*:\s*([0-9]{1,6})\s*', part, re.ASCII)
        if match is None or match[1] in found:
            raise Malformed(f'{part[:20]!r} is not "VERTEX": COLOUR of another vertex')
        found[match[1]] = match[2]
    if set(found) != {str(vertex) for vertex in known["vertices"]}:
        return "not every vertex"
    if set(found.values()) - {str(colour) for colour in known["colours"]}:
        return "a colour that is not allowed"
    clash = [edge for edge in known["edges"] if found[str(edge[0])] == found[str(edge[1])]]
    return f"both ends of {clash[0]} alike" if clash else None


def evaluated(text: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of integers, + - * / and brackets, and the integers in it.

    By operator precedence with two stacks, so that no nesting recurses.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"[ \t]", "", text) or not tokens:
        raise Malformed("not an expression of integers, + - * / and brackets")
    if sum(token.isdigit() for token in tokens) > MAX_OPERANDS:
        raise Malformed(f"more than {MAX_OPERANDS} numbers")
    values: list[Fraction] = []
    pending: list[str] = []
    used: list[int] = []

    def reduce_while(least: int) -> None:
        while pending and pending[-1] != "(" and _STRENGTH[pending[-1]] >= least:
            values.append(_applied(pending.pop(), values))

    expects_value = True
    for token in tokens:
        if token.isdigit() if expects_value else token in _STRENGTH:
            if expects_value:
                values.append(Fraction(token))
                used.append(int(token))
            else:
                reduce_while(_STRENGTH[token])
                pending.append(token)
            expects_value = not expects_value
        elif expects_value and token == "(":
            pending.append(token)
        elif not expects_value and token == ")":
            reduce_while(0)
            if not pending:
                raise Malformed("a bracket closes that was not opened")
            pending.pop()
        else:
            raise Malformed(f"{token!r} out of place")
    if expects_value:
        raise Malformed("the expression does not end")
    reduce_while(0)
    if pending:
        raise Malformed("a bracket is not closed")
    return values[0], used


_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}


def _applied(sign: str, values: list[Fraction]) -> Fraction:
    b, a = values.pop(), values.pop()
    if sign == "/":
        if not b:
            raise Malformed("a division by zero")
        return a / b
    return a + b if sign == "+" else a - b if sign == "-" else a * b


JUDGES: dict[str, Judge] = {
    "integer": same(integer),
    "number": same(number),
    "reduced": same(reduced),
    "word": same(word),
    "words": same(words),
    "rows": same(rows),
    "items": same(items),
    "factors": factors,
    "palindrome": palindrome,
    "arithmetic": arithmetic,
    "queens": queens,
    "colouring": colouring,
}


PREFIX = "gym/"
REMEDY = "pip install reasoning-gym, or the extra `gym` of loong_jax"
NUM_ITEMS = 256**3  # of a dataset: its seed is 0, and ours says which item
MAX_DRAWS = 50  # of one problem, where the library draws one that cannot be judged


class Dataset(NamedTuple):
    domain: Domain
    judge: str  # a name of JUDGES


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
            flaw = JUDGES[self._judge](answer.strip(), gold, known)
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
