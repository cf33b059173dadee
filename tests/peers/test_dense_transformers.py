"""Dense decoders against transformers' own, on random tiny models that transformers wrote."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import load_hf, parameters, save_hf
from loong_jax.models.dense import KeyValueCache, hf
from tests.models.dense.test_model import assert_close
from tests.sweeps import thinned

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch comes with the extra `peers`")
transformers = pytest.importorskip("transformers", reason="it comes with the extra `peers`")

from tests.peers import dense_models  # noqa: E402, after what it needs is there

ROWS, LENGTH = 3, 23


@pytest.fixture(scope="module", params=thinned(dense_models.CASES, 1, 2, 5, 7))
def pair(request, tmp_path_factory):
    """A transformers model, ours from its files, and where those lie."""
    theirs = dense_models.make(request.param)
    directory = tmp_path_factory.mktemp("dense")
    dense_models.write(theirs, directory)
    return theirs, load_hf(directory), directory


def random_tokens(seed=3):
    return np.random.default_rng(seed).integers(3, dense_models.SIZES["vocab_size"], (ROWS, LENGTH))


def logits_of(theirs, tokens, **kwargs):
    with torch.no_grad():
        return theirs(torch.tensor(tokens), **kwargs).logits.numpy()


def test_logits(pair):
    theirs, ours, _ = pair
    tokens = random_tokens()
    assert_close(ours(tokens).logits, logits_of(theirs, tokens))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(pair, side):
    theirs, ours, _ = pair
    tokens, lengths = random_tokens(), (23, 9, 1)
    mask = np.arange(LENGTH)[None] < np.array(lengths)[:, None]
    mask = mask[:, ::-1] if side == "left" else mask
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    expected = logits_of(
        theirs,
        tokens,
        attention_mask=torch.tensor(mask.astype(int)),
        position_ids=torch.tensor(positions),
    )
    output, cache = ours.prefill(tokens, mask=mask)
    assert_close(ours(tokens, mask=mask).logits[mask], expected[mask])
    assert_close(output.logits[mask], expected[mask])
    for row, length in enumerate(lengths):
        _, short = ours.prefill(tokens[row : row + 1][mask[row : row + 1]][None])
        np.testing.assert_allclose(
            cache.key[:, :, row, :length], short.key[:, :, 0], rtol=0, atol=1e-5
        )


def test_packed_rows_and_shared_prompts_equal_sequences_alone(pair):
    theirs, ours, _ = pair
    tokens = random_tokens()[:1]
    segment = np.array([[1] * 6 + [2] * 5 + [3] * 8 + [0] * 4])
    alone = [logits_of(theirs, tokens[:, a:b])[0] for a, b in ((0, 6), (6, 11), (11, 19))]
    assert_close(ours(tokens, segment_ids=segment).logits[0, :19], np.concatenate(alone))
    parent = np.where(segment > 1, 1, 0)
    position = np.array([[*range(6), *range(6, 11), *range(6, 14), 0, 0, 0, 0]])
    shared = ours(tokens, position, segment_ids=segment, parent_ids=parent).logits[0]
    for a, b in ((6, 11), (11, 19)):
        row = np.concatenate([tokens[:, :6], tokens[:, a:b]], axis=1)
        expected = logits_of(theirs, row)[0]
        assert_close(shared[a:b], expected[6:])
    assert_close(shared[:6], alone[0])


def test_gradients(pair):
    theirs, ours, _ = pair
    tokens = random_tokens()
    theirs.zero_grad()
    theirs(torch.tensor(tokens), labels=torch.tensor(tokens)).loss.backward()
    expected = {name: weight.grad.numpy() for name, weight in theirs.named_parameters()}
    graphdef, state = nnx.split(ours, graph=False)

    def loss(weights):
        logits = nnx.merge(graphdef, nnx.State(weights))(tokens).logits[:, :-1]
        nll = -jax.nn.log_softmax(logits)
        return jnp.mean(jnp.take_along_axis(nll, tokens[:, 1:, None], axis=-1))

    gradient = jax.jit(jax.grad(loss))(nnx.to_pure_dict(state))
    leaves = parameters.by_path(gradient)
    found = {}
    for place in hf.PUBLICATION.places(ours.config, leaves):
        index = tuple(slice(*bounds) for bounds in place.region)
        found[place.name] = place.turn_back(np.asarray(leaves[place.leaf])[index])
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found[name], gradient)


def test_greedy_tokens(pair):
    theirs, ours, _ = pair
    tokens = random_tokens()[:, :7]
    with torch.no_grad():
        expected = theirs.generate(
            torch.tensor(tokens), max_new_tokens=16, do_sample=False, eos_token_id=None
        ).numpy()[:, 7:]
    output, short = ours.prefill(tokens)
    empty = KeyValueCache.zeros(ours.config, ROWS, 32)
    cache = jax.tree.map(lambda all, new: all.at[:, :, :, :7].set(new), empty, short)
    token, written = jnp.argmax(output.logits[:, -1], axis=-1), []
    for step in range(16):
        written.append(token)
        logits, cache = ours.decode(token, np.full(ROWS, 7 + step), cache)
        token = jnp.argmax(logits, axis=-1)
    np.testing.assert_array_equal(np.stack(written, axis=1), expected)


def test_an_export_loads_in_transformers_and_is_what_was_imported(pair, tmp_path):
    theirs, ours, directory = pair
    save_hf(ours, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", attn_implementation="eager"
    ).eval()
    tokens = random_tokens()
    np.testing.assert_array_equal(logits_of(again, tokens), logits_of(theirs, tokens))
    for name in ("config.json", "model.safetensors.index.json"):
        assert (tmp_path / "out" / name).read_bytes() == (directory / name).read_bytes()


def test_a_fresh_model_loads_in_transformers(pair, tmp_path):
    """Its config.json is ours from the first key on, in the layout of transformers 4."""
    theirs, ours, _ = pair
    ours.imported_config = ours.imported_layout = ours.imported_dtype = None
    save_hf(ours, tmp_path / "out")
    record = json.loads((tmp_path / "out/config.json").read_text())
    assert record["architectures"] == [type(theirs).__name__]
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", attn_implementation="eager"
    ).eval()
    tokens = random_tokens()
    assert_close(logits_of(again, tokens), logits_of(theirs, tokens))
    assert load_hf(tmp_path / "out").config == ours.config
