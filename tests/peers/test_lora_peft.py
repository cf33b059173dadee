"""Adapters that we write, loaded by the peft library over the model that we write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import dense, families, parameters
from loong_jax.models.hf import published, writing
from loong_jax.rl import lora
from loong_jax.rl.policy_model import policy_of
from tests.sweeps import thinned

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch comes with the extra `peers`")
peft = pytest.importorskip("peft", reason="peft comes with the extra `peers`")
transformers = pytest.importorskip("transformers", reason="it comes with the extra `peers`")

CONFIGS = {
    "llama": dense.DenseConfig.tiny(qkv_bias=False, tied=False),
    "qwen2": dense.DenseConfig.tiny(),
}


@pytest.mark.parametrize("name", thinned(CONFIGS, 1))
@pytest.mark.parametrize("targets", [(), ("out", "down")])
def test_peft_loads_the_adapter_and_computes_what_we_do(name, targets, tmp_path):
    config = CONFIGS[name]
    graphdef, weights = families.family_of(config).init_weights(config, jax.random.key(0))
    policy = policy_of(graphdef, config)
    chosen = lora.LoraConfig(rank=3, alpha=5.0, targets=targets)
    adapters = lora.initial_adapters(policy, chosen, weights, jax.random.key(1))
    adapters = jax.tree.map(
        lambda a: a + 0.1 * jax.random.normal(jax.random.key(a.size), a.shape), adapters
    )
    writing.save_weights_hf(config, weights, tmp_path / "base")
    places = published.published_as(config).places(config, parameters.by_path(weights))
    lora.save_peft(tmp_path / "adapter", chosen, adapters, policy, places)
    tokens = np.random.default_rng(0).integers(3, config.vocab_size, (2, 17))

    whole = lora.lora_policy(policy, chosen).join(adapters, weights)
    ours, before = (
        np.asarray(nnx.merge(graphdef, nnx.State(tree))(jnp.asarray(tokens)).logits)
        for tree in (whole, weights)
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", dtype=torch.float32, attn_implementation="eager"
    )
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    bound = 2e-5 * max(1.0, float(np.sqrt(np.mean(ours**2))))
    with torch.no_grad():
        applied = theirs(torch.tensor(tokens)).logits.numpy()
        merged = theirs.merge_and_unload()(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(applied, ours, rtol=0, atol=bound)
    np.testing.assert_allclose(merged, ours, rtol=0, atol=bound)
    assert np.max(np.abs(before - ours)) > 100 * bound
