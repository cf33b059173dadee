"""The decode bench on the smallest model: our side, and what it reports."""

import json

import pytest

from loong_jax.bench import decode, model
from tests.doubles import tiny

pytestmark = pytest.mark.slow
LOAD = decode.Load(
    num_requests=3,
    prompt_length=4,
    new_tokens=4,
    decode_steps=2,
    page_size=4,
)


@pytest.fixture(scope="module")
def result():
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "find_peer", lambda: None)
        figures = decode.measure(
            decode.Options(rounds=1),
            load=LOAD,
            config=tiny.smallest_config(num_layers=1, chunk_tokens=None),
            report=lines.append,
        )
    return json.loads(json.dumps(figures)), lines


def test_every_part_is_measured(result):
    figures, lines = result
    assert {e["seconds"] > 0 for e in figures["engine"].values()} == {True}
    assert figures["engine"]["slots"]["tokens_per_s"] == pytest.approx(
        12 / figures["engine"]["slots"]["seconds"]
    )
    assert len(lines) == 2 + 1


def test_an_absent_peer_is_named_with_its_remedy(result):
    figures, lines = result
    assert figures["transformers"] == {"absent": model.REMEDY}
    assert "speedup" not in figures["transformers"]
    assert any(model.REMEDY in line for line in lines)
