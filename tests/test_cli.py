"""The command line: help at once, recipes with overrides, errors in one line."""

import contextlib
import dataclasses
import importlib
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tyro._docstrings import get_field_docstring

from loong_jax import cli, options, process, recipes
from loong_jax.errors import ConfigError
from loong_jax.merge import METHODS, checkpoints
from loong_jax.run import convert, run
from tests.doubles import nested_config
from tests.doubles.nested_config import Adam, Inner
from tests.processes import run_python


@pytest.fixture
def runs(monkeypatch):
    """What would be trained, as (config, run_dir, only, source); the recipe is the toy."""
    calls = []

    def train(recipe, run_dir, *, only=None, source=None):
        calls.append((recipe, run_dir, only, source))

    monkeypatch.setattr(run, "train", train)
    monkeypatch.setitem(recipes.RECIPES, "toy", "tests.doubles.nested_config:toy")
    return calls


def test_help_is_the_same_by_either_name_and_imports_no_room():
    loong = Path(sys.executable).with_name("loong")
    by_module = run_python("-m", "loong_jax.cli", "--help")
    assert by_module.returncode == 0
    if loong.exists():
        by_name = subprocess.run([loong, "--help"], capture_output=True, text=True, check=False)
        assert by_name.stdout == by_module.stdout
    code = (
        "import sys; from loong_jax import cli; assert cli.main(['--help']) == 0;"
        "slow = {'jax', 'numpy', 'tyro', 'ray', 'rich', 'matplotlib'} & set(sys.modules);"
        "assert not slow, slow"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"]])
def test_help_names_every_command(arguments, capsys):
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert command.usage.split()[0] == name
        assert command.usage in shown
        assert command.summary in shown
    assert "example" in shown


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_teaches(name, capsys):
    with contextlib.suppress(SystemExit):  # tyro prints and leaves
        assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: loong {name}" in shown
    assert f"loong {name}" in shown.split("xample", 1)[1]


def test_no_field_has_the_help_of_the_one_above_it():
    """A comment above a field is that of all fields until the next comment."""
    for command in cli.COMMANDS.values():
        importlib.import_module(f"loong_jax.{command.run.partition(':')[0]}")
    modules = [module for name, module in sys.modules.items() if name.startswith("loong_jax.")]
    found = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    of_fields = {
        cls: [get_field_docstring(cls, field.name, ()) for field in dataclasses.fields(cls)]
        for cls in filter(dataclasses.is_dataclass, found)
        if cls.__module__.startswith("loong_jax.")
    }
    assert len(of_fields) > 100
    pairs = [(cls, pair) for cls, texts in of_fields.items() for pair in itertools.pairwise(texts)]
    assert [(cls, one) for cls, (one, other) in pairs if one == other is not None] == []


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--version"], 0, r"loong_jax 0\..*"),
        (["serve-coffee"], 2, r".*'serve-coffee' is no command\. Choose one of: train.*"),
        (["train", "toy", "--num-steps", "0"], 1, "loong train: num_steps=0 must be at least 1.*"),
        (["train", "nope"], 1, "loong train: .*"),
        (["train", "--seed", "1"], 1, "loong train: .*"),
        (["merge", "soup"], 1, ".*longcat.*"),
    ],
)
def test_what_is_told_in_a_line(runs, words, status, told, capsys):
    assert cli.main(words) == status
    shown = capsys.readouterr()
    assert re.fullmatch(f"{told}\n", shown.out if status == 0 else shown.err)
    assert runs == []


def test_train_runs_the_recipe_as_it_is(runs):
    assert cli.main(["train", "toy"]) == 0
    assert runs == [(nested_config.toy(), Path("runs/toy"), None, None)]


def test_train_passes_on_what_is_overridden(runs):
    words = "--run-dir r --only rl_stem --from . --seed 4 --optimizer.beta 0.5"
    words += " --inners.1.levels 3 4 --num-steps 7 --dtype bfloat16 --path elsewhere"
    assert cli.main(["train", "toy", *words.split()]) == 0
    ((config, run_dir, only, source),) = runs
    assert (run_dir, only, source) == (Path("r"), "rl_stem", Path())
    assert (config.seed, config.num_steps, config.path) == (4, 7, Path("elsewhere"))
    assert config.optimizer == Adam(beta=0.5)
    assert config.inners == (Inner(name="first"), Inner(name="second", levels=(3, 4)))
    assert config.dtype == np.dtype(ml_dtypes.bfloat16)


def test_train_help_shows_recipe_defaults_and_hides_what_is_fixed(runs, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "toy", "--help"])
    shown = capsys.readouterr().out
    assert "A recipe that runs nothing." in shown
    for word in ("--run-dir", "runs/toy", "--from", "--optimizer.beta", "--inners.1.name"):
        assert word in shown
    assert "momentum" not in shown  # the recipe chose Adam


def test_help_of_a_recipe_of_ones_own_without_words_names_its_directory(tmp_path, capsys):
    (tmp_path / "own.py").write_text(
        "from loong_jax import recipes\ndef short():\n    return recipes.get_recipe('rl')()\n"
    )
    assert cli.main(["train", f"{tmp_path / 'own.py'}:short", "--help"]) == 0
    usage, blank, title, first, *_ = capsys.readouterr().out.splitlines()
    assert (usage[:18], blank, title) == ("usage: loong train", "", "the run:")
    assert first.startswith("  --run-dir runs/short ")


def test_help_of_a_merge_has_words_for_its_options(capsys):
    with pytest.raises(SystemExit):
        cli.main(["merge", "ties", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("common ancestor", "equal unless given", "float32 masters", "experts' average"):
        assert words in shown


@pytest.mark.parametrize("name", ["quickstart", "rl", "sft", "distill", "environments"])
def test_help_has_the_settings_that_matter_and_help_all_every_one(name, capsys):
    from loong_jax.run import named

    assert cli.main(["train", name, "--help"]) == 0
    shown = capsys.readouterr().out
    recipe = recipes.get_recipe(name)
    assert (recipe.__doc__ or "").split(".")[0] in shown
    options_shown = re.findall(r"^  --[\w.-]+", shown, re.MULTILINE)
    assert 12 <= len(options_shown) <= 40
    assert len(shown.splitlines()) < 86
    assert ("--max-prompt-chars 64" in shown) == (name == "environments")
    assert "--environments NAMES" in shown
    assert max(map(len, shown.splitlines())) <= 100
    with pytest.raises(SystemExit):
        cli.main(["train", name, "--help-all"])
    every = capsys.readouterr().out
    assert len(every.splitlines()) > 2 * len(shown.splitlines())
    of_parts = {"--profile-steps", "--log-level", "--dry-run"}
    for option in (words.strip() for words in options_shown):
        named_there = option.rpartition(".")[2] in named.NAMES
        assert option in every or option in of_parts or named_there, option


@pytest.mark.parametrize(
    "words", ["--no-such 3", "--seed x", "--optimizer.momentum 1", "--dtype float9"]
)
def test_overrides_that_do_not_fit_are_bad_usage(runs, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "toy", *words.split()])
    assert stop.value.code == 2
    assert runs == []


def test_an_error_is_one_line_and_a_traceback_on_request(runs, monkeypatch, capsys):
    def refuse(*_, **__):
        raise ConfigError("seed=1 is not 2. Use 2.")

    monkeypatch.setattr(run, "train", refuse)
    assert cli.main(["train", "toy"]) == 1
    assert capsys.readouterr().err == "loong train: seed=1 is not 2. Use 2.\n"
    monkeypatch.setattr(run, "train", lambda *_, **__: os.listdir("nowhere"))
    assert cli.main(["train", "toy"]) == 1
    said = "No such file or directory: 'nowhere'. Correct that, and repeat the command.\n"
    assert capsys.readouterr().err == f"loong train: [Errno 2] {said}"
    monkeypatch.setenv("LOONG_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        cli.main(["train", "toy"])


def test_a_bug_is_not_hidden_and_an_interrupt_is_no_error(runs, monkeypatch, capsys):
    def fail(*_, **__):
        raise ZeroDivisionError

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", "toy"])
    monkeypatch.setattr(run, "train", interrupt)
    assert cli.main(["train", "toy"]) == 130


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_loads_and_its_config_survives_json_and_the_command_line(name):
    from loong_jax import configs

    recipe = recipes.get_recipe(name)
    config = recipe()
    assert configs.from_json(configs.to_json(config)) == config
    chosen = options.parse_train(name, recipe.__doc__ or "", config, [])
    assert chosen.config == config
    assert f"loong train {name}" in (recipe.__doc__ or ""), "say the command in the docstring"


@pytest.mark.parametrize("name", METHODS)
def test_merge_reaches_every_method(name, monkeypatch, tmp_path):

    seen = []
    monkeypatch.setattr(convert, "merge", lambda config: seen.append(config) or 0)
    a, b = (tmp_path / name for name in "ab")
    for directory in (a, b):
        directory.mkdir()
    words = f"--base {tmp_path} --experts {a} {b} --output {tmp_path}/o --weights 1 2"
    assert cli.main(["merge", name, *words.split()]) == 0
    (config,) = seen
    assert isinstance(config, checkpoints.MergeConfig)
    assert type(config.method) is METHODS[name]
    assert config.experts == (a, b)
    assert config.weights == (1.0, 2.0)


def test_report_asks_for_the_page_of_a_run(monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr(run, "write_report", lambda *args, **kwargs: asked.append((args, kwargs)))
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["report", str(tmp_path)]) == 0
    assert asked == [((tmp_path,), {"keeps_machine": True})]
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", str(tmp_path / "empty")]) == 1
    assert "is no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train problems --problems nowhere.jsonl", "--problems nowhere.jsonl does not exist"),
        ("train rl --start-from=nowhere", "--start-from nowhere does not exist"),
        ("merge ties --base . --experts . nowhere", "--experts nowhere does not exist"),
        ("eval nowhere", "nowhere does not exist"),
        ("serve nowhere --port 80", "nowhere does not exist"),
        ("import-hf nowhere there", "nowhere does not exist"),
        ("import-hf file:///nowhere there", "file:///nowhere does not exist"),
        ("train rl --start-from=file:///nowhere", "file:///nowhere does not exist"),
        ("train sft --data gs://b/chat.jsonl", "--data gs://b/chat.jsonl does not exist"),
        ("verify math --input nowhere.jsonl --output o", "--input nowhere.jsonl does not exist"),
    ],
)
def test_a_path_that_is_not_there_is_told_before_anything_slow_is_imported(words, told):
    code = (
        f"import sys; from loong_jax import cli; assert cli.main({words.split()}) == 1;"
        "slow = {'jax', 'numpy', 'tyro'} & set(sys.modules); assert not slow, slow"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"loong {words.split()[0]}: {told}. Name what is there.\n"


def test_names_are_no_paths(runs):
    cli._refuse_missing_paths(cli.COMMANDS["train"], ["rl", "--problems", "gsm8k"])


def test_preparing_keeps_what_the_user_set(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    process.prepare()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert process.compile_cache_dir() == tmp_path / "loong_jax" / "jax"


def has(monkeypatch, packages, files):
    """A machine with these packages and, by pattern, these files."""
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: name in packages or None)
    monkeypatch.setattr(process.glob, "glob", lambda pattern: files.get(pattern, []))
    monkeypatch.setattr(process.importlib.metadata, "entry_points", lambda group: ())


@pytest.mark.parametrize(
    ("found", "files", "platforms"),
    [
        ({"libtpu"}, {}, "cpu"),
        ({"libtpu"}, {"/dev/accel*": ["/dev/accel0"]}, None),
        ({"libtpu", "jax_plugins"}, {}, None),
        (set(), {}, None),
    ],
)
def test_a_tpu_is_not_looked_for_where_libtpu_only_compiles(monkeypatch, found, files, platforms):
    has(monkeypatch, found, files)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    process.prepare()
    assert os.environ["JAX_PLATFORMS"] == "tpu"
    monkeypatch.delenv("JAX_PLATFORMS")
    process.prepare()
    assert os.environ.get("JAX_PLATFORMS") == platforms


@pytest.mark.parametrize(
    ("named", "found", "files", "is_cpu"),
    [
        ("cpu", {"libtpu", "jax_plugins"}, ["/dev/accel0"], True),
        ("tpu,cpu", set(), [], False),
        (None, set(), [], True),
        (None, {"libtpu"}, ["/dev/accel0"], False),
        (None, {"jax_plugins"}, [], False),
    ],
)
def test_a_machine_without_accelerator_computes_on_cpu(monkeypatch, named, found, files, is_cpu):
    has(monkeypatch, found, {"/dev/accel*": files})
    monkeypatch.delenv("JAX_PLATFORMS")
    if named:
        monkeypatch.setenv("JAX_PLATFORMS", named)
    assert process.computes_on_cpu() == is_cpu
