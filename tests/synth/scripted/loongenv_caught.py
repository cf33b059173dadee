"""What a run of LoongEnv kept of the defects that the scripted author planted, and of its truth.

It joins the ledger, which the run never read, with the run's candidates and calls. A planted
defect is caught if nothing of it is kept: no item has the spoiled question or program.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.synth import calls
from loong_jax.synth.authors import reply_of
from loong_jax.synth.calls import Transcript
from loong_jax.synth.loongenv import candidates, judging, strategies
from loong_jax.synth.loongenv.gates import words_of
from tests.synth.scripted import play, world
from tests.synth.scripted.loongenv_roles import same
from tests.synth.scripted.played import LEDGER

Candidate = Mapping[str, Any]  # a line of candidates.jsonl
_SCHEMAS = {
    "loongenv/few_shot": strategies.TRIPLE,
    "loongenv/self_instruct": candidates.QUESTION,
    "loongenv/evolve": candidates.QUESTION,
    "loongenv/score": strategies.MARKS,
    "loongenv/code": strategies.CODE,
    "loongenv/judge": judging.VERDICT,
    "loongenv/solve": judging.SOLUTION,
    "judge/reasoning": calls.fields(reasoning=str, verdict=str),
}
_OF_FORM = {defect.name for defect in play.COMMON} - {"rate_limited"}
_OF_QUESTIONS = {
    "copied_seed", "reworded_seed", "underspecified", "answer_in_question", "two_questions",
    "speaks_to_judge",
}  # fmt: skip
# A right item is lost by the first, and a wrong solution may pass by the others.
HARMLESS = {"judge_rejects", "matcher_accepts", "wrong_reasoning", "spray_of_answers"}


def planted(directory: Path) -> dict[str, list[bool]]:
    """By defect, whether each that was planted was kept; without those that may pass."""
    calls_made = map(Transcript.from_json, json_files.read_jsonl(directory / "calls.jsonl"))
    by_digest = {play.digest(call.messages, call.seed): call for call in calls_made}
    made = json_files.read_jsonl(directory / "candidates.jsonl")
    holder = {key: one for one in made for key in one["calls"]}
    passed = Counter(_place(one) for one in made if one["state"] == "passed")
    found: dict[str, dict[str, bool]] = {}
    for entry in json_files.read_jsonl(directory / LEDGER):
        call, defect = by_digest.get(entry["digest"]), entry["defect"]
        if call is not None and defect is not None and defect not in HARMLESS:
            is_kept = _is_kept(defect, call, holder.get(call.key), passed)
            found.setdefault(defect, {})[call.key] = is_kept
    return {defect: list(kept.values()) for defect, kept in found.items()}


def _is_kept(
    defect: str, call: Transcript, held: Candidate | None, passed: Counter[tuple[str, ...]]
) -> bool:
    """Whether a planted defect had its way; `held` is the candidate that it was said to."""
    reply = reply_of(call, _SCHEMAS.get(call.prompt_name))
    if defect == "rate_limited":
        return reply.failure is not None  # it was to be survived
    if defect in _OF_FORM:
        return reply.failure is None
    if held is None or held["state"] != "passed" or reply.failure is not None:
        return False
    said = reply.parsed
    if defect in _OF_QUESTIONS:
        return said["question"].strip() == held["question"]
    if defect == "repeated_question":
        is_said = words_of(said["question"]) == words_of(held["question"])
        return is_said and passed[_place(held)] > 1
    if defect == "wrong_stated_answer":
        return held["answer"] == said["answer"]
    return defect == "judge_accepts" or said["code"] == held["code"]


def _place(candidate: Candidate) -> tuple[str, ...]:
    """Its domain and its words: domains may have a question each."""
    return candidate["domain"], *words_of(candidate["question"])


def audit(directory: Path) -> Counter[str]:
    """The kept items against the truth that the scripted author knows: how many are wrong."""
    counts: Counter[str] = Counter()
    for item in json_files.read_jsonl(directory / "items.jsonl"):
        puzzle = world.read(item["question"])
        counts["not_well_posed"] += puzzle is None
        counts["wrong_gold"] += puzzle is not None and not same(puzzle.truth, item["answer"])
        right = [one["answer"] for one in item["attempts"] if one["verdict"] == "correct"]
        counts["wrong_solution"] += sum(
            puzzle is None or not _states(a, puzzle.truth) for a in right
        )
    return counts


def _states(answer: str, truth: str) -> bool:
    """Whether an accepted answer is the truth, in the forms that the scripted solver uses."""
    answer = answer.removeprefix("The final answer is ").removesuffix(".").strip("$")
    return same(truth, answer.removeprefix("\\boxed{").removesuffix("}"))
