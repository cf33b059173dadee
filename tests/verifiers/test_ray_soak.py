"""The soak of the Ray pool, small: it answers all and agrees with the verifiers in process."""

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import verdict
from tests.verifiers import ray_soak


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.ray
@pytest.mark.bubblewrap
def test_a_small_soak():
    soak = ray_soak.Soak(num_requests=2000, num_kills=5, num_distinct=400)
    result = ray_soak.measure(soak)
    assert result["killed"] == 5
    assert result["metrics"]["workers_lost"] >= 1
    assert sum(row["requests"] for row in result["kinds"].values()) == 2000
    agreed = sum(row["as in process"] for row in result["kinds"].values())
    ungradable = sum(row["ungradable"] for row in result["kinds"].values())
    assert agreed + ungradable >= 2000
    assert ungradable <= 5
    assert result["metrics"]["packed_bytes"] < result["metrics"]["sent_bytes"] / 2


def test_a_wrong_reward_stops_it():
    soak = ray_soak.Soak(num_requests=100)
    right, wrong = verdict.correct(), verdict.wrong("value")
    args = (["logic"], [0] * 100, [wrong], [wrong] * 99 + [right])
    with pytest.raises(VerifierError, match="differ"):
        ray_soak._report(soak, *args, ray_soak.collections.Counter(range(100)))
    twice = ray_soak.collections.Counter(range(100)) + ray_soak.collections.Counter([3])
    with pytest.raises(VerifierError, match="once"):
        ray_soak._report(soak, ["logic"], [0] * 100, [right], [right] * 100, twice)


def test_its_mix_has_right_and_wrong_answers_of_each_kind():
    soak = ray_soak.Soak(num_requests=100, num_distinct=20)
    kinds, distinct = ray_soak._distinct(soak)
    assert set(kinds) == set(ray_soak.SHARES)
    assert sum(ray_soak._weights(kinds)) == pytest.approx(1.0)
    kept = [d for k, d in zip(kinds, distinct, strict=True) if k != "code"]
    outcomes = [v.outcome for v in ray_soak._in_process(kept)[0]]
    assert {"correct", "wrong"} == set(outcomes)
    assert outcomes[::2] == ["correct"] * len(outcomes[::2])
