import pytest

from loong_jax.synth.authors import structured

SCHEMA = structured.fields(question=str, score={"type": "integer", "minimum": 1, "maximum": 5})
GOOD = '{"question": "q", "score": 5}'


@pytest.mark.parametrize("text", [GOOD, f"```json\n{GOOD}\n```", f"<think>{{}}</think>\n{GOOD} "])
def test_one_object_is_read(text):
    assert structured.parse(text, SCHEMA) == {"question": "q", "score": 5}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "Sure! " + GOOD, GOOD + GOOD, GOOD[:-1], '{"question": "q"}',
        '{"question": "", "score": 5}', '{"question": "q", "score": 9}',
        '{"question": "q", "score": 5, "more": 1}', '{"question": "q", "score": NaN}',
        '{"question": "q", "question": "r", "score": 5}', '{"question": "q", "score": true}',
        '{"question": "\\ud800", "score": 5}', "[" * 100_000, " " * (structured.MAX_CHARS + 1),
    ],
)  # fmt: skip
def test_anything_else_is_malformed(text):
    with pytest.raises(structured.Malformed):
        structured.parse(text, SCHEMA)


def test_refusals_are_told_from_answers():
    assert structured.is_refusal("I'm sorry, but I can't help with that.")
    assert structured.is_refusal("As an AI language model, I must decline.")
    assert not structured.is_refusal("print('I am sorry')")
    assert not structured.is_refusal(GOOD)
