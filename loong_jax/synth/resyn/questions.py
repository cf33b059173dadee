"""What ReSyn asks of an author, and how replies are read."""

import re
from typing import Any

from loong_jax.synth.authors import structured
from loong_jax.synth.authors.records import Request
from loong_jax.synth.resyn.items import Item

IDEAS = {
    "type": "object",
    "required": ["ideas"],
    "properties": {
        "ideas": {
            "type": "array",
            "items": structured.fields(title=str, description=str),
        }
    },
}
MODULE_VIEW = structured.fields(
    reference_free=bool, computational_advantage=bool, is_complete=bool, scales=bool, comment=str
)
QUESTION_VIEW = structured.fields(is_well_specified=bool, has_loophole=bool, comment=str)
MAX_TITLE_CHARS = 200
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def ideas(keyword: str, count: int, seed: int) -> Request:
    fields = {"keyword": keyword, "count": str(count)}
    return Request(
        role="idea", prompt_name="resyn/ideas", fields=fields, seed=seed, schema=IDEAS
    )  # fmt: skip


def module(item: Item, seed: int) -> Request:
    fields = {"title": item.title, "description": item.description}
    return Request(role="coder", prompt_name="resyn/module", fields=fields, seed=seed)


def judge_module(item: Item, seed: int) -> Request:
    fields = {"title": item.title, "description": item.description, "code": item.source}
    return Request(role="judge", prompt_name="resyn/judge_module", fields=fields, seed=seed,
                   schema=MODULE_VIEW)  # fmt: skip


def judge_question(item: Item, examples: str, seed: int) -> Request:
    fields = {"title": item.title, "examples": examples, "code": item.source}
    return Request(role="judge", prompt_name="resyn/judge_question", fields=fields, seed=seed,
                   schema=QUESTION_VIEW)  # fmt: skip


def revise(item: Item, seed: int) -> Request:
    fields = {
        "title": item.title, "description": item.description, "code": item.source,
        "complaint": item.complaint,
    }  # fmt: skip
    return Request(role="coder", prompt_name="resyn/revise", fields=fields, seed=seed)


def solve(item: Item, question: str, seed: int) -> Request:
    fields = {"title": item.title, "question": question}
    return Request(role="solver", prompt_name="resyn/solve", fields=fields, seed=seed)


def code_of(text: str) -> str:
    """The last fenced block of a reply, or all of it where there is none."""
    found = _FENCE.findall(text)
    return (found[-1] if found else text).strip("\n") + "\n"


def answer_of(text: str) -> str | None:
    """What the solver says last between the answer's marks; None where it says nothing so."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


def module_refusal(view: dict[str, Any]) -> str:
    """Why the first stage of the judge refuses, or "": ReSyn's either-or, and both others."""
    if not (view["reference_free"] or view["computational_advantage"]):
        return "neither reference-free nor a computational advantage"
    if not view["is_complete"]:
        return "incomplete"
    return "" if view["scales"] else "levels do not scale"


def question_refusal(view: dict[str, Any]) -> str:
    """Why the second stage refuses, or ""."""
    if not view["is_well_specified"]:
        return "not well specified"
    return "loophole seen" if view["has_loophole"] else ""
