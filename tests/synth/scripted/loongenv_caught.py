"""What became of the defects that the scripted author planted in a run of LoongEnv.

It joins the ledger, which the run never read, with the run's candidates and calls. A planted
defect is caught if nothing of it is kept: no item has the spoiled question or program, no accepted
solution the wrong answer. A judge that rejects what is right is caught if the item is kept.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.data import json_files
from loong_jax.synth import calls
from loong_jax.synth.authors import reply_of
from loong_jax.synth.calls import Transcript
from loong_jax.synth.loongenv import candidates, judging, strategies
from loong_jax.synth.loongenv.gates import words_of
from loong_jax.synth.loongenv.strategies import MARKS
from tests.synth.scripted import play, roles, world
from tests.synth.scripted.loongenv_roles import same
from tests.synth.scripted.play import COMMON
from tests.synth.scripted.played import LEDGER

Candidate = Mapping[str, Any]  # a line of candidates.jsonl

_SCHEMAS = {
    "loongenv/few_shot": strategies.TRIPLE,
    "loongenv/self_instruct": candidates.QUESTION,
    "loongenv/evolve": candidates.QUESTION,
    "loongenv/score": MARKS,
    "loongenv/code": strategies.CODE,
    "loongenv/judge": judging.VERDICT,
    "loongenv/solve": judging.SOLUTION,
    "judge/reasoning": calls.fields(reasoning=str, verdict=str),
}
_OF_FORM = {defect.name for defect in COMMON} - {"rate_limited"}
_OF_QUESTIONS = {
    "copied_seed", "reworded_seed", "underspecified", "answer_in_question", "two_questions",
    "speaks_to_judge",
}  # fmt: skip


class Planted(NamedTuple):
    """A defect, the call that carries it, and the candidate it was said to, if to one."""

    defect: str
    call: Transcript
    candidate: Candidate | None


def table(directory: Path) -> list[dict[str, Any]]:
    """A row for every defect: how often it was planted, and how often nothing of it was kept."""
    candidates = json_files.read_jsonl(directory / "candidates.jsonl")
    known = planted(directory, candidates)
    is_kept = _judge_of(candidates)
    rows = []
    for defect in roles.DEFECTS:
        if defect.prompts and not set(defect.prompts) & set(_SCHEMAS):
            continue
        found = [one for one in known if one.defect == defect.name]
        caught = [one for one in found if not is_kept(one)]
        rows.append(
            {
                "defect": defect.name,
                "about": defect.about,
                "rate": defect.rate,
                "planted": len(found),
                "caught": len(caught),
                "share": len(caught) / len(found) if found else None,
            }
        )
    return rows


def audit(directory: Path) -> dict[str, int]:
    """The kept items against the truth that the scripted author knows: how many golds are wrong."""
    counts = {"items": 0, "wrong_gold": 0, "not_well_posed": 0, "solutions": 0, "wrong_solution": 0}
    for item in json_files.read_jsonl(directory / "items.jsonl"):
        puzzle = world.read(item["question"])
        counts["items"] += 1
        counts["not_well_posed"] += puzzle is None
        counts["wrong_gold"] += puzzle is not None and not same(puzzle.truth, item["answer"])
        for attempt in item["attempts"]:
            if attempt["verdict"] == "correct":
                counts["solutions"] += 1
                counts["wrong_solution"] += puzzle is None or not _states(attempt, puzzle.truth)
    return counts


def planted(directory: Path, candidates: Sequence[Candidate]) -> list[Planted]:
    """Every planted defect of which a call of this run is the carrier, each once."""
    calls = {}
    for record in json_files.read_jsonl(directory / "calls.jsonl"):
        call = Transcript.from_json(record)
        calls[play.digest(call.messages, call.seed)] = call
    holder = {key: one for one in candidates for key in one["calls"]}
    found: dict[str, Planted] = {}
    for entry in json_files.read_jsonl(directory / LEDGER):
        call = calls.get(entry["digest"])
        if call is not None and entry["defect"] is not None:
            candidate = holder.get(call.key)
            found.setdefault(entry["digest"], Planted(entry["defect"], call, candidate))
    return list(found.values())


def _judge_of(candidates: Sequence[Candidate]) -> Callable[[Planted], bool]:
    """Says whether a planted defect had its way."""
    passed = [one for one in candidates if one["state"] == "passed"]
    by_words: dict[tuple[str, ...], int] = {}
    for one in passed:
        words = tuple(words_of(one["question"]))
        by_words[words] = by_words.get(words, 0) + 1

    def is_kept(one: Planted) -> bool:
        said, is_failed = _said(one.call)
        held = one.candidate
        if one.defect == "rate_limited":
            return is_failed  # it was to be survived
        if one.defect in _OF_FORM:
            return not is_failed
        if one.defect == "matcher_accepts":
            return _is_matched(one.call, passed)
        if one.defect == "judge_rejects":  # what is right is lost by it
            return held is not None and held["state"] != "passed"
        if held is None or held["state"] != "passed" or is_failed:
            return False
        if one.defect in _OF_QUESTIONS:
            return said["question"].strip() == held["question"]
        if one.defect == "repeated_question":
            words = tuple(words_of(said["question"]))
            return tuple(words_of(held["question"])) == words and by_words[words] > 1
        if one.defect == "wrong_stated_answer":
            return held["answer"] == said["answer"]
        if one.defect in ("wrong_reasoning", "spray_of_answers"):
            right = [a for a in held["attempts"] if a["verdict"] == "correct"]
            return any(a["answer"] == said["answer"] for a in right)
        if one.defect == "judge_accepts":
            return True
        return said["code"] == held["code"]

    return is_kept


def _said(call: Transcript) -> tuple[Any, bool]:
    """What a reply holds, and whether the run took it for a failure."""
    reply = reply_of(call, _SCHEMAS.get(call.prompt_name))
    return reply.parsed, reply.failure is not None


def _is_matched(call: Transcript, passed: Sequence[Candidate]) -> bool:
    """Whether an attempt was accepted because the matcher called it equal."""
    data = json.loads(call.messages[-1]["content"].split("\n")[1])
    return any(
        attempt["by"] == "judge" and attempt["verdict"] == "correct"
        and attempt["answer"] == data["answer"]
        for one in passed if one["question"] == data["question"]
        for attempt in one["attempts"]
    )  # fmt: skip


def _states(attempt: Mapping[str, Any], truth: str) -> bool:
    """Whether an accepted answer is the truth, in the forms that the scripted solver uses."""
    answer = attempt["answer"].removeprefix("The final answer is ").removesuffix(".").strip("$")
    answer = answer.removeprefix("\\boxed{").removesuffix("}")
    return same(truth, answer)
