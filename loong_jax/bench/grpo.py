"""A step of reinforcement learning, ours against TRL's GRPOTrainer: the same weights, prompts,
group size, tokens, rate, precision and threads.

Both sample a fixed number of tokens for every prompt of a step, which neither an end token nor a
line feed ends, judge the first line by exact match, and train all of it once. Each side runs in a
process of its own, in turns with the other, and the first steps of a process, in which programs are
compiled, do not count. A round has a seed of its own, which says its problems and samples. Seconds
are medians over the steps that count, ratios the median over the rounds, by the clock and by
processor time, all threads together, which a busy machine changes least.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import tokenizers

from loong_jax import process
from loong_jax.bench import Report, Save, grpo_ours
from loong_jax.environments.numbers import Addition
from loong_jax.errors import ConfigError, LoongError, refuse_below
from loong_jax.models import dense
from loong_jax.models.dense import SHAPES
from loong_jax.models.hf import save_weights_hf

REMEDY = "`make test-peers` makes .venv-peers, which has it; or name a python with --peer-python"
PEERS = Path(".venv-peers/bin/python")
TIMEOUT_S = 7200.0  # of one process of one side
PARTS = (*grpo_ours.PARTS, "rest")
TRL_SCRIPT = Path(__file__).with_name("grpo_hf_torch.py")
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Times a step of GRPO, ours and TRL's, at equal tokens: sums of two-digit numbers.

    Takes minutes. Without TRL, ours alone is measured. With --accelerator both run in bfloat16 on
    the device that JAX and torch find; of ours the shares of its peaks are shown then.
    Example: loong bench grpo --model models/SmolLM2-135M-Instruct --json grpo.json
    """

    json: Path | None = None  # all figures
    model: Path | None = None  # a dense model as Hugging Face has it; a random one unless given
    shape: str = "llama-5m"  # of the random one: llama-5m or qwen2-1.5b
    accelerator: bool = False  # in bfloat16 where there is one; else on CPU in float32
    peer_python: Path | None = None  # that has TRL; this one or .venv-peers/bin/python unless given
    prompts: int = 8  # of a step
    group_size: int = 8  # samples of a prompt
    new_tokens: int = 32  # of a sample
    steps: int = 4  # that count, of a process
    warmup: int = 2  # steps before them
    rounds: int = 2  # processes of each side
    learning_rate: float = 1e-5
    rows: int = 4  # of our micro-batches, each with as many samples as fit beside their prompt
    trl_rows: int = 0  # samples of TRL's micro-batches; 0: all of a step
    staleness: int = 0  # of ours: above 0 it samples while it trains

    def __post_init__(self):
        refuse_below(self, 0, "trl_rows", "staleness")
        refuse_below(self, 1, "prompts", "new_tokens", "steps", "warmup", "rounds", "rows")
        refuse_below(self, 2, "group_size")
        if self.shape not in SHAPES:
            raise ConfigError(f"shape={self.shape!r} must be one of {', '.join(SHAPES)}.")
        samples = self.prompts * self.group_size
        if self.trl_rows and (samples % self.trl_rows or self.trl_rows % self.group_size):
            raise ConfigError(
                f"trl_rows={self.trl_rows} must divide the {samples} samples of a step and hold "
                f"whole groups of {self.group_size}. Use {self.group_size}."
            )


def measure(
    chosen: Options, *, report: Report = print, save: Save = lambda _: None
) -> dict[str, Any]:
    """All figures as JSON values, which `save` gets after each process.

    Raises LoongError where a side fails, or does not work on as many tokens as the other.
    """
    jax.config.update("jax_platforms", "cpu")  # of this process, which measures nothing
    with tempfile.TemporaryDirectory() as directory:
        return _measure(Path(directory), chosen, report, save)


def _measure(directory: Path, chosen: Options, report: Report, save: Save) -> dict[str, Any]:
    model = chosen.model or write_model(directory / "model", chosen.shape)
    pythons = {"ours": Path(sys.executable), "trl": peer_python(chosen.peer_python)}
    sides = {side: python for side, python in pythons.items() if python is not None}
    if "trl" not in sides:
        report(f"TRL is absent, so ours is measured alone. Remedy: {REMEDY}.")
    result: dict[str, Any] = {
        "model": str(chosen.model or f"random {chosen.shape}"),
        "tokens_per_step": chosen.prompts * chosen.group_size * chosen.new_tokens,
        "load_average_before": os.getloadavg()[0],
        "rounds": [],
    }
    for number in range(chosen.rounds):
        task = task_of(chosen, model, seed=number)
        result["rounds"].append({})
        for side, python in sides.items():
            place = directory / f"{side}{number}"
            place.mkdir()
            said = f"round {number + 1} of {chosen.rounds}, {side}"
            found = run(
                side, python, place, task, lambda line, said=said: report(f"{said}: {line}")
            )
            result["rounds"][-1][side] = found
            result |= summary(result["rounds"], chosen)
            save(result)
        refuse_unequal(result["rounds"][-1])
    result["load_average_after"] = os.getloadavg()[0]
    save(result)
    report(as_text(result, chosen))
    return result


def peer_python(named: Path | None) -> Path | None:
    """The python that has TRL; None where there is none."""
    if named is not None:
        return named
    if importlib.util.find_spec("trl") is not None:
        return Path(sys.executable)
    return PEERS.absolute() if PEERS.exists() else None


def write_model(directory: Path, shape: str) -> Path:
    """A random model of one of `SHAPES`, with a tokenizer."""
    num_words = _write_tokenizer(directory)
    config = SHAPES[shape]()
    config = dataclasses.replace(config, vocab_size=max(config.vocab_size, num_words))
    save_weights_hf(config, dense.init_weights(config, jax.random.key(0))[1], directory)
    return directory


def _write_tokenizer(directory: Path) -> int:
    """A byte-level BPE tokenizer that has learnt sums; returns the size of its vocabulary."""
    end = "<|endoftext|>"
    made = tokenizers.ByteLevelBPETokenizer()
    sums = (f"{a} + {b} = {a + b}\n" for a in range(10, 100) for b in range(10, 100, 7))
    made.train_from_iterator(sums, vocab_size=512, special_tokens=[end], show_progress=False)
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # else transformers cuts texts as Llama does
        "eos_token": end,
        "pad_token": end,
        "add_bos_token": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return made.get_vocab_size()


def task_of(chosen: Options, model: Path, *, seed: int) -> dict[str, Any]:
    """The task that both children are given; problems are those that ours poses, in its order."""
    names = ("prompts", "group_size", "new_tokens", "learning_rate", "rows", "trl_rows")
    names = (*names, "staleness", "accelerator")
    task = {name: getattr(chosen, name) for name in names} | {
        "model": str(model.absolute()),
        "steps": chosen.warmup + chosen.steps,
        "beta2": grpo_ours.BETA2,
        "seed": seed,
        "threads": process.num_cores(),
    }
    recipe = grpo_ours.recipe_of(task)
    assert recipe.form is not None
    posed = grpo_ours.problems_of(recipe, task["steps"] * chosen.prompts)
    problems = [
        {"prompt": recipe.form.prompt_of(problem.prompt), "gold": Addition().solve(problem).answer}
        for problem in posed
    ]
    return task | {"problems": problems}


def run(
    side: str, python: Path, place: Path, task: Mapping[str, Any], report: Report
) -> dict[str, Any]:
    """One process of one side: what it ran with, and its steps."""
    file, log = place / "task.json", place / "log.txt"
    file.write_text(json.dumps({**task, "directory": str(place)}))
    threads = {f"{kind}_NUM_THREADS": str(task["threads"]) for kind in ("OMP", "MKL")}
    environment = os.environ | threads | {"HF_HUB_OFFLINE": "1"}
    if not task["accelerator"]:
        environment["JAX_PLATFORMS"] = "cpu"
    module = ["-m", grpo_ours.__name__] if side == "ours" else [str(TRL_SCRIPT)]
    found: dict[str, Any] = {"steps": []}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [str(python), *module, str(file)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        clock = threading.Timer(TIMEOUT_S, child.kill)
        clock.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if not line.startswith('{"'):
                    continue  # a line for people
                record = json.loads(line)
                if "settings" in record:
                    found |= record
                    report(f"  with {json.dumps(record['settings'])}")
                elif "device" in record:
                    found |= record
                elif "ended" in record:
                    report(f"  step {record['ended']} of {task['steps']}")
                else:
                    found["steps"].append(record)
                    parts = ", ".join(f"{part} {record[part]:.2f}" for part in PARTS)
                    report(f"  step {record['step']}: {record['seconds']:.2f} s ({parts})")
        finally:
            clock.cancel()
            child.kill()
    if len(found["steps"]) != task["steps"]:
        raise LoongError(f"{side} failed: {log.read_text(errors='replace').strip()[-2000:]}")
    return found


def refuse_unequal(sides: Mapping[str, Row]) -> None:
    """LoongError where the prompts of the two sides are not equally many tokens."""
    counts = {side: found["prompt_tokens"] for side, found in sides.items()}
    if len(set(counts.values())) > 1:
        raise LoongError(f"prompts have {counts} tokens, so no time means anything.")


def summary(rounds: Sequence[Mapping[str, Row]], chosen: Options) -> dict[str, Any]:
    """Medians of each side over the steps that count, and ratios over the rounds."""
    tokens = chosen.prompts * chosen.group_size * chosen.new_tokens
    sides: dict[str, Row] = {}
    for side in rounds[0]:
        runs = [found[side]["steps"] for found in rounds if side in found]
        counted = [step for steps in runs for step in steps[chosen.warmup :]]
        row = {
            name: statistics.median(step[name] for step in counted)
            for name in ("seconds", "cpu_s", *PARTS)
        }
        rewards = [[step["reward"] for step in steps] for steps in runs]
        ends_s = [itertools.accumulate(step["seconds"] for step in steps) for steps in runs]
        curve, times = (
            [statistics.mean(steps) for steps in zip(*found, strict=True)]
            for found in (rewards, ends_s)
        )
        row |= {"tokens_per_s": tokens / row["seconds"], "reward": curve, "elapsed_s": times}
        if work := next((found[side].get("device") for found in rounds if side in found), None):
            row["device"] = shares(work, row)
        sides[side] = row
    both = [found for found in rounds if len(found) == 2]
    if not both:
        return {"sides": sides}
    ratios = {
        name: [
            _median(found["trl"], unit, chosen) / _median(found["ours"], unit, chosen)
            for found in both
        ]
        for name, unit in (("speedup", "seconds"), ("speedup_in_cpu_time", "cpu_s"))
    }
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    return {"sides": sides, **medians, "by_round": ratios}


def shares(work: Mapping[str, Any], row: Row) -> Row:
    """Rates of a side and their shares of the device's peaks; `row` holds medians over steps."""
    found = {
        **work,
        "flops": work["train_flops"] / row["training"],
        "bandwidth": work["decode_bytes"] / row["generation"],
        "idle_share": row["rest"] / row["seconds"],
    }
    if (peak := work["peak"]) is not None:
        found["mfu"] = found["flops"] / peak["bf16_flops"]
        found["bandwidth_share"] = found["bandwidth"] / peak["memory_bandwidth"]
    return found


def _median(found: Row, unit: str, chosen: Options) -> float:
    return statistics.median(step[unit] for step in found["steps"][chosen.warmup :])


def as_text(result: Mapping[str, Any], chosen: Options) -> str:
    """The table, and reward against time."""
    lines = [
        f"{result['model']}: {chosen.prompts} prompts x {chosen.group_size} samples x "
        f"{chosen.new_tokens} tokens, {chosen.rounds} x {chosen.steps} steps, of each process "
        f"after {chosen.warmup} that compile; medians, seconds",
        f"{'':6}{'step':>8}{'cpu':>8}" + "".join(f"{part:>12}" for part in PARTS) + "  tokens/s",
    ]
    for side, row in result["sides"].items():
        parts = "".join(f"{row[part]:12.2f}" for part in PARTS)
        lines.append(
            f"{side:6}{row['seconds']:8.2f}{row['cpu_s']:8.2f}{parts}{row['tokens_per_s']:10.0f}"
        )
    lines += [
        as_device_text(side, row["device"])
        for side, row in result["sides"].items()
        if "device" in row
    ]
    if "speedup" in result:
        lines.append(
            f"ours is {result['speedup']:.2f}x as fast, {result['speedup_in_cpu_time']:.2f}x by "
            "processor time"
        )
    for side, row in result["sides"].items():
        points = zip(row["elapsed_s"], row["reward"], strict=True)
        curve = ", ".join(f"{at_s:.0f} s {reward:.3f}" for at_s, reward in points)
        lines.append(f"reward by step, {side}: {curve}")
    return "\n".join(lines)


def as_device_text(side: str, found: Row) -> str:
    of_peak = "", ""
    if found["peak"] is not None:
        of_peak = f" (MFU {found['mfu']:.1%})", f" ({found['bandwidth_share']:.1%} of the peak)"
    memory = f"the table says {found['table_bytes'] / 1e9:.2f} GB"
    if found["peak_bytes"] is not None:
        memory = f"at most {found['peak_bytes'] / 1e9:.2f} GB in use, {memory}"
    return (
        f"{side} on {found['kind']}: training at {found['flops'] / 1e12:.3g} TFLOP/s{of_peak[0]}, "
        f"decoding at {found['bandwidth'] / 1e12:.3g} TB/s{of_peak[1]}, idle for "
        f"{found['idle_share']:.1%}; {memory}"
    )
