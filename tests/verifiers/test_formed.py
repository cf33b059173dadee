"""The form of responses before the verifiers: what is malformed reaches none of them."""

from concurrent.futures import Future

import pytest

from loong_jax.data.response import FORMS, render
from loong_jax.environments.problem import Problem
from loong_jax.verifiers import get_verifier, verdict
from loong_jax.verifiers.formed import FormedPool
from loong_jax.verifiers.pool import VerifierRequest


class AtOnce:
    """A pool that judges in the calling thread."""

    def __init__(self, verify):
        self.verify, self.seen = verify, []

    def submit(self, requests):
        found = []
        for request in requests:
            self.seen.append(request.response_text)
            found.append(Future())
            found[-1].set_result(self.verify(request.problem, request.response_text))
        return found


def problem(gold="12", verifier="math", **arguments):
    return Problem(uid="x", domain="stem", environment="file", level=1, seed=0, canonical="c",
                   prompt="p", verifier=verifier, arguments=arguments, gold=gold)  # fmt: skip


def request(key, text, posed=None):
    return VerifierRequest(key=key, problem=posed or problem(), response_text=text)


def test_malformed_responses_are_wrong_and_the_others_keep_their_order():
    pool = AtOnce(lambda _, text: verdict.correct(text))
    texts = ["<think>a</think><answer>1</answer>", "1", "<think>b</think><answer>2</answer>"]
    futures = FormedPool(pool, FORMS["think-answer"]).submit(
        [request(str(i), text) for i, text in enumerate(texts)]
    )
    first, malformed, last = [future.result() for future in futures]
    assert (malformed.outcome, malformed.reason) == ("wrong", "format")
    assert ["1" in first.evidence, "2" in last.evidence] == [True, True]
    assert len(pool.seen) == 2
    assert not any("<think>" in text or text == "a" for text in pool.seen)


@pytest.fixture(scope="module")
def maths():
    verifier = get_verifier("math")
    yield verifier
    verifier.close()


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_judged_by_its_answer(maths, name):
    form = FORMS[name]
    pool = FormedPool(AtOnce(maths.verify), form)
    texts = [render(form, "41 or 12", answer) for answer in ("12", "13")]
    right, wrong = [f.result() for f in pool.submit([request(t, t) for t in texts])]
    assert right.is_correct
    assert (wrong.outcome, wrong.reason) == ("wrong", "value")


def test_programs_are_judged_in_every_form():
    code = get_verifier("code")
    tests = [{"stdin": "1 2\n", "stdout": "3\n"}]
    posed = problem(None, "code", language="python", tests=tests)
    program = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
    for name in ("tagged", "longcat", "think", "think-answer", "plain"):
        pool = FormedPool(AtOnce(code.verify), FORMS[name])
        (judged,) = pool.submit([request(name, render(FORMS[name], "t", program), posed)])
        assert judged.result().is_correct, name
    code.close()
