"""Claims of the prompts against brute force that reads the prompts alone."""

import itertools
import re

import pytest

from loong_jax.environments import get_environment

SEEDS = range(6)


def posed(name, level, seed):
    puzzle = get_environment(name)
    problem = puzzle.problem(level, seed)
    return problem.prompt, puzzle.solve(problem).answer


@pytest.mark.parametrize("seed", SEEDS)
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


@pytest.mark.parametrize("seed", SEEDS)
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


@pytest.mark.parametrize("seed", SEEDS)
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


@pytest.mark.parametrize("seed", SEEDS)
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


@pytest.mark.parametrize("seed", SEEDS)
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
