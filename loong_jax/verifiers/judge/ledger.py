"""The disagreement ledger: what the rules and the judge said of the same answer, line by line.

A verdict that only one of them gives is where either can be improved; agreement falls when a policy
learns to please one of them. Texts are kept as hashes unless asked for.
"""

import collections
import json
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loong_jax.verifiers.judge.client import content_hash
from loong_jax.verifiers.verdict import Verdict

MAX_TEXT_CHARS = 2000


class Ledger:
    """Appends JSON lines to a file, one write each. Without a path it keeps nothing."""

    def __init__(self, path: Path | None, *, keeps_texts: bool = True):
        self._path, self._keeps_texts = path, keeps_texts
        self._lock = threading.Lock()

    def record(
        self, *, question: str, gold: str, answer: str, rule: Verdict, judged: Verdict, model: str
    ) -> None:
        """One answer with both verdicts."""
        line: dict[str, Any] = {
            "kind": "item",
            "question_hash": content_hash(question),
            "answer_hash": content_hash(answer),
            "rule": _brief(rule),
            "judge": _brief(judged),
            "agrees": rule.outcome == judged.outcome,
            "model": model,
        }
        if self._keeps_texts:
            texts = {"question": question, "gold": gold, "answer": answer}
            line |= {name: text[:MAX_TEXT_CHARS] for name, text in texts.items()}
        self._write(line)

    def record_batch(
        self, *, num_items: int, num_canaries: int, failed: Iterable[str], model: str
    ) -> None:
        """How the canaries of one batch fared; `failed` says what each failure was."""
        counts = {"num_items": num_items, "num_canaries": num_canaries}
        self._write({"kind": "batch", **counts, "failed": list(failed), "model": model})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        body = json.dumps({"time": round(time.time(), 3), **line}) + "\n"
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0) as out:
                out.write(body.encode())


def _brief(said: Verdict) -> dict[str, str]:
    return {"verdict": said.outcome, "reason": said.reason, "evidence": said.evidence[:200]}


def agreement(path: Path) -> dict[str, Any]:
    """Figures of a ledger: counts by both verdicts, agreement, Cohen's kappa, canaries.

    `agreement` and `kappa` are over answers that both graded; None where there is none, and kappa
    also where both always say the same one thing. A line cut short by a crash is skipped.
    """
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    num_canaries = num_failed = num_batches = num_failed_batches = 0
    with open(path, encoding="utf-8") as lines:
        for text in lines:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if line["kind"] == "item":
                counts[line["rule"]["verdict"], line["judge"]["verdict"]] += 1
            else:
                num_batches += 1
                num_canaries += line["num_canaries"]
                num_failed += len(line["failed"])
                num_failed_batches += bool(line["failed"])
    graded = {pair: n for pair, n in counts.items() if "ungradable" not in pair}
    total = sum(graded.values())
    share = (
        sum(n for (rule, judge), n in graded.items() if rule == judge) / total if total else None
    )
    return {
        "counts": {f"rule {rule}, judge {judge}": n for (rule, judge), n in sorted(counts.items())},
        "graded_by_both": total,
        "agreement": share,
        "kappa": _kappa(graded, total, share),
        "canaries": num_canaries,
        "canaries_failed": num_failed,
        "batches": num_batches,
        "batches_failed": num_failed_batches,
    }


def _kappa(graded: Mapping[tuple[str, str], int], total: int, share: float | None) -> float | None:
    if share is None:
        return None
    by_chance = sum(
        sum(n for (rule, _), n in graded.items() if rule == outcome)
        * sum(n for (_, judge), n in graded.items() if judge == outcome)
        for outcome in ("correct", "wrong")
    ) / (total * total)
    return (share - by_chance) / (1 - by_chance) if by_chance < 1 else None
