"""One protocol, four checkers: each accepts what holds and refuses what does not."""

import shutil

import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.problems import verdict
from loong_jax.synth.formal import (
    backends,
    expert_iteration,
    formulas,
    hilbert,
    proofs,
)
from loong_jax.synth.formal.backends import Claim
from loong_jax.synth.formal.formulas import Theorems
from tests.verifiers.formal import fake_lean


def needs(program):
    return [
        pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here"),
        pytest.mark.bubblewrap,
    ]


OURS = ["metamath", pytest.param("metamath-exe", marks=needs("metamath")),
        pytest.param("coq", marks=needs("coqc"))]  # fmt: skip
NEGATION = formulas.of_parts(["~p -> ~q", "q"], "p")


def drawn(count, max_size=6):
    """Statements of many atoms, each with its smallest proof."""
    rng = np.random.default_rng(3)
    theorems = Theorems(max_size=max_size)
    found = [theorems.draw(rng)[0] for _ in range(count)]
    return [(posed, proofs.search(posed, max_size)) for posed in found]


def claims_of(backend, pairs):
    return [Claim(backend.statement_text(s), backend.proof_text(s, node)) for s, node in pairs]


@pytest.mark.parametrize("name", OURS)
def test_proofs_that_hold_and_one_that_does_not(name):
    backend = backends.get_backend(name)
    claims = claims_of(backend, drawn(3))
    claims[1] = Claim(claims[1].statement, claims[0].proof)
    outcomes = [judged.outcome for judged in backend.check_proofs(claims)]
    assert outcomes == ["correct", "wrong", "correct"]


@pytest.mark.parametrize("name", OURS)
def test_statements_are_told_from_what_is_none(name):
    backend = backends.get_backend(name)
    good = backend.statement_text(NEGATION)
    bad = [good + " ->", good[:-1], "", "p", "|- ( ph -> zz )", "forall p : Prop, p p"]
    outcomes = [judged.outcome for judged in backend.check_statements([good, *bad])]
    assert outcomes == ["correct"] + ["wrong"] * len(bad)


def test_a_large_proof_is_written_in_hilberts_axioms():
    hypotheses = ["p", "p->q", "q->r", "r->s", "s->p->t", "t->s->u", "(p->u)->w", "w->u->v"]
    posed = formulas.of_parts(hypotheses, "v")
    node = proofs.read("HGFEDCBIADCBAFEDCBAADCBA", posed)
    backend = backends.get_backend("metamath")
    [claim] = claims_of(backend, [(posed, node)])
    [judged] = backend.check_proofs([claim])
    assert judged.is_correct
    assert "ax-3" not in judged.evidence
    letters = claim.proof.split(" ) ", 1)
    for at in range(0, len(letters[1]), 997):  # every letter carries weight
        swapped = "B" if letters[1][at] != "B" else "A"
        broken = f"{letters[0]} ) {letters[1][:at]}{swapped}{letters[1][at + 1 :]}"
        [judged] = backend.check_proofs([Claim(claim.statement, broken)])
        assert judged.outcome == "wrong"


def test_wffs_are_proved_for_negations_too():
    names = {"p": "ch", "q": "ta"}
    theorem = hilbert.theorem(formulas.of_parts([], "~(~p -> q) -> ~~q"), names)
    assert theorem == "|- ( -. ( -. ch -> ta ) -> -. -. ta )"
    [judged] = backends.get_backend("metamath").check_statements([theorem])
    assert judged.is_correct, judged


def test_lean_is_sent_terms_of_its_own_language():
    with fake_lean.running() as server:
        url = f"http://127.0.0.1:{server.server_port}"
        backend = backends.get_backend("lean", url=url, pause_s=0.01)
        posed = formulas.of_parts(["(p -> q) -> r", "s", "s -> p -> q"], "r")
        node = proofs.read("ACBD", posed)
        [claim] = claims_of(backend, [(posed, node)])
        assert claim.statement == (
            "theorem goal (p q r s : Prop) : ((p -> q) -> r) -> s -> (s -> p -> q) -> r"
        )
        assert claim.proof == "fun A B C => A (fun (D : p) => C B D)"
        [judged] = backend.check_proofs([claim])
        assert judged.is_correct, judged
        assert [v.is_correct for v in backend.check_statements([claim.statement, "p -> q"])] == [
            True,
            False,
        ]
        backend.close()


def test_the_loop_runs_over_lean_by_address(tmp_path):
    """Statements and proofs in Lean's own language, judged by whatever answers at the address."""

    class Prover:
        def train(self, examples, directory, *, seed):
            self.knows = any(example.proof == "by simp" for example in examples)

        def attempt(self, goals, num_samples, *, seed):
            return [["by wrong_tactic", "by linter" if self.knows else "by hangs"] for _ in goals]

    def goal(name):
        text = f"theorem {name} (n : Nat) : n + 0 = n"
        return expert_iteration.Goal(uid=name, text=text, kin=name)

    with fake_lean.running() as server:
        url = f"http://127.0.0.1:{server.server_port}"
        backend = backends.get_backend("lean", header="import Mathlib", url=url, pause_s=0.01)
        [done] = expert_iteration.run(
            tmp_path,
            expert_iteration.LoopSettings(num_rounds=1, num_samples=2, num_held_out_samples=2),
            Prover(),
            backends.TextChecker(backend),
            cold_start=[expert_iteration.Solution(goal("a"), "by simp")],
            pool=[goal("b")],
            held_out=[goal("c")],
        )
    assert [attempt.proof for attempt in (*done.held_out, *done.pool)] == ["by linter"] * 2
    assert done.pool[0].reasons == {"proof": 1}


def test_bundles_are_halved_down_to_what_fails():
    asked = []

    def all_hold(claims):
        asked.append(len(claims))
        bad = any(claim.proof == "bad" for claim in claims)
        return verdict.wrong("proof") if bad else verdict.correct()

    claims = [Claim("s", "bad" if i in (3, 30) else "good") for i in range(60)]
    judged = backends.in_bundles(claims, all_hold)
    assert [i for i, v in enumerate(judged) if not v.is_correct] == [3, 30]
    assert len(asked) < 30


def test_an_unknown_backend_is_refused():
    with pytest.raises(ConfigError, match="metamath"):
        backends.get_backend("agda")
