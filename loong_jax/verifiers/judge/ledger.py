"""On disk: replies of a judge, and the ledger of what rules and judge said of the same answer.

A verdict that only one of them gives is where either can be improved; agreement falls when a policy
learns to please one of them. Texts are kept as hashes unless asked for.
"""

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers.judge.client import content_hash

MAX_TEXT_CHARS = 2000


class ReplyCache:
    """One small file per reply; safe for many processes. Without a directory it keeps nothing."""

    def __init__(self, directory: Path | None):
        self._directory = directory

    def get(self, key: str) -> str | None:
        """The reply, or None where there is none or its file is damaged."""
        if self._directory is None:
            return None
        try:
            stored = json.loads(self._path(key).read_text(encoding="utf-8"))
            return stored["reply"] if stored["key"] == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, reply: str) -> None:
        """Writes a reply whole or not at all; a full disk costs the cache, not the verdict."""
        if self._directory is None:
            return
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump({"key": key, "reply": reply}, out)
            os.replace(partial, path)

    def _path(self, key: str) -> Path:
        assert self._directory is not None
        return self._directory / key[:2] / f"{key}.json"


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
        """Records the canaries of one batch; `failed` says what each failure was."""
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
