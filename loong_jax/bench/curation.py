"""`loong bench curation`: precision and recall of the filters, their speed, contamination found."""

import dataclasses
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loong_jax import options
from loong_jax.bench import curation_cases, record
from loong_jax.bench import curation_corpora as corpora
from loong_jax.data import json_files
from loong_jax.data.curation import (
    balance,
    chain,
    duplicates,
    features,
    funnel,
    outcomes,
    prompts,
    responses,
    scorer,
    stages,
)
from loong_jax.data.curation.contamination import Contamination, Index
from loong_jax.data.curation.duplicates import Similarity
from loong_jax.errors import ConfigError
from loong_jax.launch import places

Part = Literal["quality", "contamination", "volume", "scorer"]
PARTS: tuple[Part, ...] = ("quality", "contamination", "scorer", "volume")
EDITS = (0, 1, 2, 3, 4, 6, 8, 12)
_NUM_ITEMS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Measures the filters of `loong curate` on corpora in which defects are planted.

    quality: precision and recall of each filter. contamination: shares found by words changed, also
    of near-duplicates. scorer: Spearman's rank correlation on texts it has not seen. volume: a
    chain of all stages over `--records` records in a process of its own: records per CPU second of
    each stage, and peak memory. Example: loong bench curation --parts volume --records 100000
    """

    parts: tuple[Part, ...] = PARTS
    records: int = 100_000  # of the volume
    planted: int = 600  # of each defect, and as many decoys and clean records
    seed: int = 0
    directory: Path | None = None  # keeps the volume's files; a stopped run goes on from them
    json: Path | None = None


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench curation", arguments)
    if chosen.records < 1 or chosen.planted < 1:
        raise ConfigError(
            f"records={chosen.records}, planted={chosen.planted} are not at least 1. Raise them."
        )
    places.prepare_files(json=chosen.json)
    places.try_directories(directory=chosen.directory)
    if not chosen.parts:
        raise ConfigError(f"parts names nothing to measure. Name some of {', '.join(PARTS)}.")
    save = record.saver(chosen.json, chosen)
    result: dict[str, Any] = {"seed": chosen.seed}
    if "quality" in chosen.parts:
        result["quality"] = measure_quality(chosen.planted, chosen.seed)
        print(quality_text(result["quality"]), flush=True)
        save(result)
    if "contamination" in chosen.parts:
        result["contamination"] = measure_contamination(chosen.planted, chosen.seed)
        print(contamination_text(result["contamination"]), flush=True)
        save(result)
    if "scorer" in chosen.parts:
        result["scorer"] = measure_scorer(chosen.seed)
        print(f"\nscorer: {json.dumps(result['scorer'])}", flush=True)
        save(result)
    if "volume" in chosen.parts:
        result["volume"] = measure_volume(chosen.records, chosen.seed, chosen.directory)
        print(volume_text(result["volume"]), flush=True)
        save(result)
    return 0


# ---- quality


def filters() -> dict[str, Any]:
    """The filters under measurement by name, with their default settings."""
    found = (
        prompts.Incomplete(),
        prompts.MultiPart(),
        prompts.MultipleChoice(),
        prompts.TrueFalse(),
        prompts.External(),
        prompts.Conceptual(),
        responses.Repetition(),
        responses.Truncation(),
        responses.LanguageMixing(),
        responses.Form(form="plain"),
        outcomes.Balanced(),
        outcomes.PassRate(),
        outcomes.MajorityVote(),
    )
    return {one.name: one for one in found}


def measure_quality(num: int, seed: int) -> dict[str, Any]:
    """Per defect: recall on the planted, false alarms on decoys and on clean records.

    Precision is that of a corpus with as many decoys as planted defects: the hard mix. `written` is
    the same on the cases of `curation_cases`, as counts.
    """
    result = {}
    by_name = filters()
    for name, planted in corpora.planted().items():
        rng = random.Random(f"{seed}/{name}")
        stage = by_name[planted.filter]
        found = len(_dropped(stage, [planted.defect(rng) for _ in range(num)]))
        alarms = len(_dropped(stage, [planted.decoy(rng) for _ in range(num)]))
        clean = [{"prompt": corpora.prompt(rng), "response": corpora.response(rng)}
                 for _ in range(num)]  # fmt: skip
        needs_more = planted.filter in ("balanced_outcomes", "pass_rate", "majority_vote")
        result[name] = {
            "num": num,
            "recall": found / num,
            "false_alarms_on_decoys": alarms / num,
            "false_alarms_on_clean": None if needs_more else len(_dropped(stage, clean)) / num,
            "precision": found / (found + alarms) if found else None,
            "written": _written(stage, name),
        }
    return result


def _written(stage: Any, name: str) -> dict[str, int] | None:
    if name not in curation_cases.CASES:
        return None
    cases = curation_cases.CASES[name]

    def found(texts: Sequence[str]) -> int:
        return len(_dropped(stage, [{"prompt": "What is x?", cases.key: text} for text in texts]))

    return {
        "defects": len(cases.defects),
        "found": found(cases.defects),
        "sound": len(cases.sound),
        "alarms": found(cases.sound),
    }


def _dropped(stage: Any, records: Sequence[corpora.Record]) -> set[int]:
    return set(stages.judge(stage, records).reasons)


def quality_text(result: dict[str, Any]) -> str:
    lines = [
        f"{'':20}{'planted from templates':^42}{'written by hand':^22}",
        f"{'filter':20}{'precision':>10}{'recall':>8}{'alarms: decoys':>16}{'clean':>8}"
        f"{'found':>11}{'alarms':>11}",
    ]
    for name, of in result.items():
        clean, written = of["false_alarms_on_clean"], of["written"]
        line = (
            f"{name:20}{of['precision'] or 0:>10.3f}{of['recall']:>8.3f}"
            f"{of['false_alarms_on_decoys']:>16.3f}{'-' if clean is None else f'{clean:.3f}':>8}"
        )
        if written is not None:
            found, alarms = f"{written['found']}/{written['defects']}", written["alarms"]
            line += f"{found:>11}{f'{alarms}/' + str(written['sound']):>11}"
        lines.append(line)
    return "\n".join(lines)


# ---- contamination and near-duplicates by distance


def measure_contamination(num: int, seed: int) -> dict[str, Any]:
    """Shares found of items with 0 to 12 words changed: alone, embedded, and as duplicates.

    `other` are fresh prompts of the same templates, which must not be found.
    """
    rng = random.Random(f"{seed}/contamination")
    items = [corpora.prompt(rng) for _ in range(num)]
    index = Index(items)
    rows = []
    for edits in EDITS:
        changed = [corpora.edited(item, edits, rng) for item in items]
        wrapped = [f"{corpora.response(rng)} {text} {corpora.response(rng)}" for text in changed]
        both = items + changed
        alike = duplicates.near_duplicates(both, Similarity(numbers_matter=False))
        careful = duplicates.near_duplicates(both, Similarity())
        own = np.arange(num, 2 * num)
        rows.append(
            {
                "edits": edits,
                "alone": len(index.matches(changed)) / num,
                "embedded": len(index.matches(wrapped)) / num,
                "near_duplicate": float((alike[num:] != own).mean()),
                "near_duplicate_same_numbers": float((careful[num:] != own).mean()),
            }
        )
    fresh = [corpora.prompt(rng) for _ in range(num)]
    both = duplicates.near_duplicates(items + fresh, Similarity(numbers_matter=False))
    careful = duplicates.near_duplicates(items + fresh, Similarity())
    words = [len(item.split()) for item in items]
    return {
        "num_items": num,
        "median_words": float(np.median(words)),
        "by_edits": rows,
        "other": {
            "contamination": len(index.matches(fresh)) / num,
            "near_duplicate": float((both[num:] != np.arange(num, 2 * num)).mean()),
            "near_duplicate_same_numbers": float((careful[num:] != np.arange(num, 2 * num)).mean()),
        },
    }


def contamination_text(result: dict[str, Any]) -> str:
    head = f"{'words changed':>16}{'alone':>9}{'embedded':>10}{'near-dup.':>11}{'same numbers':>14}"
    lines = [f"\nfound, of items of {result['median_words']:.0f} words (median)", head]
    for row in result["by_edits"]:
        lines.append(
            f"{row['edits']:>16}{row['alone']:>9.3f}{row['embedded']:>10.3f}"
            f"{row['near_duplicate']:>11.3f}{row['near_duplicate_same_numbers']:>14.3f}"
        )
    other = result["other"]
    lines.append(
        f"{'other prompts':>16}{other['contamination']:>9.3f}{'':>10}"
        f"{other['near_duplicate']:>11.3f}{other['near_duplicate_same_numbers']:>14.3f}"
    )
    return "\n".join(lines)


# ---- scorer


def measure_scorer(seed: int) -> dict[str, Any]:
    """Trained on 1,500 problems of our own environments, measured on 500 others.

    Their level is the difficulty and their task the tag; both are shown by the text alone.
    """
    records = environment_problems(2000, seed)
    start = time.process_time()
    trained, _ = scorer.train(records[:1500], scorer.ScorerConfig(num_epochs=15, seed=seed))
    train_s = time.process_time() - start
    start = time.process_time()
    measured = scorer.evaluate(trained, records[1500:])
    return measured | {
        "train_cpu_s": round(train_s, 2),
        "records_per_cpu_s": round(500 / max(1e-9, time.process_time() - start)),
        "num_tags": len(trained.tags),
    }


def environment_problems(num: int, seed: int) -> list[dict[str, Any]]:
    """Labelled prompts of the tasks of `loong_jax.environments`, all levels, in a drawn order."""
    from loong_jax.environments import environment, tasks

    rng = random.Random(seed)
    names = sorted(tasks.TASKS)
    found: dict[str, dict[str, Any]] = {}
    while len(found) < num:
        name, level = rng.choice(names), rng.choice(list(environment.LEVELS))
        problem = tasks.generate(name, level, rng.randrange(1 << 30))
        label = {"prompt": problem.prompt, "difficulty": float(level), "tags": [name]}
        found.setdefault(problem.canonical, label)
    return list(found.values())


# ---- volume


def measure_volume(num: int, seed: int, directory: Path | None) -> dict[str, Any]:
    """Runs the chain in a child, whose CPU seconds and peak memory are then read off."""
    if directory is not None:
        return _volume_in(directory, num, seed)
    with tempfile.TemporaryDirectory() as own:
        return _volume_in(Path(own), num, seed)


def _volume_in(directory: Path, num: int, seed: int) -> dict[str, Any]:
    directory.mkdir(parents=True, exist_ok=True)
    corpus = directory / f"raw-{num}-{seed}.jsonl"
    bench = directory / f"items-{seed}.jsonl"
    rng = random.Random(f"{seed}/items")
    items = [corpora.prompt(rng) for _ in range(_NUM_ITEMS)]
    json_files.write_jsonl(bench, ({"id": f"i{i}", "prompt": p} for i, p in enumerate(items)))
    if not corpus.exists():
        partial = corpus.with_suffix(".partial")
        with open(partial, "w", encoding="utf-8") as file:
            file.writelines(corpora.many(num, seed, items))
        partial.replace(corpus)
    trained = directory / "scorer"
    if not (trained / "scorer.json").exists():
        labelled = environment_problems(400, seed)
        scorer.train(labelled, scorer.ScorerConfig(num_epochs=3))[0].save(trained)
    words = [str(corpus), str(bench), str(trained), str(directory / f"out-{num}-{seed}")]
    start = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-m", "loong_jax.bench.curation", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise ConfigError(f"the chain failed: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1]) | {
        "wall_s": round(time.monotonic() - start, 1),
        "corpus_mb": round(corpus.stat().st_size / 1e6, 1),
    }


def full_chain(items: Path, trained: Path) -> tuple[stages.Stage, ...]:
    """Every stage that needs neither an endpoint nor a sandbox, the cheap ones first."""
    return (
        prompts.Incomplete(),
        prompts.External(),
        prompts.TrueFalse(),
        prompts.MultipleChoice(),
        prompts.MultiPart(),
        prompts.Conceptual(),
        responses.Truncation(),
        responses.Repetition(),
        responses.LanguageMixing(),
        responses.Form(form="plain"),
        outcomes.PassRate(),
        outcomes.Balanced(),
        Contamination(against=(items,)),
        duplicates.Duplicates(keys=("prompt", "response")),
        balance.AnswerSources(),
        scorer.Scored(path=trained),
        features.Features(),
        balance.Stratified(edges=(1.5, 2.5), keep=(0.5, 0.8, 1.0)),
        balance.Mixture(shares={"stem": 0.5, "logic": 0.3, "code": 0.2}),
    )


def _child(corpus: str, items: str, trained: str, output: str) -> None:
    config = chain.Chain(stages=full_chain(Path(items), Path(trained)))
    start = time.process_time()
    counts = chain.run(config, [Path(corpus)], Path(output))
    cpu_s = time.process_time() - start
    rates = {
        stage.name: round(stage.num_seen / stage.cpu_s) if stage.cpu_s else None
        for stage in counts.stages
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "num_records": counts.num_records,
        "num_kept": counts.num_kept,
        "cpu_s": round(cpu_s, 1),
        "records_per_cpu_s": round(counts.num_records / cpu_s),
        "peak_memory_gb": round(peak / 1e9, 3),
        "records_per_cpu_s_of_stage": rates,
        "funnel": counts.to_json() | {"sources": []},
        "table": funnel.as_text(counts),
    }
    print(json.dumps(result))


def volume_text(result: dict[str, Any]) -> str:
    return (
        f"\n{result['table']}\n{result['num_records']:,} records ({result['corpus_mb']} MB) in "
        f"{result['cpu_s']:,} CPU seconds, all stages, reading and writing: "
        f"{result['records_per_cpu_s']:,} a second; peak memory {result['peak_memory_gb']} GB"
    )


if __name__ == "__main__":
    _child(*sys.argv[1:])
