"""The fusion report against sums written out in NumPy."""

import json

import numpy as np
import pytest

from loong_jax import merge
from loong_jax.errors import ConfigError

METHOD = merge.LongcatFusion(keep_rate=0.5, normalise="none", scale=1.5)


@pytest.fixture(scope="module")
def fused():
    draw = np.random.default_rng(3)
    shapes = {"a": (3, 20, 30), "b": (40,)}
    base = {n: draw.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    experts = {}
    for name, size in {"one": 0.1, "two": 0.2}.items():
        moved = {n: draw.random(s) < 0.5 for n, s in shapes.items()}
        experts[name] = {
            n: (x + np.where(moved[n], size * draw.normal(size=x.shape), 0)).astype(np.float32)
            for n, x in base.items()
        }
    found, report = merge.fuse_with_report(
        base, experts, method=METHOD, weights={"one": 1.0, "two": 3.0}, batch_axes={"a": 1}
    )
    return base, experts, found, report


def test_global_record_by_hand(fused):
    base, experts, found, report = fused
    join = lambda tree: np.concatenate([tree[n].ravel().astype(float) for n in ("a", "b")])  # noqa: E731
    one, two = (join(experts[name]) - join(base) for name in ("one", "two"))
    step = join(found) - join(base)
    record = report["global"]
    assert record["num_entries"] == one.size
    assert record["base_norm"] == pytest.approx(np.linalg.norm(join(base)))
    assert record["fused_norm"] == pytest.approx(np.linalg.norm(step))
    assert record["norm"]["two"] == pytest.approx(np.linalg.norm(two))
    assert record["moved"]["one"] == pytest.approx(np.mean(one != 0))
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert record["cosine"][0][1] == record["cosine"][1][0] == pytest.approx(cosine, abs=1e-6)
    assert record["cosine"][0][0] == pytest.approx(1)
    both = (one != 0) & (two != 0)
    agree = np.mean(np.sign(one)[both] == np.sign(two)[both])
    assert record["sign_agreement"][0][1] == pytest.approx(agree)
    assert record["retention"]["one"] == pytest.approx(step @ one / (one @ one), rel=1e-5)
    mean = 0.25 * one + 0.75 * two
    assert record["gain"] == pytest.approx(step @ mean / (mean @ mean), rel=1e-5)


def test_kept_entries_add_up_over_tensors(fused):
    report = fused[-1]
    assert report["tensors"]["a"]["kept"]["one"] == pytest.approx(0.5, abs=0.05)
    total = report["global"]["kept"]["two"] * report["global"]["moved"]["two"]
    by_tensor = [
        r["kept"]["two"] * r["moved"]["two"] * r["num_entries"] for r in report["tensors"].values()
    ]
    assert total * report["global"]["num_entries"] == pytest.approx(sum(by_tensor))


def test_kept_and_erased_by_hand(fused):
    base, experts, *_ = fused
    _, report = merge.fuse_with_report(base, experts, method=merge.Ties(density=0.3))
    record = report["tensors"]["b"]
    deltas = np.stack([expert["b"] - base["b"] for expert in experts.values()])
    kept = np.abs(deltas) >= np.sort(np.abs(deltas))[:, [-12]]
    sign = np.where(np.sum(deltas * kept, axis=0) >= 0, 1, -1)
    erased = kept & (np.sign(deltas) != sign)
    assert erased.any()
    for index, name in enumerate(experts):
        assert record["kept"][name] == pytest.approx(12 / np.count_nonzero(deltas[index]))
        assert record["erased"][name] == pytest.approx(erased[index].sum() / 12)


def test_weights_are_those_of_fuse_and_the_report_is_json(fused):
    base, experts, found, report = fused
    plain = merge.fuse(
        base, experts, method=METHOD, weights={"one": 1.0, "two": 3.0}, batch_axes={"a": 1}
    )
    assert all(np.array_equal(plain[name], found[name]) for name in base)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["method"]["kind"] == "LongcatFusion"
    assert report["weights"] == {"one": 0.25, "two": 0.75}


def test_quotients_without_meaning_are_none():
    base = {"w": np.ones((8, 6), np.float32)}
    _, report = merge.fuse_with_report(base, {"a": base}, method=merge.TaskArithmetic())
    record = report["global"]
    assert record["cosine"] == [[None]]
    assert record["gain"] is None
    assert record["moved"] == {"a": 0.0}
    json.dumps(report, allow_nan=False)


def test_needs_a_base():
    with pytest.raises(ConfigError, match="base"):
        merge.fuse_with_report(None, [{}], method=merge.Linear())
