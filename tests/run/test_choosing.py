"""Which recipe a command line means, and what follows from its options."""

import dataclasses
from pathlib import Path

import pytest

from loong_jax import cli, configs, options, recipes
from loong_jax.errors import ConfigError
from loong_jax.problems import response
from loong_jax.recipes import FileProblems, GeneratedProblems
from loong_jax.run import choosing, run, sources, starting


def chosen(name, *words):
    found = choosing.to_run(name, words)
    given = options.parse_train(found.name, "text", found.config, words).config
    return choosing.finished(given, found.config, words) if found.is_new else given


def test_a_file_of_problems_takes_the_place_of_those_of_the_recipe():
    assert isinstance(chosen("rl").problems, GeneratedProblems)
    given = chosen("rl", "--problems", "mine.jsonl", "--problems.held-out-share", "0.2")
    assert given.problems == FileProblems(file=Path("mine.jsonl"), held_out_share=0.2)
    assert given.stages["rl"].domains == ()
    assert chosen("problems", "--problems=a.jsonl").problems == FileProblems(file=Path("a.jsonl"))


def test_problems_may_be_of_environments_by_name():
    given = chosen("rl", "--environments", "gates,masks", "--problems.gates.levels", "2")
    assert list(given.problems.domains) == ["gates", "masks"]
    assert given.problems.domains["gates"].levels == (2,)
    with pytest.raises(ConfigError, match="nobody"):
        chosen("rl", "--environments", "nobody")


def test_without_a_file_those_of_the_run_that_it_starts_from_are_posed(tmp_path, monkeypatch):
    """And answers are as long as there; the quickstart's where weights are of no run."""
    tiny = recipes.get_recipe("quickstart")().model
    found = sources.Source(tmp_path, tiny, None, None)
    monkeypatch.setattr(sources, "find", lambda _: found)
    began = recipes.get_recipe("problems")()
    began = dataclasses.replace(
        began, problems=FileProblems(file=tmp_path / "mine.jsonl"), form=response.FORMS["boxed"]
    )
    run_dir = tmp_path / "run"
    configs.open_run(began, run_dir)
    stage = run_dir / "stages" / "sft"
    stage.mkdir(parents=True)
    for recipe in ("rl", "sft"):
        for start in (run_dir, stage):
            given = chosen(recipe, "--start-from", str(start))
            assert given.problems == began.problems
            assert given.max_new_tokens == began.evaluation.sampling.max_new_tokens
            assert given.form == began.form
    short = chosen("rl", "--start-from", str(run_dir), "--rl.sampling.max-new-tokens", "9")
    assert short.max_new_tokens is None
    assert given.stages[recipe] == chosen(recipe).stages[recipe]
    other = chosen("rl", "--start-from", str(run_dir), "--problems", "a.jsonl")
    assert other.problems == FileProblems(file=Path("a.jsonl"))
    assert isinstance(chosen("rl", "--start-from", str(tmp_path)).problems, GeneratedProblems)
    assert isinstance(chosen("distill", "--start-from", str(run_dir)).problems, GeneratedProblems)


@pytest.mark.parametrize("name", ["environments", "agentic-mini", "problems"])
def test_weights_that_are_given_need_no_cold_start(name):
    """What came after it begins with them."""
    fresh = recipes.get_recipe(name)()
    more = dataclasses.replace(fresh.stages["sft"], after="sft", always_runs=True)
    fresh = dataclasses.replace(fresh, stages={**fresh.stages, "more": more})
    begun = dataclasses.replace(fresh, start_from=Path("x"))
    alone = starting._with_ends_tied(fresh).stages
    assert list(alone) == ["sft", "rl", "more"]
    assert alone["rl"] == fresh.stages["rl"]
    tied = starting._with_ends_tied(begun).stages
    assert list(tied) == ["before"] * (name != "agentic-mini") + ["rl", "more"]
    assert tied["more"].after == tied["rl"].after == "start"
    kept = starting._with_ends_tied(begun.with_stage("sft", always_runs=True)).stages
    assert (kept["sft"].after, kept["rl"].after) == ("start", "sft")


def test_conversations_are_posed_no_problems_unless_a_file_has_some():
    given = chosen("sft", "--data", "chat.jsonl")
    assert (given.data, given.problems) == (Path("chat.jsonl"), None)
    both = chosen("sft", "--data", "chat.jsonl", "--problems", "a.jsonl")
    assert both.problems == FileProblems(file=Path("a.jsonl"))


def test_models_of_their_own_tokens_write_longer_responses(published, tmp_path):
    start = ("--start-from", str(published))
    assert chosen("rl", *start).max_new_tokens == choosing.NEW_TOKENS
    assert chosen("rl", *start, "--max-new-tokens", "9").max_new_tokens == 9
    assert chosen("rl", *start, "--rl.sampling.max-new-tokens", "9").max_new_tokens is None
    with pytest.raises(ConfigError, match=r"unknown\. Choose one of: tagged, longcat"):
        chosen("rl", "--form", "haiku")
    assert chosen("rl", "--form", "boxed").form.name == "boxed"


def test_models_of_their_own_tokens_are_fine_tuned(published, monkeypatch):
    """At rates that people use, unless an option or the recipe says otherwise."""
    start = ("--start-from", str(published))

    def trained(recipe, *words):
        given = chosen(recipe, *words).stages
        (stage,) = (stage for stage in given.values() if hasattr(stage, "optimizer"))
        schedule = stage.optimizer.schedule
        length = getattr(schedule, "num_steps", None)
        epochs = getattr(stage, "epochs", None)
        return schedule.peak, epochs, stage.num_steps, length, schedule.warmup_steps

    chat = ("--data", "chat.jsonl")
    assert trained("sft", *start, *chat) == (2e-5, 3.0, 900, 900, 0)  # as long as the file says
    assert trained("sft", *start) == (2e-5, None, 900, 900, 27)
    assert trained("sft", *chat) == (3e-3, None, 900, 900, 20)  # fresh weights
    assert trained("sft", *start, *chat, "--sft.epochs", "1")[1] == 1.0
    assert trained("sft", *start, *chat, "--sft.num-steps", "50") == (2e-5, None, 50, 50, 2)
    peak = ("optimizer.schedule.peak", "0.5")
    assert trained("sft", *start, *chat, f"--sft.{peak[0]}", peak[1])[0] == 0.5
    assert trained("sft", *start, *chat, "--lora", "4")[0] == 2e-4
    assert trained("rl", *start)[0] == 2e-6
    assert trained("rl", *start, "--lora", "4")[0] == 2e-5
    assert trained("rl", *start, f"--rl.{peak[0]}", peak[1])[0] == 0.5
    assert trained("smol", *start)[0] == 1e-5
    cold = chosen("smol-chat", *start).stages["cold"]
    assert cold.optimizer.schedule.peak == 1e-5  # of fewer steps than the miniature warms up for
    for name in ("environments", "agentic-mini"):
        stages = chosen(name, *start).stages
        rates = [stages[stage].optimizer.schedule.peak for stage in ("sft", "rl")]
        assert rates == [2e-5, 2e-6]
    source = sources.find(published)
    of_characters = dataclasses.replace(source.config, vocab_size=128)
    monkeypatch.setattr(sources, "find", lambda _: source._replace(config=of_characters))
    assert trained("rl", *start)[0] == 1e-4  # a run of the miniature


def test_the_model_of_the_start_takes_the_place_of_one_that_nobody_asked_for(published):
    start, found = ("--start-from", str(published)), sources.find(published).config
    given = chosen("rl", *start, "--model.remat", "layer")  # how it is computed
    assert starting.with_given_model(given).model == dataclasses.replace(found, remat="layer")
    usual = recipes.get_recipe("rl")().model.vocab_size
    for recipe in (
        chosen("rl", *start, "--model.vocab-size", str(usual)),  # asked for, though the default
        chosen("smol", *start),  # trains the model that it says
    ):
        with pytest.raises(ConfigError, match=r"model with vocab_size=512|recipe's model is a"):
            starting.with_given_model(recipe)
    fresh = starting.with_given_model(chosen("problems", "--model.num-layers", "1"))
    assert (fresh.model.num_layers, fresh.model_of_start) == (1, False)


def test_adapters_and_tools_are_for_every_stage():
    given = chosen("problems", "--problems", "a.jsonl", "--lora", "4", "--rl.lora.alpha", "8")
    assert (given.stages["sft"].lora.rank, given.stages["rl"].lora.alpha) == (4, 8.0)
    tools = chosen("rl", "--tools", "python", "--tools.limits.max-turns", "2").tools
    assert (tools.names, tools.offers_all, tools.limits.max_turns) == (("python",), True, 2)


def test_the_schedule_is_as_long_as_its_stage_unless_it_is_given():
    def lengths(*words):
        stage = chosen("quickstart", *words).stages["sft"]
        schedule = stage.optimizer.schedule
        return stage.num_steps, schedule.num_steps, schedule.warmup_steps

    assert lengths() == (900, 900, 20)
    assert lengths("--sft.num-steps", "150") == (150, 150, 20)
    assert lengths("--sft.num-steps", "3") == (3, 3, 1)
    given = ("--sft.optimizer.schedule.num-steps", "900")
    assert lengths("--sft.num-steps", "150", *given) == (150, 900, 20)


def test_a_run_goes_on_by_its_directory_alone(tmp_path, monkeypatch):
    began = recipes.get_recipe("quickstart")().with_stage("sft", rows=4)
    began = dataclasses.replace(began, seed=7)
    configs.open_run(began, tmp_path)
    here = ("--run-dir", str(tmp_path))
    assert chosen(None, *here) == began
    assert chosen("quickstart", *here) == began
    longer = chosen("quickstart", *here, "--sft.num-steps", "950").stages["sft"]
    assert longer.optimizer.schedule.num_steps == 900  # which decides every rate so far
    with pytest.raises(ConfigError, match="is a run of the recipe 'quickstart', not of 'rl'"):
        chosen("rl", *here)
    with pytest.raises(ConfigError, match=r"no recipe was named, and .* holds no run to resume"):
        chosen(None, "--run-dir", str(tmp_path / "none"))
    trained = []
    monkeypatch.setattr(
        run, "train", lambda recipe, run_dir, **_: trained.append((recipe, run_dir))
    )
    assert cli.main(["train", *here]) == 0
    assert trained == [(began, tmp_path)]


def test_a_recipe_of_ones_own_is_a_function_in_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\n"
        "from loong_jax import recipes\n"
        "def colder():\n"
        "    '''Trains a colder start.'''\n"
        "    made = recipes.get_recipe('quickstart')()\n"
        "    return dataclasses.replace(made, name='colder').with_stage('sft', num_steps=5)\n"
    )
    given = chosen(f"{file}:colder", "--seed", "3")
    assert (given.name, given.seed, given.stages["sft"].num_steps) == ("colder", 3, 5)
    for name, said in (
        (f"{file}:hotter", "has no function and no class 'hotter'"),
        (f"{tmp_path / 'none.py'}:colder", "is missing, which is to hold colder"),
        ("mine", "FILE.py:FUNCTION"),
    ):
        with pytest.raises(ConfigError, match=said):
            recipes.get_recipe(name)
