"""Our side of `loong bench grpo`: the stage `rl` of a recipe, in a process of its own.

`python -m loong_jax.bench.grpo_ours TASK.json` prints a JSON line for what it runs with, one as
each step ends, and at the end one for every step with its parts.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from loong_jax import configs
from loong_jax.bench.device import PEAKS
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.families import ModelConfig
from loong_jax.plan import counts
from loong_jax.problems.problem import Problem
from loong_jax.problems.response import FORMS
from loong_jax.recipes import Recipe, RlStage, smol
from loong_jax.report import metrics_log, overlap
from loong_jax.report.progress import Progress
from loong_jax.rl.objectives import grpo_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.records import SamplingSettings
from loong_jax.run import demonstrations, memory, sizes, stages, starting
from loong_jax.run.pipeline import StageDirectories
from loong_jax.run.session import Session
from loong_jax.run.texts import texts_of

NEVER = -1  # no token has this id
BETA2 = 0.99
MOST_STEPS = 16  # of a call to decode
# Of a step, in this order where they overlap; what none of them covers is the rest.
PARTS = {"generation": ("decode",), "scoring": ("score",), "training": ("train", "publish")}


def recipe_of(task: Mapping[str, Any]) -> Recipe:
    """The recipe `smol` with what a bench's task says, and TRL's objective."""
    base, samples = smol.smol(), task["prompts"] * task["group_size"]
    trained = stage_of(base)
    sampling = SamplingSettings(max_new_tokens=task["new_tokens"])
    schedule = WarmupConstant(peak=task["learning_rate"])
    rl = dataclasses.replace(
        trained,
        num_steps=task["steps"],
        scheduler=dataclasses.replace(
            trained.scheduler, groups_per_step=task["prompts"], max_staleness=task["staleness"]
        ),
        objective=grpo_objective(group_size=task["group_size"], beta=0.0),
        optimizer=AdamW(schedule=schedule, beta2=BETA2),
        group_size=task["group_size"],
        sampling=sampling,
        rows=task["rows"],
        reward=RewardRule(judges_truncated=True),
        learns_from_all=True,  # so that every step trains what it sampled, as TRL's do
        checkpoint_every=task["steps"],
    )
    return dataclasses.replace(
        base,
        name="grpo",
        seed=task["seed"],
        model_of_start=True,
        start_from=Path(task["model"]),
        dtype=jnp.bfloat16 if task["accelerator"] else None,
        form=dataclasses.replace(FORMS["completion"], template="40 + 85 = 125\n{prompt}"),
        engine=dataclasses.replace(
            base.engine,
            slots_per_replica=samples,
            decode_steps=block_of(task["new_tokens"]),
            narrow_slots=(),
            prefill_prompts=task["prompts"],
            prefill_members=samples,
        ),
        evaluation=EvaluationSettings(num_problems=1, sampling=sampling, pass_at=0),
        max_new_tokens=task["new_tokens"],
        stages={"rl": rl},
        experts=(),
    )


def block_of(new_tokens: int) -> int:
    """Decode steps of a call: samples end together, after few calls of equal length."""
    after_first = max(1, new_tokens - 1)
    return -(-after_first // -(-after_first // MOST_STEPS))


def stage_of(recipe: Recipe) -> RlStage:
    stage = recipe.stages["rl"]
    assert isinstance(stage, RlStage)
    return stage


def problems_of(recipe: Recipe, count: int) -> list[Problem]:
    """The first ones that the stage poses, in order."""
    (domain,) = demonstrations.domains_of(recipe.problems)
    stream = demonstrations.stream_of(recipe, domain, "train")
    return [stream.problem_at(number) for number in range(count)]


class _Endless:
    """A tokenizer none of whose tokens ends a response, so that all are equally long."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.end_ids = (NEVER,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class _Said(Progress):
    """Prints a line as each step ends, and keeps the processor's seconds until then."""

    def __init__(self):
        super().__init__(["rl"], title="grpo")
        self.cpu_s = {0: 0.0}

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.cpu_s[step] = time.process_time()
        say({"ended": step, "reward": metrics["rewards/mean"]})


def say(record: Mapping[str, Any]) -> None:
    print(json.dumps(record), flush=True)


def work_of(model: ModelConfig, task: Mapping[str, Any], prompt_tokens: float) -> dict[str, float]:
    """The least work of a step: operations of training, and bytes that decoding has to read.

    `prompt_tokens` is the mean of the prompts, which training reads once for their group. The head
    multiplies what is predicted alone; a token of a response that is sampled reads all weights and
    all of its sequence's cache.
    """
    counted, new = counts.of(model), task["new_tokens"]
    samples = task["prompts"] * task["group_size"]
    predicted, read = samples * new, task["prompts"] * prompt_tokens
    seen = predicted * (prompt_tokens + new / 2) + read * prompt_tokens / 2
    forward = 2 * ((counted.active - counted.head) * (predicted + read) + counted.head * predicted)
    forward += counts.attention_flops(model, seen)
    size = jnp.dtype(model.dtype).itemsize
    cached = samples * (prompt_tokens + new / 2) * counts.cache_width(model)
    weights = counted.total - counted.looked_up
    return {"train_flops": 3 * forward, "decode_bytes": new * size * (weights + cached)}


def main(task: Mapping[str, Any]) -> None:
    recipe = starting.with_given_model(recipe_of(task))
    texts = texts_of(recipe)
    texts = dataclasses.replace(texts, tokenizer=_Endless(texts.tokenizer))
    recipe = sizes.fitted(recipe, texts)
    memory.keep_freed(recipe)
    stage = stage_of(recipe)
    # lines end answers and not samples
    stage = dataclasses.replace(stage, sampling=dataclasses.replace(stage.sampling, stops=()))
    own = Path(task["directory"])
    posed = problems_of(recipe, task["steps"] * task["prompts"])
    say(
        {
            "versions": configs.versions(),
            "settings": {
                "engine": configs.to_json(recipe.engine),
                "rows": stage.rows,
                "row_length": stage.row_length,
                "scheduler": configs.to_json(stage.scheduler),
                "dtype": str(recipe.model.dtype),
            },
            "prompt_tokens": (prompt_tokens := sum(len(texts.prompt(one)) for one in posed)),
        }
    )
    directories = StageDirectories(own=own, inputs={}, given=starting.given(recipe))
    progress = _Said()
    with progress, Session(recipe, texts) as session:
        work: Any = stages.Work(
            session=session, name="rl", stage=stage, directories=directories, progress=progress
        )
        stages.run_rl(work)
    if task["accelerator"]:
        device = jax.local_devices()[0]
        peak, used = PEAKS.get(device.device_kind), device.memory_stats() or {}
        of_device = {
            "kind": device.device_kind,
            "peak": None if peak is None else peak._asdict(),
            "peak_bytes": used.get("peak_bytes_in_use"),
            "table_bytes": memory.total(memory.compiled_needs(recipe, "rl")),
            **work_of(recipe.model, task, prompt_tokens / len(posed)),
        }
        say({"device": of_device})
    for record in steps_of(metrics_log.read_metrics(own), metrics_log.read_events(own)):
        step = record["step"]
        say(record | {"cpu_s": progress.cpu_s[step] - progress.cpu_s[step - 1]})


def steps_of(
    metrics: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each step's seconds, from the end of the one before, by part."""
    found, start_s = [], 0.0
    for record in metrics:
        end_s, covered, parts = record["time_s"], [], {}
        for part, kinds in PARTS.items():
            spans = [(e["start_s"], e["end_s"]) for e in events if e["kind"] in kinds]
            clipped = [(max(a, start_s), min(b, end_s)) for a, b in spans]
            more = [*covered, *((a, b) for a, b in clipped if a < b)]
            parts[part] = overlap.length(more) - overlap.length(covered)
            covered = more
        found.append(
            {
                "step": record["step"],
                "seconds": end_s - start_s,
                **parts,
                "rest": end_s - start_s - overlap.length(covered),
                "reward": record["rewards/mean"],
                "tokens": record["num_tokens"],
            }
        )
        start_s = end_s
    return found


if __name__ == "__main__":
    from loong_jax import process

    process.prepare()
    main(json.loads(Path(sys.argv[1]).read_text()))
