"""The commands and the code of docs/how-to/merging.md run as printed."""

import re
import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from loong_jax import cli
from loong_jax.merge import METHODS, checkpoints

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
        for seed, name in enumerate(
            ("sft", "stem", "code", "agentic", "stem-fisher", "code-fisher")
        ):
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
