"""Hostile programs 63 to 65: answers that are no programs, to the verifiers that read text."""

import time

import pytest

from loong_jax.environments import PUZZLES, get_environment
from loong_jax.verifiers import get_verifier
from tests.bounds import EXPLODES_S

BOMBS = {
    "tower": "9**9**9**9",
    "tower in LaTeX": "9^{9^{9^9}}",
    "factorial": "(10^9)!",
    "factorials": "(((10!)!)!)!",
    "binomial": "\\binom{10^9}{5\\cdot 10^8}",
    "brackets": "(" * 3000 + "1" + ")" * 3000,
    "roots": "\\sqrt{" * 3000 + "2" + "}" * 3000,
}
PAYLOADS = [
    "__import__('os').system('touch {canary}')",
    "exec(\"open('{canary}', 'w')\")",
    "eval(compile(\"open('{canary}','w')\", '', 'exec'))",
    "[open('{canary}', 'w') for _ in [0]]",
    "$(touch {canary})",
    "`touch {canary}`",
    "{{{{''.__class__.__mro__[1].__subclasses__()}}}}{canary}",
    "!!python/object/apply:os.system ['touch {canary}']",
    "\\input{{|touch {canary}}}",
]
LEAN = {
    "runs a process": 'by\n  trivial\n#eval IO.Process.run {cmd := "touch", args := #["x"]}',
    "axiom": "by exact cheat\naxiom cheat : False",
    "native": "by native_decide",
    "local instance": "by\n  exact x\nlocal instance : Decidable False := isTrue sorry",
    "notation": 'by trivial\nlocal notation "False" => True',
    "sorry": "by sorry",
    "option": "by\n  set_option debug.skipKernelTC true in trivial",
}


@pytest.fixture(scope="module")
def maths():
    verifier = get_verifier("math")
    verifier.judge("5", "\\boxed{5}")  # what is imported late is
    yield verifier
    verifier.close()


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("form", ["{}", "\\boxed{{{}}}", "So the answer is ${}$."])
def test_a_costly_answer_is_never_accepted_and_costs_little(maths, bomb, form):
    start = time.process_time()
    judged = maths.judge("5", form.format(bomb))
    assert not judged.is_correct
    if "(((((" not in bomb and "sqrt" not in bomb:  # these may be read as no answer at all
        assert judged.outcome == "ungradable"
    assert time.process_time() - start < EXPLODES_S


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_is_wrong_and_nothing_runs(payload, tmp_path):
    canary = tmp_path / "canary"
    text = payload.format(canary=canary)
    verifier = get_verifier("logic")
    for name in PUZZLES:
        problem = get_environment(name).problem(1, 0)
        for answer in (text, f"Answer: {text}"):
            judged = verifier.verify(problem, answer)
            assert judged.outcome == "wrong", (name, judged)
    assert not canary.exists()


@pytest.mark.parametrize("proof", LEAN.values(), ids=LEAN.keys())
def test_a_cheating_proof_is_wrong_before_any_server_sees_it(proof):
    verifier = get_verifier("lean", url="http://127.0.0.1:9")  # nobody listens there
    try:
        judged = verifier.verify_record({"statement": "theorem t : 1 = 1", "answer": proof})
        assert judged.outcome == "wrong", judged
    finally:
        verifier.close()
