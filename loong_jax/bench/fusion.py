"""Merging from disk to disk, ours against mergekit: the same files, methods, cores and precision.

Each side runs in a process of its own, pinned to the same cores: two merges, of which the second
counts, since a program compiles once for a model of any size; the first is reported too. GB/s per
core and the speedup are of processor seconds, all threads and the kernel's work together, which a
busy machine changes least; wall seconds stand beside them. Memory is what the process holds of its
own (RssAnon) beyond what it held before: page cache is nobody's.
"""

# pyright: reportMissingImports=false
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from loong_jax.bench import Report, Save
from loong_jax.data import json_files
from loong_jax.errors import ConfigError, LoongError, refuse_below
from loong_jax.models.hf import files

TIMEOUT_S = 3000.0  # of one side of one method
REMEDY = "pip install mergekit==0.1.5 peft, or the extra `peers`"
EXPERTS = ("stem", "code", "agentic")

# name: (ours, its settings, mergekit's, its parameters); what both do is the same but for "longcat"
METHODS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "linear": ("Linear", {}, "linear", {}),
    "task_arithmetic": ("TaskArithmetic", {}, "task_arithmetic", {}),
    "ties": ("Ties", {"density": 0.2}, "ties", {"density": 0.2}),
    "dare": ("Dare", {"rescale": "l1"}, "dare_linear", {"density": 0.5}),
    "dare_ties": (
        "Dare", {"rescale": "l1", "combine": "ties"}, "dare_ties", {"density": 0.5}
    ),
    "della": ("Della", {"rescale": "l1"}, "della", {"density": 0.5, "epsilon": 0.15}),
    "breadcrumbs": (
        "Breadcrumbs", {"density": 0.5}, "breadcrumbs", {"density": 0.5, "gamma": 0.01}
    ),
    "sce": ("Sce", {"select_rate": 0.5}, "sce", {"select_topk": 0.5}),
    "ram": ("Ram", {}, "ram", {}),
    "slerp": ("Slerp", {}, "slerp", {"t": 0.5}),
    "nuslerp": ("NuSlerp", {}, "nuslerp", {}),
    "karcher": ("Karcher", {}, "karcher", {}),
    # mergekit has no such recipe; its "dare_ties" does less: no pass for the global norms.
    "longcat": ("LongcatFusion", {"keep_rate": 0.5}, "dare_ties", {"density": 0.5}),
}  # fmt: skip
PAIRS = ("slerp", "nuslerp")  # of the first two experts
BASELESS = ("linear", "slerp", "karcher")
UNWEIGHTED = ("slerp", "sce", "ram", "karcher")
# Results that must be the same; TIES has equal entries at its cut, as bfloat16 deltas are coarse.
DETERMINISTIC = ("linear", "task_arithmetic", "slerp", "nuslerp", "karcher", "ram")
LARGEST_DIFFERENCE = 1e-4  # of the largest delta, beyond one rounding to bfloat16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Merges three experts of a Llama-shaped base in bfloat16, from disk to disk, with both tools.

    Takes minutes; mergekit is the slower part. Without mergekit, ours alone is measured.
    Example: loong bench fusion --json fusion.json
    """

    json: Path | None = None  # all figures
    methods: str = ",".join(METHODS)  # comma-separated
    rounds: int = 2  # pairs of processes per method; medians are reported
    cores: int = 1  # that either side may use
    layers: int = 2
    width: int = 2048
    vocabulary: int = 8192
    directory: Path | None = None  # for the models, about 6 bytes a weight; temporary unless given

    def __post_init__(self):
        if not self.chosen or set(self.chosen) - set(METHODS):
            raise ConfigError(f"methods={self.methods!r} must name some of {', '.join(METHODS)}.")
        refuse_below(self, 1, "rounds", "cores", "layers")
        refuse_below(self, 64, "width", "vocabulary")
        if self.width % 64:
            raise ConfigError(f"width={self.width} must be a multiple of 64, the width of a head.")

    @property
    def chosen(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.methods.split(",") if name.strip())


def measure(
    chosen: Options, *, report: Report = print, save: Save = lambda _: None
) -> dict[str, Any]:
    """All figures as JSON values, which `save` gets after each method.

    Raises LoongError where the two sides' results differ.
    """
    if chosen.directory is not None:
        chosen.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory:
        return _measure(Path(directory), chosen, report, save)


def _measure(directory: Path, chosen: Options, report: Report, save: Save) -> dict[str, Any]:
    shapes = llama_shapes(chosen)
    write_models(directory, chosen, shapes)
    sizes = [math.prod(shape) for shape in shapes.values()]
    has_peer = importlib.util.find_spec("mergekit") is not None
    result: dict[str, Any] = {
        "num_weights": sum(sizes),
        "largest_leaf_mb": 4 * max(sizes) / 1e6,  # in float32
        "cores": chosen.cores,
        "rounds": chosen.rounds,
        "mergekit": importlib.metadata.version("mergekit") if has_peer else f"absent; {REMEDY}",
        "load_average_before": os.getloadavg()[0],
        "methods": {},
    }
    if not has_peer:
        report(f"mergekit is absent, so ours is measured alone. Remedy: {REMEDY}.")
    for name in chosen.chosen:
        row = result["methods"][name] = _row(directory, name, chosen, sum(sizes), has_peer)
        ours = row["ours"]
        line = f"{name:<16} ours {ours['gb_per_s_core']:.2f} GB/s a core, {ours['peak_leaves']:.2f}"
        line += f" leaves, {ours['seconds']:.2f} s (first {ours['first_s']:.2f})"
        if has_peer:
            theirs = row["mergekit"]
            line += f"; mergekit {theirs['gb_per_s_core']:.2f} GB/s, {theirs['peak_leaves']:.2f}"
            line += f" leaves, {theirs['seconds']:.2f} s; {row['speedup']:.1f}x"
        report(line)
        save(result)
    result["load_average_after"] = os.getloadavg()[0]
    save(result)
    return result


def _row(
    directory: Path, name: str, chosen: Options, num_weights: int, has_peer: bool
) -> dict[str, Any]:
    sides = ("ours", "mergekit") if has_peer else ("ours",)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(chosen.rounds):
        for side in sides:
            runs[side].append(_run(directory, side, name, chosen))
    num_inputs = len(_experts(name)) + (name not in BASELESS)
    moved_gb = 2 * num_weights * (num_inputs + 1) / 1e9  # read and written once
    leaf = 4 * max(math.prod(shape) for shape in llama_shapes(chosen).values())
    row: dict[str, Any] = {"gigabytes": moved_gb}
    for side, found in runs.items():
        middle = {
            key: statistics.median(run[key] for run in found)
            for key in ("seconds", "cpu_s", "first_s")
        }
        peak = max(run["peak_bytes"] for run in found)
        row[side] = {
            **middle,
            "gb_per_s_core": moved_gb / middle["cpu_s"],
            "peak_mb": peak / 1e6,
            "peak_leaves": peak / leaf,
        }
    if has_peer:
        for key, unit in (("speedup", "cpu_s"), ("speedup_wall", "seconds")):
            row[key] = row["mergekit"][unit] / row["ours"][unit]
        if name in DETERMINISTIC:
            row["largest_difference"] = _difference(directory)
            if row["largest_difference"] > LARGEST_DIFFERENCE:
                raise LoongError(f"{name}: the results differ ({row}), so no time means anything.")
    return row


def _run(directory: Path, side: str, name: str, chosen: Options) -> dict[str, Any]:
    """One process of one side, pinned to `cores` cores."""
    threads = {f"{kind}_NUM_THREADS": str(chosen.cores) for kind in ("OMP", "MKL", "OPENBLAS")}
    environment = os.environ | threads | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    task = json.dumps({"side": side, "name": name, "cores": chosen.cores})
    command = [sys.executable, "-m", "loong_jax.bench.fusion", str(directory), task]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise LoongError(f"{side} failed to merge with {name}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- the models ----------------------------------------------------------------------------------


def llama_shapes(chosen: Options) -> dict[str, tuple[int, ...]]:
    width, inner = chosen.width, 11 * chosen.width // 4
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (chosen.vocabulary, width)}
    for layer in range(chosen.layers):
        start = f"model.layers.{layer}."
        shapes |= {f"{start}self_attn.{n}_proj.weight": (width, width) for n in "qkvo"}
        shapes |= {f"{start}mlp.{n}_proj.weight": (inner, width) for n in ("gate", "up")}
        shapes[f"{start}mlp.down_proj.weight"] = (width, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{start}{norm}.weight"] = (width,)
    return shapes | {"model.norm.weight": (width,), "lm_head.weight": (chosen.vocabulary, width)}


def write_models(directory: Path, chosen: Options, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The base and its experts, bfloat16; deltas of a tenth of the weights, so all of them move."""
    record = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": chosen.width,
        "intermediate_size": 11 * chosen.width // 4,
        "num_hidden_layers": chosen.layers,
        "num_attention_heads": chosen.width // 64,
        "num_key_value_heads": chosen.width // 64,
        "vocab_size": chosen.vocabulary,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    names = list(shapes)
    entries = [(name, np.dtype(ml_dtypes.bfloat16), shapes[name]) for name in names]

    def values(seed: int, name: str) -> np.ndarray:
        draw = np.random.default_rng((seed, names.index(name)))
        return 0.02 * draw.standard_normal(shapes[name], dtype=np.float32)

    for seed, model in enumerate(("base", *EXPERTS)):

        def read(name: str, seed: int = seed) -> np.ndarray:
            base = values(0, name)
            own = base if seed == 0 else base + 0.1 * values(seed, name)
            return own.astype(ml_dtypes.bfloat16)

        (directory / model).mkdir()
        files.write_file(directory / model / "model.safetensors", entries, read)
        json_files.write_json(directory / model / "config.json", record)


def _difference(directory: Path) -> float:
    """The largest difference of the results beyond bfloat16's rounding, over the largest delta."""
    found = [files.stored_tensors(directory / f"out_{side}") for side in ("ours", "mergekit")]
    base = files.stored_tensors(directory / "base")
    expert = files.stored_tensors(directory / EXPERTS[0])
    worst = 0.0
    for name in found[0]:
        ours, theirs, start, end = (
            stored[name].view({}).astype(np.float32) for stored in (*found, base, expert)
        )
        rounding = 2.0**-7 * np.maximum(np.abs(ours), np.abs(theirs))
        beyond = np.maximum(np.abs(ours - theirs) - rounding, 0.0)
        worst = max(worst, float(beyond.max() / np.abs(end - start).max()))
    return worst


# --- one side, in a process of its own -----------------------------------------------------------


def work(directory: Path, side: str, name: str, cores: int) -> dict[str, float]:
    """Merges twice into `directory`/out_SIDE; seconds of each, and the peak of memory."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    merge = _ours(directory, name) if side == "ours" else _mergekit(directory, name, cores)
    output = directory / f"out_{side}"
    seconds, cpu_s = [], []
    with _Memory() as memory:
        for _ in range(2):
            shutil.rmtree(output, ignore_errors=True)
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            merge(output)
            seconds.append(time.perf_counter() - start_s)
            cpu_s.append(time.process_time() - start_cpu_s)
    return {
        "first_s": seconds[0],
        "seconds": seconds[1],
        "cpu_s": cpu_s[1],
        "peak_bytes": memory.peak_bytes,
    }


def _experts(name: str) -> tuple[str, ...]:
    return EXPERTS[:2] if name in PAIRS else EXPERTS


def _ours(directory: Path, name: str) -> Callable[[Path], None]:
    from loong_jax import merge
    from loong_jax.merge import fusion, published

    kind, settings, *_ = METHODS[name]
    method = getattr(merge, kind)(**settings)
    experts = _experts(name)
    all_alike = merge.PathRules(controller="(?!)", no_dropout="(?!)")  # as mergekit has it

    def run(output: Path) -> None:
        opened = {m: published.PublishedWeights(directory / m) for m in ("base", *experts)}
        plan = fusion.prepare(
            None if name in BASELESS else opened["base"].leaves,
            {model: opened[model].leaves for model in experts},
            method=method,
            rules=all_alike,
        )
        published.write(plan, opened["base"], output)
        for one in opened.values():
            one.close()

    return run


def _mergekit(directory: Path, name: str, cores: int) -> Callable[[Path], None]:
    from loong_jax.bench import mergekit_torch

    _, _, method, parameters = METHODS[name]
    models = [directory / model for model in _experts(name)]
    base = None if name in BASELESS else directory / "base"
    base = models[0] if name == "slerp" else base  # as mergekit's asks for one of the two
    weight = None if name in UNWEIGHTED else 1.0
    return mergekit_torch.merger(
        method, parameters, models=models, base=base, weight=weight, cores=cores
    )


class _Memory:
    """The most that this process held of its own, beyond what it held at the start."""

    def __enter__(self) -> "_Memory":
        self._start, self._most = self._held(), 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=10)
        self.peak_bytes = max(self._most - self._start, 0)

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self._most = max(self._most, self._held())

    @staticmethod
    def _held() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise LoongError("this system does not say how much memory is anonymous (RssAnon).")


if __name__ == "__main__":
    print(json.dumps(work(Path(sys.argv[1]), **json.loads(sys.argv[2]))))
