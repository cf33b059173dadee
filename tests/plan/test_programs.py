"""Programs of every mode on meshes of every kind, traced for CPU devices."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from loong_jax.models import families
from loong_jax.models.dense import DenseConfig, abstract_weights
from loong_jax.models.moe import MoEConfig
from loong_jax.plan import analytic, counts, plan, programs
from loong_jax.sharding import ShardingRules, make_mesh
from tests.plan.asking import asked, make_request, skip_without_pair
from tests.sweeps import thinned

WITHOUT_AN_AXIS = [
    "--topology v5e:1x1 --mode train",
    "--topology v5e:2x2 --mode train --mesh data=4",
    "--topology v5e:2x2 --mode train --mesh tensor=2,context=2",
    "--topology v5e:1x1 --mode prefill",
    "--topology v5e:2x2 --mode prefill --mesh tensor=4",
    "--topology v5e:2x2 --mode prefill --mesh expert=2,context=2",
    "--topology v5e:1x1 --mode decode",
    "--topology v5e:2x2 --mode decode --mesh fsdp=2,tensor=2 --tensor-cuts heads",
]


@pytest.mark.parametrize("line", thinned(WITHOUT_AN_AXIS, 2, 5, 6))
def test_no_mesh_axis_is_needed(line):
    """Weights rest cut over fsdp and expert, and need not where these have one device."""
    trace(f"tiny {line} --length 64")


@pytest.mark.parametrize(
    "line",
    thinned(
        [
            "--mode train --mesh fsdp=2,expert=4",
            "--mode decode --mesh expert=4,tensor=2 --num-drafts 1 --num-steps 2",
        ],
        1,
    ),
)
def test_a_model_of_n_grams_has_every_program(line):
    trace(f"longcat-flash-lite --num-layers 1 --topology v5e:2x4 {line} --length 512")


@pytest.mark.parametrize(
    "line",
    [
        "--mode train --mesh fsdp=2,expert=2,tensor=2 --num-microbatches 2",
        "--mode train --mesh fsdp=2,tensor=2,context=2",
        "--mode prefill --mesh data=2,fsdp=2,tensor=2",
        "--mode decode --mesh data=4,tensor=2 --num-steps 2",
        "--mode decode --mesh fsdp=4,tensor=2 --tensor-cuts heads",
    ],
)
def test_a_dense_decoder_has_every_program(line):
    trace(f"tiny-dense --topology v5e:2x4 {line} --length 64")


def test_biases_are_gathered_as_their_matrices_are():
    config = DenseConfig.tiny(ffn_bias=True, out_bias=True, qk_norm=True, tied=False)
    trace("tiny-dense --topology v5e:2x4 --mesh fsdp=4,tensor=2 --length 64", config=config)


def test_moments_in_host_memory_are_on_no_device():
    line = "tiny-dense --topology v5e:2x4 --mesh fsdp=4,tensor=2 --length 64"
    (_, here), (_, away) = trace(line), trace(f"{line} --offload-moments")
    counts = programs.bytes_by_kind(away["update"])["optimizer"]
    moments = programs.bytes_by_kind(here["update"])["optimizer"] - counts
    assert counts < 100
    assert programs.host_bytes(away["update"]) == moments
    assert programs.host_bytes(here["update"]) == 0
    for name in ("logprobs", "accumulate"):
        assert here[name].resident["optimizer"] - away[name].resident["optimizer"] == moments


@pytest.mark.parametrize("model", ["tiny", "tiny-dense"])
@pytest.mark.parametrize("cuts", ["heads", "sequences"])
def test_an_estimate_has_the_cache_of_the_program(model, cuts):
    line = f"{model} --topology v5e:2x4 --mode decode --mesh data=4,tensor=2 --tensor-cuts {cuts}"
    request, made = trace(f"{line} --batch 16 --length 64")
    one, two = (analytic.estimate(dataclasses.replace(request, length=n)) for n in (64, 128))
    cache = programs.bytes_by_kind(made["decode"])["cache"]
    assert two.hbm_bytes - one.hbm_bytes == cache / 2  # in bfloat16


@pytest.mark.parametrize("mesh", [{}, dict(fsdp=2, expert=2, tensor=2)])
@pytest.mark.parametrize("config", [DenseConfig, MoEConfig])
def test_gradients_have_no_second_tree(config, mesh):
    """Those of a micro-batch of few tokens are added to the sum as they are made."""
    config = config.tiny(num_layers=8, hidden_size=128, ffn_hidden_size=512, remat="layer")
    rules = ShardingRules(mesh=make_mesh(**mesh), act_vocab="tensor") if mesh else ShardingRules()
    weights = families.family_of(config).abstract_weights(config, rules)
    made = programs.train_programs(config, rules, *weights, (4, 8))["accumulate"]
    found = made.lower().compile().memory_analysis()
    gradients = programs.bytes_by_kind(made)["gradients"]
    assert found.alias_size_in_bytes >= gradients
    assert found.temp_size_in_bytes < 0.8 * gradients


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gradients_of_a_dense_decoder_are_scattered_on_tpu():
    """None is summed whole on every device, and no device sees the table of words.

    A part of the words is no whole tiles of TPU memory, as it is not of Qwen2.5's.
    """
    skip_without_pair()
    config = DenseConfig.tiny(
        vocab_size=4736,
        hidden_size=512,
        ffn_hidden_size=1024,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        tied=False,
        dtype=jnp.bfloat16,
        param_dtype=jnp.bfloat16,
        remat="layer",
    )
    asks = asked("tiny-dense --topology v5e:2x2 --mesh fsdp=4 --length 512")
    made = plan.make(dataclasses.replace(asks, config=config), timeout_s=800)
    assert made.reference is not None
    moved = {}
    for row in made.reference.step.rows:
        mb = row.collective.sent_bytes * row.trips / 1e6
        moved[row.collective.kind] = moved.get(row.collective.kind, 0.0) + mb
    layers = config.num_layers * 4 * 512 * 512 + config.num_layers * 3 * 512 * 1024
    sizes = layers, 4736 * 512, 4 * 512 * 512  # the last: states of all tokens
    of_layers, of_words, of_tokens = (2 * size * 3 / 4 / 1e6 for size in sizes)
    smallest = 2 * 512 * 512 * 3 / 4 / 1e6  # a matrix of the attention
    assert moved["all-reduce"] < smallest / 2
    # layers are gathered there and again back; so are states, for the words of each device
    assert moved["all-gather"] == pytest.approx(2 * of_layers + 2 * of_tokens, rel=0.01)
    assert moved["reduce-scatter"] == pytest.approx(of_layers + of_tokens, rel=0.01)
    # the head is cut along V instead of D, and its gradient along D again; so is the table's row of
    # each token brought to it, and its gradient back
    assert moved["all-to-all"] == pytest.approx((2 * of_words + 2 * of_tokens) / 4, rel=0.01)


@pytest.mark.slow
def test_a_step_of_a_dense_decoder_costs_what_xla_counts():
    """Which counts all pairs of a query and a key, though half of them are masked."""
    config = DenseConfig.tiny(
        hidden_size=256, head_dim=128, ffn_hidden_size=512, num_layers=2, unroll_layers=True
    )
    rules, shape = ShardingRules(), (4, 256)
    made = programs.train_programs(config, rules, *abstract_weights(config), shape)
    found = made["accumulate"].lower().compile().cost_analysis()
    asks = make_request(config=config, batch=4, length=256)
    useful = plan.useful_flops(asks, counts.of(config).named())
    masked = 3 * 4 * 256 * counts.attention_flops(config, 255 / 2)
    assert masked > 0.1 * useful
    assert found["flops"] == pytest.approx(useful + masked, rel=0.02)


def trace(line, **changes):
    request = asked(line)
    if changes:
        request = dataclasses.replace(request, **changes)
    devices = jax.devices()[: request.topology.num_devices]
    mesh = make_mesh(**request.mesh, devices=devices)
    with jax.set_mesh(mesh):
        made = programs.build(request, programs.sharding_rules(request, mesh))
        for program in made.values():
            program.lower()
    return request, made
