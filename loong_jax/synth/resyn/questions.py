"""ReSyn's requests to an author, and how replies are read."""

import dataclasses
import re
from typing import Any

from loong_jax.problems import response
from loong_jax.synth.authors import prompts, structured
from loong_jax.synth.authors.store import Request
from loong_jax.synth.resyn.items import Item

_LISTED = {"type": "array", "items": structured.fields(title=str, description=str)}
IDEAS = {"type": "object", "required": ["ideas"], "properties": {"ideas": _LISTED}}
MODULE_VIEW = structured.fields(
    reference_free=bool, computational_advantage=bool, is_complete=bool, scales=bool, comment=str
)
QUESTION_VIEW = structured.fields(is_well_specified=bool, has_loophole=bool, comment=str)
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
    fields = {field: known[field] for field in prompts.load(f"resyn/{name}").fields}
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
