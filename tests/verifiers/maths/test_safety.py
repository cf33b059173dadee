"""No text is evaluated, nothing costs much, and a verdict is the same every time."""

import gc
import json
import threading
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from loong_jax.verifiers import Verdict, attacks, get_verifier
from loong_jax.verifiers.maths import expression
from loong_jax.verifiers.maths.evaluator import Evaluator
from loong_jax.verifiers.maths.expression import CostError
from loong_jax.verifiers.maths.reading import readings

OF_SYMPY = ("S({!r})", "Matrix({})", "Interval({}, 2)", "Symbol('x', commutative={})",
            "Lambda(x, {})(1)", "Function('f')({})", "sympy.sympify({!r})")  # fmt: skip
BOMBS = (
    "9**9**9**9",
    "the answer is" + " " * 5900 + "unknown",
    "a" + " " * 75 + "if " + " " * 55 + ", b" + " " * 75 + "if " + "." * 59 + "&",
    "a" + " if" * 26 + " x, b" + " if" * 26 + " " + "." * 55 + "&",
    "\\begin{align}" + "\\begin{align" * 400 + "= \\\\" * 100 + "\\end{align}",
    "It is" + " *a" * 1900 + "*",
    "9^{9^{9^{9}}}",
    "(10^9)!",
    "2004!!!!",
    "((((9!)!)!)!)!",
    "\\binom{10^{12}}{5\\cdot 10^{11}}",
    "\\sum_{k=1}^{10^9} k",
    "\\prod_{k=1}^{10^9} (1+1/k)",
    "\\sum_{k=1}^{100000} \\sqrt{k}",
    "\\sum_{i=1}^{9999}\\sum_{j=1}^{9999} ij",
    "2^{2^{2^{2^{2^2}}}}",
    "1e999999999",
    "1e-999999999",
    "\\sin(10^{10^6})",
    "e^{e^{e^{e^e}}}",
    "\\tan(\\tan(\\tan(10^{5000})))",
    "99999!/99998!",
    "(2^{99999})^{99999}",
    "1/(10^{10^{10}})",
    "(" * 3000 + "1" + ")" * 3000,
    "{" * 5000,
    "(" * 5000,
    "[" * 4000 + "]" * 4000,
    "|" * 3000,
    "-" * 200000 + "1",
    "+".join(["x"] * 100000),
    "\\frac{1}{" * 500 + "1" + "}" * 500,
    "\\sqrt{" * 900 + "2" + "}" * 900,
    "x^" * 2000 + "x",
    "1" * 1_000_000,
    "9" * 3999,
    "a" * 1_000_000,
    "$" * 100_000,
    "\\boxed{" * 50_000,
    "\\boxed{1}" * 50_000,
    "answer is " * 100_000,
    "\\begin{cases} " * 12 + "x & x>0" + " \\end{cases}" * 12,
    "\\begin{cases}" + "1 & x>0 \\\\ " * 8 + "\\end{cases}",
    "\\neg" * 60 + "p",
    "(" * 90 + "p" + ")" * 90 + "\\to q",
    "\\to".join("pqrstuvw" * 10),
    "x \\equiv 1 \\pmod{10^{5000}}",
    "x \\equiv 3, 5, 7 \\pmod{0}",
    "\\{n \\in \\mathbb{Z} : 0 < n < 10^{4000}\\}",
    "x = \\frac{k}{10^{300}}, k \\in \\mathbb{Z}",
    "\\" * 100_000,
    "1, " * 300_000,
    "or " * 300_000,
    "<|" * 100_000,
    "\n" * 1_000_000,
    "1 2 " * 100_000,
    "(x+1)" * 700,
    "(x+1)^{9999}",
    "((x+1)^{99})^{99}",
    "(1+1/3)^{3000}",
    "\\log(" * 30 + "2" + ")" * 30,
    "1:" * 1900 + "1",
    "\\left(" * 1000,
    "f(" * 2000,
    "\\text{" * 3000,
    "{,}" * 1300,
    "0.(" + "3" * 3000 + ")",
    "\\begin{pmatrix}" + "1&" * 900 + "1\\end{pmatrix}",
    "\\pm " * 900 + "1",
    "2\\pm" * 900 + "1",
    "\\{" * 900 + "1",
    "\\gcd(" + "9" * 1500 + "," + "7" * 1500 + ")",
    "3" + "!" * 900,
    "5" + "%" * 900,
    "\\Gamma(10^{9})",
    "\\text{" + "a" * 100_000 + "}",
    "x_{" * 1000 + "1",
    "ⅷ" * 50_000,
    "½" * 1000,
    "\\phantom{" * 440,
    "\\fcolorbox{a{b}" * 260,
    "\\color[" * 560 + "1",
)
GOLDS = ("5", "x^2+1", "(1,2)", "[0,1)", "\\{1,2\\}", "y=2x+1", "5 cm", "Tuesday", "A", "28\\%")


def test_no_payload_is_executed(verifier, tmp_path):
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w')"
    for text in (*attacks.payloads(canary), *(form.format(code) for form in OF_SYMPY)):
        for answer in (text, f"\\boxed{{{text}}}", f"The answer is ${text}$", f"5 + {text}"):
            for gold in GOLDS:
                assert verifier.judge(gold, answer).outcome != "correct", (gold, answer)
            assert isinstance(verifier.judge(answer, "5"), Verdict)
        assert not canary.exists(), text


@pytest.fixture
def no_collector():
    """Keeps the collector, which walks what every other test left, out of a thread's CPU time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("index", range(len(BOMBS)))
def test_hostile_texts_cost_little(verifier, index, no_collector):
    """CPU time of the verdict: at most 1 s, whatever is sent. Never a reward."""
    bomb = BOMBS[index]
    for answer in (bomb, f"\\boxed{{{bomb}}}", f"The answer is {bomb}."):
        for gold in GOLDS[:6]:
            start = time.thread_time()
            judged = verifier.judge(gold, answer)
            assert time.thread_time() - start < 1.0, (gold, answer[:60])
            assert judged.outcome != "correct", (gold, answer[:60], judged)


def test_what_costs_too_much_is_ungradable(verifier):
    nested = "(" * 3000 + "1" + ")" * 3000
    choose = "\\binom{10^9}{5\\cdot 10^8}"
    for bomb in ("9**9**9**9", "(10^9)!", nested, "9^{9^{9^9}}", "(((10!)!)!)!", choose):
        assert verifier.judge("5", f"\\boxed{{{bomb}}}").outcome == "ungradable"


@pytest.mark.parametrize("link", ["1/", "2\\pm ", "x\\cup ", "2\\div "])
def test_no_chain_grows_a_deep_tree(link):
    """Without a bracket too: what walks a tree recurses, and must not come near the stack's end."""
    assert 10 < expression.depth(readings.parse(link * 20 + "1")) < 30
    with pytest.raises(CostError, match="deep"):
        readings.parse(link * 300 + "1")


def test_budget_stops_an_evaluation():
    node = readings.parse("\\sum_{k=1}^{1000} k^2")
    assert Evaluator().value(node) == 333833500
    with pytest.raises(CostError):
        Evaluator(budget=1000).value(node)


ALPHABET = st.sampled_from(
    [
        *"0123456789abcxyzefinpi+-*/^_=<>()[]{}|,.;:!%$& '\n",
        *str.split(
            r"\frac \sqrt \pi \boxed{ \text{ \left( \right) \cup \infty \{ \} \pm \begin{pmatrix} "
            r"\end{pmatrix} \\ \sin \log sqrt( Interval( Matrix([[ ² π √ 十 cm ... \sum_{k=1}^{n} "
            r"\overline{ \% ^\circ \le \in"
        ),
        *(" or ", " and ", "answer is ", "\uff11"),
    ]
)
TEXTS = st.lists(ALPHABET, max_size=30).map("".join) | st.text(max_size=40)


@hypothesis.given(gold=TEXTS, answer=TEXTS)
@hypothesis.settings(max_examples=400)
def test_any_text_has_one_verdict(verifier, gold, answer):
    first = verifier.judge(gold, answer)
    again = verifier.judge(gold, answer)
    assert (first.outcome, first.reason, first.evidence) == (
        again.outcome, again.reason, again.evidence,
    )  # fmt: skip
    json.dumps(first.evidence)


def test_verdicts_are_the_same_from_many_threads():
    cases = [("\\sqrt{2}", "2^{1/2}"), ("\\pi", "3.14"), ("x^2-1", "(x-1)(x+1)"), ("e", "\\ln 2"),
             ("\\frac{1}{2004!}", "\\frac{1}{2006!}"), ("\\sin 1", "\\cos 1")]  # fmt: skip
    verifier = get_verifier("math")
    expected = [verifier.judge(*case).outcome for case in cases]
    outcomes: list[list[str]] = []

    def work() -> None:
        for _ in range(20):
            outcomes.append([verifier.judge(*case).outcome for case in cases])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verifier.close()
    assert expected == ["correct", "wrong", "correct", "wrong", "wrong", "wrong"]
    assert len(outcomes) == 160
    assert all(outcome == expected for outcome in outcomes)
