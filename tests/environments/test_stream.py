"""Streams of problems: pure functions of a cursor, on one side of the split each."""

import collections
import itertools

import pytest

from loong_jax import environments
from loong_jax.environments import LEVELS, WORKED, ProblemStream, chains
from loong_jax.problems.problem import split_of

SPLITS = ("train", "validation", "test")


def stream(name="vector_sum", *, levels=(1,), split="train", seed=0):
    return ProblemStream(
        environment=environments.get_environment(name),
        level_weights=dict.fromkeys(levels, 1.0),
        split=split,
        seed=seed,
    )


def canonical_forms(source, count):
    return {source.problem_at(cursor).canonical for cursor in range(count)}


@pytest.mark.parametrize("name", WORKED)
def test_splits_never_meet(name):
    drawn = {s: canonical_forms(stream(name, levels=LEVELS, split=s), 150) for s in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not drawn[one] & drawn[other]
    assert all(split_of(form) == split for split, forms in drawn.items() for form in forms)


def test_splits_never_meet_where_problems_come_up_again(monkeypatch):
    """In a space of 1458 problems, which would show a split that leaks."""
    monkeypatch.setattr(chains, "NUM_OPERATIONS", {1: 1})
    monkeypatch.setattr(chains, "NUM_COORDINATES", 3)
    drawn = {s: canonical_forms(stream(split=s), 600) for s in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not drawn[one] & drawn[other]
    other_seed = canonical_forms(stream(seed=1), 600)
    assert len(other_seed & drawn["train"]) > 100
    assert not other_seed & (drawn["test"] | drawn["validation"])


def test_shares_of_the_splits():
    counts = collections.Counter(split_of(f"gates:{number}") for number in range(20_000))
    assert counts["test"] == pytest.approx(2000, rel=0.1)
    assert counts["validation"] == pytest.approx(2000, rel=0.1)
    assert {split_of(str(n), held_out_share=0.0) for n in range(100)} == {"train"}
    assert {split_of(str(n), held_out_share=0.5) for n in range(100)} == {"validation", "test"}


def test_a_cursor_is_all_that_resumes():
    source, again = stream("gates", levels=LEVELS), stream("gates", levels=LEVELS)
    first = list(itertools.islice(source, 30))
    assert first[20:] == [again.problem_at(cursor) for cursor in range(20, 30)]
    other_seed = stream("gates", levels=LEVELS, seed=1)
    assert first[0] != other_seed.problem_at(0)


def test_levels_come_in_their_shares():
    source = ProblemStream(
        environment=environments.get_environment("gates"),
        level_weights={4: 3.0, 2: 1.0},
        split="train",
        seed=0,
    )
    levels = collections.Counter(problem.level for problem in itertools.islice(source, 800))
    assert set(levels) == {2, 4}
    assert levels[4] == pytest.approx(600, abs=50)


def test_take_distinct_repeats_nothing_and_keeps_the_order():
    source = stream(split="test")
    taken = source.take_distinct(300)
    forms = [problem.canonical for problem in taken]
    assert len(set(forms)) == 300
    in_order = dict.fromkeys(problem.canonical for problem in itertools.islice(source, 400))
    assert forms == list(in_order)[:300]


def test_take_distinct_ends_where_there_are_too_few(monkeypatch):
    monkeypatch.setattr(chains, "NUM_OPERATIONS", {1: 1})
    monkeypatch.setattr(chains, "NUM_COORDINATES", 1)  # 18 problems, on three sides
    with pytest.raises(ValueError, match=r"only \d+ of 19 distinct problems found"):
        stream().take_distinct(19)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "dev"}, "split='dev' is not train"),
        ({"levels": ()}, "must name levels with positive shares"),
        ({"levels": (1, 6)}, "level=6 is not in"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        stream(**changes)
    for share in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive shares"):
            ProblemStream(
                environment=environments.get_environment("gates"),
                level_weights={1: share},
                split="train",
                seed=0,
            )
