"""Calibration of environments: instances, attempts of a solver, counts per level, a decision."""

import dataclasses
from collections.abc import Callable, Sequence

from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.synth.authors.store import Reply, Request
from loong_jax.synth.resyn import calibration, questions
from loong_jax.synth.resyn.calibration import LevelCount
from loong_jax.synth.resyn.items import Item, ResynSettings

Ask = Callable[[Sequence[Request]], list[Reply]]
FIRST_SEED = 1_000_000  # of the instances: apart from those that gates looked at


def run(ask: Ask, runner: ModuleRunner, items: Sequence[Item], settings: ResynSettings) -> None:
    """Calibrates each item, or stops it where too few attempts were graded.

    Every attempt is on an instance of its own, so attempts are independent draws of the level.
    """
    per_level = settings.calibration.attempts_per_level
    seeds = range(FIRST_SEED, FIRST_SEED + per_level)
    asked, places = [], []
    for item in items:
        draws = [(level, seed) for level in item.levels for seed in seeds]
        posed = runner.run(Module(item.source), [("pose", draw) for draw in draws])
        for (level, seed), found in zip(draws, posed, strict=True):
            if found.status == "ok":
                asked.append(
                    questions.request("solve", settings.seed + seed, item, question=found.value[1])
                )
                places.append((item, level, found.value[0]))
    replies = ask(asked)
    answered = {id(item): [] for item in items}
    for (item, level, state), reply in zip(places, replies, strict=True):
        item.calls.append(reply.transcript.key)
        if reply.text is not None:
            answered[id(item)].append((level, state, questions.answer_of(reply.text) or ""))
    for item in items:
        _decide(item, runner, answered[id(item)], settings)


def _decide(item: Item, runner: ModuleRunner, attempts: list, settings: ResynSettings) -> None:
    module = Module(item.source)
    judged = runner.run(module, [("reward", (state, answer)) for _, state, answer in attempts])
    graded = [
        (level, found.value)
        for (level, _, _), found in zip(attempts, judged, strict=True)
        if found.status == "ok"
    ]
    by_level = {level: [right for of, right in graded if of == level] for level in item.levels}
    counts = [LevelCount(level, sum(found), len(found)) for level, found in by_level.items()]
    least = settings.min_graded_share * settings.calibration.attempts_per_level
    if min(count.num_attempts for count in counts) < least:
        item.stop("calibration", "too few attempts", f"graded by level: {counts}")
        return
    found = calibration.calibrate(counts, settings.calibration)
    item.calibration = dataclasses.asdict(found) | {
        "counts": [list(count) for count in counts],
        "p_falling": float(f"{found.p_falling:.3g}"),
        "drop": round(found.drop, 4),
        "rate": round(found.rate, 4),
    }
    if found.decision != "kept":
        item.stop("calibration", found.decision, f"solved of tried by level: {counts}")
