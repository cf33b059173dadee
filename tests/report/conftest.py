"""A made-up run directory to draw pages from. Its figures are invented and mean nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from loong_jax import merge
from loong_jax.data import json_files
from loong_jax.eval import compare
from loong_jax.eval.evaluation import DomainEvaluation, EvaluationResult
from loong_jax.problems.response import render_response

DOMAINS = ("stem", "logic", "code")
# Invented pass@1 of each stage in (stem, logic, code).
SKILL = {
    "sft": (0.31, 0.36, 0.28),
    "rl_stem": (0.55, 0.37, 0.29),
    "rl_logic": (0.30, 0.61, 0.27),
    "rl_code": (0.31, 0.34, 0.52),
    "fused": (0.54, 0.60, 0.50),
    "general": (0.56, 0.62, 0.52),
}


def write_synthetic_run(run_dir, *, skill=None, num_problems=300, num_steps=40, seed=0):
    """Writes every file a pipeline would; deterministic."""
    run_dir, rng = Path(run_dir), np.random.default_rng(seed)
    skill = skill or SKILL
    json_files.write_json(
        run_dir / "config.json",
        {"kind": "Quickstart", "recipe": "synthetic (invented figures)", "seed": seed,
         "config": {"stages": dict.fromkeys(SKILL),
                    "experts": [[f"rl_{domain}", domain] for domain in DOMAINS]},
         "rl": {"kind": "RlConfig", "num_steps": num_steps, "max_staleness": 2,
                "reward": {"kind": "RewardRule", "correct": 1.0}}},
    )  # fmt: skip
    ability = {d: rng.beta(1.2, 1.2, num_problems) for d in DOMAINS}
    level = {d: rng.integers(1, 6, num_problems) for d in DOMAINS}
    for number, (stage, rates) in enumerate(skill.items()):
        directory = run_dir / "stages" / stage
        _evaluation(stage, rates, ability, level, rng).save(directory)
        if stage == "sft":
            _sft(directory, rng)
        elif stage == "fused":
            _fusion(directory)
        else:
            domains = DOMAINS if stage == "general" else (stage.removeprefix("rl_"),)
            _rl(directory, stage, domains, rates, num_steps, rng)
        json_files.write_json(
            directory / "done.json",
            {
                "stage": stage,
                "wall_s": 60.0 + 20 * number,
                "peak_gb": 2.5,
                "tickets": json_files.read_json(directory / "tickets.json"),
            },
        )
    compare.write_gains(run_dir)
    return run_dir


def _evaluation(stage, rates, ability, level, rng):
    domains = {}
    for domain, rate in zip(DOMAINS, rates, strict=True):
        chance = np.clip(ability[domain] + rate - ability[domain].mean(), 0.02, 0.98)
        chance = np.clip(chance - 0.06 * (level[domain] - 3), 0.01, 0.99)
        uids = [f"{domain}-0/{lv}/{i}" for i, lv in enumerate(level[domain])]
        correct = rng.binomial(4, chance)
        formed = np.maximum(correct, rng.binomial(4, 0.97, len(uids)))
        few = min(64, len(uids))
        domains[domain] = DomainEvaluation(
            correct={u: (int(c), 4) for u, c in zip(uids, correct, strict=True)},
            well_formed={u: int(f) for u, f in zip(uids, formed, strict=True)},
            level={u: int(lv) for u, lv in zip(uids, level[domain], strict=True)},
            greedy={
                u: int(g) for u, g in zip(uids, rng.random(len(uids)) < chance**0.7, strict=True)
            },
            pass_at=16,
            pass_at_correct={
                u: (int(c), 16)
                for u, c in zip(uids[:few], rng.binomial(16, chance[:few]), strict=True)
            },
            mean_length=30.0 + 10 * rate,
            isolation={"namespaces" if domain == "code" else "none": 4 * len(uids)},
        )
    return EvaluationResult(stage=stage, domains=domains)


def _sft(directory, rng):
    lines = [
        {"stage": "sft", "step": s, "time_s": 0.4 * s, "loss": 0.25 + 3 * np.exp(-s / 40)
         + 0.02 * rng.normal(), "learning_rate": 3e-3, "tokens_per_s": 10_500.0}
        for s in range(1, 301)
    ]  # fmt: skip
    json_files.write_jsonl(directory / "metrics.jsonl", lines)


def _fusion(directory):
    """As a run writes it: small weights are fused and searched over, their scores are invented."""
    draw = np.random.default_rng(0)
    base = {"a": np.zeros((6, 8), np.float32), "b": np.zeros(5, np.float32)}
    experts = {
        f"rl_{domain}": {n: draw.normal(size=x.shape).astype(np.float32) for n, x in base.items()}
        for domain in DOMAINS
    }
    scores = iter(0.05 * place - 0.1 for place in (0, 1, 4, 2, 3, 1, 2, 0))
    result = merge.grid_search(
        base,
        experts,
        lambda weights: dict.fromkeys(DOMAINS, next(scores)),
        scales=(0.6, 0.8, 1.0, 1.2),
        keep_rates=(0.8, 1.0),
    )
    _, report = merge.fuse_with_report(base, experts, method=result.method)
    found = result.to_json()
    json_files.write_json(
        directory / "fusion.json", report | {name: found[name] for name in ("grid", "chosen")}
    )


def _rl(directory, stage, domains, rates, num_steps, rng):
    events, lines, rollouts = [], [], []
    now, starts = 0.0, [0.0, 0.3]
    trained = 0
    rates = dict(zip(DOMAINS, rates, strict=True))
    for step in range(1, num_steps + 1):
        train_start = now + 0.8 + 0.2 * rng.random()
        train_end = train_start + 1.1
        for replica in (0, 1):
            version = max(0, step - 1 - replica - int(rng.random() < 0.3))
            while starts[replica] < train_end - 0.1:
                took = 0.22 + 0.05 * rng.random()
                events.append(
                    {"kind": "decode", "replica": replica, "version": version,
                     "start_s": starts[replica], "end_s": starts[replica] + took,
                     "num_tokens": 512}
                )  # fmt: skip
                starts[replica] += took + (0.25 if rng.random() < 0.1 else 0.01)
        for _ in range(4):
            begun = now + rng.random()
            events.append({"kind": "verify", "start_s": begun, "end_s": begun + 0.08,
                           "num_answers": 64})  # fmt: skip
        events.append({"kind": "score", "start_s": train_start - 0.3, "end_s": train_start})
        events.append({"kind": "train", "step": step, "start_s": train_start, "end_s": train_end})
        events.append({"kind": "publish", "version": step, "start_s": train_end,
                       "end_s": train_end + 0.05})  # fmt: skip
        now = train_end + 0.05
        progress = 1 - np.exp(-3 * step / num_steps)
        correct = {d: float(np.clip(0.3 + (rates[d] - 0.3) * progress + 0.03 * rng.normal(), 0, 1))
                   for d in domains}  # fmt: skip
        trained += 16
        lags = {"0": 90, "1": 76, "2": 26} if step > 2 else {"0": 192}
        lines.append(
            {"stage": stage, "step": step, "time_s": now, "loss": 0.01 * rng.normal(),
             "grad_norm": 0.5, "learning_rate": 5e-4, "entropy": 0.5 - 0.25 * progress,
             "rewards/mean": 0.5 + 0.02 * rng.normal(),
             "rewards/all_groups_mean": float(np.mean(list(correct.values()))),
             "correct/by_domain": correct, "rewards/by_domain": correct,
             "completions/mean_length": 32 + 6 * progress + 0.5 * rng.normal(),
             "completions/max_length": 64, "completions/well_formed": 0.96 + 0.03 * progress,
             "staleness/mean": 0.67, "staleness/histogram": lags,
             "ratio/mean_by_lag": {k: 1 + 0.004 * int(k) * rng.normal() for k in lags},
             "clip/fraction_by_lag": {k: abs(0.002 * int(k) + 0.0005 * rng.normal()) for k in lags},
             "engine_ratio/mean": 1.0, "engine_ratio/max": 1.0001,
             "load/ffn_experts_per_token": 1.97, "load/max_over_mean": 1.2,
             "judged/isolation": {"namespaces" if "code" in domains else "none": 128},
             "tickets": {"issued": trained * 2 + 24, "trained": trained, "filtered": trained - 6,
                         "stale": 4, "ungradable": 1, "failed": 1, "cancelled_at_end": 0}}
        )  # fmt: skip
        if step % 4 == 0:
            for outcome, answer in (("correct", "8"), ("wrong", "9")):
                domain = domains[step % len(domains)]
                rollouts.append(
                    {"stage": stage, "step": step, "uid": f"{domain}-0/2/{step}", "domain": domain,
                     "level": 2, "prompt": "Synthetic problem: what is 3 + 5 <b>?</b>",
                     "text": render_response("3 + 4 = 7\n7 + 1 = 8", answer),
                     "thinking": "3 + 4 = 7\n7 + 1 = 8\nso it is 8", "answer": answer,
                     "outcome": outcome, "reason": "" if outcome == "correct" else "value",
                     "evidence": f"expected 8, found {answer}", "isolation": "none",
                     "version": step - 2, "staleness": 1, "reward": float(outcome == "correct"),
                     "num_tokens": 41, "finish_reason": "stop"}
                )  # fmt: skip
    final = {"issued": trained * 2 + 24, "trained": trained, "filtered": trained - 6, "stale": 4,
             "ungradable": 1, "failed": 1, "cancelled_at_end": 24}  # fmt: skip
    assert final["issued"] == sum(final.values()) - final["issued"]
    json_files.write_jsonl(directory / "metrics.jsonl", lines)
    json_files.write_jsonl(directory / "events.jsonl", events)
    json_files.write_jsonl(directory / "rollouts" / "train.jsonl", rollouts)
    (directory / "tickets.json").write_text(json.dumps(final))


@pytest.fixture(scope="session")
def synthetic_run(tmp_path_factory):
    return write_synthetic_run(tmp_path_factory.mktemp("run"), num_problems=120, num_steps=12)


@pytest.fixture
def run_dir(synthetic_run, tmp_path):
    """The same, for a test to change."""
    return shutil.copytree(synthetic_run, tmp_path / "run")


@pytest.fixture(scope="session")
def make_run():
    return write_synthetic_run
