"""The soak of the Ray pool, small: it answers all and agrees with the verifiers in process."""

import pytest

from loong_jax.bench import verify_pool
from loong_jax.errors import VerifierError
from loong_jax.verifiers import verdict


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.ray
@pytest.mark.bubblewrap
def test_a_small_soak():
    soak = verify_pool.Soak(num_requests=2000, num_kills=5, num_distinct=400)
    result = verify_pool.measure(soak)
    assert result["killed"] == 5
    assert result["metrics"]["workers_lost"] >= 1
    assert sum(row["requests"] for row in result["kinds"].values()) == 2000
    agreed = sum(row["as in process"] for row in result["kinds"].values())
    ungradable = sum(row["ungradable"] for row in result["kinds"].values())
    assert agreed + ungradable >= 2000
    assert ungradable <= 5
    assert result["metrics"]["packed_bytes"] < result["metrics"]["sent_bytes"] / 2
    assert "5 workers killed" in verify_pool.as_text(result)


def test_a_wrong_reward_stops_it():
    soak = verify_pool.Soak(num_requests=100)
    right, wrong = verdict.correct(), verdict.wrong("value")
    args = (["logic"], [0] * 100, [wrong], [wrong] * 99 + [right])
    with pytest.raises(VerifierError, match="differ"):
        verify_pool._report(soak, *args, verify_pool.collections.Counter(range(100)))
    twice = verify_pool.collections.Counter(range(100)) + verify_pool.collections.Counter([3])
    with pytest.raises(VerifierError, match="once"):
        verify_pool._report(soak, ["logic"], [0] * 100, [right], [right] * 100, twice)


def test_its_mix_has_right_and_wrong_answers_of_each_kind():
    soak = verify_pool.Soak(num_requests=100, num_distinct=20)
    kinds, distinct = verify_pool._distinct(soak)
    assert set(kinds) == set(verify_pool.SHARES)
    assert sum(verify_pool._weights(kinds)) == pytest.approx(1.0)
    kept = [d for k, d in zip(kinds, distinct, strict=True) if k != "code"]
    outcomes = [v.outcome for v in verify_pool._in_process(kept)[0]]
    assert {"correct", "wrong"} == set(outcomes)
    assert outcomes[::2] == ["correct"] * len(outcomes[::2])
