"""Writes tests/models/dense/fixtures: python -m tests.peers.make_dense_fixtures

Tiny dense decoders as transformers writes them, and what it computes with them, so that the
ordinary tests compare with it where there is no torch. Run it in the environment of the extra
`peers` (`make test-peers` makes it).
"""

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import torch

from tests.peers import dense_models

DIRECTORY = Path(__file__).parents[1] / "models" / "dense" / "fixtures"
SMALL = dict(vocab_size=37, hidden_size=12, intermediate_size=14, num_hidden_layers=2)
NAMES = {
    "llama": "llama 3.1",
    "llama-biases": "llama, tied, every bias, wide heads, one key",
    "qwen2": "qwen2, tied",
    "qwen3": "qwen3, biases, yarn that is not cut",
}


def main() -> None:
    for folder, name in NAMES.items():
        kind, sizes = dense_models.CASES[name]
        dense_models.CASES[folder] = kind, sizes | SMALL
        model = dense_models.make(folder)
        model.save_pretrained(DIRECTORY / folder)
        tokens = torch.tensor(np.random.default_rng(5).integers(3, 37, (2, 9)))
        with torch.no_grad():
            logits = model(tokens).logits
            greedy = model.generate(tokens, max_new_tokens=16, do_sample=False, eos_token_id=None)[
                :, 9:
            ]
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        np.savez(
            DIRECTORY / folder / "expected.npz",
            tokens=tokens.numpy(),
            logits=logits.numpy(),
            greedy=greedy.numpy(),
            embedding_gradient=model.model.embed_tokens.weight.grad.numpy(),
            query_gradient=model.model.layers[0].self_attn.q_proj.weight.grad.numpy(),
        )
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    (DIRECTORY / "made_with.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
