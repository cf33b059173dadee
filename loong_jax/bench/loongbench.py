"""`loong bench loongbench`: rationales of LoongBench executed, their output against their gold."""

import collections
import concurrent.futures
import dataclasses
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loong_jax import options
from loong_jax.errors import ConfigError
from loong_jax.launch import places
from loong_jax.verifiers.loongbench import LoongBenchVerifier, domains, rationales


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Runs the rationales of LoongBench in the sandbox and judges what they print, by domain.

    A rationale whose declared package is missing is left out and counted. Example:
    pip install --target /opt/loongbench sympy==1.13.3 numpy networkx scipy;
    loong bench loongbench --data loongbench/ --packages /opt/loongbench --json loongbench.json
    """

    data: Path  # a directory of JSON-lines files of LoongBench, or one file
    packages: Path | None = None  # a directory that `pip install --target` filled, for everybody
    json: Path | None = None  # all figures, and every row that is not correct
    limit: int | None = None  # only so many rows of each file
    workers: int = 1  # sandboxes at a time


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench loongbench", arguments)
    if chosen.workers < 1 or (chosen.limit is not None and chosen.limit < 1):
        raise ConfigError(
            f"workers={chosen.workers}, limit={chosen.limit} are not at least 1. Raise them."
        )
    places.prepare_files(json=chosen.json)
    rows = read_rows(chosen.data, chosen.limit)
    result = measure(rows, packages=chosen.packages, workers=chosen.workers)
    print(as_text(result))
    if chosen.json is not None:
        from loong_jax.data import json_files

        json_files.write_json(chosen.json, result)
    return 0


def read_rows(data: Path, limit: int | None) -> list[tuple[str, domains.Row]]:
    """(uid, row) of all files. ConfigError where there is none, VerifierError for a bad row."""
    files = sorted(data.glob("*.jsonl")) if data.is_dir() else [data]
    rows = []
    for file in files:
        try:
            with open(file, encoding="utf-8") as lines:
                for number, line in enumerate(itertools.islice(lines, limit)):
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise ValueError(f"line {number + 1} holds no object")
                    uid = str(record.get("uid", f"{file.stem}/{number}"))
                    rows.append((uid, domains.read_row(record)))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: {error}. Name files of LoongBench.") from error
    if not rows:
        raise ConfigError(f"{data} holds no rows. Name a directory with files of LoongBench.")
    return rows


def measure(
    rows: Sequence[tuple[str, domains.Row]], *, packages: Path | None, workers: int = 1
) -> dict[str, Any]:
    """Counts per domain, and what was said about each row that is not correct."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    others = []
    for (uid, row), (ran, judged) in zip(rows, _checked(rows, packages, workers), strict=True):
        of = counts[row.domain.name]
        of["rows"] += 1
        of["missing package"] += bool(ran.missing)
        of["executed"] += ran.is_done
        if ran.is_done:
            of[judged.outcome] += 1
        if not judged.is_correct:
            said = {"verdict": judged.outcome, "reason": judged.reason, "evidence": judged.evidence}
            others.append({"uid": uid, **said, "gold": row.gold[:200], "output": ran.output[:200]})
    found = rationales.installed(rationales.directory(packages))
    declared = {rationales.package_name(name) for _, row in rows for name in row.packages}
    return {
        "domains": {name: _with_shares(counter) for name, counter in sorted(counts.items())},
        "packages": {name: found.get(name, "missing") for name in sorted(declared)},
        "not_correct": others,
    }


def _with_shares(counter: collections.Counter[str]) -> dict[str, Any]:
    names = ("rows", "missing package", "executed", "correct", "wrong", "ungradable")
    counts: dict[str, Any] = {name: counter[name] for name in names}
    executed = counts["executed"]
    return counts | {"share": counts["correct"] / executed if executed else None}


def _checked(
    rows: Sequence[tuple[str, domains.Row]], packages: Path | None, workers: int
) -> Iterator[Any]:
    """Executions and verdicts in order; every thread has a sandbox of its own."""
    local, opened = threading.local(), []

    def check(item: tuple[str, domains.Row]) -> Any:
        if not hasattr(local, "verifier"):
            local.verifier = LoongBenchVerifier(packages=packages)
            opened.append(local.verifier)
        return local.verifier.check_rationale(item[1])

    try:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            yield from pool.map(check, rows)
    finally:
        for verifier in opened:
            verifier.close()


def as_text(result: dict[str, Any]) -> str:
    """The table for people. The share is of those that executed."""
    lines = [
        f"{'domain':26}{'rows':>6}{'no package':>12}{'executed':>10}{'correct':>9}{'wrong':>7}"
        f"{'ungradable':>12}{'share':>9}"
    ]
    for name, of in result["domains"].items():
        share = "-" if of["share"] is None else f"{100 * of['share']:.2f} %"
        lines.append(
            f"{name:26}{of['rows']:>6}{of['missing package']:>12}{of['executed']:>10}"
            f"{of['correct']:>9}{of['wrong']:>7}{of['ungradable']:>12}{share:>9}"
        )
    packages = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    return "\n".join([*lines, "", f"packages: {packages or 'none declared'}"])
