"""The datasheet beside a corpus: where it comes from, under which licences, what was done to it.

After Gebru et al., "Datasheets for Datasets" (2021): what can be counted is counted here, and what
only people know is asked for by name.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import loong_jax
from loong_jax import configs
from loong_jax.data import json_files
from loong_jax.data.curation.chain import Funnel
from loong_jax.data.curation.contamination import Contamination
from loong_jax.data.curation.stages import Stage, note_of, prompt_of

_COUNTED = ("origin", "licence", "domain", "verifier", "level", "source")
_MAX_VALUES = 20  # of a field, most frequent first
_NONE = "(none)"


def describe(name: str, kept: Path, funnel: Funnel, all_stages: Sequence[Stage]) -> dict[str, Any]:
    """The content of `datasheet.json`: the kept records, read once, and what the chain did."""
    counts: dict[str, Counter[str]] = {field: Counter() for field in _COUNTED}
    lengths: list[int] = []
    digest = hashlib.sha256()
    with open(kept, "rb") as lines:
        for line in lines:
            digest.update(line)
            record = json.loads(line)
            lengths.append(len(prompt_of(record)))
            for field, counter in counts.items():
                counter[_shown(note_of(record, field))] += 1
    settings: dict[str, Any] = {stage.name: configs.to_json(stage) for stage in all_stages}
    fields = {f: dict(c.most_common(_MAX_VALUES)) for f, c in counts.items() if set(c) - {_NONE}}
    for field, shown in fields.items():
        if others := counts[field].total() - sum(shown.values()):
            shown["(others)"] = others
    shares = ("least", "10 %", "median", "90 %", "most")
    points = np.quantile(lengths, [0, 0.1, 0.5, 0.9, 1]).tolist() if lengths else []
    return {
        "name": name,
        "num_records": len(lengths),
        "sha256": digest.hexdigest(),  # of the file of records
        "fields": fields,  # how often each value occurs, "(none)" included
        "prompt_chars": dict(zip(shares, points, strict=False)),
        "sources": [source._asdict() for source in funnel.sources],
        "stages": [
            dataclasses.asdict(count) | {"settings": settings.get(count.name)}
            for count in funnel.stages
        ],
        "decontaminated_against": [
            {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            for stage in all_stages
            if isinstance(stage, Contamination)
            for file in stage.against
        ],
        "loong_jax_version": loong_jax.__version__,
    }


def write(directory: Path, sheet: Mapping[str, Any]) -> None:
    """datasheet.json and DATASHEET.md."""
    json_files.write_json(directory / "datasheet.json", sheet)
    json_files.write_text(directory / "DATASHEET.md", as_markdown(sheet))


def as_markdown(sheet: Mapping[str, Any]) -> str:
    sources = _table(
        ("file", "records", "bytes", "SHA-256"),
        (
            (s["file"], f"{s['num_records']:,}", f"{s['num_bytes']:,}", f"`{s['sha256'][:16]}`")
            for s in sheet["sources"]
        ),
    )
    fields = [f"- {field}: {_counts(counts)}" for field, counts in sheet["fields"].items()]
    if "licence" not in sheet["fields"]:
        fields += ["- licence: no record names one. Find out before the corpus is passed on."]
    stages = _table(
        ("stage", "seen", "kept", "reasons"),
        (
            (s["name"], f"{s['num_seen']:,}", f"{s['num_kept']:,}", _counts(s["reasons"]))
            for s in sheet["stages"]
        ),
    )
    against = [
        f"- {one['file']}, SHA-256 `{one['sha256'][:16]}`"
        for one in sheet["decontaminated_against"]
    ] or ["**None.** No benchmark was given: name them by --against."]
    lines = "\n".join
    return f"""# Datasheet of {sheet["name"]}

{sheet["num_records"]:,} records, SHA-256 `{sheet["sha256"]}`. Made by loong_jax \
{sheet["loong_jax_version"]}, `loong curate`.

## Origin and licences

{lines(sources)}

{lines(fields)}

## Contents

Characters of a prompt: {_counts(sheet["prompt_chars"], ",.0f")}.

## What was done

{lines(stages)}

Settings of every stage are in datasheet.json.

## Decontamination

{lines(against)}

## To be answered by people

Why was it collected, and for which uses is it unfit? Who is in it, and did they agree?
Who keeps it, and whom does one tell of a fault?
"""


def _counts(counts: Mapping[str, float], form: str = ",") -> str:
    return ", ".join(f"{name} {count:{form}}" for name, count in counts.items())


def _shown(value: Any) -> str:
    if value is None or value == "":
        return _NONE
    return str(value)[:60].encode(errors="replace").decode()  # half a surrogate pair is no text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]
