"""Every method against its float64 reference, with settings off their defaults."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax import merge
from loong_jax.errors import ConfigError
from loong_jax.merge import tree
from loong_jax.merge.methods import method as method_lib
from tests.merge import examples, references

SHAPES = {"a/matrix": (8, 6), "cube": (3, 8, 6), "vector": (14,)}
WEIGHTS = [0.5, 1.5, 1.0]
TOLERANCE = 2e-5  # of the largest delta: float32 on weights of size 1 and deltas of size 1e-2


@pytest.fixture(scope="module")
def models():
    return examples.models(shapes=SHAPES)


@pytest.fixture(scope="module")
def keeps(models):
    draw = np.random.default_rng(5)
    return {n: {p: draw.random(x.shape) < 0.5 for p, x in e.items()} for n, e in models[1].items()}


@pytest.fixture(scope="module")
def far_models():
    """Experts whose directions differ by more than rounding."""
    return examples.models(sizes=(0.8, 0.5, 1.1), shapes=SHAPES)


def nested(by_name):
    return {name: examples.nest(leaves) for name, leaves in by_name.items()}


def check(models, method, reference, *, base=True, **settings):
    """Fuses and compares every leaf with `reference(path, base, experts)`."""
    own_base, experts = models
    fused = merge.fuse(
        examples.nest(own_base) if base else None, nested(experts), method=method, **settings
    )
    for path, found in tree.flatten(fused)[0].items():
        leaves = [expert[path] for expert in experts.values()]
        expected = reference(path, own_base[path], leaves)
        assert examples.worst(found, expected, own_base[path], leaves) < TOLERANCE, path
        assert found.dtype == own_base[path].dtype


RESCALED = list(itertools.product(("inverse", "l1"), ("sum", "ties")))
# methods with references of (base, experts, masks) of a leaf
CASES = [
    (merge.Linear(), lambda b, e, m: references.linear(e, WEIGHTS)),
    (merge.Linear(normalise=False), lambda b, e, m: 3.0 * references.linear(e, WEIGHTS)),
    *(
        (
            merge.TaskArithmetic(scale=0.7, normalise=n),
            lambda b, e, m, n=n: references.task_arithmetic(b, e, WEIGHTS, 0.7, n),
        )
        for n in (False, True)
    ),
    *(
        (
            merge.Ties(scale=0.8, density=d, normalise=n),
            lambda b, e, m, d=d, n=n: references.ties(b, e, WEIGHTS, d, 0.8, n),
        )
        for d, n in ((0.2, True), (0.7, False), (1.0, True))
    ),
    *(
        (
            merge.Dare(scale=1.2, keep_rate=0.5, rescale=r, combine=c, normalise=True),
            lambda b, e, m, r=r, c=c: references.dare(b, e, m, WEIGHTS, 0.5, r, c, 1.2, True),
        )
        for r, c in RESCALED
    ),
    *(
        (
            merge.Della(scale=1.2, keep_rate=0.55, spread=0.3, rescale=r, combine=c),
            lambda b, e, m, r=r, c=c: references.della(b, e, m, WEIGHTS, 0.55, 0.3, r, c, 1.2),
        )
        for r, c in RESCALED
    ),
    *(
        (
            merge.Breadcrumbs(scale=0.8, density=d, outliers=o, combine=c, normalise=n),
            lambda b, e, m, d=d, o=o, c=c, n=n: references.breadcrumbs(
                b, e, WEIGHTS, d, o, c, 0.8, n
            ),
        )
        for d, o, c, n in (
            (0.5, 0.1, "sum", False),
            (0.9, 0.2, "sum", True),
            (0.3, 0.0, "ties", True),
        )
    ),
    *(
        (
            merge.Sce(select_rate=r, select=s),
            lambda b, e, m, r=r, s=s: references.sce(b, e, r, s),
        )
        for r, s in itertools.product((1.0, 0.4), ("deltas", "weights"))
    ),
    (  # energies below the floor: equal weights
        merge.Sce(floor=1.0),
        lambda b, e, m: (
            b
            + references.elected_mean([references.delta(b, x) for x in e], [1 / 3] * 3, plain=True)
        ),
    ),
]


@pytest.mark.parametrize(
    ("method", "reference"),
    CASES,
    ids=lambda x: repr(x)[:80] if isinstance(x, merge.Method) else "",
)
def test_against_its_reference(models, keeps, method, reference):
    settings = {} if method.weights_are == "none" else {"weights": WEIGHTS}
    if method.drops_out:
        settings["masks"] = nested(keeps)

    def of_leaf(path, base, experts):
        return reference(base, experts, [masks[path] for masks in keeps.values()])

    check(models, method, of_leaf, **settings)


LONGCAT = {"scale": 1.3, "keep_rate": 0.5, "rescale": "inverse", "erase": True}
LONGCAT |= {"zero_sum": "plus", "combine": "sum"}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rescale": "l1"},
        {"erase": False},
        {"zero_sum": "drop"},
        {"combine": "disjoint_mean"},
        {"normalise": "per_tensor"},
        {"normalise": "none"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:combine='disjoint_mean'")
def test_longcat(models, keeps, change):
    base, experts = models
    normalise = change.get("normalise", "global")
    settings = LONGCAT | {k: v for k, v in change.items() if k != "normalise"}

    def norms(paths):
        squares = [
            sum(np.sum(references.delta(base[p], e[p]) ** 2) for p in paths)
            for e in experts.values()
        ]
        return np.sqrt(squares)

    def reference(path, b, e):
        found = norms(base if normalise == "global" else [path])
        factors = np.ones(3) if normalise == "none" else found.mean() / found
        chosen = [m[path] for m in keeps.values()]
        return references.longcat(b, e, chosen, WEIGHTS, factors, **settings)

    check(
        models,
        merge.LongcatFusion(**settings, normalise=normalise),
        reference,
        weights=WEIGHTS,
        masks=nested(keeps),
    )


def test_election_where_deltas_cancel():
    terms = (np.array([1.0, 0.0, 2.0], np.float32), np.array([-1.0, 0.0, -3.0], np.float32))
    plus = [mark.tolist() for mark in method_lib.elect(tuple(map(jnp.asarray, terms)))]
    assert plus == [[True, False, False], [False, False, True]]
    drop = method_lib.elect(tuple(map(jnp.asarray, terms)), "drop")
    assert [mark.tolist() for mark in drop] == [[False, False, False], [False, False, True]]


@pytest.mark.parametrize("num_kept", [0, 1, 7, 29, 30])
def test_the_smallest_that_is_kept_is_what_a_sort_would_find(num_kept):
    sizes = np.abs(np.random.default_rng(2).normal(size=30)).astype(np.float32)
    ties = np.full(30, 1e-42, np.float32)  # denormals
    for x in (sizes, ties):
        smallest = jnp.asarray(method_lib.smallest_of(x.copy(), num_kept))
        marks = np.asarray(method_lib.reaches(jnp.asarray(x), smallest))
        wanted = np.sort(x)[::-1][:num_kept]
        assert set(x[marks]) == set(wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thinned(merge.Method):
    """DARE, as one of your own would write it."""

    keep_rate: float = 0.5
    seed: int = 0
    drops_out = True

    def equation(self, given, known):
        return given.base + sum(given.thinned)


@pytest.mark.parametrize("keep_rate", [0.5, 1.0])
def test_a_method_of_your_own_drops_out_as_dare_does(models, keep_rate):
    base, experts = examples.nest(models[0]), nested(models[1])
    fused, expected = (
        tree.flatten(merge.fuse(base, experts, method=kind(keep_rate=keep_rate, seed=3)))[0]
        for kind in (Thinned, merge.Dare)
    )
    for path, leaf in fused.items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-6, atol=1e-7)
    with pytest.raises(ConfigError, match=r"keep_rate=0 is a share"):
        Thinned(keep_rate=0)


def test_a_method_that_says_amiss_that_it_drops_out_is_refused(models):
    class Silent(Thinned):
        drops_out = False

    with pytest.raises(ConfigError, match="`thinned` is of a method that says drops_out = True"):
        merge.fuse(examples.nest(models[0]), nested(models[1]), method=Silent())
    with pytest.raises(ConfigError, match=r"Odd\.drop_out is unknown\. Write drops_out"):
        type("Odd", (merge.Method,), {"drop_out": True})
    type("Even", (merge.Method,), {"bound": 1.0, "__annotations__": {"bound": float}})  # a field


def test_della_keeps_large_entries_more_often():
    """The rate of every rank, over many rows."""
    draw = np.random.default_rng(0)
    base = {"w": np.zeros((4000, 5), np.float32)}
    expert = {"w": draw.normal(size=(4000, 5)).astype(np.float32)}
    method = merge.Della(keep_rate=0.5, spread=0.4)
    found = merge.fuse(base, {"a": expert}, method=method)["w"]
    ranks = np.argsort(np.argsort(np.abs(expert["w"]), axis=1), axis=1)
    for rank, rate in enumerate([0.1, 0.3, 0.5, 0.7, 0.9]):
        of_rank = found[ranks == rank]
        assert np.mean(of_rank != 0) == pytest.approx(rate, abs=5 * np.sqrt(0.25 / 4000))
        kept = of_rank[of_rank != 0]
        own = expert["w"][ranks == rank][of_rank != 0]
        np.testing.assert_allclose(kept, own / rate, rtol=1e-5)


@pytest.mark.parametrize("scope", ["matrix", "global"])
@pytest.mark.parametrize("boost", [0.0, 0.4])
def test_ram(models, scope, boost):
    base, experts = models

    def deltas(paths):
        return [
            np.concatenate([references.delta(base[p], e[p]).ravel() for p in paths])
            for e in experts.values()
        ]

    def reference(path, b, e):
        given = deltas(base if scope == "global" else [path])
        return references.ram(b, e, 0.02, references.ram_boosts(given, 0.02, boost, 0.7))

    check(models, merge.Ram(threshold=0.02, boost=boost, most_boost=0.7, scope=scope), reference)


@pytest.mark.parametrize("normalise", [True, False])
def test_ties_over_the_whole_model(models, normalise):
    base, experts = models
    # Delta sizes that differ from leaf to leaf: the scopes differ.
    uneven = {
        name: {
            p: (base[p] + (10.0 if p == "cube" else 1.0) * (x - base[p])).astype(np.float32)
            for p, x in e.items()
        }
        for name, e in experts.items()
    }
    smallest = [
        references.smallest_overall([references.delta(base[p], e[p]) for p in base], 0.4)
        for e in uneven.values()
    ]

    def reference(path, b, e):
        deltas = [references.delta(b, x) for x in e]
        kept = [np.where(np.abs(d) >= s, d, 0.0) for d, s in zip(deltas, smallest, strict=True)]
        return b + references.elected_mean(kept, WEIGHTS, 0.9, normalise)

    method = merge.Ties(scale=0.9, density=0.4, scope="global", normalise=normalise)
    check((base, uneven), method, reference, weights=WEIGHTS)
    per_matrix = merge.fuse(base, uneven, method=merge.Ties(density=0.4))
    whole = merge.fuse(base, uneven, method=merge.Ties(density=0.4, scope="global"))
    moved = lambda fused: np.mean(fused["vector"] != base["vector"])  # noqa: E731
    assert moved(whole) < moved(per_matrix) / 2


def pair(models):
    base, experts = models
    return base, {name: experts[name] for name in ("expert0", "expert1")}


ON_SPHERE = [
    *(
        (merge.Slerp(), [1 - t, t], lambda b, e, t=t: references.slerp(e[0], e[1], t))
        for t in (0.0, 0.3, 1.0)
    ),
    (merge.NuSlerp(), [0.5, 1.5], lambda b, e: references.slerp(e[0], e[1], 0.75)),
    (
        merge.Karcher(max_steps=50, tolerance=1e-9),
        WEIGHTS,
        lambda b, e: references.karcher(e, WEIGHTS),
    ),
]


@pytest.mark.parametrize(("method", "weights", "reference"), ON_SPHERE)
def test_on_the_sphere(far_models, method, weights, reference):
    models = pair(far_models) if method.num_experts == 2 else far_models
    check(models, method, lambda p, b, e: reference(b, e), weights=weights, base=False)


def test_nuslerp_of_deltas(far_models):
    def reference(path, b, e):
        return b + references.slerp(references.delta(b, e[0]), references.delta(b, e[1]), 0.75)

    check(pair(far_models), merge.NuSlerp(), reference, weights=[0.5, 1.5])


def test_slerp_is_linear_between_neighbours(models):
    def linear(path, base, experts):
        return references.linear(experts, [0.3, 0.7])

    check(pair(models), merge.Slerp(linear_above=0.99), linear, weights=[0.3, 0.7], base=False)


def test_karcher_of_two_is_slerp_halfway_on_the_unit_sphere(far_models):
    base, experts = pair(far_models)
    unit = {n: {p: x / np.linalg.norm(x) for p, x in e.items()} for n, e in experts.items()}
    settings = {"weights": [0.5, 0.5]}
    middle = merge.fuse(None, unit, method=merge.Karcher(), **settings)
    between = merge.fuse(None, unit, method=merge.Slerp(), **settings)
    for path in base:
        np.testing.assert_allclose(middle[path], between[path], atol=1e-6)


@pytest.fixture(scope="module")
def importances(models):
    draw = np.random.default_rng(8)
    return {
        name: {p: np.square(draw.normal(size=x.shape)).astype(np.float32) for p, x in e.items()}
        for name, e in models[1].items()
    }


def test_fisher(models, importances):
    def plain(path, base, experts):
        given = [f[path] for f in importances.values()]
        return references.fisher(experts, given, WEIGHTS, 0.01)

    def of_deltas(path, base, experts):
        given = [f[path] for f in importances.values()]
        return references.fisher_deltas(base, experts, given, WEIGHTS, 0.01)

    settings = {"weights": WEIGHTS, "importances": nested(importances)}
    check(models, merge.Fisher(floor=0.01), plain, base=False, **settings)
    check(models, merge.FisherDeltas(floor=0.01), of_deltas, **settings)


def test_equal_importances_are_the_plain_methods(models):
    base, experts = models
    flat = {
        n: {p: np.full(x.shape, 3.0, np.float32) for p, x in e.items()} for n, e in experts.items()
    }
    for method, plain in (
        (merge.Fisher(), merge.Linear()),
        (merge.FisherDeltas(), merge.TaskArithmetic()),
    ):
        found = merge.fuse(base, experts, method=method, weights=WEIGHTS, importances=flat)
        expected = merge.fuse(base, experts, method=plain, weights=WEIGHTS)
        for path in base:
            np.testing.assert_allclose(found[path], expected[path], atol=1e-6)


OUT_OF_RANGE = [
    *(
        (method, {field: value})
        for method, field in (
            (merge.LongcatFusion, "keep_rate"),
            (merge.Dare, "keep_rate"),
            (merge.Ties, "density"),
            (merge.Sce, "select_rate"),
        )
        for value in (0.0, -0.1, 1.1, float("nan"))
    ),
    *(
        (method, {"scale": value})
        for method in (merge.LongcatFusion, merge.Ties, merge.Dare, merge.Della, merge.Breadcrumbs)
        for value in (float("nan"), float("-inf"))
    ),
    (merge.TaskArithmetic, {"scale": float("inf")}),
    (merge.Della, {"spread": 0.2, "keep_rate": 0.2}),
    (merge.Della, {"spread": 0.15, "keep_rate": 0.9}),
    (merge.Breadcrumbs, {"density": 0.0}),
    (merge.Breadcrumbs, {"outliers": -0.1}),
    (merge.Ram, {"threshold": -1.0}),
    (merge.Ram, {"boost": float("inf")}),
    (merge.Fisher, {"floor": 0.0}),
    (merge.Sce, {"floor": float("nan")}),
    (merge.Slerp, {"linear_above": float("nan")}),
    (merge.Karcher, {"max_steps": -1}),
    (merge.Karcher, {"tolerance": float("nan")}),
    (merge.PathRules, {"controller": "["}),
    (merge.PathRules, {"no_dropout": "("}),
    (merge.CoefficientSearch, {"low": 1.0}),
    (merge.CoefficientSearch, {"num_steps": 0}),
]


@pytest.mark.parametrize(("method", "settings"), OUT_OF_RANGE)
def test_settings_out_of_range_are_refused(method, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        method(**settings)
