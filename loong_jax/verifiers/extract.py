"""The answer of a response, by the form that data/response.py defines."""

from loong_jax.data import response
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

_TAGS = (
    response.THINK_OPEN,
    response.THINK_CLOSE,
    response.ANSWER_OPEN,
    response.ANSWER_CLOSE,
)


def extract_answer(response_text: str) -> str | Verdict:
    """The text between the answer's tags, or `wrong("format")`.

    Tags are counted first, in linear time: many of them would make the form's pattern backtrack.
    """
    for tag in _TAGS:
        if (count := response_text.count(tag)) != 1:
            return verdict.wrong("format", f"{tag} occurs {count} times, not once")
    parsed = response.parse_response(response_text)
    if parsed is None:
        return verdict.wrong("format", "not one thinking part, then one answer part, and no more")
    return parsed.answer
