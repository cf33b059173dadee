"""Writes tests/models/moe/fixtures/published: python -m tests.peers.make_longcat_fixture

A tiny model in the published layout, made by transformers, and what transformers computes with it,
so that the ordinary tests compare with it where there is no torch. Run it in the environment of the
extra `peers` (`make test-peers` makes it).
"""

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import torch

from tests.peers import longcat_models, test_longcat_transformers

DIRECTORY = Path(__file__).parents[1] / "models" / "moe" / "fixtures" / "published"
CASE = longcat_models.Case(
    dict(
        vocab_size=41,
        hidden_size=20,
        kv_lora_rank=8,
        ffn_hidden_size=22,
        expert_ffn_hidden_size=10,
        qk_rope_head_dim=8,
        head_dim=8,
        rope_parameters=longcat_models.YARN,
    ),
    latent_scale=0.05,  # small latents show the epsilon of their norms
    with_mtp=True,
    layout="index",
)


def main() -> None:
    model = longcat_models.make(CASE)
    longcat_models.write(model, DIRECTORY, CASE)
    tokens = test_longcat_transformers.random_tokens(model, 3)
    logits, states, chosen = test_longcat_transformers.forward(model, tokens)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    np.savez_compressed(
        DIRECTORY / "expected.npz",
        about=np.array(json.dumps(versions)),
        tokens=tokens.astype(np.int32),
        logits=logits,
        hidden=states[-1],
        chosen=chosen.astype(np.int8),
    )
    total = sum(file.stat().st_size for file in DIRECTORY.iterdir())
    print(f"{DIRECTORY.name}: {total} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
