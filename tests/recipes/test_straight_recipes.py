"""Recipes of one or two stages: SFT alone, RL alone, distillation; each from end to end, tiny."""

import dataclasses
import json
import types
from pathlib import Path

import pytest

from loong_jax import configs, recipes
from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.models.moe import MoEConfig
from loong_jax.problems import verdict
from loong_jax.recipes import EngineSettings, LocalVerifiers
from loong_jax.rl.objectives import K2KL, grpo_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.run import demonstrations, run, samples, starting
from tests.doubles import tiny

GROUP_SIZE = 4
FAST = AdamW(schedule=WarmupConstant(peak=1e-2, warmup_steps=8))


def small(name, **changes):
    full = recipes.get_recipe(name)()
    shrunk = dict(
        model=tiny.smallest_config(),
        engine=EngineSettings(
            num_replicas=1, slots_per_replica=8, cache_length=80, prefill_members=8,
            groups_per_replica=2,
        ),
        verifiers=LocalVerifiers(num_workers=1),
        evaluation=dataclasses.replace(full.evaluation, num_problems=4, num_pass_at_problems=1),
    )  # fmt: skip
    if "sft" in full.stages:
        full = full.with_stage("sft", num_steps=40, rows=4, optimizer=FAST, thinking=None)
    if "samples" in full.stages:
        full = full.with_stage("samples", num_problems=24, samples_per_problem=8, max_kept=1)
    if "rl" in full.stages:
        full = full.with_stage(
            "rl",
            num_steps=2,
            scheduler=dataclasses.replace(full.stages["rl"].scheduler, groups_per_step=2),
            objective=dataclasses.replace(grpo_objective(group_size=GROUP_SIZE), kl=K2KL(beta=1.0)),
            group_size=GROUP_SIZE,
            rows=4,
            learns_from_all=True,  # next to nothing is right yet
        )
    return dataclasses.replace(full, **(shrunk | changes))


def done(directory, stage):
    return json_files.read_json(directory / "stages" / stage / "done.json")


def metrics(directory, stage):
    return json_files.read_jsonl(directory / "stages" / stage / "metrics.jsonl")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Supervised fine-tuning alone: a run of the recipe `sft`."""
    directory = tmp_path_factory.mktemp("teacher")
    run.train(small("sft"), directory)
    return directory


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sft_alone_learns_and_goes_on_from_another_run(teacher, tmp_path):
    assert list((teacher / "stages").iterdir()) == [teacher / "stages" / "sft"]
    losses = [line["loss"] for line in metrics(teacher, "sft")]
    assert len(losses) == 40
    more = small("sft", start_from=teacher).with_stage("sft", num_steps=1)
    run.train(more, tmp_path)
    (first,) = [line["loss"] for line in metrics(tmp_path, "sft")]
    assert first < 0.5 * losses[0]


@pytest.mark.release
@pytest.mark.timeout(600)
def test_rl_alone_starts_from_another_run(teacher, tmp_path):
    run.train(small("rl", start_from=teacher, teacher=teacher), tmp_path)
    assert done(tmp_path, "rl")["tickets"]["trained"] == 4
    first, second = metrics(tmp_path, "rl")
    assert first["kl/mean"] == pytest.approx(0, abs=1e-6)  # to where it started
    assert second["kl/mean"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_student_learns_what_a_larger_teacher_answered_right(teacher, tmp_path, monkeypatch):
    recipe = small("distill", teacher=teacher, model=tiny.smallest_config(ffn_hidden_size=32))
    recipe = recipe.with_stage("sft", num_steps=3)
    asked = []
    of_texts = samples._right

    def most_are_right(session, problems, sampled, **options):
        """The teacher can do next to nothing: some answers are called right."""
        asked.extend(problems)
        found, _ = of_texts(session, problems, sampled, **options)
        for problem, records, rollouts in zip(problems, found, sampled, strict=True):
            text = rollouts[0].text.replace("\ufffd", "?")
            records[:] = [{"uid": problem.uid, "prompt": problem.prompt, "response": text}] * 2
        return found, sum(map(len, found))

    monkeypatch.setattr(samples, "_right", most_are_right)
    run.train(recipe, tmp_path)
    kept = json_files.read_jsonl(tmp_path / "stages" / "samples" / "samples.jsonl")
    assert [record["uid"] for record in kept] == [problem.uid for problem in asked]
    assert len(kept) == 3 * 24
    assert done(tmp_path, "samples")["judged"] == 3 * 24 * 8
    assert done(tmp_path, "sft")["num_pairs"] > 0
    shown = {line["prompt"] for line in kept}
    pairs = demonstrations.sampled(tmp_path / "stages" / "samples", seed=0)
    assert {prompt for prompt, _ in pairs.given} == shown


def test_a_right_response_with_a_token_without_text_is_not_taught():
    problem = types.SimpleNamespace(uid="one", domain="maths", prompt="1+1=")
    rollouts = [
        types.SimpleNamespace(text=text, finish_reason=reason)
        for text, reason in (("2", "stop"), ("2\ufffd", "stop"), ("2", "length"))
    ]
    session = types.SimpleNamespace(judge=lambda owners, flat: [verdict.correct()] * len(flat))
    (found,), number = samples._right(session, [problem], [rollouts])
    assert [record["response"] for record in found] == ["2"]
    assert number == 1


def test_weights_to_start_from_bring_their_model(tmp_path):
    def stage_of(config, name):
        model = {"format_version": 1, "config": configs.to_json(config), "hf_config": None}
        directory = tmp_path / name
        json_files.write_json(directory / "model.json", model)
        return directory

    ours = stage_of(tiny.smallest_config(), "ours")
    other = stage_of(tiny.smallest_config(hidden_size=48), "other")
    rl = recipes.get_recipe("rl")()
    found = starting.with_given_model(dataclasses.replace(rl, start_from=ours))
    assert rl.model == MoEConfig.tiny()
    assert found.model == tiny.smallest_config()
    assert starting.given(found) == {"start": ours}
    with pytest.raises(ConfigError, match=r"hidden_size=48.*has 32"):
        starting.with_given_model(dataclasses.replace(found, start_from=other))
    kl = K2KL(beta=1.0)
    objective = dataclasses.replace(rl.stages["rl"].objective, kl=kl)
    pulled = rl.with_stage("rl", objective=objective, learns_from_all=True)
    pulled = dataclasses.replace(pulled, start_from=ours)
    with pytest.raises(ConfigError, match="--teacher"):
        starting.with_given_model(pulled)
    with pytest.raises(ConfigError, match=r"hidden_size=48.*has 32"):
        starting.with_given_model(dataclasses.replace(pulled, teacher=other))
    larger = dataclasses.replace(recipes.get_recipe("distill")(), teacher=other)
    assert starting.with_given_model(larger).model == MoEConfig.tiny()  # the student's own


def test_recipes_name_what_they_need():
    with pytest.raises(ConfigError, match="--start-from"):
        starting.with_given_model(recipes.get_recipe("rl")())
    with pytest.raises(ConfigError, match="--teacher"):
        starting.with_given_model(recipes.get_recipe("distill")())
    rl = recipes.get_recipe("rl")()
    taught = dataclasses.replace(rl, start_from=Path("one"), teacher=Path("other"))
    with pytest.raises(ConfigError, match="would teach nothing: no stage samples it"):
        starting.with_given_model(taught)
    assert json.dumps(configs.to_json(rl))
