"""Each stage alone: execution, judging, solving, and how evol-instruct chooses."""

import json
import tempfile
from pathlib import Path

import pytest

from loong_jax.errors import ConfigError
from loong_jax.synth.calls import CallStore
from loong_jax.synth.loongenv import candidates, gates, judging, strategies
from loong_jax.synth.loongenv.candidates import (
    Candidate,
    OverBudget,
    Workshop,
    funnel,
    seed_of,
)
from loong_jax.synth.loongenv.gates import Executions
from loong_jax.verifiers.loongbench import LoongBenchVerifier
from loong_jax.verifiers.loongbench.domains import DOMAINS
from tests.synth.scripted import Said, loongenv_roles


def candidate(number=0, **changes):
    settings = {
        "id": f"logic/few_shot/{number:05d}", "domain": "logic", "strategy": "few_shot",
        "question": "What is 12 * 13?", "code": "print(12 * 13)", "answer": "156",
    }  # fmt: skip
    return Candidate(**(settings | changes))


def workshop(author, max_tries=2):
    return Workshop(
        author=author, seed=0, domain="logic", seeds=(), packages={}, max_tries=max_tries
    )


@pytest.mark.bubblewrap
def test_every_way_a_program_ends_has_its_state(tmp_path):
    programs = {
        "print(12 * 13)": "open", "print('so')\nprint(f'{12 * 13} cm')": "open",
        "print((12 * 13": "not_executable", "print(1 // 0)": "not_executable",
        "while True: pass": "not_executable", "import requests\nprint(2 * 3)": "undeclared_package",
        "x = 12 * 13": "no_answer", "print(float('nan') * 2)": "no_answer",
        "print('12' * 3000)": "no_answer", "print(156)": "hard_coded",
        "import random\nprint(random.random())": "not_deterministic",
        "print(open('/etc/passwd').read())": "not_executable",
        "x = 1\n" * 20_000: "not_executable", "print(sum([250, 6]))": "answer_in_question",
    }  # fmt: skip
    asked = [
        candidate(n, code=code, answer="", question="Is 12 * 13 more than 256, or what is it?")
        for n, code in enumerate(programs)
    ]
    with tempfile.TemporaryDirectory() as packages:
        Path(packages).chmod(0o755)
        settings = {"packages": Path(packages), "cpu_s": 0.5}
        with CallStore(tmp_path / "executions.jsonl") as store:
            executions = Executions(store, **settings)
            found = gates.executed(asked, {}, executions)
            num_run = len(store)
            executions.close()
            again = Executions(store, **settings)
            assert gates.executed(asked, {}, again) == found
            again.close()
            assert len(store) == num_run, "what was run once is read back"
    assert {one.code: one.state for one in found} == programs
    assert [one.answer for one in found[:2]] == ["156", "156 cm"]
    told = [one.detail for one in found if one.state == "not_deterministic"]
    assert told == ["2 answers in 2 runs"], "the same in another run, whatever was drawn"
    assert gates.answer_of("a\nb\n", "programming") == "a\nb"


def judge_that(decides):
    def play(ask):
        clear, correct = decides(ask.fields)
        said = {"reasoning": "because", "is_clear": clear, "is_correct": correct}
        return Said(json.dumps(said))

    return {"loongenv/judge": play}


def test_the_judge_ends_what_it_rejects(scripted, author):
    def decides(fields):
        a, b = (int(part) for part in fields["question"][8:-1].split(" * "))
        return "a" not in fields["answer"], fields["answer"] == str(a * b)

    made = author(scripted(table=judge_that(decides)))
    asked = [candidate(0), candidate(1, answer="157"), candidate(2, answer="a lot")]
    found = judging.judged(asked, workshop(made), "r")
    assert [one.state for one in found] == ["open", "judged_wrong", "judged_unclear"]
    assert all(len(one.calls) == 1 for one in found)
    assert judging.judged([], workshop(made), "r") == []


@pytest.mark.parametrize("always", [True, False])
def test_a_judge_that_fails_canaries_is_not_believed(scripted, author, always):
    server = scripted(table=judge_that(lambda fields: (True, always)))
    found = judging.judged([candidate(0)], workshop(author(server)), "r")
    assert found[0].state == "judge_untrusted"
    assert len(server.ledger.entries) == judging.NUM_SITTINGS * (1 + 2 * judging.NUM_CANARY_PAIRS)


def test_solutions_are_kept_where_they_agree(scripted, author):
    answers = iter(["156", "155", "\\frac{312}{2}", "twelve dozens and twelve"])

    def solve(ask):
        return Said(json.dumps({"reasoning": "thought", "answer": next(answers)}))

    def match(ask):
        is_same = ask.fields["answer"] == "twelve dozens and twelve"
        is_same = is_same or loongenv_roles.same(ask.fields["reference"], ask.fields["answer"])
        said = {"reasoning": "compared", "verdict": "correct" if is_same else "wrong"}
        return Said(json.dumps(said))

    server = scripted(table={"loongenv/solve": solve, "judge/reasoning": match})
    made, rules = author(server, max_parallel=1), LoongBenchVerifier()
    [found] = judging.solved(
        [candidate()], workshop(made), rules, num_attempts=4, min_correct=3, round_name="r"
    )
    assert found.state == "passed"
    assert [(a.verdict, a.by) for a in found.attempts] == [
        ("correct", "rules"), ("wrong", "rules"), ("correct", "rules"), ("correct", "judge"),
    ]  # fmt: skip
    assert found.accuracy == 0.75
    answers = iter(["155"] * 4)
    [lost] = judging.solved(
        [candidate(1)], workshop(made), rules, num_attempts=2, min_correct=1, round_name="s"
    )
    assert lost.state == "unsolved"
    both = (candidate(answer="156"), candidate(1, answer=""))
    ungradable = [judging.gradable(one, rules) for one in both]
    assert [one.state for one in ungradable] == ["open", "ungradable_answer"]
    rules.close()


def test_useless_replies_are_asked_for_again_with_another_seed(scripted, author):
    server = scripted(rates={"refusal": 1.0})
    made = author(server)
    [found] = strategies.coded([candidate(code="")], workshop(made, max_tries=3))
    assert (found.state, found.detail) == ("author_failed", "code refused")
    assert len(found.calls) == len(set(found.calls)) == 3
    poor = author(scripted(), store="poor.jsonl", budget={"max_requests": 0})
    with pytest.raises(OverBudget):
        strategies.coded([candidate(code="")], workshop(poor))


def test_evolution_goes_on_with_the_best_mark():
    score = strategies.score
    best = {"diversity": 5, "difficulty": 10, "solvability": 10}
    assert score(best) == pytest.approx(1.0)
    assert score({"diversity": 1, "difficulty": 1, "solvability": 10}) == pytest.approx(1 / 3)
    diverse, hard = best | {"difficulty": 1}, best | {"diversity": 1}
    assert score(diverse) == pytest.approx(score(hard)), "no mark outweighs by its scale"
    assert score(best | {"solvability": 3}) == -1
    assert score(None) == -1


def test_a_candidate_ends_once():
    ended = candidate().ended("passed")
    assert funnel([ended, candidate(1).ended("unsolved")])["unsolved"] == 1
    with pytest.raises(AssertionError):
        ended.ended("unsolved")
    with pytest.raises(AssertionError):
        funnel([candidate()])


def test_seeds_of_requests_differ():
    assert seed_of(0, "a", "code", 0) == seed_of(0, "a", "code", 0) < 2**31
    drawn = {seed_of(s, n, r, t) for s in (0, 1) for n in "ab" for r in "cd" for t in (0, 1)}
    assert len(drawn) == 16


def row(domain, number, **changes):
    """A row in the published shape; domains are spelled as their files spell them."""
    metadata = {
        "license": "MIT", "source": "made", "domain": domain, "name": "made",
        "required_dependencies": ["sympy==1.13.3"], "contributor": "nobody",
    }  # fmt: skip
    return {
        "question": f"{domain}: what is {number} + 1?", "final_answer": str(number + 1),
        "rationale": f"print({number} + 1)", "metadata": metadata,
    } | changes  # fmt: skip


def test_the_twelve_published_domains_are_read(tmp_path):
    spelled = [
        "Advanced Math", "Advanced Physics", "chemistry", "computational biology", "Quant",
        "Loong_Game", "Loong_Graph_Discrete_Math", "Loong_Logic", "Mathematical Programming",
        "Medicine", "Security and Safety", "programming",
    ]  # fmt: skip
    for domain in spelled:
        directory = tmp_path / domain.replace(" ", "_")
        directory.mkdir()
        rows = [row(domain, n) for n in range(12)]
        (directory / "seed_dataset.json").write_text(json.dumps(rows))
    found = candidates.load_seeds([tmp_path])
    assert set(found.by_domain) == set(DOMAINS)
    for name, kept in found.by_domain.items():
        assert len(kept) == 12
        assert len(found.shown(name)) + len(found.held_out(name)) == 12
        assert kept[3].packages == ("sympy",)
        assert kept[3].licence == "MIT"
    assert sum(len(found.held_out(name)) for name in DOMAINS) > 0
    assert candidates.digest_of(found) == candidates.digest_of(candidates.load_seeds([tmp_path]))


def test_rows_that_are_no_seeds_are_counted(tmp_path):
    rows = [
        row("logic", 1), row("logic", 1), row("logic", 2, rationale=" "),
        row("logic", 3, question=""), row("alchemy", 4), row("logic", 5, final_answer=""), [],
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = candidates.load_seeds([path])
    assert [len(kept) for kept in found.by_domain.values()] == [1]
    assert found.skipped == {
        "asked before": 1, "no program": 1, "no question": 1, "domain": 1, "gold": 1, "no object": 1
    }  # fmt: skip


def test_a_line_ends_where_json_lines_do(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row("logic", 1, question="One\u2028two\u0085three?"), ensure_ascii=False)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert len(candidates.load_seeds([path]).by_domain["logic"]) == 1


def test_bad_paths_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        candidates.load_seeds([tmp_path / "none"])
    with pytest.raises(ConfigError, match="holds no seeds"):
        candidates.load_seeds([tmp_path])
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        candidates.load_seeds([tmp_path])
