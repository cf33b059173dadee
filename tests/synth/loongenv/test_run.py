"""The whole of LoongEnv against the scripted author: once through, killed, short of budget."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from loong_jax import cli
from loong_jax.data import json_files, problem_files
from loong_jax.synth.loongenv import candidates, command
from loong_jax.synth.loongenv.candidates import OUTCOME
from loong_jax.verifiers.loongbench import LoongBenchVerifier
from loong_jax.verifiers.loongbench.domains import DOMAINS
from tests.synth.scripted import loongenv_caught, played, world
from tests.synth.scripted.loongenv_roles import same

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("played_author")]
FILES = ("candidates", "items", "problems", "solutions", "held_out")


def made_seeds(path, *domains, count=12):
    """Rows in the published shape, from the scripted author's own world."""
    rng, rows = random.Random(3), []
    for domain in domains:
        for _ in range(count):
            puzzle = world.draw(domain, rng)
            metadata = {"license": "MIT", "domain": domain, "required_dependencies": []}
            rows.append(
                {
                    "question": puzzle.question, "final_answer": puzzle.truth,
                    "rationale": puzzle.program(), "metadata": metadata,
                }
            )  # fmt: skip
    return json_files.write_jsonl(path, rows)


def arguments(root, out, **changes):
    settings = {
        "seeds": root / "seeds.jsonl", "out": root / out, "endpoint": played.URL,
        "model": "scripted", "items": 2,
        "max-candidates": 4, "round-size": 4, "num-attempts": 2, "generations": 1, "rewrites": 1,
        "cpu-s": 1, "packages": root / "packages", "max-parallel": 1,
    } | changes  # fmt: skip
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def contents(directory):
    return {name: (directory / f"{name}.jsonl").read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def root():
    """A directory that the sandbox's user reads, with seeds and without packages."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        (Path(name) / "packages").mkdir()
        made_seeds(Path(name) / "seeds.jsonl", "logic")
        yield Path(name)


@pytest.fixture(scope="module")
def whole(root, played_author):
    """A run that nobody disturbed."""
    assert cli.main(["synth", "loongenv", *arguments(root, "whole")]) == 0
    return root / "whole"


def test_the_funnel_adds_up_and_items_are_right(whole):
    summary = json_files.read_json(whole / "summary.json")
    candidates = json_files.read_jsonl(whole / "candidates.jsonl")
    states = Counter(one["state"] for one in candidates)
    assert summary["funnel"] == {state: states[state] for state in OUTCOME}
    assert sum(summary["outcomes"].values()) == summary["num_candidates"] == len(candidates) == 12
    assert [one["id"] for one in candidates] == sorted({one["id"] for one in candidates})
    assert {one["strategy"] for one in candidates} == {"few_shot", "self_instruct", "evol_instruct"}
    items = json_files.read_jsonl(whole / "items.jsonl")
    assert len(items) == states["passed"] >= 3
    for item in items:
        puzzle = world.read(item["question"])
        assert puzzle is not None
        assert same(puzzle.truth, item["answer"])
        assert item["calls"] == [said["key"] for said in item["transcripts"]]
        assert all(said["model"] == "scripted" for said in item["transcripts"])
    audited = loongenv_caught.audit(whole)
    assert audited["wrong_gold"] == audited["not_well_posed"] == 0


def test_what_comes_out_trains_and_is_labelled(whole):
    found = problem_files.read(whole / "problems.jsonl")
    verifier = LoongBenchVerifier()
    for problem in found.problems:
        assert problem.origin.endswith("author scripted")
        assert problem.licence == "MIT"
        assert verifier.verify(problem, problem.gold).is_correct
        assert not verifier.verify(problem, "-1").is_correct
    verifier.close()
    solutions = json_files.read_jsonl(whole / "solutions.jsonl")
    assert {line["id"] for line in solutions} == {problem.uid for problem in found.problems}
    assert "Author: scripted" in (whole / "report.html").read_text()
    assert (whole / "funnel.png").stat().st_size > 1000


def test_no_author_sees_what_is_held_out(whole, root):
    held = candidates.load_seeds([root / "seeds.jsonl"]).held_out("logic")
    problems = problem_files.read(whole / "held_out.jsonl").problems
    assert {p.prompt for p in problems} == {seed.question for seed in held} != set()
    said = (whole / "calls.jsonl").read_text()
    for seed in held:
        assert json.dumps(seed.question)[1:-1] not in said


@pytest.mark.parametrize(
    "places", [("Stored:30",), pytest.param(("Stored:20", "Stored:45"), marks=pytest.mark.release)]
)
def test_a_killed_run_goes_on_to_the_same_files(whole, root, places):
    words = [sys.executable, "-m", "tests.synth.scripted.played", "synth", "loongenv"]
    words += arguments(root, f"killed-{len(places)}")
    for place in places:
        ran = subprocess.run(
            words, env=os.environ | {"LOONG_DIE_AT": place}, timeout=240, check=False,
            capture_output=True,
        )  # fmt: skip
        assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()[-500:]
    assert cli.main(["synth", "loongenv", *arguments(root, f"killed-{len(places)}")]) == 0
    assert contents(root / f"killed-{len(places)}") == contents(whole)
    replied = [
        entry["digest"]
        for entry in json_files.read_jsonl(root / f"killed-{len(places)}" / played.LEDGER)
        if entry["how"] == "answer"
    ]
    assert len(replied) == len(set(replied)), "a reply that arrived is never paid for again"


def test_a_spent_budget_is_a_state_and_no_end(whole, root, capsys):
    words = arguments(root, "poor", **{"max-calls": 30})
    assert cli.main(["synth", "loongenv", *words]) == command.BUDGET_SPENT
    counts = json_files.read_json(root / "poor" / "summary.json")["funnel"]
    assert counts["over_budget"] > 0
    assert "budget is spent" in capsys.readouterr().out
    assert cli.main(["synth", "loongenv", *arguments(root, "poor", **{"max-calls": 9999})]) == 0
    assert contents(root / "poor") == contents(whole)


def test_another_run_in_the_same_directory_is_refused(whole, root, capsys):
    assert cli.main(["synth", "loongenv", *arguments(root, "whole", seed=1)]) == 1
    assert "seed: 0 before, 1 now" in capsys.readouterr().err


def test_bad_settings_are_refused(root, capsys, monkeypatch):
    monkeypatch.delenv("LOONG_AUTHOR_URL", raising=False)
    for changes, words in [
        ({"endpoint": ""}, "`loong serve RUN_DIR`"),
        ({"domains": "finance"}, "have no seeds"),
        ({"items": 0}, "items=0 must be at least 1"),
        ({"seeds": root / "none"}, "does not exist"),
    ]:
        assert cli.main(["synth", "loongenv", *arguments(root, "bad", **changes)]) == 1
        assert words in capsys.readouterr().err
    assert cli.main(["synth"]) == 0
    assert "loongenv" in capsys.readouterr().out


@pytest.mark.release
def test_all_twelve_domains_and_every_planted_defect(root):
    """Golds are right whatever was planted, in every domain and by every strategy."""
    made_seeds(root / "twelve.jsonl", *DOMAINS)
    words = arguments(
        root, "twelve", seeds=root / "twelve.jsonl", items=3, **{"max-parallel": 8}
    )  # fmt: skip
    assert cli.main(["synth", "loongenv", *words]) == 0
    summary = json_files.read_json(root / "twelve" / "summary.json")
    assert {row["domain"] for row in summary["rows"] if row["kept"]} == set(DOMAINS)
    assert summary["num_kept"] >= 12 * 3
    audited = loongenv_caught.audit(root / "twelve")
    assert audited["wrong_gold"] == 0
    # a matcher that calls unequal answers equal lets a wrong solution pass, and is seldom
    assert audited["wrong_solution"] <= 3
    planted = loongenv_caught.planted(root / "twelve")
    assert len(planted) >= 15
    assert {name: kept for name, kept in planted.items() if any(kept)} == {}
