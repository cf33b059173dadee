"""The device bench with the tiny model: every part, what it reports, what it refuses."""

import json

import jax
import numpy as np
import pytest

from loong_jax.bench import device
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.plan import counts
from loong_jax.plan.topology import CHIPS

SMALL = dict(
    model="tiny", batch=2, length=8, decode_batch=3, decode_length=16, decode_steps=4, rounds=1
)


@pytest.fixture(scope="module")
def result():
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device.PEAKS, jax.local_devices()[0].device_kind, device.Peak(1e12, 1e11))
        figures = device.measure(device.Options(**SMALL), report=lines.append)
    return json.loads(json.dumps(figures)), lines


@pytest.mark.release
def test_shares_are_of_the_data_sheet_and_of_what_was_measured(result):
    figures, lines = result
    assert len(lines) == 1 + 1 + 1 + 1
    train, ceilings = figures["train"], figures["ceilings"]
    assert train["share_of_peak"] == pytest.approx(train["flops"] / 1e12)
    assert train["share_of_product"] == pytest.approx(train["flops"] / ceilings["flops"])
    assert len(train["entropy"]) == 3
    assert train["entropy"][0] == pytest.approx(np.log(128.0), rel=0.2)
    decode = figures["decode"]
    assert decode["share_of_peak"] == pytest.approx(decode["bandwidth"] / 1e11)
    assert decode["tokens_per_s"] == pytest.approx(3 / decode["step_s"])


@pytest.mark.release
def test_useful_work_is_that_of_a_plan(result):
    """6 per active weight and token; 4.5 of 8 keys are seen by a token on average."""
    figures, _ = result
    config = device.MODELS["tiny"]
    head = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    scores = 2 * 2 * config.num_layers * config.num_heads * head * 4.5
    per_token = 2 * figures["parameters"]["active"] + scores
    assert figures["train"]["useful_flops"] == pytest.approx(3 * 2 * 8 * per_token)


@pytest.mark.release
def test_decoding_reads_all_weights_but_the_embedding_and_the_cache_up_to_its_steps(result):
    figures, _ = result
    config, counted = device.MODELS["tiny"], figures["parameters"]
    entry = config.kv_lora_rank + config.qk_rope_head_dim
    read = figures["decode"]["bytes"]
    assert read["weights"] == 4 * (counted["total"] - counted["embedding"])
    assert read["cache"] == 4 * 3 * (16 - 1.5) * 2 * config.num_layers * entry


def test_a_tpu_that_is_two_devices_has_half_a_chips_peak():
    chip = CHIPS["tpu7x"]
    assert chip.num_devices == 2
    assert device.PEAKS["TPU7x"] == (chip.bf16_flops / 2, chip.hbm_bandwidth / 2)
    assert device.PEAKS["TPU v5p"].bf16_flops == 459e12


def test_the_model_of_two_billion_has_the_familys_proportions():
    counted = counts.of(device.TWO_BILLION)
    assert counted.total == pytest.approx(2.01e9, rel=0.01)
    assert counted.active == pytest.approx(0.53e9, rel=0.01)
    config, flash = device.TWO_BILLION, moe.MoEConfig.flash()
    for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"):
        assert getattr(config, name) == getattr(flash, name)
    for one in (config, flash):
        assert one.ffn_hidden_size == 2 * one.hidden_size
        assert 2 * one.num_zero_experts == one.num_experts
        assert 3 * one.target_ffn_experts == 2 * one.num_chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(parts="train,sing"), "parts='train,sing'"),
        (dict(parts=""), "parts=''"),
        (dict(model="huge"), "model='huge' must be one of 2b, tiny"),
        (dict(rounds=0), "rounds=0 must be at least 1"),
        (dict(length=1), "length=1 must be at least 2"),
        (dict(decode_length=4), "decode_length=4 must exceed decode_steps=4"),
    ],
)
def test_wrong_options_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        device.Options(**(SMALL | changes))
