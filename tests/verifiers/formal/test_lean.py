"""The Lean verifier against a server that speaks kimina's protocol."""

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.formal import lean
from tests.verifiers.formal import fake_lean

STATEMENT = "theorem add_zero' (n : Nat) (h : 0 < n) : n + 0 = n"


@pytest.fixture(scope="module")
def server():
    with fake_lean.running() as found:
        yield found


@pytest.fixture
def verifier(server):
    server.requests.clear()
    server.failures.clear()
    url = f"http://127.0.0.1:{server.server_port}"
    return get_verifier("lean", url=url, pause_s=0.01, max_batch=4)


def record(answer, statement=STATEMENT, **more):
    return {"statement": statement, "answer": answer, **more}


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        ("by simp", "correct", ""),
        (":= by simp", "correct", ""),
        ("Nat.add_zero n", "correct", ""),
        ("```lean\nby simp\n```", "correct", ""),
        ("by\n  -- linter\n  exact Nat.add_zero n", "correct", ""),
        ("by rw [propext, choice, sound]", "correct", ""),
        ("by wrong_tactic", "wrong", "proof"),
        ("by exact cheat", "wrong", "axioms"),
        ("by silent", "wrong", "axioms"),
        ("by twice", "wrong", "axioms"),
        ("by hangs", "ungradable", "timeout"),
        ("by crashes", "ungradable", "server"),
        ("by repl_fails", "ungradable", "server"),
        ("by left_out", "ungradable", "server"),
        ("", "wrong", "no answer"),
    ],
)
def test_verdicts(verifier, answer, outcome, reason):
    judged = verifier.verify_record(record(answer))
    assert (judged.outcome, judged.reason) == (outcome, reason), judged


@pytest.mark.parametrize(
    "answer",
    [
        "by sorry",
        "by admit",
        "by native_decide",
        "by simp\n\naxiom cheat : False",
        "by simp\ntheorem other : True := trivial",
        "by simp\n#eval 1",
        "by simp\n#print axioms x",
        "by run_tac IO.println 1",
        "by exact sorryAx _",
        "by simp\nlocal instance : Add Nat := ⟨fun _ b => b⟩",
        'by simp\nnotation "x" => y',
        "by simp\nset_option debug.skipKernelTC true",
        "by simp\n@[implemented_by f] def g := 1",
        "by simp\nopen Lean Elab in run_cmd logInfo m",
        "by simp\nmacro_rules | `(x) => `(y)",
        "by simp /- hidden -/",
        "by exact «sorry»",
        "by simp\x00",
    ],
)
def test_cheats_are_not_even_sent(verifier, server, answer):
    judged = verifier.verify_record(record(answer))
    assert judged.outcome == "wrong"
    assert judged.reason in ("forbidden", "format")
    assert not server.requests


def test_the_statement_is_ours_and_its_name_is_new(verifier, server):
    verifier.verify_record(record("by simp", header="import Mathlib\nopen Nat"))
    verifier.verify_record(record("by simp", STATEMENT + " := by sorry"))
    sources = [body["codes"][0]["proof"] for _, _, body in server.requests]
    names = [body["codes"][0]["custom_id"] for _, _, body in server.requests]
    assert len(set(names)) == 2
    for name, source in zip(names, sources, strict=True):
        assert f"theorem {name} (n : Nat) (h : 0 < n) : n + 0 = n := by simp" in source
        assert source.endswith(f"#print axioms {name}\n")
        assert "add_zero'" not in source
    assert sources[0].startswith("import Mathlib\nopen Nat\n")


def test_a_batch_keeps_its_order_and_its_size(verifier, server):
    answers = ["by simp", "by wrong_tactic", "by sorry", "by hangs", "by simp"] * 3
    judged = verifier.verify_records([record(answer) for answer in answers])
    wanted = ["correct", "wrong", "wrong", "ungradable", "correct"] * 3
    assert [j.outcome for j in judged] == wanted
    assert [len(body["codes"]) for _, _, body in server.requests] == [4, 4, 4]
    assert {path for path, _, _ in server.requests} == {"/verify"}


@pytest.mark.parametrize(
    ("failures", "outcome", "tries"),
    [
        ([503, 500], "correct", 3),
        ([299], "correct", 2),
        ([503, 503, 429], "ungradable", 3),
        ([403], "ungradable", 1),
    ],
)
def test_failures_of_the_server_are_tried_again(verifier, server, failures, outcome, tries):
    server.failures[:] = failures
    assert verifier.verify_record(record("by simp")).outcome == outcome
    assert len(server.requests) == tries


def test_no_server_is_ungradable_and_a_bad_address_refused():
    lost = get_verifier("lean", url="http://127.0.0.1:9", pause_s=0.01)
    judged = lost.verify_record(record("by simp"))
    assert (judged.outcome, judged.reason) == ("ungradable", "server")
    with pytest.raises(VerifierError, match="is no http address"):
        get_verifier("lean", url="file:///etc/passwd")


def test_the_key_is_sent(server):
    url = f"http://127.0.0.1:{server.server_port}/"
    server.requests.clear()
    get_verifier("lean", url=url, api_key="k").verify_record(record("by simp"))
    assert server.requests[0][1]["Authorization"] == "Bearer k"


def test_the_syntax_filter(verifier):
    statements = [STATEMENT, "theorem t : nonsense", "def f := 1", STATEMENT + " := by sorry"]
    outcomes = [judged.outcome for judged in verifier.check_statements(statements)]
    assert outcomes == ["correct", "wrong", "wrong", "correct"]


@pytest.mark.parametrize("statement", ["", "theorem", "def f := 1", "theorem t : a := b", 5, None])
def test_a_broken_statement_is_not_the_answers_fault(verifier, statement):
    assert verifier.verify_record(record("by simp", statement)).outcome == "ungradable"


def test_a_term_cannot_end_the_statement():
    statement = lean.read_statement(STATEMENT)
    source = lean.source(statement, "t", "Nat.add_zero n")
    assert ":= (Nat.add_zero n)\n" in source
