"""Sample rollouts for people: which ones are shown, and how."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax.report import html_parts as h
from loong_jax.report import theme
from loong_jax.report.html_parts import Markup
from loong_jax.report.run_record import RunRecord, label_of

NUM_SHOWN = 10
LONGEST = 1500  # characters of thinking or text
# controls, marks of direction, halves of pairs
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def choose(run: RunRecord, count: int = NUM_SHOWN) -> list[dict[str, Any]]:
    """Rollouts by a fixed rule, so that nobody picked the nice ones.

    Domains take turns; within a domain the latest step comes first, right and other rollouts take
    turns, and no problem appears twice while others are left.
    """
    by_domain: dict[str, list[dict[str, Any]]] = {}
    for stage in run.rl_stages:
        for record in stage.rollouts:
            by_domain.setdefault(record["domain"], []).append(record)
    queues = list(map(_alternating, by_domain.values()))
    chosen: list[dict[str, Any]] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
    return chosen


def _alternating(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    latest = sorted(records, key=lambda r: r["step"], reverse=True)[:200]
    ordered: list[dict[str, Any]] = []
    while latest:
        wanted = not ordered or ordered[-1]["outcome"] != "correct"  # a right one next
        seen = {record["uid"] for record in ordered}
        best = min(
            latest,  # the first of the best, so the latest
            key=lambda r: (r["uid"] in seen, (r["outcome"] == "correct") != wanted),
        )
        latest.remove(best)
        ordered.append(best)
    return ordered


def rollouts(run: RunRecord) -> Markup:
    chosen = choose(run)
    if not chosen:
        return Markup("")

    def is_styled(record: Mapping[str, Any]) -> bool:
        return (record.get("thinking") or "").startswith(("=", "~"))

    return Markup(
        h.paragraph(
            "From training, chosen by rule and not by hand: domains take turns, latest steps "
            "first, right and wrong answers alternate.",
            "note",
        )
        + (_STYLES_NOTE if any(map(is_styled, chosen)) else "")
        + '<div class="rollouts">'
        + "".join(_rollout(record) for record in chosen)
        + "</div>"
    )


def _rollout(record: Mapping[str, Any]) -> str:
    outcome = record.get("outcome") or "ungradable"
    facts = [
        f"{label_of(record['stage'])}, step {record['step']}",
        f"level {record['level']}",
        f"version {record['version']}",
        f"staleness {record['staleness']}",
        f"{record['num_tokens']} tokens",
    ]
    if record.get("finish_reason") != "stop":
        facts.append(f"ended by {record.get('finish_reason')}")
    reason = f" ({record['reason']})" if record.get("reason") else ""
    parts = [("Problem", record["prompt"])]
    if record.get("answer") is None:
        parts.append(("Response, form broken", record["text"]))
    else:
        parts += [("Thinking", record["thinking"]), ("Answer", record["answer"])]
    if record.get("evidence"):
        parts.append(("Evidence of the verifier", record["evidence"]))
    body = "".join(
        f"<h4>{h.escape(name)}</h4><pre>{h.escape(visible(_shortened(text)))}</pre>"
        for name, text in parts
    )
    mark = {"correct": "✓ correct", "wrong": "✗ wrong"}.get(outcome, outcome)
    return (
        f'<article class="rollout" style="--accent:{theme.domain_color(record["domain"])}">'
        f'<header><span class="verdict {h.escape(outcome)}">{h.escape(mark + reason)}</span>'
        f"<span>{h.dot(record['domain'])}</span><span>{h.escape(' · '.join(facts))}</span>"
        f"</header>{body}</article>"
    )


_STYLES_NOTE = h.paragraph(
    "Thinking that begins with = is careful: a value after every operation. Thinking that begins "
    "with ~ is hurried: it leaps over operations, as the solutions of the cold start do too.",
    "note",
)


def visible(text: str) -> str:
    """Characters that a page would swallow, or that would turn it around, by their code points."""
    return "".join(
        f"⟨U+{ord(c):04X}⟩" if c not in "\n\t\u200d" and unicodedata.category(c) in _UNSEEN else c
        for c in text
    )


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + f" … ({len(text)} characters)"
