"""The bench of a GRPO step: what it refuses and reports, and both sides on a tiny model."""

import dataclasses
import json

import pytest

from loong_jax import bench
from loong_jax.bench import grpo, grpo_ours
from loong_jax.errors import ConfigError, LoongError
from loong_jax.models.dense import DenseConfig

SMALL = grpo.Options(prompts=2, group_size=2, new_tokens=4, steps=2, warmup=1, rounds=1)


def record(step: int, seconds: float) -> dict:
    parts = {"generation": 0.5, "scoring": 0.125, "training": 0.25, "rest": 0.125}
    parts = {name: share * seconds for name, share in parts.items()}
    return {"step": step, "seconds": seconds, "cpu_s": 2 * seconds, "reward": 0.5, **parts}


def side(*seconds: float, prompt_tokens: int = 7) -> dict:
    steps = [record(step, took) for step, took in enumerate(seconds, 1)]
    return {"prompt_tokens": prompt_tokens, "settings": {}, "steps": steps}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompts": 0}, "prompts=0 must be at least 1"),
        ({"group_size": 1}, "group_size=1 must be at least 2"),
        ({"warmup": 0}, "warmup=0 must be at least 1"),
        ({"staleness": -1}, "staleness=-1 must be at least 0"),
        ({"shape": "9b"}, "shape='9b' must be one of tiny-dense, llama-5m, smollm2-135m"),
        ({"trl_rows": 12}, "trl_rows=12 must divide the 64 samples"),
    ],
)
def test_what_it_refuses(changes, said):
    with pytest.raises(ConfigError, match=said):
        grpo.Options(**changes)


def test_the_words_of_a_command(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(grpo, "measure", lambda chosen, **_: seen.append(chosen))
    words = ["--model", str(tmp_path), "--prompts", "4", "--learning-rate", "1e-4"]
    assert bench.main(["grpo", *words]) == 0
    assert seen == [grpo.Options(model=tmp_path, prompts=4, learning_rate=1e-4)]


def test_ratios_are_of_rounds_and_leave_the_first_steps_out():
    rounds = [
        {"ours": side(90.0, 1.0, 3.0), "trl": side(900.0, 6.0, 10.0)},
        {"ours": side(90.0, 2.0, 6.0), "trl": side(900.0, 6.0, 10.0)},
    ]
    found = grpo.summary(rounds, SMALL)
    assert found["by_round"]["speedup"] == [4.0, 2.0]
    assert found["speedup"] == found["speedup_in_cpu_time"] == 3.0
    assert found["sides"]["trl"]["generation"] == 4.0
    assert found["sides"]["trl"]["tokens_per_s"] == 2 * 2 * 4 / 8.0
    assert found["sides"]["ours"]["elapsed_s"] == [90.0, 91.5, 96.0]
    text = grpo.as_text({"model": "m", **found}, SMALL)
    assert "ours is 3.00x as fast" in text
    assert "90 s 0.500" in text


def test_shares_of_a_device():
    peak = {"bf16_flops": 1e15, "memory_bandwidth": 4e12}
    work = {"kind": "one", "peak": peak, "peak_bytes": 2e9, "table_bytes": 3e9}
    work |= {"train_flops": 2e14, "decode_bytes": 1e12}
    found = grpo.summary([{"ours": side(9.0, 2.0) | {"device": work}}], SMALL)
    shares = found["sides"]["ours"]["device"]
    assert shares["mfu"] == 2e14 / 0.5 / 1e15
    assert shares["bandwidth_share"] == 1e12 / 1.0 / 4e12
    assert shares["idle_share"] == 0.125
    text = grpo.as_text({"model": "m", **found}, SMALL)
    assert "MFU 40.0%), decoding at 1 TB/s (25.0% of the peak), idle for 12.5%" in text
    assert "at most 2.00 GB in use, the table says 3.00 GB" in text


def test_the_work_of_a_step():
    """One layer, one head, by hand: 3 prompts of 10 tokens, 2 samples each of 4."""
    config = DenseConfig.tiny(
        num_layers=1, num_heads=1, num_kv_heads=1, head_dim=4, hidden_size=4, ffn_hidden_size=8,
        vocab_size=16, tied=True, qkv_bias=False,
    )  # fmt: skip
    task = {"prompts": 3, "group_size": 2, "new_tokens": 4}
    found = grpo_ours.work_of(config, task, 10.0)
    norms, matrices, head = 3 * 4, 4 * 4 * 4 + 3 * 4 * 8, 16 * 4
    passed, predicted = 3 * 10 + 6 * 4, 6 * 4
    pairs = predicted * (10 + 2) + 30 * 5
    forward = 2 * (matrices + norms) * passed + 2 * head * predicted + 2 * 2 * 4 * pairs
    assert found["train_flops"] == 3 * forward
    assert found["decode_bytes"] == 4 * 4 * (matrices + norms + head + 6 * 12 * 2 * 4)


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (2, 1), (16, 15), (32, 16), (40, 13)])
def test_calls_that_decode_are_few_and_equal(tokens, steps):
    """The first token comes with the prompt."""
    assert grpo_ours.block_of(tokens) == steps


def test_unequal_prompts_stop_it():
    with pytest.raises(LoongError, match=r"have .*'ours': 7, 'trl': 8"):
        grpo.refuse_unequal({"ours": side(1.0), "trl": side(1.0, prompt_tokens=8)})


def test_time_that_parts_share_counts_once():
    """Decoding 0-4, scoring 3-5, training 5-6 and again in the second step, which ends at 10."""
    spans = [("decode", 0, 3), ("decode", 2, 4), ("score", 3, 5), ("train", 5, 6), ("train", 7, 9)]
    events = [{"kind": kind, "start_s": a, "end_s": b} for kind, a, b in spans]
    metrics = [
        {"step": step, "time_s": end_s, "rewards/mean": 0.0, "num_tokens": 1.0}
        for step, end_s in ((1, 6.5), (2, 10.0))
    ]
    first, second = grpo_ours.steps_of(metrics, events)
    assert [first[part] for part in grpo.PARTS] == [4, 1, 1, 0.5]
    assert [second[part] for part in grpo.PARTS] == [0, 0, 2, 1.5]
    assert second["seconds"] == 3.5


def test_without_trl_it_says_so(monkeypatch):
    monkeypatch.setattr(grpo, "peer_python", lambda _: None)
    monkeypatch.setattr(grpo, "run", lambda *_: side(9.0, 1.0, 2.0))
    lines, saved = [], []
    found = grpo.measure(SMALL, report=lines.append, save=lambda r: saved.append(dict(r)))
    assert "TRL is absent" in lines[0]
    assert found["sides"].keys() == {"ours"}
    assert "speedup" not in found
    json.dumps(saved[-1], allow_nan=False)


def test_a_side_that_fails_says_why(tmp_path):
    task = {"threads": 1, "steps": 1, "accelerator": False}  # which names no model
    with pytest.raises(LoongError, match=r"(?s)ours failed: .*KeyError"):
        grpo.run("ours", grpo.Path(grpo.sys.executable), tmp_path, task, lambda _: None)


@pytest.mark.peers
@pytest.mark.timeout(600)
def test_both_sides():
    pytest.importorskip("trl", reason="TRL comes with the extra `peers`")
    chosen = dataclasses.replace(SMALL, steps=1)
    found = grpo.measure(chosen, report=lambda _: None)
    assert found["speedup"] > 0
    (both,) = found["rounds"]
    assert [step["tokens"] for step in both["ours"]["steps"]] == [16.0, 16.0]
    for one in both.values():
        for step in one["steps"]:
            assert step["generation"] > 0
            assert step["training"] > 0
            assert sum(step[part] for part in grpo.PARTS) == pytest.approx(step["seconds"])
