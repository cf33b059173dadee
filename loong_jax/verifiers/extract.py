"""The answer of a response, as data/response.py reads it."""

from loong_jax.data import response
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

MAX_RESPONSE_CHARS = 1_000_000


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
        return verdict.wrong("format", "not one answer, in one pair of tags")
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
