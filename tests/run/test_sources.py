"""What lies beside weights, how long problems are, and what a model is asked and shown."""

import dataclasses
import itertools
import json
import pickle

import numpy as np
import pytest

from loong_jax import recipes
from loong_jax.data import json_files
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.problems.response import FORMS
from loong_jax.recipes import EngineSettings, FileProblems, ToolSettings
from loong_jax.rl import sft
from loong_jax.run import convert, sizes, sources, starting, texts


@pytest.fixture
def recipe(published, tmp_path):
    lines = [{"prompt": f"What is {n}+{n}? \u00e9\u4e8c", "gold": str(2 * n)} for n in range(50)]
    file = json_files.write_jsonl(tmp_path / "mine.jsonl", lines)
    made = recipes.get_recipe("rl")()
    made = dataclasses.replace(made, start_from=published, problems=FileProblems(file=file))
    return starting.with_given_model(made)


def test_a_published_directory_brings_model_tokens_and_template(published, recipe):
    source = sources.find(published)
    assert source.weights == source.files == published
    assert recipe.model == source.config
    assert recipe.model.vocab_size == 512
    found = texts.texts_of(recipe)
    assert found.form == FORMS["plain"]
    problem = recipe_problems(recipe)[0]
    asked = found.tokenizer.decode(found.prompt(problem))
    assert asked == (f"<|im_start|>user\n{problem.prompt}<|im_end|>\n<|im_start|>assistant\n")
    weights = starting.load_on(published, recipe.model)
    assert weights["embedding"].shape[0] == 512
    assert starting.with_given_model(recipe) == recipe


def recipe_problems(recipe):
    return list(sizes._problems(recipe))


def test_what_came_with_the_weights_stays_with_a_run(published, tmp_path):
    source = sources.find(published)
    kept = tmp_path / "run" / sources.KEPT
    sources.keep_files(source, kept)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (kept / name).read_bytes() == (published / name).read_bytes()
    assert json.loads((kept / "config.json").read_text()) == json.loads(source.hf_config)
    stage = tmp_path / "run" / "stages" / "rl"
    stage.mkdir(parents=True)
    assert sources._files_of(stage) == sources._files_of(tmp_path / "run") == kept


def test_models_of_other_tokens_need_a_tokenizer(published):
    config = sources.find(published).config
    with pytest.raises(CheckpointError, match=r"512 tokens\. Name one with --tokenizer"):
        sources.tokenizer_of(config, None, None, where="here")
    small = dataclasses.replace(config, vocab_size=128)
    assert isinstance(sources.tokenizer_of(small, None, None, where="here"), AsciiTokenizer)
    with pytest.raises(CheckpointError, match="has 512 tokens, and the model 128"):
        sources.tokenizer_of(small, None, published, where="here")


def test_open_lengths_follow_from_the_problems_and_set_ones_stay(recipe):
    found = texts.texts_of(recipe)
    longest = max(len(found.prompt(problem)) for problem in recipe_problems(recipe))
    open_lengths = dataclasses.replace(recipe, max_new_tokens=20)
    fit = sizes.fitted(open_lengths, found)
    assert longest <= fit.engine.prefill_lengths[-1] < longest + 16
    assert longest + 20 <= fit.engine.cache_length < longest + 36
    assert fit.evaluation.sampling.max_new_tokens == 20
    assert fit.stages["rl"].sampling.max_new_tokens == 20
    assert fit.stages["rl"].objective.reduction.max_response_tokens == 20
    assert sizes.fitted(fit, found) == fit
    narrow = EngineSettings(cache_length=64, prefill_lengths=(8,))
    given = sizes.fitted(dataclasses.replace(open_lengths, engine=narrow), found).engine
    assert (given.cache_length, given.prefill_lengths, given.chunked_prefill) == (64, (8,), True)
    with pytest.raises(ConfigError, match="--max-new-tokens"):
        sizes.fitted(dataclasses.replace(recipe, max_new_tokens=2100), found)


@pytest.mark.parametrize(("response", "num_responses"), [(4, 8), (200, 1)])
def test_a_row_has_room_for_a_group_of_short_responses(recipe, response, num_responses):
    found = texts.texts_of(recipe)
    longest = max(len(found.prompt(problem)) for problem in recipe_problems(recipe))
    stage = sizes.fitted(dataclasses.replace(recipe, max_new_tokens=response), found).stages["rl"]
    assert stage.group_size == 8
    needed = longest + num_responses * response
    assert needed <= stage.row_length < needed + 16


def test_stop_texts_of_a_form_end_samples(recipe):
    completing = dataclasses.replace(recipe, form=FORMS["completion"])
    found = texts.texts_of(completing)
    fit = sizes.fitted(completing, found)
    assert fit.stages["rl"].sampling.stops == fit.evaluation.sampling.stops == ("\n",)
    problem = recipe_problems(recipe)[0]
    assert found.tokenizer.decode(found.prompt(problem)) == problem.prompt


def test_epochs_of_a_file_are_as_many_steps_as_its_batches(published, tmp_path):
    said = [{"prompt": f"What is {n}+{n}?", "response": str(2 * n)} for n in range(50)]
    data = json_files.write_jsonl(tmp_path / "chat.jsonl", said)
    made = dataclasses.replace(recipes.get_recipe("sft")(), problems=None, data=data)
    made = starting.with_given_model(dataclasses.replace(made, start_from=published))
    found = texts.texts_of(made)
    made = made.with_stage("sft", epochs=2.0, rows=2)
    stage = sizes.fitted(made, found).stages["sft"]
    pairs = itertools.islice(sizes.demonstrations.pairs_of(made, stage, found), 50)
    settings = sft.SftSettings(
        optimizer=stage.optimizer, num_steps=1, rows=2, row_length=stage.row_length
    )
    once = sum(1 for _ in sft.batches(pairs, found.example, settings))
    assert once > 2
    assert (stage.num_steps, stage.epochs) == (2 * once, None)
    schedule = stage.optimizer.schedule
    assert (schedule.num_steps, schedule.warmup_steps) == (2 * once, min(20, once))
    own = dataclasses.replace(schedule, num_steps=77)
    optimizer = dataclasses.replace(stage.optimizer, schedule=own)
    given = sizes.fitted(made.with_stage("sft", optimizer=optimizer), found).stages["sft"]
    assert given.optimizer.schedule == own
    problems = recipes.get_recipe("sft")().problems
    endless = dataclasses.replace(made, data=None, problems=problems)
    with pytest.raises(ConfigError, match="Give --data"):
        sizes.fitted(endless, found)


def test_tools_are_told_to_the_template(recipe):
    tools = ToolSettings(names=("python",), describe=True, offers_all=True)
    found = texts.texts_of(dataclasses.replace(recipe, tools=tools))
    asked = found.tokenizer.decode(found.prompt(recipe_problems(recipe)[0]))
    assert asked.startswith("<|im_start|>system\n# Tools\n")
    assert '"name": "python"' in asked


def test_prompts_of_hosts_are_those_of_the_trainer(recipe):
    there = pickle.loads(pickle.dumps(texts.RecipePrompts(recipe)))
    problem = recipe_problems(recipe)[0]
    np.testing.assert_array_equal(there(problem), texts.texts_of(recipe).prompt(problem))


def test_solutions_and_samples_are_examples(recipe):
    found = texts.texts_of(recipe)
    shown = found.example(("a?", found.render("so", "3")))
    assert found.tokenizer.decode(shown["tokens"][shown["loss_mask"]]) == "3<|im_end|>"
    (token,) = found.tokenizer.encode("z")
    sampled = found.example(texts.Sampled("a?", (token, token)))
    assert list(sampled["tokens"][sampled["loss_mask"]]) == [token, token, found.tokenizer.eos_id]
    assert found.has_tokens_of(found)
    assert not found.has_tokens_of(texts.Texts(tokenizer=AsciiTokenizer()))


def test_experts_of_another_base_are_far_from_it():
    report = {"global": {"base_norm": 10.0, "norm": {"near": 1.0, "far": 14.0}}}
    assert convert.far_experts(report) == ["far"]


def test_a_stage_under_way_holds_no_weights_yet(tmp_path):
    stage = tmp_path / "stages" / "sft"
    (stage / "checkpoints").mkdir(parents=True)
    json_files.write_json(tmp_path / "config.json", {})
    with pytest.raises(CheckpointError, match=r"not finished.*--run-dir"):
        sources.find_weights(stage)
    json_files.write_json(stage / "done.json", {})
    assert sources.find_weights(stage) == stage
