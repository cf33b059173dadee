"""Ideas on their way to packages: where every one ended, what is asked for it and replied."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import tyro

from loong_jax.errors import ConfigError, refuse_below, refuse_no_share
from loong_jax.problems import response
from loong_jax.problems.problem import Domain
from loong_jax.synth import calls
from loong_jax.synth.calls import Request
from loong_jax.synth.resyn.calibration import CalibrationRule

STAGES = ("idea", "module", "gates", "novelty", "judge", "calibration")
KEPT = "kept"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResynSettings:
    """Everything that changes what comes out, beside the keywords and the author."""

    ideas_per_keyword: Annotated[int, tyro.conf.arg(aliases=["--ideas"])] = 8
    seed: int = 0  # of the requests: another one asks the same questions anew
    calibration: CalibrationRule = CalibrationRule()
    min_graded_share: float = 0.8  # of the attempts of each level
    domain: Domain = "logic"  # of the packages
    licence: str = "Apache-2.0"  # that they name
    # keywords that name an evaluation set's task
    keeps_overlapping: Annotated[bool, tyro.conf.arg(aliases=["--keep-overlapping"])] = False

    def __post_init__(self):
        refuse_below(self, 1, "ideas_per_keyword")
        refuse_no_share(self, "min_graded_share")
        if not self.domain.strip():
            raise ConfigError(f"domain={self.domain!r} is no word. Give one.")


@dataclasses.dataclass(kw_only=True)
class Item:
    """A place for one idea: `ideas_per_keyword` of them for each keyword, filled or not.

    It ends in exactly one place: `kept`, or a stage of `STAGES` with a reason.
    """

    uid: str  # "003-02": keyword 3, idea 2
    keyword: str
    title: str = ""
    description: str = ""
    source: str = ""
    levels: tuple[int, ...] = ()
    guess_share: float = 0.0
    prompt_chars: tuple[int, ...] = ()
    form: tuple[str, str] = ("", "")  # digests of its normalised verifier and template
    complaint: str = ""  # given to the revision
    was_revised: bool = False
    first_refusal: str = ""  # stage and reason that the revision answered
    calibration: dict[str, Any] = dataclasses.field(default_factory=dict)
    end: str = ""  # "kept" or a stage
    reason: str = ""
    detail: str = ""
    calls: list[str] = dataclasses.field(default_factory=list)  # keys of transcripts, in order

    @property
    def is_open(self) -> bool:
        return not self.end

    def stop(self, stage: str, reason: str, detail: str = "") -> None:
        assert self.is_open, f"item {self.uid} ended before, at {self.end}"
        assert stage == KEPT or stage in STAGES, stage
        self.end, self.reason, self.detail = stage, reason, detail[:300]


def count(items: Sequence[Item]) -> dict[str, Any]:
    """Items by stage where they ended and reason; in = out + refused at every stage, asserted."""
    stages, left = [], len(items)
    for stage in STAGES:
        reasons = Counter(item.reason for item in items if item.end == stage)
        entered, left = left, left - reasons.total()
        stages.append(
            {"stage": stage, "in": entered, "refused": dict(sorted(reasons.items())), "out": left}
        )
    kept = sum(item.end == KEPT for item in items)
    assert left == kept, f"{left} items are left, but {kept} are kept"
    revised = [item for item in items if item.was_revised]
    refusals = Counter(item.first_refusal for item in items if item.first_refusal)
    return {
        "items": len(items),
        "stages": stages,
        "kept": kept,
        "revised": len(revised),
        "kept_after_revision": sum(item.end == KEPT for item in revised),
        "first_refusals": dict(sorted(refusals.items())),
    }


def as_text(funnel: Mapping[str, Any]) -> str:
    lines = [f"{funnel['items']} ideas asked for"]
    for stage in funnel["stages"]:
        refused = ", ".join(f"{n} {why}" for why, n in stage["refused"].items()) or "none"
        lines.append(f"  {stage['stage']:<12}{stage['in']:5} in{stage['out']:5} out   {refused}")
    lines.append(
        f"{funnel['kept']} environments kept, {funnel['kept_after_revision']} of them after a "
        f"revision ({funnel['revised']} were revised)"
    )
    return "\n".join(lines)


_LISTED = {"type": "array", "items": calls.fields(title=str, description=str)}
IDEAS = {"type": "object", "required": ["ideas"], "properties": {"ideas": _LISTED}}
MODULE_VIEW = calls.fields(
    reference_free=bool, computational_advantage=bool, is_complete=bool, scales=bool, comment=str
)
QUESTION_VIEW = calls.fields(is_well_specified=bool, has_loophole=bool, comment=str)
ASKED: dict[str, tuple[str, dict[str, Any] | None]] = {  # prompt -> role, shape of the reply
    "ideas": ("idea", IDEAS),
    "module": ("coder", None),
    "judge_module": ("judge", MODULE_VIEW),
    "judge_question": ("judge", QUESTION_VIEW),
    "revise": ("coder", None),
    "solve": ("solver", None),
}
MAX_TITLE_CHARS = 200
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def request(name: str, seed: int, item: Item | None = None, **more: str) -> Request:
    """The request with the prompt of this name, filled from an item and from `more`."""
    known = more if item is None else {**dataclasses.asdict(item), "code": item.source, **more}
    role, schema = ASKED[name]
    fields = {field: known[field] for field in calls.prompt(f"resyn/{name}").fields}
    return Request(role=role, prompt_name=f"resyn/{name}", fields=fields, seed=seed, schema=schema)


def code_of(text: str) -> str:
    """The last fenced block of a reply, or all of it where there is none."""
    found = response.blocks(text)
    return (found[-1].body if found else text).strip("\n") + "\n"


def answer_of(text: str) -> str | None:
    """The last text between the answer's marks in a solver's reply; None without any."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


def module_refusal(view: dict[str, Any]) -> str:
    """The first stage's reason to refuse, or "": ReSyn's either-or, and both others."""
    if not (view["reference_free"] or view["computational_advantage"]):
        return "neither reference-free nor a computational advantage"
    if not view["is_complete"]:
        return "incomplete"
    return "" if view["scales"] else "levels do not scale"


def question_refusal(view: dict[str, Any]) -> str:
    """The second stage's reason to refuse, or ""."""
    if not view["is_well_specified"]:
        return "not well specified"
    return "loophole seen" if view["has_loophole"] else ""
