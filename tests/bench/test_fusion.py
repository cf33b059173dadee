"""The fusion bench on the smallest models: ours alone, and ours against mergekit where it is."""

import importlib.util
import json

import pytest

from loong_jax.bench import fusion
from loong_jax.errors import ConfigError, LoongError

SMALL = {"layers": 1, "width": 64, "vocabulary": 64, "rounds": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ours_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(fusion.importlib.util, "find_spec", lambda name: None)
    lines = []
    chosen = fusion.Options(methods="linear,ties", directory=tmp_path, **SMALL)
    found = fusion.measure(chosen, report=lines.append)
    assert "absent" in found["mergekit"]
    assert "absent" in lines[0]
    for row in found["methods"].values():
        assert row["ours"]["gb_per_s_core"] > 0
        assert "mergekit" not in row
    json.dumps(found, allow_nan=False)


@pytest.mark.peers
@pytest.mark.timeout(600)
def test_both(tmp_path):
    pytest.importorskip("mergekit", reason="mergekit comes with the extra `peers`")
    chosen = fusion.Options(methods="task_arithmetic", directory=tmp_path, **SMALL)
    found = fusion.measure(chosen, report=lambda _: None)
    assert found["methods"]["task_arithmetic"]["largest_difference"] <= fusion.LARGEST_DIFFERENCE
    assert found["methods"]["task_arithmetic"]["speedup"] > 0


def test_results_that_differ_stop_it(tmp_path, monkeypatch):
    side = {"seconds": 1.0, "cpu_s": 1.0, "first_s": 1.0, "peak_bytes": 1}
    monkeypatch.setattr(fusion, "_run", lambda *_: side)
    monkeypatch.setattr(fusion, "_difference", lambda _: 1.0)
    with pytest.raises(LoongError, match="differ"):
        fusion._row(tmp_path, "linear", fusion.Options(**SMALL), 1000, True)


def test_every_method_is_written_for_both():
    from loong_jax import merge

    for kind, settings, *_ in fusion.METHODS.values():
        getattr(merge, kind)(**settings)
    if importlib.util.find_spec("mergekit"):
        from mergekit import merge_methods

        for *_, method, _ in fusion.METHODS.values():
            merge_methods.get(method)


@pytest.mark.parametrize(
    "changes", [{"methods": "soup"}, {"rounds": 0}, {"cores": 0}, {"width": 100}]
)
def test_refuses(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        fusion.Options(**changes)


def test_models_have_the_names_of_a_llama():
    shapes = fusion.llama_shapes(fusion.Options(**SMALL))
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 176)
    assert shapes["lm_head.weight"] == (64, 64)
    assert len(shapes) == 3 + 9
