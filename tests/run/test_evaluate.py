"""`loong eval` on a model that knows nothing, and on which problems it poses."""

import dataclasses
import io
import json
from pathlib import Path

import jax
import pytest
from rich.console import Console

from loong_jax import cli, configs, recipes
from loong_jax.data import json_files
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.hf import save_weights_hf
from loong_jax.recipes import FileProblems, MeshSettings
from loong_jax.run import evaluate, own_problems
from loong_jax.run.demonstrations import held_out
from loong_jax.run.evaluate import EvalOptions
from tests.doubles import tiny

CONSOLE = Console(file=io.StringIO())
CONFIG = tiny.smallest_config(chunk_tokens=None)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    root = tmp_path_factory.mktemp("imported")
    _, weights = moe.init_weights(CONFIG, jax.random.key(3))
    save_weights_hf(CONFIG, weights, root / "hf")
    assert cli.main(["import-hf", str(root / "hf"), str(root / "ours")]) == 0
    return root / "ours"


def test_a_file_of_problems_is_posed_to_an_imported_model(imported, tmp_path, capsys):
    mine = tmp_path / "mine.jsonl"
    records = [{"prompt": f"{n} + 1 = ", "gold": str(n + 1), "level": n % 2} for n in range(3)]
    logic = {"prompt": "not true = ", "gold": "false", "domain": "logic"}
    mine.write_text("\n".join(map(json.dumps, [*records, records[0], logic])))
    words = [str(imported), "--problems", str(mine), "--samples", "2", "--k", "1", "2", "--greedy"]
    words += ["--max-new-tokens", "4", "--num-slots", "4", "--num-verifiers", "1"]
    files = {name: tmp_path / name for name in ("json", "rollouts")}
    for name, path in files.items():
        words += [f"--{name}", str(path)]
    words += ["--chat-style", "plain"]
    assert cli.main(["eval", *words]) == 0
    shown = capsys.readouterr().out
    assert "1 lines repeat a problem" in shown
    assert "pass@2" in shown
    record = json.loads(files["json"].read_text())
    part = record["domains"]["stem"]
    assert sorted(part["by_level"]) == ["0", "1"]
    assert part["pass@2"]["n"] == len(part["correct_per_problem"]) == 3
    assert all(graded <= 2 for _, graded in part["correct_per_problem"].values())
    assert part["mean_length"] <= 4
    assert (record["samples"], record["temperature"]) == (2, 1.0)
    rollouts = [json.loads(line) for line in files["rollouts"].read_text().splitlines()]
    assert {r["prompt"] for r in rollouts} == {r["prompt"] for r in (*records, logic)}


def test_a_run_is_posed_the_held_out_problems_of_its_recipe(tmp_path):
    recipe = recipes.get_recipe("quickstart")()
    configs.open_run(recipe, tmp_path, recipe=recipe.name)
    stage = tmp_path / "stages" / "sft"
    stage.mkdir(parents=True)
    for directory in (tmp_path, stage):
        assert own_problems.recipes_of(directory) == [recipe]
    options = EvalOptions(run_dir=stage, num_problems=2)
    posed = evaluate.choose_problems(options, [recipe], CONSOLE)
    assert list(posed) == ["stem", "logic", "code"]
    assert posed["logic"] == held_out(recipe, "logic", "test", 2)
    drawn = evaluate.sampling_of(options, recipe)
    assert drawn.max_new_tokens == recipe.evaluation.sampling.max_new_tokens
    longer = dataclasses.replace(options, max_new_tokens=9, temperature=0.5)
    assert evaluate.sampling_of(longer, recipe).max_new_tokens == 9


def test_misuse_is_refused(imported, tmp_path):
    with pytest.raises(ConfigError, match=r"k=\(1, 8\) must lie in 1..4"):
        EvalOptions(run_dir=imported, k=(1, 8))
    with pytest.raises(ConfigError, match=r"num_problems=0 must be at least 1\. Raise it"):
        EvalOptions(run_dir=imported, num_problems=0)
    assert own_problems.recipes_of(imported) == []
    options = EvalOptions(run_dir=imported)
    with pytest.raises(ConfigError, match="--problems"):
        evaluate.choose_problems(options, None, CONSOLE)
    with pytest.raises(ConfigError, match=r"temperature=0\.0"):
        evaluate.sampling_of(dataclasses.replace(options, temperature=0.0), None)
    encode = evaluate.prompt_encoder(options, evaluate.find_texts(options, None, AsciiTokenizer()))
    problem = held_out(recipes.get_recipe("quickstart")(), "stem", "test", 1)[0]
    with pytest.raises(ConfigError, match="cannot read"):
        encode(dataclasses.replace(problem, prompt="\u2207"))
    long = dataclasses.replace(problem, uid="long", prompt="1" * 900)
    with pytest.raises(ConfigError, match=r"long has a prompt of 9\d\d tokens.*max_position=1024"):
        evaluate.room_for({"stem": [problem, long]}, encode, 256, 1024)
    assert evaluate.room_for({"stem": [problem, long]}, encode, 1, 1024) == len(encode(long)) + 1
    mine = json_files.write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "1+1=", "gold": "2"}])
    wide = dict(problems=mine, form="plain", max_new_tokens=4, mesh=MeshSettings(tensor=3))
    with pytest.raises(ConfigError, match=r"num_heads=2 .* mesh.tensor=3 .* Use one of \[1, 2\]"):
        evaluate.evaluate(dataclasses.replace(options, **wide))


def test_a_form_is_chosen_by_its_name():
    """Whatever that of the run or of the model is."""
    (problem,) = held_out(recipes.get_recipe("quickstart")(), "stem", "test", 1)
    tokenizer = AsciiTokenizer()
    for recipe in (None, recipes.get_recipe("quickstart")()):
        options = EvalOptions(run_dir=Path("x"), form="boxed")
        found = evaluate.find_texts(options, recipe, tokenizer)
        asked = tokenizer.decode(evaluate.prompt_encoder(options, found)(problem))
        assert (found.form.name, "\\boxed{}" in asked) == ("boxed", True)
        usual = evaluate.find_texts(dataclasses.replace(options, form=None), recipe, tokenizer)
        assert usual.form.name == "tagged"
    with pytest.raises(ConfigError, match="--form haiku is unknown"):
        EvalOptions(run_dir=Path("x"), form="haiku")


def test_of_a_runs_own_file_what_it_held_out_is_posed(tmp_path):
    lines = [{"prompt": f"{n}+1=", "gold": str(n + 1)} for n in range(60)]
    file = json_files.write_jsonl(tmp_path / "mine.jsonl", lines)
    recipe = dataclasses.replace(recipes.get_recipe("problems")(), problems=FileProblems(file=file))
    shown = io.StringIO()

    def posed(**changes):
        options = EvalOptions(run_dir=tmp_path, problems=file, **changes)
        found = evaluate.choose_problems(options, [recipe], Console(file=shown))
        return {problem.uid for problem in found["stem"]}

    test = {one.problem.uid for one in own_problems.side(recipe.problems, "stem", "test")}
    assert posed() == test
    assert f"{60 - len(test)} problems are not on the test side" in shown.getvalue()
    assert len(posed(all_problems=True)) == 60
    other = json_files.write_jsonl(tmp_path / "other.jsonl", [{"prompt": "7-1=", "gold": "6"}])
    options = EvalOptions(run_dir=tmp_path, problems=other)
    found = evaluate.choose_problems(options, [recipe], Console(file=shown))
    assert [problem.prompt for problem in found["stem"]] == ["7-1="]


def test_a_merge_is_posed_what_the_runs_it_is_of_held_out(tmp_path):
    """Of each recipe of its base and experts that is there, what it trained on is left out."""
    files = []
    for number in range(2):
        run, start = tmp_path / f"run{number}", 100 * number
        (run / "stages" / "rl").mkdir(parents=True)
        lines = [{"prompt": f"{n}+1=", "gold": str(n + 1)} for n in range(start, start + 60)]
        files.append(json_files.write_jsonl(run / "mine.jsonl", lines))
        problems = FileProblems(file=files[-1])
        recipe = dataclasses.replace(recipes.get_recipe("problems")(), problems=problems)
        configs.open_run(recipe, run, recipe="problems")
    sources = {"one": str(tmp_path / "run1" / "stages" / "rl"), "gone": str(tmp_path / "nowhere")}
    report = {"base": str(tmp_path / "run0" / "stages" / "rl"), "sources": sources}
    json_files.write_json(tmp_path / "merge" / "fusion.json", report)
    found = own_problems.recipes_of(tmp_path / "merge")
    assert [recipe.problems.file for recipe in found] == files
    both = json_files.write_jsonl(
        tmp_path / "both.jsonl", [json.loads(line) for f in files for line in f.open()]
    )
    options = EvalOptions(run_dir=tmp_path / "merge", problems=both, num_problems=200)
    posed = evaluate.choose_problems(options, found, CONSOLE)["stem"]
    held_out = {
        one.problem.uid
        for recipe in found
        for one in own_problems.side(recipe.problems, "stem", "test")
    }
    assert {problem.uid for problem in posed} == held_out
    assert 0 < len(posed) < 120


def test_a_verifier_that_is_named_anew_takes_the_place_of_the_runs(tmp_path):
    recipe = dataclasses.replace(
        recipes.get_recipe("problems")(),
        problems=FileProblems(file=tmp_path / "x", verifiers=("/old/mine.py:Mine", "/o/b.py:B")),
    )
    options = EvalOptions(run_dir=tmp_path, verifier=("/new/mine.py:Mine",))
    assert evaluate.own_verifiers(options, recipe) == ("/new/mine.py:Mine", "/o/b.py:B")


def test_what_it_is_compared_with_was_written_by_it(tmp_path):
    for written in ('{"domains": {"stem": {}}}', "[]"):
        (tmp_path / "other.json").write_text(written)
        with pytest.raises(ConfigError, match="is not what `loong eval --json` writes"):
            evaluate.domains_of(tmp_path / "other.json")
    part = {"correct_per_problem": {"a": [1, 4]}}
    json_files.write_json(tmp_path / "other.json", {"domains": {"stem": part}})
    assert evaluate.domains_of(tmp_path / "other.json") == {"stem": part}
