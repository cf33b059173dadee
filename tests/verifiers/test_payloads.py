"""No registered verifier executes a text: marker files, bombs, and every way in.

Parametrised over the table, so a new verifier joins by itself.
"""

import contextlib
import json
import time

import pytest

from loong_jax.problems.verdict import Score, Verdict
from loong_jax.verifiers import admission, admission_cases, attacks
from tests.verifiers import registered
from tests.verifiers.judge import endpoint

MAX_COST_S = 20.0  # a verifier that runs programs ends them by its own limits

WRAPPINGS = {
    "plain": lambda text: text,
    "tags": admission.in_tags,
    "box": admission.in_box,
    "thought": lambda text: f"<think>{text}</think>The answer is {text}",
    "json": json.dumps,
}


@pytest.fixture(scope="module", params=registered.NAMES)  # some mark.slow or mark.release
def verifier(request):
    with (
        endpoint.in_environment(),
        contextlib.closing(registered.build(request.param)) as one,
    ):
        yield request.param, one


def problem_of(name):
    return admission_cases.cases_of(name)[0].problem


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_payloads_are_read_and_never_run(verifier, wrapping, tmp_path):
    name, one = verifier
    marker = tmp_path / "marker"
    texts = list(attacks.payloads(marker))
    if wrapping != "plain":  # each kind of code once more inside every wrapping
        texts = texts[::4]
    posed = problem_of(name)
    for text in texts:
        response = WRAPPINGS[wrapping](text)
        start = time.perf_counter()
        judged = one.verify(posed, response)
        assert isinstance(judged, Verdict)
        assert not judged.is_correct, response[:100]
        assert time.perf_counter() - start < MAX_COST_S, response[:100]
        assert not marker.exists(), response[:100]


def test_payloads_in_every_field_of_a_record(verifier, tmp_path):
    """A file of records is ours, and still nothing in it is code, whatever field holds it."""
    name, one = verifier
    if not hasattr(one, "verify_record"):
        pytest.skip(f"{name} judges no records")
    marker = tmp_path / "marker"
    good = {"question": "?", "gold": "4", "answer": "5", "domain": "game", "task": "sudoku"}
    fields = ("question", "gold", "answer", "type", "domain", "task", "language", "statement",
              "constraints", "rubric", "packages", "metadata", "tolerance", "level")  # fmt: skip
    for text in list(attacks.payloads(marker))[:24:5]:
        for field in fields:
            try:
                judged = one.verify_record(good | {field: text})
            except Exception as error:  # the command turns it into ungradable
                judged = error
            assert isinstance(judged, Verdict | Score | Exception)
            assert not marker.exists(), (field, text)


def test_the_payloads_do_run_where_a_text_is_evaluated(tmp_path):
    """Otherwise the suite would prove nothing."""
    marker = tmp_path / "marker"
    hits = 0
    for text in attacks.payloads(marker):
        if "marker" not in text or text.startswith(("%s", "$(", "`", ";", "cos")):
            continue
        with contextlib.suppress(Exception):
            eval(text, {})
        hits += marker.exists()
        marker.unlink(missing_ok=True)
    assert hits >= 12
