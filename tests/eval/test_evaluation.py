"""Evaluation with a policy whose chances are known, and paired comparison of two of them."""

import dataclasses
import json

import numpy as np
import pytest

from loong_jax.data import json_files
from loong_jax.errors import ConfigError, LoongError
from loong_jax.eval import compare
from loong_jax.eval.evaluation import EvaluationResult, EvaluationSettings, counted, evaluate
from loong_jax.problems import verdict as verdicts
from loong_jax.problems.problem import Problem
from loong_jax.problems.response import render_response
from loong_jax.rollout.records import SamplingSettings, Ticket
from tests.doubles import fake_world

SETTINGS = EvaluationSettings(
    num_problems=60, samples_per_problem=4, pass_at=16, num_pass_at_problems=20, seed=5
)


def problems(domain: str, count: int = 60) -> list[Problem]:
    return [
        dataclasses.replace(
            fake_world.problem_at(i), uid=f"{domain}-0/{i % 3}/{i}", domain=domain, level=i % 3,
            gold=str(i),
        )
        for i in range(count)
    ]  # fmt: skip


class Policy:
    """Right with probability `skill`, malformed with `broken`; greedy is right on even problems."""

    def __init__(self, skill: float, broken: float = 0.0, seed: int = 0, hang: float = 0.0):
        self.skill, self.broken, self.hang = skill, broken, hang
        self.rng = np.random.default_rng(seed)
        self.calls: list[tuple[int, int, bool]] = []

    def sample(self, problems, num_samples, sampling):
        self.calls.append((len(problems), num_samples, sampling.greedy))
        return [[self._one(p, sampling) for _ in range(num_samples)] for p in problems]

    def _one(self, problem, sampling):
        right = self.rng.random() < self.skill
        if sampling.greedy:
            right = problem.seed % 2 == 0
        text = render_response("so", problem.gold if right else "no")
        if not sampling.greedy and self.rng.random() < self.broken:
            text = text.replace("</longcat_think>", "")
        if not sampling.greedy and self.rng.random() < self.hang:
            text = render_response("hang", "hang")
        rollout = fake_world.fake_rollout(Ticket(number=0, problem=problem), 0, 7)
        return dataclasses.replace(
            rollout, tokens=np.zeros(len(text), np.int32), sampling=sampling, text=text
        )

    def verify(self, problems, rollouts):
        return [self._judge(p, r) for p, r in zip(problems, rollouts, strict=True)]

    @staticmethod
    def _judge(problem, rollout):
        if "hang" in rollout.text:
            return verdicts.ungradable("timeout")
        if "</longcat_think>" not in rollout.text:
            return verdicts.wrong("format")
        right = f"<longcat_answer>{problem.gold}<" in rollout.text
        return verdicts.correct(isolation="process") if right else verdicts.wrong("value")


def run(policy: Policy, stage: str = "sft", **domains):
    domains = domains or {"stem": problems("stem")}
    return evaluate(policy.sample, policy.verify, domains, SETTINGS, stage=stage)


def test_counts_come_from_the_samples_that_were_drawn():
    policy = Policy(skill=0.4, broken=0.2)
    result, shown = run(policy)
    assert policy.calls == [(60, 4, False), (60, 1, True), (20, 12, False)]
    record = result.to_json()["domains"]["stem"]
    counts = list(record["correct_per_problem"].values())
    assert record["pass@1"] == pytest.approx(sum(c for c, _ in counts) / (60 * 4))
    assert record["pass@1"] == pytest.approx(0.32, abs=0.08)
    assert record["ci95"][0] < record["pass@1"] < record["ci95"][1]
    assert record["well_formed"] == pytest.approx(0.8, abs=0.08)
    assert record["pass@1_without_format_failures"] == pytest.approx(
        record["pass@1"] / record["well_formed"]
    )
    assert record["greedy"] == 0.5
    assert (record["n"], record["samples_per_problem"], record["pass@16_n"]) == (60, 4, 20)
    assert record["pass@16"] > 0.9
    assert sum(level["n"] for level in record["by_level"].values()) == 60
    assert record["isolation"]["process"] > 0
    assert len(shown) == 8
    assert shown[0]["thinking"] in ("so", None)
    assert shown[0]["version"] == 7


def test_ungradable_leaves_the_counts():
    result, _ = run(Policy(skill=1.0, hang=0.3))
    record = result.to_json()["domains"]["stem"]
    assert record["pass@1"] == 1.0
    assert record["ungradable"] == 240 - sum(n for _, n in record["correct_per_problem"].values())
    assert record["ungradable"] > 20


def test_evaluation_json_round_trips(tmp_path):
    result, _ = run(Policy(skill=0.3), stem=problems("stem"), logic=problems("logic"))
    path = result.save(tmp_path / "stages" / "sft")
    assert json.loads(path.read_text())["stage"] == "sft"
    assert EvaluationResult.load(path.parent).to_json() == result.to_json()
    for text in ("{", "[]", '{"domains": []}'):
        path.write_text(text)
        with pytest.raises(LoongError, match="loong train"):
            EvaluationResult.load(path.parent)


def test_repeated_problems_are_refused():
    with pytest.raises(ConfigError, match="repeats"):
        run(Policy(0.5), stem=problems("stem", 30) * 2)


@pytest.mark.parametrize(
    "change",
    [
        {"num_problems": 0},
        {"side": "train"},
        {"pass_at": 2},
        {"sampling": SamplingSettings(top_p=0.9)},
        {"sampling": SamplingSettings(greedy=True)},
    ],
)
def test_bad_settings_are_refused(change):
    with pytest.raises(ConfigError):
        EvaluationSettings(**change)


def say_experts(run_dir):
    json_files.write_json(run_dir / "config.json", {"config": {"experts": [["rl_stem", "stem"]]}})


def test_gains_are_paired_and_written(tmp_path):
    stages = {"sft": 0.2, "rl_stem": 0.6, "fused": 0.5, "general": 0.55}
    say_experts(tmp_path)
    for stage, skill in stages.items():
        run(Policy(skill, seed=len(stage)), stage)[0].save(tmp_path / "stages" / stage)
    table = compare.write_gains(tmp_path)
    assert json.loads((tmp_path / "gains.json").read_text()) == table
    expert = table["over_sft"]["rl_stem"]["stem"]
    assert expert["gain"] == pytest.approx(0.4, abs=0.12)
    assert expert["ci95"][0] > 0.2
    assert expert["disjoint_intervals"]
    assert expert["greedy"]["gain"] == 0
    assert set(expert["by_level"]) == {"0", "1", "2"}
    fused = table["fused_minus_expert"]["stem"]
    assert fused["gain"] == pytest.approx(-0.1, abs=0.12)
    results = compare.load_results(tmp_path)
    assert fused["gain"] == pytest.approx(
        results["fused"].to_json()["domains"]["stem"]["pass@1"]
        - results["rl_stem"].to_json()["domains"]["stem"]["pass@1"]
    )
    assert table["general_minus_fused"]["stem"]["n"] == 60


def test_different_problems_are_not_compared():
    one, _ = run(Policy(0.5), stem=problems("stem"))
    two, _ = run(Policy(0.5), stem=problems("logic"))
    with pytest.raises(ConfigError, match="share no problem"):
        compare.gain(one.domains["stem"], two.domains["stem"])


def test_controls_stand_beside_the_real_run(tmp_path):
    for name, skills in {
        "real": {"sft": 0.2, "rl_stem": 0.6},
        "noise": {"sft": 0.2, "noise_stem_0": 0.2, "noise_stem_1": 0.25, "noise_stem_2": 0.15},
        "more": {"sft": 0.2, "sft_continued": 0.3},
    }.items():
        for stage, skill in skills.items():
            result, _ = run(Policy(skill, seed=len(name + stage)), stage)
            result.save(tmp_path / name / "stages" / stage)
    say_experts(tmp_path / "real")
    table = compare.write_controls(
        tmp_path / "controls",
        tmp_path / "real",
        {"noise reward": tmp_path / "noise", "continued SFT": tmp_path / "more"},
        control_stages={
            "noise reward": {"rl_stem": ("noise_stem_0", "noise_stem_1", "noise_stem_2")},
            "continued SFT": {"rl_stem": ("sft_continued",)},
        },
    )
    noise, more = (table[name]["domains"]["stem"] for name in ("noise reward", "continued SFT"))
    assert noise["control_gain"]["ci95"][0] <= 0 <= noise["control_gain"]["ci95"][1]
    each = [one["gain"] for one in noise["runs"]]
    assert [one["stage"] for one in noise["runs"]] == [f"noise_stem_{seed}" for seed in range(3)]
    assert max(each) > 0.03
    assert noise["control_gain"]["gain"] == pytest.approx(sum(each) / 3)
    assert [one["stage"] for one in more["runs"]] == ["sft_continued"]
    pooled = table["noise reward"]["over_all_runs"]
    assert pooled["runs"] == 3
    assert pooled["gain"] == pytest.approx(noise["control_gain"]["gain"])
    assert table["continued SFT"]["over_all_runs"] is None
    assert noise["real_minus_control"]["ci95"][0] > 0.2
    assert more["real_minus_control"]["ci95"][0] > 0


def test_the_count_of_an_evaluation_rises_to_the_end():
    """Over samples, greedy ones and those of pass@k, and over domains of different sizes."""
    posed = {"stem": problems("stem", 60), "logic": problems("logic", 15)}
    for settings in (SETTINGS, dataclasses.replace(SETTINGS, greedy=False, pass_at=4)):
        shown, policy = [], Policy(0.5)
        progress = counted(lambda *at: shown.append(at), settings, map(len, posed.values()))  # noqa: B023

        def sample(problems, num_samples, sampling):
            for number in range(len(problems)):
                progress(number + 1, len(problems))  # noqa: B023
            return policy.sample(problems, num_samples, sampling)  # noqa: B023

        evaluate(sample, policy.verify, posed, settings, stage="sft")
        assert shown == [(number + 1, len(shown)) for number in range(len(shown))]
