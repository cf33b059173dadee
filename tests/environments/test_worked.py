"""Short environments against other programs that read the prompts alone."""

import collections
import contextlib
import graphlib
import io
import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
import sympy

from loong_jax import environments
from loong_jax.environments import LEVELS, chains, machines
from tests.environments import evaluator

SEEDS = range(12)


def posed(name, levels=LEVELS, seeds=SEEDS):
    judge = environments.get_environment(name)
    for level, seed in itertools.product(levels, seeds):
        problem = judge.problem(level, seed)
        yield level, problem.prompt, judge.solve(problem).answer


def steps(name, level, seed):
    judge = environments.get_environment(name)
    problem = judge.problem(level, seed)
    return problem.prompt, judge.solve(problem).steps


def sum_of(prompt):
    """The answer of `2012+2010-1201`."""
    terms = re.findall(r"([+-]?)([0-2]{4})", prompt)
    signs = np.array([-1 if sign == "-" else 1 for sign, _ in terms])
    vectors = np.array([list(map(int, vector)) for _, vector in terms])
    return "".join(map(str, (signs @ vectors) % 3))


def row_of(prompt):
    """The answer of `9274&3816|2250`, from the first gate to the last."""
    row = np.array(list(map(int, prompt[:4])))
    for symbol, operands in re.findall("([&|])([0-9]{4})", prompt):
        combine = np.minimum if symbol == "&" else np.maximum
        row = combine(row, list(map(int, operands)))
    return "".join(map(str, row))


@pytest.mark.parametrize(
    ("name", "form", "read"),
    [
        ("vector_sum", "[0-2]{{4}}([+-][0-2]{{4}}){{{}}}", sum_of),
        ("gates", "[0-9]{{4}}([&|][0-9]{{4}}){{{}}}", row_of),
    ],
)
def test_every_step_of_a_chain_is_the_row_so_far(name, form, read):
    for level, prompt, gold in posed(name, seeds=range(60)):
        assert re.fullmatch(form.format(level + 3), prompt)
        assert gold == read(prompt)
    for level in LEVELS:
        prompt, written = steps(name, level, 3)
        assert written == [read(prompt[: 4 + 5 * n]) for n in range(1, level + 4)]
    judge = environments.get_environment(name)
    problem = judge.problem(1, 0)
    gold = judge.solve(problem).answer
    for answer in (gold[:3], gold + gold[0], " ".join(gold), f"+{gold}"):
        assert judge.verify(problem, answer).reason == "format"


def test_equation_has_this_solution_and_no_other():
    x = sympy.Symbol("x")
    for _, prompt, gold in posed("equation", seeds=range(4)):
        left, right = (re.sub(r"(\d)x", r"\1*x", side) for side in prompt.split("="))
        left, right = (eval(side, {"x": x}) for side in (left, right))
        assert [str(root) for root in sympy.solve(left - right, x)] == [gold]


def test_fractions_add_up():
    for _, prompt, gold in posed("fractions"):
        exact = re.sub(r"(\d+)/(\d+)", r"Fraction(\1, \2)", prompt)
        assert str(eval(exact, {"Fraction": Fraction})) == gold


def test_units_are_those_of_the_si():
    si = {"mm": 1, "cm": 10, "dm": 100, "m": 1000, "s": 1, "min": 60, "h": 3600, "g": 1,
          "kg": 1000, "t": 10**6}  # fmt: skip
    for _, prompt, gold in posed("units"):
        terms, wanted = prompt.split("?")
        found = re.findall(r"([+-]?\d+)([a-z]+)", terms)
        assert si[wanted] == 1
        assert str(sum(int(number) * si[unit] for number, unit in found)) == gold


def test_additions_and_largest_numbers_agree_with_python():
    for level, prompt, gold in posed("addition"):
        first, second = re.fullmatch(r"(\d+) \+ (\d+) = ", prompt).groups()
        assert len(first) == len(second) == level + 1
        assert int(first) + int(second) == int(gold)
    for level, prompt, gold in posed("largest"):
        numbers = [int(number) for number in re.findall(r"\d+", prompt)]
        assert len(set(numbers)) == level + 3
        assert sorted(numbers)[-1] == int(gold)


def test_a_basket_costs_what_its_tool_says():
    judge = environments.get_environment("basket")
    for level, seed in itertools.product(LEVELS, SEEDS):
        problem = judge.problem(level, seed)
        ((_, asked),) = judge.calls(problem)
        prices = chains.PriceList().call(asked, problem=problem, timeout_s=1).split()
        assert f"{asked['items']}?" == problem.prompt
        assert len(prices) == level + 2
        assert judge.solve(problem).answer == f"{sum(map(int, prices)) % 100:02}"


def test_bases_agree_with_python_and_numpy():
    for level, prompt, gold in posed("bases"):
        digits, base, wanted = re.fullmatch(r"(\d+)_(\d)>(\d)", prompt).groups()
        assert len(digits) == level + 3
        assert np.base_repr(int(digits, int(base)), int(wanted)) == gold


def test_divisors_take_so_many_divisions():
    for level, prompt, gold in posed("divisor"):
        a, b = map(int, re.fullmatch(r"gcd\((\d+),(\d+)\)", prompt).groups())
        assert math.gcd(a, b) == int(gold)
        divisions = 0
        while b:
            a, b, divisions = b, a % b, divisions + 1
        assert divisions == level + 3


def test_urns_by_drawing_every_ball():
    for _, prompt, gold in posed("urn", levels=(1,), seeds=range(5)):
        urn, draws = prompt.split(":")
        balls = "".join(int(count) * colour for count, colour in re.findall(r"(\d+)(\w)", urn))
        drawn = collections.Counter(map("".join, itertools.permutations(balls, len(draws))))
        assert str(Fraction(drawn[draws], drawn.total())) == gold


def test_truths_have_one_solution():
    for _, prompt, gold in posed("truths", levels=(1, 2), seeds=range(6)):
        names = sorted({letter for letter in prompt if letter.isalpha()})
        fitting = []
        for bits in itertools.product("01", repeat=len(names)):
            of = dict(zip(names, bits, strict=True))
            pairs = re.findall(r"([a-z])([a-z]?)([01])", prompt)
            if all((of[one] == of.get(other, "1")) == (bit == "1") for one, other, bit in pairs):
                fitting.append("".join(bits))
        assert fitting == [gold]


def test_rankings_are_the_one_order_of_the_graph():
    for level, prompt, gold in posed("ranking"):
        sorter = graphlib.TopologicalSorter()
        for one, other in re.findall(r"(\w)>(\w)", prompt):
            sorter.add(other, one)
        sorter.prepare()
        order = ""
        while sorter.is_active():
            (player,) = sorter.get_ready()  # a second one would leave a choice
            order += player
            sorter.done(player)
        assert order == gold
        assert len(gold) == level + 7


def test_programs_print_what_python_prints():
    conditional = collections.Counter()
    for level, prompt, gold in posed("program", seeds=range(40)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(prompt, {})
        assert printed.getvalue() == f"{gold}\n"
        conditional[level] += prompt.count("if ")
    assert conditional[2] == 0 < conditional[3]
    prompt, written = steps("program", 3, 1)
    after = [list(map(int, step.split(","))) for step in written]
    for count, (a, b) in enumerate(after, start=3):
        names = {}
        exec("\n".join(prompt.split("\n")[:count]), names)
        assert (names["a"], names["b"]) == (a, b)


def test_a_statement_of_another_kind_is_not_run():
    for statement in ("a=7", "__import__('os')", "a**=2", "if a>b:c+=1", "a+=b;a+=b", "a+=b\n"):
        with pytest.raises(ValueError, match="no statement of this environment"):
            machines.after_statement((1, 2), statement)


def test_registers_count_as_python_counts():
    for _, prompt, gold in posed("registers"):
        start, passes, loop = re.fullmatch(r"(\d{3}) (\d)\[(.*)\]", prompt).groups()
        names = dict(zip("abc", map(int, start), strict=True))
        code = "\n".join(f"{i[0]} = ({i}) % 10" for i in loop.split()) + "\n"
        exec(code * int(passes), {}, names)
        assert "".join(str(names[name]) for name in "abc") == gold


def test_rules_rewrite_the_first_match():
    for _, prompt, gold in posed("rewriting"):
        text, *rules = prompt.split()
        for rule in rules:
            text = re.sub(rule[:2], rule[2:], text, count=1)
        assert text == gold


def test_comparators_order_two_places():
    for _, prompt, gold in posed("comparators"):
        digits, comparators = prompt.split(":")
        wires = np.array(list(map(int, digits)))
        for i, j in comparators.split():
            places = [int(i) - 1, int(j) - 1]
            wires[places] = np.sort(wires[places])
        assert "".join(map(str, wires)) == gold


def is_balanced(text):
    while (shorter := text.replace("()", "").replace("[]", "").replace("{}", "")) != text:
        text = shorter
    return text == ""


def test_brackets_have_one_shortest_end():
    for level, prompt, gold in posed("brackets", levels=(1, 2), seeds=range(6)):
        assert len(gold) == level + 3
        ends = (
            "".join(end)
            for length in range(len(gold) + 1)
            for end in itertools.product(")]}", repeat=length)
        )
        assert [end for end in ends if is_balanced(prompt + end)] == [gold]


def test_run_length_codes_decode():
    for level, prompt, gold in posed("run_length"):
        runs = [match[0] for match in re.finditer(r"(.)\1*", prompt)]
        assert len(runs) == level + 3
        assert "".join(f"{len(run)}{run[0]}" for run in runs) == gold


def test_postfix_is_worth_what_infix_is():
    for level, prompt, gold in posed("postfix"):
        stack = []
        for symbol in prompt:
            if symbol.isdigit():
                stack.append(symbol)
            else:
                second = stack.pop()
                stack.append(f"({stack.pop()}{symbol}{second})")
        (infix,) = stack
        assert str(eval(infix)) == gold
        assert sum(map(prompt.count, "+-*")) == level + 3


def test_integers_and_fractions_have_one_form():
    for name, forms in (("equation", "+{0} 0{0} {0}.0 {0}/1"), ("fractions", "+{0} {0}/1 0{0}")):
        judge = environments.get_environment(name)
        problem = judge.problem(1, 0)
        gold = judge.solve(problem).answer
        assert judge.verify(problem, f" {gold}\n").is_correct
        for form in forms.split():
            assert judge.verify(problem, form.format(gold)).reason == "format"
    judge = environments.get_environment("fractions")
    problem = judge.problem(1, 0)
    top, bottom = map(int, judge.solve(problem).answer.split("/"))
    judged = judge.verify(problem, f"{2 * top}/{2 * bottom}")
    assert judged.reason == "value", "not in lowest terms"


def table_of(prompt):
    """What a prompt such as `xxxx&1101^0110` makes of 0..15."""
    table = np.arange(16)
    for symbol, mask in re.findall(r"([&|^])([01]{4})", prompt):
        apply = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[symbol]
        table = apply(table, int(mask, 2))
    return table.tolist()


def table(expression):
    return [evaluator.evaluate(expression, {"x": x}) for x in range(16)]


@pytest.fixture(scope="module")
def judge():
    return environments.get_environment("masks", run=evaluator.run)


@pytest.mark.parametrize("level", LEVELS)
def test_gold_does_what_the_prompt_says(judge, level):
    for seed in range(60):
        problem = judge.problem(level, seed)
        assert re.fullmatch(rf"xxxx([&|^][01]{{4}}){{{level + 3}}}", problem.prompt)
        assert table(judge.solve(problem).answer) == table_of(problem.prompt)


def test_every_step_says_what_became_of_each_bit(judge):
    """x, n, 0 or 1: what x = 0000 and x = 1111 give there."""
    of_ends = {("0", "1"): "x", ("1", "0"): "n", ("0", "0"): "0", ("1", "1"): "1"}
    for seed in range(20):
        problem = judge.problem(2, seed)
        for count, step in enumerate(judge.solve(problem).steps, start=1):
            low, *_, high = table_of(problem.prompt[: 4 + 5 * count])
            ends = zip(f"{low:04b}", f"{high:04b}", strict=True)
            assert step == "".join(map(of_ends.get, ends))


def test_accepts_exactly_the_expressions_that_agree(judge):
    """`(x&A)^B`, `(x^B)&A` and others, in decimal or binary, whether gold is written so or not."""
    problem = judge.problem(1, 4)
    wanted = table_of(problem.prompt)
    forms = ("x&{}^{}", "(x&{})^{}", "(x^{})&{}", "(x|{})^{}", "(x&{})|{}", "{}^x&{}")
    num_accepted = 0
    for form, a, b in itertools.product(forms, range(16), range(16)):
        answer = form.format(a, b)
        accepted = judge.verify(problem, answer).is_correct
        assert accepted == (table(answer) == wanted), answer
        num_accepted += accepted
    assert num_accepted >= 3


def test_an_answer_that_is_shorter_than_the_gold_is_accepted(judge):
    """Where a mask has no say it may be left out."""
    plain = next(
        problem
        for problem in (judge.problem(1, seed) for seed in range(500))
        if judge.solve(problem).answer.endswith("^0b0000")
    )
    assert judge.verify(plain, judge.solve(plain).answer.partition("^")[0]).is_correct
    assert judge.verify(plain, f"({judge.solve(plain).answer[:8]})").is_correct


def test_a_copy_of_the_specification_does_not_fit(judge):
    for seed in range(20):
        problem = judge.problem(1, seed)
        copied = re.sub("([01]{4})", r"0b\1", problem.prompt.replace("xxxx", "x"))
        assert judge.verify(problem, copied).reason == "format"
    for form in ("x&7|1^2", "x^x^x^x", "x&7|(1^2)"):
        assert judge.verify(judge.problem(1, 0), form).evidence == "more than 2 operators"


def test_an_answer_that_cannot_be_run_says_why(judge):
    judged = judge.verify(judge.problem(1, 0), "x&")
    assert (judged.outcome, judged.reason) == ("wrong", "error")
    assert "SyntaxError" in judged.evidence


def test_a_boolean_is_no_number():
    judge = environments.get_environment("masks", run=lambda runs: [[True] * 16])
    problem = next(
        p for p in (judge.problem(5, seed) for seed in range(999))
        if judge.solve(p).answer == "x&0b0000^0b0001"
    )  # fmt: skip
    assert judge.verify(problem, "1").reason == "value"
