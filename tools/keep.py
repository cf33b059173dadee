"""What a change of the house must leave equal: `python tools/keep.py TREE [TREE ...]`.

Runs the commands below in every tree, by the interpreter of its `.venv` or by this one, and prints
what each came to: updates of weights, verdicts on this tree's case files, a merge, an export, a
plan. Trees stand side by side, and the exit status is 1 where they differ. The rest of what must
hold are tests that stay green: `TESTS` names them, and `--tests` runs them in every tree.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import safetensors.numpy
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent.parent
CASES = HERE / "tests" / "verifiers" / "maths" / "cases"
TRAIN = [
    "train", "quickstart", "--sft.num-steps", "120",
    "--rl-stem.num-steps", "4", "--rl-stem.scheduler.groups-per-step", "4",
    "--rl-stem.scheduler.deterministic", "--rl-stem.scheduler.max-staleness", "0",
    "--rl-stem.reward.malformed", "-0.5",  # so that groups differ this early
    "--rl-stem.learns-from-all", "--evaluation.num-problems", "4", "--evaluation.pass-at", "4",
    "--evaluation.num-pass-at-problems", "4",
]  # fmt: skip
PLAN = ["plan", "tiny", "--topology", "v5e:2x2", "--mesh", "fsdp=2,expert=2", "--length", "128"]
TESTS = (
    "staleness_zero",  # the scheduler at staleness 0 against a straight-line loop
    "killed_and_resumed",  # bit for bit
    "killed_run_goes_on_bit_for_bit",  # on a mesh
    "agrees_with_mergekit",
    "equals_transformers or model_of_transformers",
    "hostile_program",
)


def python_of(tree: Path) -> str:
    own = tree / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def loong(tree: Path, *words: object, place: Path) -> None:
    command = [python_of(tree), "-m", "loong_jax.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}
    subprocess.run(command, cwd=place, env=environment, stdout=subprocess.DEVNULL, check=True)


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def exported(tree: Path, source: Path, place: Path) -> str:
    """Of the weights that `export-hf` writes of a checkpoint, whatever files they stand in."""
    target = place / f"hf-{source.name}"
    try:
        loong(tree, "export-hf", source, target, place=place)
    except subprocess.CalledProcessError:  # f48ff71 exports no merges
        return "refused"
    found = {}
    for path in sorted(target.glob("*.safetensors")):
        found |= safetensors.numpy.load_file(path)
    return digest(*(name.encode() + found[name].tobytes() for name in sorted(found)))


def figures(tree: Path, place: Path) -> dict[str, str]:
    """By name of what is kept: what it came to in this tree."""
    found: dict[str, str] = {}
    run, stages = place / "run", place / "run" / "stages"
    loong(tree, *TRAIN, "--only", "sft", "--run-dir", run, place=place)
    loong(tree, *TRAIN, "--only", "rl_stem", "--from", run, "--run-dir", place / "rl", place=place)
    expert = place / "rl" / "stages" / "rl_stem"
    losses = []
    for name, stage in (("sft", stages / "sft"), ("rl_stem", expert)):
        rows = map(json.loads, (stage / "metrics.jsonl").read_text().splitlines())
        losses.append([row["loss"] for row in rows if "loss" in row])
        found[f"weights after {len(losses[-1])} steps of {name}"] = exported(tree, stage, place)
    found["losses"] = digest(json.dumps(losses).encode())
    words = ["--base", stages / "sft", "--experts", expert, "--names", "one"]
    loong(tree, "merge", "ties", *words, "--output", place / "merged", place=place)
    found["a merge"] = exported(tree, place / "merged", place)
    for path in sorted(CASES.glob("*.jsonl")):
        output = place / "verdicts.jsonl"
        loong(tree, "verify", "math", "--input", path, "--output", output, place=place)
        rows = map(json.loads, output.read_text().splitlines())
        found[f"verdicts: {path.stem}"] = digest(json.dumps([r["verdict"] for r in rows]).encode())
    loong(tree, *PLAN, "--json", place / "plan.json", place=place)
    plan = json.loads((place / "plan.json").read_text())
    kept = {name: plan[name] for name in ("hbm_per_device_gb", "collectives", "shardings")}
    found["a plan"] = digest(json.dumps(kept, sort_keys=True).encode())
    return found


def passed(tree: Path) -> dict[str, str]:
    """What pytest says of each of `TESTS`."""
    found = {}
    for words in TESTS:
        command = ["-m", "pytest", "-q", "-k", words, "-m", "not release and not peers", "tests"]
        done = subprocess.run(
            [python_of(tree), *command], cwd=tree, capture_output=True, text=True, check=False
        )
        found[f"tests: {words}"] = done.stdout.splitlines()[-1].split(" in ")[0].strip("= ")
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Compares trees.")
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--tests", action="store_true", help="runs the tests of TESTS, too")
    chosen = parser.parse_args(arguments)
    columns = []
    for tree in (path.resolve() for path in chosen.trees):
        with tempfile.TemporaryDirectory() as place:
            columns.append(figures(tree, Path(place)))
        if chosen.tests:
            columns[-1] |= passed(tree)
    table = Table("", *(str(path) for path in chosen.trees), "equal")
    differ = 0
    for name in columns[0]:
        row = [column.get(name, "absent") for column in columns]
        is_equal = len(set(row)) == 1 or name.startswith("tests:")
        differ += not is_equal
        table.add_row(name, *row, "" if is_equal else "NO")
    Console(width=110).print(table)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
