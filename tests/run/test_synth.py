"""`loong synth formal` end to end with the real model, at the smallest size, and its prover."""

import collections
import dataclasses
import functools
import itertools
import json
import shutil

import numpy as np
import pytest

from loong_jax import cli
from loong_jax.errors import ConfigError
from loong_jax.run import synth, tiny_prover
from loong_jax.run.synth import StatementSettings
from loong_jax.run.tiny_prover import ProverSettings
from loong_jax.synth.formal import (
    backends,
    expert_iteration,
    formalise,
    formulas,
    proofs,
)
from loong_jax.synth.formal.expert_iteration import LoopSettings, Solution
from loong_jax.synth.formal.formulas import Implies, Theorems
from tests.synth.formal.test_proofs import variant
from tests.synth.scripted import played

RNG = np.random.default_rng(0)
SMALL = Theorems(max_size=5, max_hypotheses=6)
SMALLEST = dict(
    statements=StatementSettings(
        theorems=SMALL, num_problems=40, num_held_out=8, cold_start_nodes=3
    ),
    loop=LoopSettings(num_rounds=2, num_samples=2, num_held_out_samples=2),
    prover=ProverSettings(
        hidden_size=16, num_layers=1, num_steps=3, rows=2, max_new_tokens=16, num_slots=32
    ),
)


@pytest.mark.release
def test_smallest_run_and_its_files(tmp_path):
    statements = dataclasses.replace(SMALLEST["statements"], author=played.URL, model="scripted")
    settings = SMALLEST | {"statements": statements}
    options = synth.FormalOptions(run_dir=tmp_path / "run", **settings)
    with played.played():
        assert synth.run_formal(options) == 0
    record = read(tmp_path)
    [run] = record["runs"]
    assert sum(run["funnel"].values()) == 40
    assert run["num_cold_start"] + run["num_pool"] == run["funnel"]["kept"]
    for arm in ("iteration", "control"):
        assert [done["round"] for done in run[arm]] == [0, 1]
        assert all(done["held_out_graded"] == 8 for done in run[arm])
        assert [done["round"] for done in record["over_seeds"][arm]] == [0, 1]
    assert (tmp_path / "run" / "formal.png").read_bytes().startswith(b"\x89PNG")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("round*.json")}
    with played.played():
        assert (
            synth.run_formal(dataclasses.replace(options, audit="metamath-exe", num_seeds=2)) == 0
        )
    again = read(tmp_path)
    assert again["runs"][0]["iteration"] == run["iteration"], "it resumes"
    assert {p: p.stat().st_mtime_ns for p in before} == before, "and repeats nothing"
    assert [one["seed"] for one in again["runs"]] == [0, 1]
    assert kin(tmp_path / "run" / "seed-0") != kin(tmp_path / "run" / "seed-1")
    with pytest.raises(ConfigError, match="other"):
        synth.run_formal(dataclasses.replace(options, seed=1))


def read(directory):
    return json.loads((directory / "run" / "formal.json").read_text())


def kin(directory):
    return json.loads((directory / "iteration" / "loop.json").read_text())["held_out"]


def test_statements_of_all_kinds_are_of_different_kin(tmp_path):
    settings = dataclasses.replace(SMALLEST["statements"], num_problems=60)
    backend = backends.get_backend("metamath")
    made = synth.statements(settings, tmp_path, backend, 0)
    kin = [goal.kin for goal in [*(s.goal for s in made.cold_start), *made.pool, *made.held_out]]
    assert len(set(kin)) == len(kin) == 68
    sizes = [proofs.read(s.proof, proofs.read_sequent(s.goal.text)).size for s in made.cold_start]
    assert max(sizes) <= settings.cold_start_nodes < min(goal.level for goal in made.pool)
    assert all(v.is_correct for v in backends.ProofChecker(backend)(made.cold_start))
    assert synth.statements(settings, tmp_path, backend, 0) == made
    assert synth.statements(settings, tmp_path, backend, 1) != made
    few = dataclasses.replace(settings, theorems=Theorems(max_size=2, max_idle=0))
    with pytest.raises(ConfigError, match="too few"):
        synth.statements(few, tmp_path, backend, 0)


def test_kin_that_an_author_makes_by_other_words_is_left_out(tmp_path, monkeypatch):
    """`q -> (p -> r)` for `p -> (q -> r)` means the same, and may be what a held-out one says."""

    def swapped(formula):
        match formula:
            case Implies(p, Implies(q, r)):
                return Implies(q, Implies(p, r))
        return formula

    def reworded(problems, author, backend, *, seed):
        posed = [
            one.intended._replace(hypotheses=tuple(map(swapped, one.intended.hypotheses)))
            for one in problems
        ]
        assert all(map(formulas.says_the_same, posed, [one.intended for one in problems]))
        return [formalise.Formalised(one, said) for one, said in zip(problems, posed, strict=True)]

    monkeypatch.setattr(formalise, "formalise", reworded)
    settings = dataclasses.replace(
        SMALLEST["statements"],
        author="http://127.0.0.1:9/v1",
        model="m",
        num_problems=120,
        num_held_out=40,
    )
    made = synth.statements(settings, tmp_path, backends.get_backend("metamath"), 0)
    kin = [goal.kin for goal in [*(s.goal for s in made.cold_start), *made.pool, *made.held_out]]
    assert len(set(kin)) == len(kin)
    assert made.funnel["kin of another"] > 0
    assert sum(made.funnel.values()) == 120
    assert made.funnel["kept"] == len(made.cold_start) + len(made.pool)


def test_no_renaming_makes_a_held_out_statement_one_that_trains(tmp_path):
    """By trying all renamings, without the fingerprint that the loop goes by."""
    settings = dataclasses.replace(SMALLEST["statements"], num_problems=60)
    made = synth.statements(settings, tmp_path, backends.get_backend("metamath"), 0)
    trainable = [proofs.read_sequent(g.text) for g in [*(s.goal for s in made.cold_start),
                                                            *made.pool]]  # fmt: skip
    for goal in made.held_out:
        held_out = proofs.read_sequent(goal.text)
        twin = variant(held_out, RNG)
        assert are_alike(held_out, twin)
        assert not any(are_alike(held_out, other) for other in trainable)


def are_alike(left, right):
    """Whether some renaming of atoms and some order of hypotheses make the two equal."""
    if len(left.atoms) != len(right.atoms) or len(left.hypotheses) != len(right.hypotheses):
        return False
    there = sorted(right.hypotheses, key=repr)
    for names in itertools.permutations(right.atoms):
        rename = functools.partial(
            formulas.rename, name_of=dict(zip(left.atoms, names, strict=True))
        )
        has_goal = rename(left.goal) == right.goal
        if has_goal and sorted(map(rename, left.hypotheses), key=repr) == there:
            return True
    return False


@pytest.mark.skipif(shutil.which("metamath") is None, reason="no metamath here")
@pytest.mark.bubblewrap
def test_the_audit_finds_a_proof_that_does_not_hold():
    backend = backends.get_backend("metamath")
    made = synth.statements(SMALLEST["statements"], None, backend, 0)
    [first, second, *_] = made.cold_start
    good = attempt(first.goal.uid, first.proof)
    bad = attempt(second.goal.uid, first.proof)
    done = expert_iteration.Round(
        number=0, num_examples=1, held_out=(good,), pool=(bad,), num_solved=1
    )
    statements = made._replace(pool=[second.goal], held_out=[first.goal])
    audited = synth.audit("metamath-exe", statements, {"iteration": [done]})
    assert [text for text, *_ in audited["refused"]] == [second.goal.text]


def attempt(uid, proof):
    return expert_iteration.Attempt(
        uid=uid, num_samples=1, num_correct=1, num_ungradable=0, proof=proof, reasons={}
    )


def test_the_command_says_what_there_is(capsys):
    assert cli.main(["synth", "--help"]) == 0
    assert "formal" in capsys.readouterr().out
    assert cli.main(["synth", "nothing"]) == 1


def solved(*texts, proof):
    posed = formulas.of_parts(texts[:-1], texts[-1])
    return Solution(proofs.goal_of(posed), proof)


def test_what_it_is_shown_proves_what_it_is_asked():
    examples = [
        solved("p", "p -> q", "p -> q -> r", "r", proof="CABA"),
        solved("(p -> q) -> r", "s", "s -> p -> q", "t -> r", "r", proof="ACBE"),
    ]
    shown = list(itertools.islice(tiny_prover.pairs(examples, seed=0), 40))
    counts = collections.Counter(prompt.count(".") for prompt, _ in shown)
    assert counts == {3: 20, 4: 20}, "each equally often"
    assert len(set(shown)) == 40, "under names of its own each time"
    for prompt, response in shown:
        letters = "".join(c for c in response if c.isupper())
        assert len(letters) == 4
        assert set(letters) <= set(prompt)
    assert list(itertools.islice(tiny_prover.pairs(examples, seed=0), 40)) == shown
    assert list(itertools.islice(tiny_prover.pairs(examples, seed=1), 40)) != shown


def test_theorems_and_their_proofs_fit_the_model():
    rng = np.random.default_rng(0)
    settings, theorems = ProverSettings(), StatementSettings().theorems
    for _ in range(300):
        posed, size = theorems.draw(rng)
        node = proofs.search(posed, size)
        assert node is not None
        seen = proofs.draw(posed, rng)
        assert len(seen.prompt) < settings.prompt_length
        assert len(seen.answer(node.letters)) < settings.max_new_tokens


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"temperature": 0.0}, {"pair_rows": -1}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ProverSettings(**wrong)
