"""The commands and the code of docs/how-to/merging.md and add_merge_method.md run as printed."""

import json
import re
import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from loong_jax import cli, configs, merge, options, own, recipes
from loong_jax.errors import ConfigError
from loong_jax.merge import METHODS, checkpoints
from loong_jax.run import named
from tests.docs import reading

PAGE = (Path(__file__).parents[2] / "docs/how-to/merging.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if not kind for line in block.splitlines() if line]


def weights(seed):
    draw = np.random.default_rng(seed)
    return {
        "embedding": draw.normal(size=(8, 4)).astype(np.float32),
        "layers": {"norm": {"scale": draw.normal(size=(2, 8)).astype(np.float32)}},
    }


@pytest.mark.parametrize("kind", ["runs/quickstart/stages", ""])
def test_commands_run_as_printed(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if kind:
        for seed, stage in enumerate(("sft", "rl_stem", "rl_logic")):
            checkpoints.save_weights(tmp_path / kind / stage, weights(seed), {})
    else:
        names = ("sft", "stem", "code", "agentic", "stem-fisher", "code-fisher")
        for seed, name in enumerate(names):
            (tmp_path / name).mkdir()
            draw = np.random.default_rng(seed)
            stored = {
                f"model.layers.{layer}.up.weight": np.abs(draw.normal(size=(8, 4))).astype(
                    ml_dtypes.bfloat16
                )
                for layer in range(2)
            }
            safetensors.save_file(stored, tmp_path / name / "model.safetensors")
    ran = 0
    for line in COMMANDS:
        if not line.startswith("loong merge") or ("$S" in line) != bool(kind):
            continue
        assert cli.main(shlex.split(line.replace("$S", kind))[1:]) == 0
        ran += 1
    assert ran >= 2
    assert "fused weights" in capsys.readouterr().out


def test_the_python_runs(capsys):
    (code,) = [block for kind, block in BLOCKS if kind == "python"]
    exec(compile(code, "docs/how-to/merging.md", "exec"), {})
    assert "stem" in capsys.readouterr().out


def test_every_method_of_the_command_has_its_row():
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert rows
    assert set(rows) == set(METHODS)


@pytest.fixture
def own_methods(tmp_path, monkeypatch):
    """The files of the page, and weights of a run to try them on."""
    monkeypatch.chdir(tmp_path)
    reading.save_files("how-to/add_merge_method.md", tmp_path)
    names = ("start", "expert1", "expert2", "expert3")
    for seed, name in enumerate(names):
        checkpoints.save_weights(Path("runs", name), weights(seed), {})
    return [weights(seed)["embedding"].astype(float) for seed in range(len(names))]


def test_a_method_of_your_own_merges_as_the_page_has_it(own_methods):
    base, *experts = own_methods
    page = (reading.DOCS / "how-to/add_merge_method.md").read_text()
    commands = re.findall(r"^loong merge (.*--output.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for line in commands:
        assert cli.main(["merge", *shlex.split(line)]) == 0
    for output, count, scale in (("median", 3, 1.0), ("half", 2, 0.5)):
        found = checkpoints.load_weights(Path("runs", output))["embedding"]
        middle = np.median([expert - base for expert in experts[:count]], axis=0)
        np.testing.assert_allclose(found, base + scale * middle, atol=1e-5)
        assert json.loads(Path("runs", output, "fusion.json").read_text())["method"] == {
            "kind": "Median",
            "scale": scale,
        }
    levelled = own.named("level.py:Level", merge.methods.OWN_METHOD, {})
    deltas = [expert - base for expert in experts]
    peaks = [np.abs(delta).max() for delta in deltas]
    pairs = zip(deltas, peaks, strict=True)
    wanted = base + np.mean(peaks) * np.mean([d / p for d, p in pairs], axis=0)
    trees = [{"w": x.astype(np.float32)} for x in own_methods]
    fused = merge.fuse(trees[0], trees[1:], method=levelled)["w"]
    np.testing.assert_allclose(fused, wanted, atol=1e-5)


def test_help_of_a_method_of_your_own_is_its_docstring(own_methods, capsys):
    with pytest.raises(SystemExit):
        cli.main(["merge", "median.py:Median", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "value = b + scale median_i d_i: no expert moves an entry" in shown
    assert "A part of your own" not in shown


def test_a_recipe_fuses_by_a_method_of_your_own_and_finds_it_again(
    own_methods, monkeypatch, caplog
):
    recipe = recipes.get_recipe("quickstart")()
    page = (reading.DOCS / "how-to/add_merge_method.md").read_text()
    (line,) = re.findall(
        r"^loong train quickstart .*? (--fused\..*)$", page.replace("\\\n", ""), re.M
    )
    words = [*shlex.split(line), "--fused.method.scale", "3"]
    found, left = named.choose(recipe, words)
    chosen = options.parse_train("quickstart", "", found, left).config
    named.try_own_parts(chosen)
    again = configs.from_json(json.loads(json.dumps(configs.to_json(chosen))))
    assert again == chosen
    (said,) = caplog.messages
    assert "scale=3.0 of the method is not tried: a fusion chooses among scales=(1.0, 1.5)" in said
    none, _ = named.choose(recipe, ["--fused.method", "level.py:Level"])
    named.try_own_parts(none)
    stages = none.changed(recipes.FusionStage, scales=(1.0, 1.5))
    with pytest.raises(ConfigError, match=r"scales=\(1\.0, 1\.5\) would go unused.*Level"):
        named.try_own_parts(stages)
    monkeypatch.chdir("/")
    stage = again.stages["fused"]
    assert stage.method.settings == {"scale": 3.0}
    tried = merge.search.candidates(stage.method, stage.scales, stage.keep_rates)
    assert [method.scale for method in tried] == [1.0, 1.5]  # it has no keep rate
    ours, _ = named.choose(recipe, ["--fused.method", "ties"])
    assert ours.stages["fused"].method == merge.Ties(scale=1.0)
    assert configs.from_json(configs.to_json(ours)) == ours


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("class Mine: ...", "lacks equation, fuse.*Derive its class from loong_jax.merge.Method"),
        (
            "class Mine(merge.Method): ...\nclass Other(merge.Method):\n    weights_are = 'non'",
            r"mine.py, line 4: Other.weights_are='non' is unknown. Choose",
        ),
        ("class Mine(merge.Method): ...", "neither a frozen dataclass of your own nor"),
        ("@dataclasses.dataclass\nclass Mine(merge.Method): ...", "neither a frozen dataclass of"),
        (
            "@dataclasses.dataclass\nclass Mine(merge.Method):\n    scale: float = 1e999",
            r"scale=inf must be finite",
        ),
        (
            "@dataclasses.dataclass(frozen=True)\nclass Mine(merge.Method):\n    seed: int = 0\n"
            "    drops_out = True",
            r"mine\.py:Mine drops out entries and has no keep_rate, by which",
        ),
        (
            "@dataclasses.dataclass(frozen=True)\nclass Mine(merge.Method):\n    a: int",
            r"__init__\(\) missing .*Give each such argument or field a default",
        ),
        (
            "@dataclasses.dataclass(frozen=True)\nclass Mine(merge.Method):\n    kind: str = 'a'\n"
            "    def equation(self, given, known): return given.base",
            "its class Mine has a field 'kind', a name that is taken. Give the field another",
        ),
    ],
)
def test_what_is_no_method_is_refused_in_one_line(tmp_path, capsys, body, said):
    file = tmp_path / "mine.py"
    file.write_text(f"import dataclasses\nfrom loong_jax import merge\n{body}\n")
    words = ["--base", str(tmp_path), "--experts", str(tmp_path), "--output", str(tmp_path / "o")]
    assert cli.main(["merge", f"{file}:Mine", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line)
    with pytest.raises(ConfigError, match=said):
        named.choose(recipes.get_recipe("quickstart")(), ["--fused.method", f"{file}:Mine"])


def said_of(body, capsys):
    """The one line with which a merge by a method that fails ends."""
    Path("mine.py").write_text(
        "import dataclasses\nfrom loong_jax import merge\n@dataclasses.dataclass(frozen=True)\n"
        f"class Mine(merge.Method):\n    def equation(self, given, known):\n        {body}\n"
    )
    stages = ["--base", "runs/start", "--experts", "runs/expert1", "--output", "out"]
    assert cli.main(["merge", "mine.py:Mine", *stages]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return given.base + given.nothing", r"mine.py:Mine, line 6, raised AttributeError"),
        (
            "if given.base.sum() > 0: return given.base",
            r"line 6, raised TracerBoolConversionError.*JAX traces it.*jnp.where for `if`",
        ),
        ("import numpy as np; return np.median(given.deltas)", "TracerArray.*, jnp for np"),
        ("return known['peak']", r"line 6, raised .*known\['peak'\] was not measured, but nothing"),
        ("return given.base.sum()", r"gave float32\[\] for a piece of 1024 entries, and must give"),
        ("return given.base > 0", r"gave bool\[1024\].* give float32\[1024\]. Convert"),
        ("return None", "gave a NoneType for.* It lacks a `return`"),
        ("return merge.FusedLeaf(given.base, (), ())", "gave as kept nothing for"),
    ],
)
def test_an_equation_that_fails_is_told_of_by_tensor_and_line(own_methods, capsys, body, said):
    assert re.search(rf"embedding \[8, 4\]: .*{said}", said_of(body, capsys))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def measure(self, matrix): return [1.0]", r"Mine: measure returned \[1.0\], and must"),
        ("def measure(self, matrix): pass", "measure returned None, and must return a dictionary"),
        ("def measure(self, matrix): return {'by': 'sum'}", "measure returned {'by': 'sum'}"),
        ("def measure_model(self, model): return {1: 1.0}", "measure_model returned {1: 1.0}"),
        ("def measure(self, matrix): return {'peak': 1.0}", "'factor'.* not measured, but 'peak'"),
        (
            "table: dict = dataclasses.field(default_factory=dict)",
            r"Mine: table=\{\} is of type dict.* Make it a number, a text or a tuple",
        ),
        (
            "def measure(self, matrix): return {'factor': float('nan')}",
            "not finite.* in the weights, in the equation of .*mine.py:Mine, or",
        ),
    ],
)
def test_what_is_measured_is_numbers_by_name(own_methods, capsys, body, said):
    body = f"return given.base * known['factor']\n    {body}"
    assert re.search(said, said_of(body, capsys))
