"""A tiny LongCat-Flash that learns to write proof terms, and the sampling of its attempts.

It reads a statement as rules and answers in letters (`loong_jax.synth.formal.proofs`), under
names that are drawn anew for every example and every attempt. Its work is to look up what follows
what, so its input tells of each token which one came before it.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.models import moe
from loong_jax.models.moe import MoEConfig, NgramEmbedding
from loong_jax.problems.problem import Problem
from loong_jax.rl import checkpoint, sft, trainer
from loong_jax.rl.optimizers import Muon, WarmupCosine
from loong_jax.rl.policy_model import policy_of
from loong_jax.rl.sft import SftSettings
from loong_jax.rollout import paged_engine, sampling
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.records import SamplingSettings
from loong_jax.synth.formal import proofs
from loong_jax.synth.formal.expert_iteration import Goal, Solution

BIAS_RATE = 0.01  # of the router's biases
Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProverSettings:
    """The model, its training and its sampling. Lengths are in tokens, which are characters."""

    hidden_size: int = 64
    num_layers: int = 1
    pair_rows: int = 4093  # of the table that tells what token came before; 0: no table
    num_steps: int = 2000
    peak_rate: float = 1e-2
    rows: int = 4
    row_length: int = 128
    temperature: float = 1.0
    prompt_length: int = 48
    max_new_tokens: int = 40
    num_slots: int = 128

    def __post_init__(self):
        refuse_below(self, 1, "num_steps", "max_new_tokens", "num_slots")
        refuse_below(self, 0, "pair_rows")
        if not self.temperature > 0:
            raise ConfigError(f"temperature={self.temperature} must be positive.")

    def model(self) -> MoEConfig:
        table = NgramEmbedding(max_order=2, num_splits=1, base_rows=max(1, self.pair_rows))
        return MoEConfig.tiny(
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            q_lora_rank=32,
            chunk_tokens=None,
            ffn_hidden_size=2 * self.hidden_size,
            expert_ffn_hidden_size=max(16, self.hidden_size // 2),
            num_experts=4,
            num_zero_experts=2,
            num_chosen=2,
            target_ffn_experts=1.5,
            ngram=table if self.pair_rows else None,
        )

    def sft(self) -> SftSettings:
        schedule = WarmupCosine(
            peak=self.peak_rate, warmup_steps=self.num_steps // 8, num_steps=self.num_steps
        )
        return SftSettings(
            optimizer=Muon(schedule=schedule, weight_decay=0.01),
            num_steps=self.num_steps,
            rows=self.rows,
            row_length=self.row_length,
        )

    def shapes(self) -> EngineSettings:
        return EngineSettings(
            slots_per_replica=self.num_slots,
            cache_length=self.prompt_length + self.max_new_tokens,
            prefill_lengths=(self.prompt_length,),
            prefill_prompts=8,
        )


class TinyProver:
    """A `loong_jax.synth.formal.expert_iteration.Prover` of proof terms.

    Compiled programs are shared by all rounds and by provers of equal settings.
    """

    def __init__(self, settings: ProverSettings, progress: Progress = lambda said: None):
        self._settings, self._progress = settings, progress
        self._tokenizer = AsciiTokenizer()
        model, shapes = settings.model(), settings.shapes()
        graphdef, _ = moe.init_weights(model, jax.random.key(0))
        self._policy = policy_of(graphdef, model, BIAS_RATE)
        self._engine = paged_engine.engine_for(graphdef, model, self._tokenizer, shapes)
        self._weights: Any = None

    def train(self, examples: Sequence[Solution], directory: Path, *, seed: int) -> None:
        """Trains from fresh weights; weights that are in `directory` already are loaded instead."""
        if checkpoint.steps(directory):
            found = checkpoint.restore(directory).arrays["weights"]
            self._weights = jax.tree.map(jnp.asarray, found)
            return
        settings = self._settings.sft()
        _, fresh = moe.init_weights(self._settings.model(), jax.random.key(seed))
        state = trainer.initial_state(self._policy, settings.optimizer, fresh)
        every = max(1, settings.num_steps // 10)

        def on_step(state: Any, cursor: int, metrics: dict[str, float]) -> None:
            step = int(state.step)
            if step % every == 0:
                self._progress(f"step {step}/{settings.num_steps}, loss {metrics['loss']:.2f}")

        encode = sft.pair_encoder(self._tokenizer)
        drawn = pairs(examples, seed)
        state, _ = sft.run(self._policy, settings, state, drawn, encode, on_step=on_step)
        checkpoint.save(directory, settings.num_steps, {"weights": state.weights}, keep=1)
        self._weights = state.weights

    def attempt(self, goals: Sequence[Goal], num_samples: int, *, seed: int) -> list[list[str]]:
        sampler = sampling.ProblemSampler(self._engine, self._weights, seed=seed, num_threads=2)
        drawn = SamplingSettings(
            temperature=self._settings.temperature, max_new_tokens=self._settings.max_new_tokens
        )
        # Drawn alike whatever else is attempted with it, so that a resumed run repeats itself.
        seeds = [[seed, zlib.crc32(goal.uid.encode())] for goal in goals]
        readings = [
            proofs.draw(proofs.read_sequent(goal.text), np.random.default_rng(own))
            for goal, own in zip(goals, seeds, strict=True)
        ]
        asked = [
            Problem(
                uid=goal.uid, domain="logic", environment="formal", level=goal.level, seed=0,
                canonical=goal.kin, prompt=seen.prompt, verifier="metamath",
            )
            for goal, seen in zip(goals, readings, strict=True)
        ]  # fmt: skip
        rollouts = sampler(asked, num_samples, drawn)
        answered = zip(readings, rollouts, strict=True)
        return [[seen.proof(rollout.text) for rollout in some] for seen, some in answered]


def pairs(examples: Sequence[Solution], seed: int) -> Iterator[tuple[str, str]]:
    """Endless (prompt, response) pairs: readings of the examples, each drawn equally often."""
    rng = np.random.default_rng(seed)
    read = [(proofs.read_sequent(one.goal.text), one.proof) for one in examples]
    while True:
        for index in rng.permutation(len(read)):
            posed, proof = read[index]
            seen = proofs.draw(posed, rng)
            yield seen.prompt, seen.answer(proof)
