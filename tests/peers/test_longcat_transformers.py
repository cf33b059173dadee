"""Our model against transformers' own, on random tiny models in the published layout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import moe, parameters
from loong_jax.models.moe import hf as moe_hf
from tests.models.dense.test_model import assert_close
from tests.models.moe.test_model import call
from tests.peers import longcat_models
from tests.sweeps import thinned

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch comes with the extra `peers`")
pytest.importorskip("transformers", reason="transformers comes with the extra `peers`")

LENGTH = 21


@pytest.fixture(scope="module", params=thinned(longcat_models.CASES, 0, 5, 9))
def pair(request, tmp_path_factory):
    """A transformers model and ours, from the files written of it."""
    case = longcat_models.CASES[request.param]
    theirs = longcat_models.make(case)
    directory = tmp_path_factory.mktemp("longcat")
    longcat_models.write(theirs, directory, case)
    return theirs, moe.load_hf(directory)


def split(model):
    graphdef, state = nnx.split(model, graph=False)
    return graphdef, nnx.to_pure_dict(state)


def random_tokens(model, rows, length=LENGTH, seed=3):
    return np.random.default_rng(seed).integers(3, model.config.vocab_size, (rows, length))


def forward(theirs, tokens, **kwargs):
    """Logits, the hidden states after every layer and the final norm, and choices, from torch."""
    choices = []
    hooks = [
        layer.mlp.router.register_forward_hook(lambda *call: choices.append(call[2][2].numpy()))
        for layer in theirs.model.layers
    ]
    with torch.no_grad():
        out = theirs(torch.tensor(tokens), output_hidden_states=True, **kwargs)
        inner = [theirs.model.norm(state).float().numpy() for state in out.hidden_states[1:-1]]
    for hook in hooks:
        hook.remove()
    chosen = np.stack(choices).reshape(len(choices), *tokens.shape, -1)
    states = [*inner, out.hidden_states[-1].float().numpy()]
    return out.logits.float().numpy(), states, np.sort(chosen, axis=-1)


def first_layers(model, count):
    """The model with its first layers only."""
    config = dataclasses.replace(model.config, num_layers=count, num_mtp_layers=0)
    graphdef, _ = moe.abstract_weights(config)
    _, weights = split(model)
    weights["layers"] = jax.tree.map(lambda a: a[:count], weights["layers"])
    weights.pop("mtp", None)
    return graphdef, weights


def test_logits_states_and_choices(pair):
    theirs, ours = pair
    tokens = random_tokens(theirs, 3)
    logits, states, chosen = forward(theirs, tokens)
    for count, state in enumerate(states, 1):
        graphdef, weights = first_layers(ours, count)
        assert_close(call(graphdef)(weights, tokens).hidden, state)
    graphdef, weights = split(ours)
    output = call(graphdef)(weights, tokens)
    assert_close(output.logits, logits)
    np.testing.assert_array_equal(np.sort(output.target, axis=-1), chosen)
    counted = [np.bincount(c.reshape(-1), minlength=ours.config.num_targets) for c in chosen]
    np.testing.assert_array_equal(output.load, np.stack(counted))


def test_padding_and_packing(pair):
    """Left-padded and right-padded rows as transformers computes them, packed ones as separate."""
    theirs, ours = pair
    graphdef, weights = split(ours)
    model = call(graphdef)
    tokens = random_tokens(theirs, 3)
    lengths = np.array([LENGTH, 13, 4])
    index = np.arange(LENGTH)[None]
    for mask in (index >= LENGTH - lengths[:, None], index < lengths[:, None]):
        expected, _, _ = forward(theirs, tokens, attention_mask=torch.tensor(mask))
        output = model(weights, tokens, mask=mask)
        assert_close(np.asarray(output.logits)[mask], expected[mask])
        assert np.isfinite(output.logits).all()
        assert output.load.sum() == mask.sum() * ours.config.num_chosen * ours.config.num_layers
    cut = 9
    segments = np.where(index < cut, 1, 2) * np.ones_like(tokens)
    segments[:, -2:] = 0
    packed = model(weights, tokens, segment_ids=segments)
    for part in (slice(0, cut), slice(cut, LENGTH - 2)):
        expected, _, _ = forward(theirs, tokens[:, part])
        assert_close(np.asarray(packed.logits)[:, part], expected)


def test_gradients_of_all_weights(pair):
    theirs, ours = pair
    tokens = random_tokens(theirs, 2)
    shape = (*tokens.shape, theirs.config.vocab_size)
    direction = (np.random.default_rng(4).normal(size=shape) / np.sqrt(tokens.size)).astype("f4")
    theirs.zero_grad()
    (theirs(torch.tensor(tokens)).logits * torch.tensor(direction)).sum().backward()
    graphdef, weights = split(ours)

    def loss(weights):
        return (call(graphdef)(weights, tokens).logits * direction).sum()

    gradient = parameters.by_path(jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(weights)))
    found = {
        place.name: place.turn_back(gradient[place.leaf][_index(place)])
        for place in moe_hf.places(ours.config, gradient)
        if not place.name.startswith(moe_hf.MTP)
    }
    expected = _gradients(theirs)
    for name, value in expected.items():
        assert_close(found.pop(name), value)
    assert all(name.endswith("e_score_correction_bias") for name in found), list(found)
    assert not any(np.any(value) for value in found.values())


def _index(place):
    return tuple(slice(start, stop) for start, stop in place.region)


def _gradients(model) -> dict[str, np.ndarray]:
    """Gradients under the published names, through a model that has them as its weights."""
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    holder = longcat_models.make(longcat_models.Case(_sizes(model)))
    with torch.no_grad():
        for name, parameter in holder.named_parameters():
            parameter.copy_(torch.zeros_like(parameter) if grads[name] is None else grads[name])
    tensors = longcat_models.published_tensors(holder)
    return {n: t for n, t in tensors.items() if not n.endswith("e_score_correction_bias")}


def _sizes(model):
    return {key: getattr(model.config, key) for key in longcat_models.SIZES}


def test_sixteen_greedy_tokens(pair):
    """Ours come from a right-padded prefill and decoding over the cache."""
    theirs, ours = pair
    tokens, lengths, steps = random_tokens(theirs, 2, 7), np.array([7, 4]), 16
    expected = []
    for row, length in zip(tokens, lengths, strict=True):
        with torch.no_grad():
            out = theirs.generate(
                torch.tensor(row[None, :length]),
                max_new_tokens=steps,
                min_new_tokens=steps,
                do_sample=False,
                pad_token_id=0,
            )
        expected.append(out[0, length:].numpy())
    graphdef, weights = split(ours)
    mask = np.arange(7)[None] < lengths[:, None]
    output, cache = call(graphdef, "prefill")(weights, tokens, mask)
    room = [(0, 0)] * 3 + [(0, steps), (0, 0)]
    cache = jax.tree.map(lambda a: jnp.pad(a, room), cache)
    decode = call(graphdef, "decode")
    logits, position, drawn = output.logits[np.arange(2), lengths - 1], lengths, []
    for _ in range(steps):
        token = jnp.argmax(logits.at[:, theirs.config.eos_token_id].set(-jnp.inf), axis=-1)
        drawn.append(token)
        logits, cache = decode(weights, token, position, cache)
        position = position + 1
    np.testing.assert_array_equal(np.stack(drawn, axis=1), np.stack(expected))


def test_bf16_is_as_far_from_fp32_as_theirs(tmp_path):
    """bf16 weights and activations, fp32 routers: statistically as exact as transformers."""
    case = longcat_models.Case(dict(hidden_size=64, q_lora_rank=16, kv_lora_rank=24))
    theirs = longcat_models.make(case)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "router" not in name:
                parameter.copy_(parameter.bfloat16().float())
    longcat_models.write(theirs, tmp_path, case)
    tokens = random_tokens(theirs, 16, 32)
    exact, _, chosen = forward(theirs, tokens)
    theirs = theirs.bfloat16()
    for layer in theirs.model.layers:
        layer.mlp.router.float()
    routers = {n: t for n, t in longcat_models.make(case).state_dict().items() if "router" in n}
    theirs.load_state_dict(routers, strict=False)
    rounded, _, rounded_choice = forward(theirs, tokens)
    graphdef, weights = split(moe.load_hf(tmp_path, dtype=jnp.bfloat16))
    output = call(graphdef)(weights, tokens)
    error, their_error = (
        np.sqrt(((np.asarray(x, np.float64) - exact) ** 2).mean()) for x in (output.logits, rounded)
    )
    assert error < 1.1 * their_error
    flips = (np.sort(output.target, axis=-1) != chosen).any(-1).mean()
    their_flips = (rounded_choice != chosen).any(-1).mean()
    assert flips < 1.25 * their_flips + 0.01
