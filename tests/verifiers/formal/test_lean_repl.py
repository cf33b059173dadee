"""The pool of local REPLs: verdicts as with a server, reuse by header, limits, recycling."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.formal.lean_repl import LeanReplPool, split

REPOSITORY = str(Path(__file__).parents[3])
COMMAND = [sys.executable, "-m", "tests.verifiers.formal.fake_repl"]
ENV = {"PYTHONPATH": REPOSITORY, "LANG": "C.UTF-8"}
STATEMENT = "theorem add_zero' (n : Nat) (h : 0 < n) : n + 0 = n"


def options(**more):
    return {"command": COMMAND, "cwd": REPOSITORY, "env": ENV, "num_repls": 1, **more}


@pytest.fixture
def pool(request):
    one = LeanReplPool(**options(**getattr(request, "param", {})))
    yield one
    one.close()
    assert one.pids() == []


def source(proof, header="import Mathlib"):
    return f"{header}\n\ntheorem t : True := {proof}\n\n#print axioms t\n"


def test_verdicts_are_those_of_a_server():
    answers = {
        "by simp": ("correct", ""),
        "by wrong_tactic": ("wrong", "proof"),
        "by exact cheat": ("wrong", "axioms"),
        "by silent": ("wrong", "axioms"),
        "by crashes": ("ungradable", "server"),
        "by babbles": ("ungradable", "server"),
        "by rw [propext]": ("correct", ""),
        "by sorry": ("wrong", "forbidden"),
    }
    records = [{"statement": STATEMENT, "answer": answer} for answer in answers]
    with contextlib.closing(get_verifier("lean", repl=options(timeout_s=20.0))) as verifier:
        judged = verifier.verify_records(records)
        assert [(j.outcome, j.reason) for j in judged] == list(answers.values())
        broken = {"statement": STATEMENT, "answer": "by simp", "header": "import Missing"}
        assert verifier.verify_record(broken).reason == "server"


def test_a_header_is_imported_once_and_proofs_do_not_see_each_other(pool):
    results = pool.check([(str(n), source("by simp")) for n in range(6)])
    assert all("env" in result["response"] for result in results.values())
    assert pool.num_started == 1
    (pid,) = pool.pids()
    pool.check([("x", source("by simp", "import Other"))])  # the only process has another header
    assert pool.num_started == 2
    assert pid not in pool.pids()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("pool", [{"max_uses": 2}], indirect=True)
def test_a_process_is_recycled_after_its_uses(pool):
    pool.check([(str(n), source("by simp")) for n in range(5)])
    assert pool.num_started == 3
    assert len(pool.pids()) == 1


@pytest.mark.parametrize("pool", [{"max_resident_bytes": 60 * 2**20}], indirect=True)
def test_a_process_that_has_grown_is_recycled(pool):
    results = pool.check([("a", source("by grows")), ("b", source("by simp"))])
    assert all("response" in result for result in results.values())
    assert pool.num_started == 2


@pytest.mark.parametrize("pool", [{"memory_bytes": 2**31}], indirect=True)
def test_the_kernel_refuses_more_memory_than_the_limit(pool):
    results = pool.check([("a", source("by eats")), ("b", source("by simp"))])
    assert "exited" in results["a"]["error"]
    assert "response" in results["b"]


@pytest.mark.parametrize("pool", [{"timeout_s": 1.0}], indirect=True)
def test_a_hang_costs_its_own_proof_and_leaves_nothing(pool):
    pool.check([("warm", source("by simp"))])
    (pid,) = pool.pids()
    start = time.monotonic()
    results = pool.check([("a", source("by hangs"))])
    assert "timed out" in results["a"]["error"]
    assert time.monotonic() - start < 30
    assert not Path(f"/proc/{pid}").exists()
    assert "response" in pool.check([("b", source("by simp"))])["b"]


@pytest.mark.parametrize("pool", [{"num_repls": 2}], indirect=True)
def test_results_keep_their_names_with_several_processes(pool):
    proofs = {f"p{n}": "by simp" if n % 2 else "by wrong_tactic" for n in range(12)}
    results = pool.check([(name, source(proof)) for name, proof in proofs.items()])
    for name, proof in proofs.items():
        severities = [m["severity"] for m in results[name]["response"]["messages"]]
        assert ("error" in severities) == (proof != "by simp")
    assert pool.num_started <= 2


def test_the_environment_is_not_ours(monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    with contextlib.closing(LeanReplPool(**options())) as pool:
        pool.check([("a", source("by simp"))])
        (pid,) = pool.pids()
        names = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"SECRET" not in names
    assert b"PYTHONPATH" in names


def test_a_command_that_is_not_there_is_ungradable_and_bad_limits_are_refused():
    verifier = get_verifier("lean", repl={"command": ["/nowhere/repl"]})
    judged = verifier.verify_record({"statement": STATEMENT, "answer": "by simp"})
    verifier.close()
    assert (judged.outcome, judged.reason) == ("ungradable", "server")
    with pytest.raises(VerifierError, match="above 0"):
        LeanReplPool(["x"], max_uses=0)
    with pytest.raises(VerifierError, match="server's"):
        get_verifier("lean", repl={"command": ["x"]}, max_batch=3)


def test_imports_are_split_from_what_follows():
    assert split("import A\nimport B\n\nopen Nat\ntheorem t") == (
        "import A\nimport B",
        "open Nat\ntheorem t",
    )
    assert split("theorem t : True") == ("", "theorem t : True")
