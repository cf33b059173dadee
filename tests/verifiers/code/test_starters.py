"""Answers that continue a site's starter code, values that JSON has not, and large ones."""

# ruff: noqa: E501 - programs on lines of their own

import decimal
import math
import tomllib
from pathlib import Path

import pytest

from loong_jax.sandbox import languages
from loong_jax.verifiers.code import cases, compare
from tests.verifiers.code.conftest import judged_or_skipped

TEXTS = tomllib.loads(Path(__file__).with_name("calls.toml").read_text(encoding="utf-8"))
SLOW_JAVA = pytest.param("java", marks=pytest.mark.slow)
LATE_CPP = pytest.param("cpp", marks=pytest.mark.release)  # a compilation of all headers each


def judged(code, answer, *tests, language="python"):
    return code.verify_record({"language": language, "answer": answer, "tests": list(tests)})


def returns(value, *args, call="Solution.f"):
    return {"call": call, "args": list(args), "returns": value}


def solution(body, signature="self, n"):
    return f"class Solution:\n    def f({signature}):\n        {body}\n"


@pytest.mark.parametrize("language", ["python", "cpp", SLOW_JAVA])
def test_starter_code_takes_names_for_granted(code, language):
    good = returns([0, 1], [2, 7, 11], 9, call="Solution.twoSum")
    bad = returns([1, 0], [2, 7, 11], 9, call="Solution.twoSum")
    assert judged(code, TEXTS["LIST_OF_TWO"][language], good, language=language).is_correct
    said = judged(code, TEXTS["LIST_OF_TWO"][language], good, bad, language=language)
    assert (said.reason, said.details["passed"]) == ("wrong answer", 1)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return Counter('aab').most_common(1)[0][0]", "a"),
        ("return max(accumulate([1, 2, n]))", 4),
        ("h = [3, n]; heapify(h); return heappop(h)", 1),
        ("return reduce(lambda a, b: a * b, [2, 3], n)", 6),
        ("return bisect_left([1, 2], n)", 0),
        ("return inf > n", True),
        ("return math.gcd(12, 18) + gcd(4, 6)", 8),
        ("return [*deque([n])]", [1]),
        ("return len(list(permutations('abc')))", 6),
        ("return lru_cache(None)(lambda x: x)(n)", 1),
        ("return re.sub('a', 'b', 'aa')", "bb"),
        ("return collections.OrderedDict(a=n)", {"a": 1}),
        ("return deepcopy([n])", [1]),
        ("return pow(2, 3, 5) + n", 4),
        ("return sum(1 for c in 'ab' if c in ascii_lowercase)", 2),
        ("@cache\n        def g(x): return x\n        return g(n)", 1),
        ("x: Optional[Dict[str, List[Tuple[int, ...]]]] = None; return n", 1),
    ],
)
def test_names_of_the_standard_library_are_lent_to_methods(code, body, value):
    assert judged(code, solution(body), returns(value, 1)).is_correct
    assert not judged(code, solution(body), returns([value, 0], 1)).is_correct


@pytest.mark.parametrize(
    "answer",
    [
        "def f(n):\n    return gcd(n, 6)",  # no starter: a program as it stands
        "def f(n):\n    return Counter([n])[n]",
        "class Solution:\n    def f(self, n):\n        return undefined_name(n)",
        "class Solution:\n    def f(self, n):\n        return np.sum(n)",
        "print(gcd(4, 6))",
    ],
)
def test_nothing_else_is_lent(code, answer):
    name = "Solution.f" if "class" in answer else "f"
    assert judged(code, answer, returns(1, 1, call=name)).outcome == "wrong"
    assert judged(code, "print(gcd(4, 6))", {"stdin": "", "stdout": "2"}).outcome == "wrong"


def test_what_an_answer_defines_is_its_own(code):
    own = "def gcd(a, b): return 99\n" + solution("return gcd(4, 6)")
    assert judged(code, own, returns(99, 1)).is_correct
    late = solution("return gcd(4, 6)") + "from math import lcm as gcd\n"
    assert judged(code, late, returns(12, 1)).is_correct
    hints = "def f(xs: List[int]) -> Optional[int]:\n    return xs[0]"
    assert judged(code, hints, returns(1, [1], call="f")).is_correct


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("cpp", "#include <vector>\nusing namespace std;\nclass Solution {\npublic:\n"
         "  int f(vector<int> v) { sort(v.begin(), v.end()); return accumulate(v.begin(), v.end(), v[0]); }\n};"),
        ("cpp", "int count = 1;\nclass Solution {\npublic:\n  int f(std::vector<int> v) {"
         " return v[0] + v[1] + v[2] + count; }\n};"),
        pytest.param("java", "import java.util.List;\nclass Solution { int f(int[] v) { "
                     "Arrays.sort(v); return v[0] + v[1] + v[2] + 1; } }", marks=pytest.mark.slow),
        pytest.param("java", "import java.util.*;\nclass List { int one = 1; }\npublic class Solution { "
                     "public int f(int[] v) { return v[0] + v[1] + v[2] + new List().one; } }",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_compiled_answers_are_tried_as_they_are_and_with_what_sites_include(code, language, source):
    assert judged(code, source, returns(7, [3, 1, 2]), language=language).is_correct
    broken = source.replace("v[0]", "w[0]").replace("v.begin()", "w.begin()")
    said = judged(code, broken, returns(7, [3, 1, 2]), language=language)
    assert said.reason == "compile error", said


# ---- linked lists, trees, methods that change their argument


@pytest.mark.parametrize("language", ["python", LATE_CPP, SLOW_JAVA])
def test_lists_and_trees_are_nodes_where_the_signature_says_so(code, language):
    lists = [([1, 2, 3], [3, 2, 1]), ([], []), ([7], [7])]
    tests = [returns(out, given) for given, out in lists]
    tests += [returns([3, 2], [1, 2, 3]), returns(None, [])]
    said = judged(code, TEXTS["REVERSE"][language], *tests, language=language)
    assert [t["status"] for t in said.details["tests"]] == ["OK", "OK", "OK", "WA", "OK"], said
    tree, other = [4, 2, 7, 1, None, 6], [4, 7, 2, None, 6, None, 1]
    tests = [returns(other, tree), returns(tree, other), returns([], []), returns(tree, tree)]
    said = judged(code, TEXTS["INVERT"][language], *tests, language=language)
    assert [t["status"] for t in said.details["tests"]] == ["OK", "OK", "OK", "WA"], said


@pytest.mark.parametrize("language", ["python", LATE_CPP, SLOW_JAVA])
def test_a_method_that_returns_nothing_is_judged_by_its_first_argument(code, language):
    tests = [returns([1, 2, 0, 0], [0, 1, 0, 2]), returns([0, 1, 0, 2], [0, 1, 0, 2]),
             returns(None, [1]), returns([], [])]  # fmt: skip
    said = judged(code, TEXTS["ZEROS_LAST"][language], *tests, language=language)
    assert [t["status"] for t in said.details["tests"]] == ["OK", "WA", "OK", "OK"], said


@pytest.mark.parametrize(
    ("answer", "test", "is_right"),
    [
        # what forgets to return is wrong, whatever it changed
        ("def f(a):\n    a.sort()", returns([1, 2], [2, 1], call="f"), False),
        (solution("a.sort()", "self, a"), returns([1, 2], [2, 1]), False),
        (solution("a.sort()", "self, a: List[int]").replace("):", ") -> List[int]:"),
         returns([1, 2], [2, 1]), False),
        (solution('"""Do not return anything, modify a in-place instead."""\n        a.sort()',
                  "self, a"), returns([1, 2], [2, 1]), True),
        (solution("a = sorted(a)", "self, a: List[int]").replace("):", ") -> None:"),
         returns([1, 2], [2, 1]), False),
        (solution("a.next = a.next.next", "self, a: Optional[ListNode]").replace("):", ") -> None:"),
         returns([1, 3], [1, 2, 3]), True),
        (solution('"""\n        :type a: ListNode\n        :rtype: int\n        """\n'
                  "        return a.next.val", "self, a"), returns(2, [1, 2]), True),
        (solution("return [x.val for x in lists if x]", "self, lists: List[Optional[ListNode]]"),
         returns([1, 3], [[1, 2], [], [3]]), True),
        (solution("return [a, None]", "self, a: ListNode").replace("):", ") -> List[ListNode]:"),
         returns([[1], []], [1]), True),
        ("class ListNode:\n    def __init__(self, x):\n        self.val, self.next, self.own = x, None, 5\n"
         + solution("return a.own", "self, a: ListNode"), returns(5, [1]), True),
        (solution("while root and root.val != p.val:\n            root = root.left if p.val < root.val else "
                  "root.right\n        return root", "self, root: 'TreeNode', p: 'TreeNode'")
         .replace("):", ") -> 'TreeNode':"), returns(2, [5, 2, 8], 2), True),
        (solution("a.next.next = a; return a", "self, a: ListNode").replace("):", ") -> ListNode:"),
         returns([1, 2, 1], [1, 2]), False),
        (solution("return len(a)", "self, a"), returns(2, [1, 2]), True),
    ],
)  # fmt: skip
def test_nodes_and_places_are_what_the_signature_says(code, answer, test, is_right):
    said = judged(code, answer, test)
    assert said.outcome == ("correct" if is_right else "wrong"), said


# ---- literals and values that JSON has not


@pytest.mark.parametrize(
    ("answer", "call", "value", "other"),
    [
        ("def f(x): return isinstance(x, tuple)", "f((1, 2))", True, False),
        ("def f(x): return len(set(x))", "f([(1, 2), (1, 2), (3, 4)])", 2, 3),
        ("def f(d): return d[1]", "f({1: 'a'})", "a", "b"),
        ("def f(a): return a + (5,)", "f((1, 2))", [1, 2, 5], [1, 2]),
        ("def f(d): return d[(0, 1)]", "f({(0, 1): 5})", 5, 6),
        ("def f(s): return s.decode()", "f(b'ab')", "ab", "b'ab'"),
        ("def f(s): return list(s)", "f(b'\\x00\\xff')", [0, 255], [0, 254]),
        ("def f(s): return s | {3}", "f({1, 2})", [3, 2, 1], [1, 2]),
        ("def f(s): return type(s).__name__", "f({1})", "set", "list"),
        ("def f(s): return len(s)", "f(set())", 0, 1),
        ("def f(z): return z.imag", "f(1+2j)", 2, 1),
        ("def f(a, k=()): return k", "f(1, k=(2, [3]))", [2, [3]], [2, 3]),
        ("def f(d): return sorted(d.items())", "f({2: 'b', 1: 'a'})", [[1, "a"], [2, "b"]], []),
        ("def f(d): return d[None] + d[True]", "f({None: 1, True: 2})", 3, 4),
        ("def f(t): return t[0][0]", "f(([1], 2))", 1, 2),
        ("def f(x): return x", "f(-1.5)", -1.5, 1.5),
        ("def f(x): return x['a']", "f({'a': [1]})", [1], [2]),
        ("def f(x): return x is None", "f(None)", True, False),
    ],
)
def test_literals_of_a_call_keep_their_kind(code, answer, call, value, other):
    assert judged(code, answer, {"call": call, "returns": value}).is_correct
    assert judged(code, answer, {"call": call, "returns": other}).outcome == "wrong"


@pytest.mark.parametrize(
    ("language", "answer", "call", "outcome"),
    [
        ("javascript", "function f(t) { return t[0] + t[1] }", "f((1, 2))", "correct"),
        ("javascript", "function f(d) { return d['1'] }", "f({1: 3})", "correct"),
        ("javascript", "function f(s) { return s.length + 1 }", "f({1, 2})", "correct"),
        ("javascript", "function f(s) { return 3 }", "f(b'ab')", "ungradable"),
        ("javascript", "function f(s) { return 3 }", "f({(0, 1): 3})", "ungradable"),
        ("javascript", "function f(s) { return 3 }", "f(1j)", "ungradable"),
        ("python", "def f(x): return 3", "f(open('x'))", "ungradable"),
        ("python", "def f(x): return 3", "f(x)", "ungradable"),
        ("python", "def f(x): return 3", "f(null)", "ungradable"),
        ("python", "def f(x): return 3", "f({[1]: 2})", "ungradable"),
    ],
)
def test_literals_that_a_language_has_not_are_ungradable(code, language, answer, call, outcome):
    said = judged_or_skipped(code, language, answer, {"call": call, "returns": 3})
    assert said.outcome == outcome, said


@pytest.mark.parametrize(
    ("value", "expected", "is_right"),
    [
        ("Fraction(3, 2)", 1.5, True),
        ("Fraction(1, 3)", 1 / 3, True),
        ("Fraction(1, 3)", 0.333, False),
        ("Fraction(4, 2)", 2, True),
        ("Fraction(4, 2)", True, False),
        ("Fraction(1, 1)", "1", False),
        ("Decimal('1.5')", 1.5, True),
        ("Decimal('0.1')", 0.1, True),
        ("Decimal('3.00')", 3, True),
        ("Decimal('3.000000000000000000001')", 3, False),
        ("[Decimal('0.5'), Fraction(1, 2)]", [0.5, 0.5], True),
        ("{'a': Decimal('2.5')}", {"a": 2.5}, True),
        ("Decimal('NaN')", math.nan, True),
        ("Decimal('-Infinity')", -math.inf, True),
        ("Decimal('1e3')", 1000, True),
        ("Fraction(10**30, 1)", 10**30, True),
        ("Fraction(10**30, 1)", 10**30 + 1, False),
    ],
)
def test_decimals_and_fractions_are_numbers(code, value, expected, is_right):
    answer = (
        f"from decimal import Decimal\nfrom fractions import Fraction\ndef f(a): return {value}"
    )
    said = judged(code, answer, returns(expected, 1, call="f"))
    assert said.outcome == ("correct" if is_right else "wrong"), said


def test_a_decimal_is_within_a_tolerance():
    given = {"t": "decimal", "v": "0.3334"}
    assert compare.matches_value(given, 1 / 3, 1e-3)
    assert not compare.matches_value(given, 1 / 3, 1e-5)
    for forged in ("x", "1/0", "9" * 10_000, 5, None, "nan", "1e999999999"):
        for kind in ("decimal", "fraction"):
            assert not compare.matches_value({"t": kind, "v": forged}, decimal.MAX_EMAX, None)


@pytest.mark.parametrize(
    ("language", "answer"),
    [
        ("python", "def f(n): return list(range(n))"),
        ("python", "def f(n): return set(range(n))"),
        ("cpp", "#include <vector>\nstd::vector<int> f(int n) { std::vector<int> r;\n"
         "for (int i = 0; i < n; i++) r.push_back(i); return r; }"),
        ("javascript", "function f(n) { return Array.from({length: n}, (_, i) => i) }"),
        pytest.param("java", "public class Main { static int[] f(int n) { "
                     "return java.util.stream.IntStream.range(0, n).toArray(); } }",
                     marks=pytest.mark.slow),
        ("ruby", "def f(n)\n  (0...n).to_a\nend"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [2001, 150_000])
def test_large_values_come_back(code, language, answer, size):
    wanted = list(range(size))
    tests = [returns(wanted, size, call="f"), returns([*wanted[:-1], 0], size, call="f")]
    said = judged_or_skipped(code, language, answer, *tests)
    assert [test["status"] for test in said.details["tests"]] == ["OK", "WA"], said


def test_a_value_beyond_all_limits_is_the_answers_fault(code):
    said = judged(code, "def f(n): return ['x' * 1000] * 100_000", returns([], 1, call="f"))
    assert (said.outcome, said.reason) == ("wrong", "output limit")


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "is_right"),
    [
        ([1, 2, 2], [2, 1, 2], None, True),
        ([1, 2, 2], [2, 1, 1], None, False),
        ([True], [1], None, False),
        ([1.0], [1], None, True),
        (["1"], [1], None, False),
        ([{"t": "tuple", "v": [1, 2]}], [[1, 2]], None, True),
        ([{"t": "tuple", "v": [1, 2]}], [[2, 1]], None, False),
        ([{"t": "set", "v": [1, 2]}], [[2, 1]], None, True),
        ([0.1, 5.0], [5.0000001, 0.1], 1e-6, True),
        ([0.1, 5.0], [5.1, 0.1], 1e-6, False),
        ([*range(5000)], [*range(5000)][::-1], None, True),
        ([x / 2 for x in range(5000)], [x / 2 for x in range(5000)][::-1], 1e-9, True),
        ([None, "a"], ["a", None], None, True),
    ],
)
def test_sets_are_compared_whatever_their_size(got, expected, tolerance, is_right):
    assert compare.matches_value({"t": "set", "v": got}, expected, tolerance) is is_right


# ---- the program of a response

F = "def f(x):\n    return x + 1"
BLOCK = f"```python\n{F}\n```\n"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (BLOCK + "Use it so:\n```python\nprint(f(2))\n```", True),
        (BLOCK + "Example:\n```python\nassert f(2) == 3\nassert f(3) == 4\n```", True),
        (BLOCK + "```python\n>>> f(2)\n3\n```", True),
        (BLOCK + "```python\n3\n```", True),
        (BLOCK + "It takes O(1):\n```python\nfrom timeit import timeit\ntimeit(f)\n```", True),
        (BLOCK + "Tests:\n```python\nimport unittest\nclass T(unittest.TestCase):\n"
         "    def test(self):\n        self.assertEqual(f(1), 2)\n```", True),
        (BLOCK + "```py\nx = f(1)\n```", True),
        (BLOCK + "```\nf(2)\n```", True),
        (BLOCK + "```text\n3\n```", True),
        (BLOCK + "```console\n$ python a.py\n3\n```", True),
        (BLOCK + "```json\n{\"f\": 3}\n```", True),
        (BLOCK + "```\n3\n```", True),
        (BLOCK + "```javascript\nfunction f(x) { return x }\n```", True),
        (BLOCK + "```python\ninput: 3\noutput: 4\n```", False),
        ("```python\ndef f(x):\n    return x\n```\nBetter:\n" + BLOCK, False),
        ("```python\nx = 5\n```\nand\n" + BLOCK, False),
        (BLOCK + "```output\n3\n```", False),
    ],
)  # fmt: skip
def test_a_later_block_that_is_not_the_program(text, calls):
    named = {"f"} if calls else set()
    assert cases.source_of(text, "python", {"f"}).strip() == F
    assert cases.source_of(text, "python", named).strip() == F


@pytest.mark.parametrize(
    ("language", "program", "later"),
    [
        ("cpp", "int f(int x) { return x + 1; }", "int main() { std::cout << f(2); }"),
        ("java", "class Solution { int f(int x) { return x + 1; } }", "new Solution().f(2);"),
        ("javascript", "const f = (x) => x + 1;", "console.log(f(2));"),
        ("go", "func f(x int) int { return x + 1 }", 'fmt.Println(f(2))'),
        ("ruby", "def f(x)\n  x + 1\nend", "puts f(2)"),
        ("rust", "fn f(x: i32) -> i32 { x + 1 }", "assert_eq!(f(2), 3);"),
    ],
)  # fmt: skip
def test_the_block_that_defines_what_is_called_is_the_program(language, program, later):
    text = f"```{language}\n{program}\n```\nUse:\n```{language}\n{later}\n```"
    names = {"Solution"} if language == "java" else {"f"}
    assert cases.source_of(text, language, names).strip() == program
    other = program.replace("1", "2")
    text = f"```{language}\n{other}\n```\nNo:\n```{language}\n{program}\n```"
    assert cases.source_of(text, language, names).strip() == program


# ---- packages of Java

MAIN = "class Main { public static void main(String[] a) { System.out.println(1); } }"


@pytest.mark.parametrize(
    ("before", "is_dropped"),
    [
        ("package com.x;\n", True),
        ("package a;", True),
        ("package  a . b ;\n", True),
        ("\n\n  package com.x;  // ours\n", True),
        ("// package no;\npackage yes;\n", True),
        ("/* package no;\n * licence */\npackage yes.it.is;\nimport java.util.*;\n", True),
        ("// package no;\n", False),
        ("import java.util.*;\n", False),
        ("/** A package; of it. */\n", False),
        ("", False),
    ],
)
def test_the_package_of_a_program_of_java_is_left_out(before, is_dropped):
    text = languages.LANGUAGES["java"].source(before + "public " + MAIN)
    assert text.endswith(MAIN)
    assert (text != before + "public " + MAIN) is is_dropped
    assert text.count("\n") == before.count("\n")
    assert "package yes" not in text


@pytest.mark.slow
@pytest.mark.parametrize("before", ["package com.x;\npublic ", "/* a */ package x;\n"])
def test_programs_of_java_in_packages_run(code, before):
    tests = [{"stdin": "", "stdout": "1"}]
    assert judged(code, before + MAIN, *tests, language="java").is_correct
    answer = before + "class Solution { static int f(int x) { return x + 1; } }"
    assert judged(code, answer, returns(2, 1), language="java").is_correct
