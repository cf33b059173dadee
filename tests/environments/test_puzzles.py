"""What every puzzle promises at every level: the tests of admission."""

import itertools
import math
import re
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loong_jax.environments import LEVELS, PUZZLES, Problem, entailment, get_environment, tasks
from tests.bounds import EXPLODES_S

SEEDS = range(2)
PAYLOADS = (  # those that are code: tests/verifiers/test_payloads.py
    "{{7*7}}", "'; DROP TABLE answers; --", "\x00", "\ud800", "<eos>", "nan", "1e309",
    "\uff11\u0662", "correct", "entailed", "not entailed", "Thought process:",
)  # fmt: skip
LONG = ("1" * 10**6, "(" * 10**6, "\n" * 10**6, "1, " * 333_333, "not " * 250_000)
OTHER_TYPES = (None, 5, 1.5, True, b"1", ["1"], {"a": 1}, object())

every_puzzle = pytest.mark.parametrize("name", PUZZLES)
every_level = pytest.mark.parametrize("level", LEVELS)

_made: dict[tuple[str, int], list[Problem]] = {}


def problems(name, level):
    if (name, level) not in _made:
        _made[name, level] = [get_environment(name).problem(level, seed) for seed in SEEDS]
    return _made[name, level]


def judge(problem, answer):
    return get_environment(problem.environment).verify(problem, answer)


def solved(problem):
    return get_environment(problem.environment).solve(problem).answer


@every_puzzle
@every_level
def test_its_own_solution_is_right_and_no_part_of_the_prompt(name, level):
    for problem in problems(name, level):
        answer = solved(problem)
        assert judge(problem, answer).is_correct
        assert judge(problem, f"\n {answer} \n").is_correct
        assert answer not in problem.prompt


@every_puzzle
@every_level
def test_what_is_no_answer_is_wrong(name, level):
    problem = problems(name, level)[0]
    gold = solved(problem)
    other = [solved(p) for p in problems(name, level)[1:]]
    junk = [
        f"{gold} {gold}", f"{gold}\n{gold}", f"{gold} or so", f"I say {gold}", f"{gold};",
        f"{gold},", "\n".join([*other, gold]), ", ".join([gold, *other]),
        f"{gold}\n__import__('os')", f"__import__('os')\n{gold}",
    ]  # fmt: skip
    before_s = time.process_time()
    for answer in ("", " ", "0", "yes", *PAYLOADS, *LONG, *OTHER_TYPES, *junk):
        judged = judge(problem, answer)
        assert judged.outcome == "wrong", repr(answer)[:80]
        assert judged.reason in ("format", "value")
    assert time.process_time() - before_s < EXPLODES_S


def perturbed(answer):
    """The answer with one digit, bit, letter or word changed, or one line left out."""
    for place, symbol in enumerate(answer):
        if symbol.isdigit():
            yield answer[:place] + str((int(symbol) + 1) % 10) + answer[place + 1 :]
        elif symbol in "#.":
            yield answer[:place] + "#."[symbol == "#"] + answer[place + 1 :]
        elif symbol in "+-*":
            yield answer[:place] + "+-*"[("+-*".index(symbol) + 1) % 3] + answer[place + 1 :]
    swaps = (("knight", "knave"), ("true", "false"), ("red", "blue"), ("and", "or"), ("p", "q"))
    for one, other in swaps:
        if one in answer:
            yield answer.replace(one, other, 1)
    rows = answer.splitlines()
    for place in range(len(rows) if len(rows) > 1 else 0):
        yield "\n".join(rows[:place] + rows[place + 1 :])


MANY_ANSWERS = {  # prompts that take any solution: how many perturbed answers may be one
    "graph_colouring", "hamiltonian_path", "formula_induction", "automaton_induction",
    "causal_abduction", "predecessor", "first_order_entailment", "propositional_entailment",
}  # fmt: skip


@every_puzzle
@every_level
def test_perturbed_answers_are_wrong(name, level):
    tried = accepted = 0
    for problem in problems(name, level):
        for answer in perturbed(solved(problem)):
            tried += 1
            accepted += judge(problem, answer).is_correct
    assert tried >= len(SEEDS)
    assert accepted <= (0.34 * tried if name in MANY_ANSWERS else 0)


EFFORT = {  # by the state: a measure of difficulty
    "sudoku": lambda s: s["cells"].count("."),  # empty cells
    "zebra": lambda s: s["houses"] * len(s["attributes"]),  # values to be placed
    "knights_and_knaves": lambda s: len(s["statements"]),
    "propositional_entailment": lambda s: s["variables"],
    "first_order_entailment": lambda s: max(e[0] for e in entailment.closure(s).values()),  # rounds
    "cryptarithm": lambda s: 100 * len(set("".join(s["words"]))) + len(s["words"][2]),
    "graph_colouring": lambda s: s["nodes"],
    "hamiltonian_path": lambda s: s["nodes"],
    "nonogram": lambda s: len(s["rows"]) ** 2,  # cells
    "futoshiki": lambda s: s["cells"].count("."),
    "sequence": lambda s: (s["largest"] + 1) ** len(s["names"]),  # rules in the class
    "grid_transformation": lambda s: 10 ** len(s["program"]) * len(s["test"]) ** 2,
    "formula_induction": lambda s: s["operators"],
    "automaton_induction": lambda s: (
        s["states"] ** (2 * s["states"])  # ways, times words
        * (len(s["accepted"]) + len(s["rejected"]))
    ),
    "cellular_rule": lambda s: 2 ** (2 * s["radius"] + 1) * s["asked"] * len(s["rows"][0]),
    "matrix_completion": lambda s: len(s["cells"][0]),
    "circuit_diagnosis": lambda s: math.comb(len(s["gates"]), s["faults"]) * 2 ** s["faults"],
    "causal_abduction": lambda s: 2 ** s["causes"],
    "mastermind": lambda s: s["digits"] ** s["places"],  # codes there are
    "lights_out": lambda s: len(s["lights"]) ** 2,
    "predecessor": lambda s: 2 ** len(s["row"]),
    "missing_operators": lambda s: 3 ** (len(s["numbers"]) - 1),
}


@every_puzzle
def test_effort_grows_with_the_level(name):
    efforts = [
        [EFFORT[name](problem.arguments["state"]) for problem in problems(name, level)]
        for level in LEVELS
    ]
    medians = [statistics.median(found) for found in efforts]
    assert all(a < b for a, b in itertools.pairwise(medians)), medians
    assert all(max(a) < min(b) for a, b in itertools.pairwise(efforts)), efforts


@every_puzzle
def test_one_answer_for_all_is_seldom_right(name):
    found = [get_environment(name).problem(1, seed) for seed in range(20)]
    for answer in {solved(problem) for problem in found[:3]}:
        assert sum(judge(problem, answer).is_correct for problem in found) <= 7


ALPHABET = "0123456789abcdefgpqrsxABCR()[]{}=,:;.#+-*/ \n\t\\\x00\u0660"
WORDS = st.sampled_from(
    ["entailed\n", "not entailed\n", "rule 1 x=a", "p=true, ", "9. 1 2: ", "accept: ", "knight",
     "not ", "and ", "A=knight, ", "1: ", "g1=0", "c1, ", "red"]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=ALPHABET, max_size=80),
    st.lists(st.one_of(WORDS, st.text(alphabet=ALPHABET, max_size=4)), max_size=30).map("".join),
)


@every_puzzle
def test_any_text_gets_one_verdict(name):
    problem = problems(name, 1)[0]

    @given(TEXTS)
    def check(answer):
        one = judge(problem, answer)
        assert one == judge(problem, answer)
        assert one.outcome in ("correct", "wrong")

    check()


@every_puzzle
def test_edits_of_the_gold_never_raise(name):
    problem = problems(name, 2)[1]
    gold = solved(problem)

    @given(st.integers(0, len(gold)), st.integers(0, 6), st.text(alphabet=ALPHABET, max_size=6))
    def check(start, removed, inserted):
        answer = gold[:start] + inserted + gold[start + removed :]
        assert judge(problem, answer) == judge(problem, answer)

    check()


def test_a_task_is_posed_and_solved_by_name():
    posed = tasks.generate("sudoku", 1, 3)
    assert posed == get_environment("sudoku").problem(1, 3)
    assert get_environment("sudoku").verify(posed, tasks.solve(posed)).is_correct


ORACLE_SEEDS = range(6)


def posed(name, level, seed):
    puzzle = get_environment(name)
    problem = puzzle.problem(level, seed)
    return problem.prompt, puzzle.solve(problem).answer


@pytest.mark.parametrize("seed", ORACLE_SEEDS)
def test_a_small_sudoku_has_one_solution(seed):
    prompt, gold = posed("sudoku", 2, seed)
    clues = re.findall(r"^[1-4.]{4}$", prompt, re.MULTILINE)
    rows = ["".join(row) for row in itertools.permutations("1234")]
    fitting = [
        [row for row in rows if all(c in (".", d) for c, d in zip(clue, row, strict=True))]
        for clue in clues
    ]
    solutions = [
        grid
        for grid in itertools.product(*fitting)
        if all(len(set(column)) == 4 for column in zip(*grid, strict=True))
        and all(
            len(set(grid[r][c : c + 2] + grid[r + 1][c : c + 2])) == 4
            for r in (0, 2)
            for c in (0, 2)
        )
    ]
    assert ["\n".join(grid) for grid in solutions] == [gold]


@pytest.mark.parametrize("seed", ORACLE_SEEDS)
def test_a_cryptarithm_has_one_solution(seed):
    prompt, gold = posed("cryptarithm", 1, seed)
    first, second, total = re.findall(r"[A-Z]+", prompt.splitlines()[0])
    letters = sorted(set(first + second + total))
    found = []
    for digits in itertools.permutations("0123456789", len(letters)):
        table = str.maketrans("".join(letters), "".join(digits))
        a, b, c = (word.translate(table) for word in (first, second, total))
        if "0" not in (a[0], b[0], c[0]) and int(a) + int(b) == int(c):
            found.append(", ".join(f"{x}={d}" for x, d in zip(letters, digits, strict=True)))
    assert found == [gold]


CLUES = {
    r"(\w+) is in house (\d)": lambda at, a, n: at[a] == int(n),
    r"(\w+) and (\w+) are in the same house": lambda at, a, b: at[a] == at[b],
    r"(\w+) and (\w+) are in different houses": lambda at, a, b: at[a] != at[b],
    r"(\w+) is in the house just left of (\w+)": lambda at, a, b: at[b] - at[a] == 1,
    r"(\w+) is in a house next to (\w+)": lambda at, a, b: at[b] - at[a] in (1, -1),
    r"(\w+) is somewhere left of (\w+)": lambda at, a, b: at[b] > at[a],
}


@pytest.mark.parametrize("seed", ORACLE_SEEDS)
def test_a_zebra_puzzle_has_one_solution(seed):
    prompt, gold = posed("zebra", 2, seed)
    values = [row.split(", ") for row in re.findall(r"^- \w+: (.*)$", prompt, re.MULTILINE)]
    sentences = re.findall(r"^\d+\. (.*)\.$", prompt, re.MULTILINE)
    clues = []
    for sentence in sentences:
        ((holds, names),) = [
            (holds, match.groups())
            for pattern, holds in CLUES.items()
            if (match := re.fullmatch(pattern, sentence.lower()))
        ]
        clues.append((holds, names))
    found = []
    for order in itertools.product(*(itertools.permutations(row) for row in values)):
        at = {value: house for row in order for house, value in enumerate(row, 1)}
        if all(holds(at, *names) for holds, names in clues):
            rows = zip(*order, strict=True)
            found.append("\n".join(f"{n}: {', '.join(row)}" for n, row in enumerate(rows, 1)))
    assert found == [gold]


@pytest.mark.parametrize("seed", range(12))
def test_entailment_agrees_with_the_truth_table(seed):
    prompt, gold = posed("propositional_entailment", 2, seed)
    clauses = [row.split(" or ") for row in re.findall(r"^\d+\. ([^:\n]*)$", prompt, re.MULTILINE)]
    names = sorted({word for clause in clauses for literal in clause for word in literal.split()})
    names = [name for name in names if name != "not"]
    models = 0
    for values in itertools.product((False, True), repeat=len(names)):
        of = dict(zip(names, values, strict=True))
        models += all(
            any(of[literal[-1]] != literal.startswith("not ") for literal in clause)
            for clause in clauses
        )
    assert gold.startswith("entailed") == (models == 0)


@pytest.mark.parametrize("seed", ORACLE_SEEDS)
def test_missing_operators_have_one_way(seed):
    prompt, gold = posed("missing_operators", 1, seed)
    line = prompt.splitlines()[1]
    left, right = line.split(" = ")
    gaps = left.count("_")
    ways = [
        expression
        for operators in itertools.product("+-*", repeat=gaps)
        if eval(expression := left.replace("_", "{}").format(*operators)) == int(right)
    ]
    assert ways == [gold]


@pytest.mark.parametrize("seed", ORACLE_SEEDS)
def test_knights_and_knaves_have_one_solution(seed):
    prompt, gold = posed("knights_and_knaves", 1, seed)
    said = re.findall(r'^([A-H]) says: "(.*)"$', prompt, re.MULTILINE)
    names = [name for name, _ in said]

    def holds(sentence, is_knight):
        part = r"([A-H]) is a (knight|knave)"
        if match := re.fullmatch(r"Exactly (\d) of us are knights\.", sentence):
            return list(is_knight.values()).count(True) == int(match[1])
        if match := re.fullmatch(r"([A-H]) and ([A-H]) are of the same kind\.", sentence):
            return is_knight[match[1]] is is_knight[match[2]]
        if match := re.fullmatch(f"If {part}, then {part}\\.", sentence):
            a, b = (is_knight[match[i]] == (match[i + 1] == "knight") for i in (1, 3))
            return b if a else True
        match = re.fullmatch(f"{part} (and|or) {part}\\.", sentence)
        a, b = (is_knight[match[i]] == (match[i + 1] == "knight") for i in (1, 4))
        return (a and b) if match[3] == "and" else (a or b)

    found = []
    for kinds in itertools.product((True, False), repeat=len(names)):
        is_knight = dict(zip(names, kinds, strict=True))
        if all(holds(sentence, is_knight) is is_knight[name] for name, sentence in said):
            words = (f"{n}={'knight' if k else 'knave'}" for n, k in is_knight.items())
            found.append(", ".join(words))
    assert found == [gold]
