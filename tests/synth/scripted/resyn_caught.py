"""What became of the defects that the scripted author planted in a run of ReSyn, by kind.

The ledger says what was planted in which reply, the store which item asked, the items how each
ended. A defect is caught where what has it is not what was kept.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.synth.calls import CallStore
from loong_jax.synth.resyn.ideas import KEPT
from tests.synth.scripted import play, resyn_defects
from tests.synth.scripted.played import LEDGER

_HARMLESS = ("rate_limited",)  # answered at the second attempt


def table(out: Path) -> dict[str, dict[str, Any]]:
    """By kind of defect: how often planted, how often caught, and by what."""
    planted = {row["digest"]: row for row in _rows(out / LEDGER) if row["defect"]}
    with CallStore(out / "calls.jsonl") as store:
        rows = {record["key"]: planted.get(play.digest(record["messages"], record["seed"]))
                for record in store.records()}  # fmt: skip
        failures = {record["key"]: record for record in store.records()}
    found: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"planted": 0, "caught": 0, "by": defaultdict(int)}
    )
    for item in json_files.read_jsonl(out / "items.jsonl"):
        for key in dict.fromkeys(item["calls"]):
            if (row := rows.get(key)) is None or row["defect"] in _HARMLESS:
                continue
            name = row["defect"]
            if name.startswith(resyn_defects.IN_IDEA) and not _is_bad_idea(item, name):
                continue
            by = _caught_by(item, name, failures[key])
            found[name]["planted"] += 1
            found[name]["caught"] += bool(by)
            found[name]["by"][by or "nothing"] += 1
    return {
        name: {**row, "by": dict(sorted(row["by"].items()))} for name, row in sorted(found.items())
    }


def admitted_loopholes(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Kinds of loopholes of which at least one was kept."""
    return [
        name
        for name, row in rows.items()
        if name.removeprefix(resyn_defects.IN_MODULE) in resyn_defects.LOOPHOLES
        and row["caught"] < row["planted"]
    ]


def _caught_by(item: Mapping[str, Any], name: str, record: Mapping[str, Any]) -> str:
    """What stopped the defect, or "" where it is part of what was kept."""
    if name.startswith(resyn_defects.IN_MODULE) and item["first_refusal"]:
        return item["first_refusal"]
    if record["prompt_name"] == "resyn/solve":
        return "not graded" if name != "missing_key" else ""
    return "" if item["end"] == KEPT else f"{item['end']}: {item['reason']}"


def _is_bad_idea(item: Mapping[str, Any], name: str) -> bool:
    """Whether the defect of the whole reply is in this idea."""
    kind = next(mark for mark, (of, _, _) in resyn_defects.IDEA_KINDS.items()
                if resyn_defects.IN_IDEA + of == name)  # fmt: skip
    if kind == "d":
        return item["title"].startswith("In other words")
    return f"-{kind}" in item["title"].rpartition("[")[2]


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
