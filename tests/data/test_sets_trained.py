"""Ten rows of every published set, converted, judged and trained on together in one run."""

import itertools
import json
from collections import Counter

import pytest

from loong_jax import cli
from loong_jax.data import json_files, problem_files, sources
from loong_jax.environments import split_of
from loong_jax.errors import ConfigError
from loong_jax.recipes import FileProblems
from loong_jax.report import metrics_log
from loong_jax.run import curate, own_admission
from loong_jax.run.session import Judge
from loong_jax.verifiers.pool import LocalVerifierPool
from tests.data import source_rows
from tests.doubles import tiny_hf
from tests.verifiers.formal import fake_lean
from tests.verifiers.judge.endpoint import ScriptedEndpoint

HELD_OUT = 0.001  # so little that all rows are on the training side
SMALL = [
    "--problems.held-out-share", str(HELD_OUT), "--form", "plain", "--engine.num-replicas", "1",
    "--engine.slots-per-replica", "16", "--engine.prefill-members", "4", "--engine.narrow-slots",
    "--verifiers.num-workers", "1", "--evaluation.num-problems", "1",
    "--evaluation.samples-per-problem", "1", "--max-new-tokens", "8", "--rl.num-steps", "1",
    "--rl.group-size", "2", "--rl.objective.reduction.group-size", "2", "--rl.rows", "8",
    "--rl.scheduler.deterministic", "--rl.learns-from-all", "--rl.reward.malformed", "-0.5",
    "--rl.reward.judges-truncated", "--rl.scheduler.max-staleness", "0",
]  # fmt: skip


@pytest.fixture
def services(monkeypatch):
    """A scripted judge and a scripted prover, where the pool looks for them."""
    endpoint = ScriptedEndpoint()
    monkeypatch.setenv("LOONG_JUDGE_URL", endpoint.url)
    monkeypatch.setenv("LOONG_JUDGE_MODEL", "scripted")
    proofs = {f"(h : x = {n})": right for n, (_, right, _) in enumerate(source_rows.minif2f())}
    proofs |= {"2 + 2 = 4": "by rfl", "(h : p)": "(h)"}  # of the admission of the verifier
    with fake_lean.running([(part, " ".join(p.split())) for part, p in proofs.items()]) as server:
        monkeypatch.setenv("LOONG_LEAN_URL", f"http://127.0.0.1:{server.server_port}")
        yield
    endpoint.close()


def converted(directory, names=tuple(sources.FORMATS)):
    """One file of the rows of all sets, and the scripted answers by uid."""
    records, answers = [], {}
    for name in names:
        raw, new = directory / f"{name}.raw.jsonl", directory / f"{name}.jsonl"
        rows = list(source_rows.ROWS[name]())
        json_files.write_jsonl(raw, [row for row, _, _ in rows])
        assert cli.main(["curate", "convert", name, "--input", str(raw), "--output", str(new)]) == 0
        for record, (_, *said) in zip(json_files.read_jsonl(new), rows, strict=True):
            record["id"] = f"{name}/{record['id']}"  # sets number their problems alike
            records.append(record)
            answers[record["id"]] = said
    held_out = next(
        prompt
        for prompt in map("What is {} + 0?".format, itertools.count())
        if split_of(problem_files.canonical(prompt), HELD_OUT) == "test"
    )
    held_out = {"id": "held out", "prompt": held_out, "gold": held_out.split()[2]}
    json_files.write_jsonl(directory / "kept.jsonl", [*records, held_out])
    curate.write_problems(directory / "kept.jsonl", directory / "all.jsonl")
    return directory / "all.jsonl", answers


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.bubblewrap
def test_ten_rows_of_each_set_are_judged_and_trained_on_in_one_run(tmp_path, services, monkeypatch):
    file, answers = converted(tmp_path)
    problems = {one.uid: one for one in problem_files.read(file).problems if one.uid in answers}
    assert len(problems) == 10 * len(sources.FORMATS)
    pool = LocalVerifierPool(1)
    judge = Judge(pool)
    for place, outcome in enumerate(("correct", "wrong")):
        texts = [answers[uid][place] for uid in problems]
        verdicts = judge.of_texts([*problems.values()], texts)
        assert {uid: v.outcome for uid, v in zip(problems, verdicts, strict=True)} == dict.fromkeys(
            problems, outcome
        )
    pool.close(timeout_s=10.0)

    trained, of_batch = [], metrics_log.trained_metrics
    monkeypatch.setattr(
        metrics_log,
        "trained_metrics",
        lambda groups, **version: trained.extend(groups) or of_batch(groups, **version),
    )
    by_domain = Counter(one.domain for one in problems.values())  # which take turns
    num_groups = len(by_domain) * max(by_domain.values())
    tiny_hf.write_longcat(tmp_path / "hf", vocab_size=1024, num_layers=1)
    run = ["train", "rl", "--start-from", str(tmp_path / "hf"), "--problems", str(file),
           "--run-dir", str(tmp_path / "run"), *SMALL,
           "--rl.scheduler.groups-per-step", str(num_groups)]  # fmt: skip
    assert cli.main(run) == 0
    assert {group.ticket.problem.uid for group in trained} == {*problems}
    rollouts = [rollout for group in trained for rollout in group.rollouts]
    for one in rollouts:
        worth = -0.5 if one.verdict.reason == "format" else float(one.verdict.is_correct)
        assert one.verdict.is_graded
        assert one.reward == worth
    done = json.loads((tmp_path / "run/stages/rl/done.json").read_text())
    assert done["tickets"]["trained"] == num_groups


def test_without_a_prover_the_other_problems_are_trained_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LOONG_LEAN_URL", "http://127.0.0.1:9")  # where nothing listens
    file, answers = converted(tmp_path, ("gsm8k", "minif2f"))
    pool = LocalVerifierPool(1)
    judge = Judge(pool)
    own_admission.require(FileProblems(file=file), judge, tmp_path)
    assert "'lean' can judge nothing here (server: http://127.0.0.1:9/verify" in caplog.text
    assert "10 problems will train nothing" in caplog.text
    record = json.loads((tmp_path / "admission.json").read_text())
    assert record["verdicts_by_verifier"].keys() == {"math"}
    assert record["ungradable"].keys() == {"lean"}
    problems = problem_files.read(file).problems
    last = problems[-2]  # before the one that is held out
    (said,) = judge.of_texts([last], [answers[last.uid][0]])
    assert (last.verifier, said.outcome, said.reason) == ("lean", "ungradable", "server")
    alone = tmp_path / "lean.jsonl"
    json_files.write_jsonl(alone, json_files.read_jsonl(file)[10:20])
    with pytest.raises(ConfigError, match=r"no problem of .*lean.*Start the prover"):
        own_admission.require(FileProblems(file=alone), judge, tmp_path)
    pool.close(timeout_s=10.0)
