"""The answer of a response, as data/response.py reads it."""

import re

from loong_jax.data import response
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

MAX_RESPONSE_CHARS = 1_000_000
_MARK = re.compile(r"(?im)^[ \t]*(?:\*\*)?(?:final )?answer(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*")
_FENCE = re.compile(r"```[a-z]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


def answer_of(text: str) -> str | Verdict:
    """What a response of any form answers, or why it is wrong: `format`, `no answer`."""
    if len(text) > MAX_RESPONSE_CHARS:
        return verdict.wrong("format", f"more than {MAX_RESPONSE_CHARS} characters")
    if response.after_thinking(text) is None:
        return verdict.wrong("format", "the thinking does not end")
    found = response.read(text)
    if not found.answer.strip():
        return verdict.wrong("no answer", "the answer is empty")
    if not found.is_well_formed:
        lone = response.ANSWER_OPEN in text and response.THINK_CLOSE not in text
        why = "not one answer, in one pair of tags"
        if lone:
            why = f"{response.ANSWER_OPEN} without {response.THINK_CLOSE} before it"
        return verdict.wrong("format", why)
    return found.answer


def extract_answer(text: str) -> str | Verdict:
    """The answer of a response that says where it is, by tags or by thinking before it.

    Between tags it may be empty; all else is wrong: `format`.
    """
    found = response.read(text)
    is_marked = found.answer != response.without_end(text)
    if is_marked and found.is_well_formed:
        return found.answer
    return verdict.wrong("format", "not one thinking part, then one answer part, and no more")


def answer_span(text: str) -> str | Verdict:
    """The final answer of a response, or why it has none.

    Of what stands between the answer's tags, or follows the thinking, it is all that follows the
    only line that starts with `Answer:` (or `Final answer:`), or the whole where there is no such
    line. A code fence around all of it is taken off. Two such lines are two answers, and wrong.
    """
    found = answer_of(text)
    if isinstance(found, Verdict):
        return found
    parts = _MARK.split(found)
    if len(parts) > 2:
        return verdict.wrong("format", f"{len(parts) - 1} answers are marked, not one")
    span = parts[-1].strip()
    if fenced := _FENCE.fullmatch(span):
        span = fenced[1]
    return span if span.strip() else verdict.wrong("no answer", "the answer is empty")
