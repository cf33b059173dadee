"""`loong bench model` end to end on the smallest setting; nothing here looks at a time."""

import json
import types

import numpy as np
import pytest

from loong_jax import cli
from loong_jax.bench import curves, figures, grid, model, ours, products, timing, versus
from loong_jax.errors import ConfigError
from tests.bench.smallest import SMALLEST


@pytest.fixture
def small(monkeypatch):
    """The bench with one small setting, few points and no peer."""
    monkeypatch.setattr(grid, "GRID", (SMALLEST,))
    monkeypatch.setattr(model, "SIZES", ((16, 8), (32, 16)))
    monkeypatch.setattr(model, "EXPERTS", (4,))
    monkeypatch.setattr(model, "ROWS", (8, 16))
    monkeypatch.setattr(model, "ZERO_SHARES", (1 / 3,))
    monkeypatch.setattr(model, "ZERO_TOKENS", 256)
    monkeypatch.setattr(model, "sizes", lambda base: {"layers": [1], "tokens": [8, 16]})
    monkeypatch.setattr(versus, "peer", lambda: None)


@pytest.mark.slow
def test_writes_every_figure_and_says_what_is_missing_without_transformers(small, tmp_path, capsys):
    arguments = ["--json", f"{tmp_path}/out.json", "--chart", f"{tmp_path}/out.png"]
    assert cli.main(["bench", "model", *arguments, "--budget-s", "0.01"]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["transformers"] == {"absent": versus.REMEDY}
    assert f"Remedy: {versus.REMEDY}" in capsys.readouterr().out
    points = [(p["width"], p["rows_per_expert"]) for p in found["ffn"]]
    assert points == [(16, 8), (16, 16), (32, 8), (32, 16)]
    assert all(p["forward_s"] > 0 and p["forward_backward_over_dense"] > 0 for p in found["ffn"])
    shares = [(p["width"], p["zero_share"]) for p in found["zero_share"]]
    assert shares == [(16, 1 / 3), (32, 1 / 3)]
    assert all(p["forward_s"] > 0 and p["share_of_ideal"] > 0 for p in found["zero_share"])
    assert [p["tokens"] for p in found["cost"]["tokens"]] == [8, 16]
    assert {"threads", "jax"} <= found["machine"].keys()
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "Choose one of: async"),
        (["model", "--parts", "speed"], "Choose among"),
        (["model", "--threads", "0"], "below 1"),
        (["model", "--budget-s", "0"], "not positive"),
        (["model", "--settings", "huge"], "Choose among"),
    ],
)
def test_a_wrong_word_is_answered(arguments, message, capsys):
    assert cli.main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_grid_has_six_settings_that_differ_in_kind():
    assert len({s.name for s in grid.GRID}) == len(grid.GRID) == 6
    assert len({s.reason for s in grid.GRID}) == 6
    assert all(s.config.num_zero_experts > 0 for s in grid.GRID)
    assert max(s.length for s in grid.GRID) >= 2048
    with pytest.raises(ConfigError, match="Choose among"):
        grid.setting("huge")


def test_flops_are_those_of_the_weights_that_tokens_meet():
    """Twice the weights of every matrix once per token, the experts' by choice, and the scores."""
    problem = ours.problem(SMALLEST)
    load = ours.load(problem)
    multiplied = products.of_forward(SMALLEST, load)
    took = {product.shape: {"ours": 1.0, "peer": 2.0} for product in multiplied}
    by_part = products.bound(multiplied, took, 1.0, 1.0)["flops_by_part"]
    layers, tokens, c = problem.weights["layers"], SMALLEST.num_tokens, SMALLEST.config
    size = {
        name: sum(layers[f"{name}_{i}"][w].size for i in (0, 1) for w in layers[f"{name}_{i}"]
                  if not w.endswith("norm"))
        for name in ("attention", "ffn")
    }  # fmt: skip
    assert by_part["attention projections"] == 2 * tokens * size["attention"]
    assert by_part["dense FFNs"] == 2 * tokens * size["ffn"]
    assert by_part["router"] == 2 * tokens * layers["router"]["kernel"].size
    assert by_part["head"] == 2 * tokens * problem.weights["head"].size
    expert = 3 * c.hidden_size * c.expert_ffn_hidden_size
    assert by_part["experts"] == pytest.approx(2 * expert * load[:, : c.num_experts].sum())
    widths = c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim
    pairs = 2 * SMALLEST.batch * c.num_heads * SMALLEST.length**2
    assert by_part["attention scores"] == 2 * pairs * widths


def test_a_ceiling_is_what_the_products_leave_of_the_peers_time(monkeypatch):
    """Half of the pairs (and the diagonal) are needed; each product takes what the faster of both
    libraries needs, scores what the best rate of all would."""
    few = products.Product("attention scores", 1.0, products.Shape(6, 4, 8, 4))
    many = products.Product("dense FFNs", 2.0, products.Shape(1, 16, 8, 32))
    ours_s = {(1, 16, 8, 32, ""): 8.0, (1, 16, 32, 8, "right"): 2.0, (1, 8, 16, 32, "left"): 8.0}
    peers_s = {shape: 4.0 for shape in ours_s}
    monkeypatch.setattr(products, "_SQUARE", products.Shape(1, 4, 8, 4))
    monkeypatch.setattr(products, "_run", lambda shape: lambda: ours_s.get(shape, 1e3))
    peer = types.ModuleType("peer")
    monkeypatch.setattr(peer, "product", lambda s: lambda: peers_s.get(s, 1e3), raising=False)
    monkeypatch.setattr(
        timing,
        "interleaved",
        lambda runs, **_: {name: [timing.Sample(run(), 0.0)] for name, run in runs.items()},
    )
    took = products.time_each([few, many], peer, 0.01)
    found = products.alone([few, many], took, length=4)
    peak = many.shape.flops / 2.0
    assert found.peak_flops_per_s == pytest.approx(peak)
    assert found.needed_flops == pytest.approx(5 / 8 * few.flops + many.flops)
    scores_s = 5 / 8 * few.flops / peak
    assert found.forward_s == pytest.approx(scores_s + 2 * 4.0)
    assert found.train_step_s == pytest.approx(3 * scores_s + 2 * (4.0 + 2.0 + 4.0))
    of_ours = products.bound([few, many], took, 1e4, 1e4)
    assert of_ours["peak_flops_per_s"] == pytest.approx(peak)
    assert of_ours["products_share_of_forward"] == pytest.approx((1e3 + 2 * 8.0) / 1e4)
    alone = {"train_step_s": 6.0, "needed_flops": 2.0, "peak_flops_per_s": 1.0}
    row = {"train_step": {"transformers_s": 12.0}, "products_alone": alone}
    quieter = {**row, "products_alone": alone | {"peak_flops_per_s": 2.0}}
    own, best = model.ceilings("train_step", {"one": row, "other": quieter}).values()
    assert own == {"one": 2.0, "other": 2.0}
    assert best == {"one": 12.0 * 2.0 / 6.0, "other": 12.0 * 2.0 / 6.0}


@pytest.mark.parametrize("batch", [1, 3])
def test_the_products_of_a_pass_back_are_the_gradients(batch):
    shape = products.Shape(batch, 2, 5, 4)
    left, right = (np.random.default_rng(0).normal(size=sizes) for sizes in shape.operands())
    of_left, of_right = shape.going_back()
    assert (of_left.flops, of_right.flops) == (shape.flops, shape.flops)
    grad = left @ right
    assert (grad.shape, right.shape) == of_left.operands()  # grad @ right.T
    assert (left.shape, grad.shape) == of_right.operands()  # left.T @ grad
    for one in (shape, of_left, of_right):
        assert products._run(one)().shape[-2:] == (one.rows, one.columns)


def test_a_training_step_lowers_its_loss_and_leaves_the_problem_alone(monkeypatch):
    monkeypatch.setattr(ours, "RATE", 1e-2)
    problem = ours.problem(SMALLEST)
    before = np.asarray(problem.weights["head"]).copy()
    step = ours.train_step(problem)
    losses = [float(step()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 2 * np.log(SMALLEST.config.vocab_size)
    np.testing.assert_array_equal(problem.weights["head"], before)


def test_every_round_times_every_run_and_ratios_pair_rounds():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    samples = timing.interleaved(runs, budget_s=0.0, min_rounds=4, burst_s=0.0)
    assert {name: len(found) for name, found in samples.items()} == {"a": 4, "b": 4}
    assert "".join(calls)[-8:] == "abbaabba"
    above = [timing.Sample(wall, 1.0) for wall in (2.0, 9.0, 6.0)]
    below = [timing.Sample(wall, 2.0) for wall in (1.0, 1.0, 2.0)]
    assert timing.median_ratio(above, below) == 3.0
    assert timing.median_ratio(above, below, "cpu_s") == 0.5


def test_zero_choices_never_become_rows():
    """The run that the curve times computes nothing for choices that are not kept."""
    forward, backward = curves.ffn_runs(curves.Choices(8, 2, 4, zero_share=1.0))
    assert not np.asarray(forward()).any()
    gradients = backward()[1]
    assert not any(np.asarray(gradient).any() for gradient in gradients)


def test_the_experts_and_the_dense_product_have_the_width_that_is_asked_for():
    choices = curves.Choices(8, 1, 4, width=16, ffn=8)
    assert curves.ffn_runs(choices)[0]().shape == (8, 16)
    _, gradients = curves.ffn_runs(choices)[1]()
    assert [g.shape for g in gradients] == [(8, 16), (8, 1), (4, 16, 2, 8), (4, 8, 16)]
    dense = curves.dense_runs(choices)[1]()
    assert [g.shape for g in dense[1]] == [(8, 16), (16, 24)]  # as many FLOPs: 3 M columns


def test_a_chart_of_nothing_is_a_picture():
    assert figures.png({}).startswith(b"\x89PNG")


def test_a_variant_that_a_short_trial_found_a_little_slower_may_still_be_the_fastest(monkeypatch):
    trial = {
        "ours": {"a": 1.0, "b": 1.15, "c": 1.25},
        "transformers": {"a": 2.0},
    }  # c is far behind
    found = {"ours: a": 6.0, "ours: b": 2.0, "transformers: a": 5.0}

    def timed(runs, *, budget_s):
        assert (set(runs), budget_s) == (set(found), 3.0)  # 2 s for two of them
        return {name: [timing.Sample(found[name], found[name])] * 3 for name in runs}

    monkeypatch.setattr(timing, "interleaved", timed)
    sides = {side: (dict.fromkeys(seconds, print), seconds) for side, seconds in trial.items()}
    pair, samples = versus._fastest_pair(sides, budget_s=2.0)
    assert pair == {"ours": "b", "transformers": "a"}
    assert [samples[side][0].wall_s for side in trial] == [2.0, 5.0]


def test_the_luck_of_a_round_does_not_choose_its_variant():
    """Two variants alike, each fast once: counted whenever it is lucky, either would look fast."""
    walls = {"a": [1.0, 5.0, 3.0], "b": [5.0, 1.0, 3.0]}
    found = {name: [timing.Sample(wall, wall) for wall in own] for name, own in walls.items()}
    assert [s.wall_s for s in versus._of_the_fastest(found)] == [5.0, 5.0, 3.0]
    one = [timing.Sample(wall, wall) for wall in (2.0, 1.0)]
    assert versus._of_the_fastest({"only": one}) == one
