"""The form of a response: thinking first, then the answer, each inside its tags."""

import re
from typing import NamedTuple

THINK_OPEN, THINK_CLOSE = "<longcat_think>", "</longcat_think>"
ANSWER_OPEN, ANSWER_CLOSE = "<longcat_answer>", "</longcat_answer>"
NUM_MARKS = 5  # tokens of a whole response besides thinking and answer: four tags and the end

_FORM = re.compile(
    re.escape(THINK_OPEN) + r"(?P<thinking>.*?)" + re.escape(THINK_CLOSE) + r"\s*"
    + re.escape(ANSWER_OPEN) + r"(?P<answer>.*?)" + re.escape(ANSWER_CLOSE) + r"\s*(?:<eos>)?",
    re.DOTALL,
)  # fmt: skip
_TAG = re.compile(r"</?longcat_\w+>|<(?:eos|bos|pad)>")


class Response(NamedTuple):
    thinking: str
    answer: str


def render_response(thinking: str, answer: str) -> str:
    return f"{THINK_OPEN}{thinking}{THINK_CLOSE}{ANSWER_OPEN}{answer}{ANSWER_CLOSE}<eos>"


def parse_response(text: str) -> Response | None:
    """Thinking and answer of a whole response, or None where the form is broken.

    Exactly one thinking part, then one answer part; nothing around them and no tag inside.
    """
    match = _FORM.fullmatch(text)
    if match is None or _TAG.search(match["thinking"]) or _TAG.search(match["answer"]):
        return None
    return Response(match["thinking"], match["answer"])
