"""`loong bench decode`: our engine against transformers' `generate`.

Both sides decode greedily from the same weights with the same threads, in float32, and must agree
on the tokens. transformers tries its variants, with its growing cache and with its static one, for
a few tokens; the fastest then decodes the whole load, in turns with our engine, so
that both meet the same neighbours on a shared machine. The load before and after is reported.
"""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loong_jax.bench import Report, Save, ours
from loong_jax.bench import model as models
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import refuse_below
from loong_jax.models import moe
from loong_jax.rollout.engine_config import EngineSettings, PageConfig, SampleRequest
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slot_engine import SlotEngine

CACHES = ("slots", "pages")
# Kernels of the experts and of attention in transformers; loops and eager attention are slower.
PEERS = (("grouped_mm", "sdpa"), ("batched_mm", "sdpa"))

# 51.2 million parameters, of which a third are the embedding and the head.
MODEL = ours.sized(
    512,
    vocab_size=16384,
    q_lora_rank=192,
    expert_ffn_hidden_size=512,
    num_experts=16,
    num_zero_experts=8,
    num_chosen=4,
    target_ffn_experts=8 / 3,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """The work to be decoded: all requests at once, all of the same lengths."""

    num_requests: int = 64
    prompt_length: int = 128
    new_tokens: int = 256
    decode_steps: int = 16
    page_size: int = 32
    trial_tokens: int = 16  # new tokens that choose the variant of transformers

    @property
    def cache_length(self) -> int:
        """Room for a whole sample, in pages."""
        return -(-(self.prompt_length + self.new_tokens) // self.page_size) * self.page_size


class _Endless(AsciiTokenizer):
    """Its end of sequence is written by no model, so that every sample has full length."""

    eos_id, end_ids = -1, (-1,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Decodes 64 requests of 128 + 256 tokens with 51 million parameters, ours and transformers'.

    Tokens per second of both sides, in turns. Takes several minutes on two cores.
    Example: loong bench decode --json decode.json
    """

    json: Path | None = None  # all figures
    rounds: int = 3  # of every measurement; medians are reported
    new_tokens: int = 256  # per request

    def __post_init__(self):
        refuse_below(self, 1, "rounds")
        refuse_below(self, 2, "new_tokens")


def measure(
    chosen: Options,
    *,
    load: Load | None = None,
    config: moe.MoEConfig = MODEL,
    report: Report = print,
    save: Save = lambda _: None,
) -> dict[str, Any]:
    """All figures as JSON values; seconds are medians of `rounds`, after one run for compilation.
    `save` gets them after each part. Both sides take the cores that the process may use.
    """
    load = load or Load(new_tokens=chosen.new_tokens)
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    weights["head"] = weights["head"] * 4  # greedy choices that are no near-ties
    num_threads = len(os.sched_getaffinity(0))
    random = np.random.default_rng(0)
    prompts = random.integers(
        2, config.vocab_size, (load.num_requests, load.prompt_length), np.int32
    )
    result: dict[str, Any] = {
        "load": dataclasses.asdict(load),
        "num_parameters": sum(a.size for a in jax.tree.leaves(weights)),
        "num_threads": num_threads,
        "load_average_before": os.getloadavg()[0],
    }
    bench = _Bench(graphdef, config, weights, load, prompts, chosen.rounds, report)
    result["engine"], tokens = bench.engines()
    save(result)
    result["transformers"] = bench.transformers(tokens, num_threads)
    result["load_average_after"] = os.getloadavg()[0]
    save(result)
    return result


@dataclasses.dataclass(frozen=True)
class _Bench:
    graphdef: Any
    config: moe.MoEConfig
    weights: Any
    load: Load
    prompts: np.ndarray  # int32 [requests, prompt length]
    rounds: int
    report: Report

    def engine(self, *, paged: bool) -> SlotEngine:
        load = self.load
        fields: dict[str, Any] = dict(
            slots_per_replica=load.num_requests,
            cache_length=load.cache_length,
            prefill_lengths=(load.prompt_length,),
            prefill_prompts=8,
            prefill_members=16,
            decode_steps=load.decode_steps,
        )
        if paged:
            pages = load.num_requests * load.cache_length // load.page_size
            views = range(load.prompt_length, load.cache_length, 64)
            fields["pages"] = PageConfig(
                num_pages=pages,
                page_size=load.page_size,
                view_lengths=tuple(v for v in views if v % load.page_size == 0),
                reuse_prefixes=False,
            )
        config = EngineSettings(**fields)
        return engine_for(self.graphdef, self.config, _Endless(), config)

    def engines(self) -> tuple[dict[str, Any], np.ndarray]:
        """Seconds of the whole load on slots of their own and on pages, and the tokens."""
        results, tokens = {}, np.zeros(0)
        for name in CACHES:
            engine = self.engine(paged=name == "pages")
            tokens = self._decode_all(engine)
            times = [_seconds(self._decode_all, engine) for _ in range(self.rounds)]
            seconds = statistics.median(times)
            count = self.load.num_requests * self.load.new_tokens
            results[name] = {"seconds": seconds, "tokens_per_s": count / seconds}
            self.report(f"  engine on {name}: {seconds:.2f} s, {count / seconds:.0f} tokens/s")
        return results, tokens

    def _decode_all(self, engine: SlotEngine) -> np.ndarray:
        """int32 [requests, new tokens]."""
        load, state = self.load, engine.init_decode_state()
        greedy = SamplingSettings(greedy=True, max_new_tokens=load.new_tokens)
        written: list[list[int]] = [[] for _ in range(load.num_requests)]
        firsts = []  # not looked at before all are prefilled
        for first in range(0, load.num_requests, engine.config.prefill_prompts):
            rows = range(first, min(first + engine.config.prefill_prompts, load.num_requests))
            prefix, result = engine.prefill_batch(
                params=self.weights,
                prompts=[self.prompts[row] for row in rows],
                rows=range(len(rows)),
                requests=[SampleRequest(stream=(0, 0, 0, 0, row), sampling=greedy) for row in rows],
            )
            state = engine.bulk_insert(prefix, state, list(rows))
            firsts.append((rows, result))
        for rows, result in firsts:
            for row, token in zip(rows, result.convert_to_numpy().data[:, 0], strict=False):
                written[row].append(token)
        for _ in range(-(-(load.new_tokens - 1) // load.decode_steps)):
            state, result = engine.generate(self.weights, state)
            result = result.convert_to_numpy()
            for row in range(load.num_requests):
                written[row].extend(result.written(row)[0])
        return np.array(written, np.int32)

    def transformers(self, tokens: np.ndarray, num_threads: int) -> dict[str, Any]:
        """Seconds of `generate`, by variant for a few tokens, and for the whole load by the fastest
        of them, in turns with ours. What fails is named.
        """
        peer = models.find_peer()
        if peer is None:
            self.report(f"  transformers is absent. Remedy: {models.REMEDY}.")
            return {"absent": models.REMEDY}
        peer.set_num_threads(num_threads)
        weights = jax.tree.map(np.asarray, self.weights)
        num_tokens = min(self.load.trial_tokens, self.load.new_tokens)
        seconds, failed, made = {}, {}, {}
        for experts, attention in PEERS:
            variant = peer.Variant(experts, attention)
            model = peer.build(self.config, weights, variant).eval()
            for cache in ("dynamic", "static"):
                name = f"{variant}, {cache} cache"
                try:
                    times = [
                        peer.generate(model, self.prompts, new_tokens=num_tokens, cache=cache)
                        for _ in range(2)
                    ]
                except Exception as error:  # that a variant does not work is a finding
                    failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                    self.report(f"  transformers, {name}, fails: {failed[name]}")
                    continue
                seconds[name], made[name] = min(took for took, _ in times), (model, cache)
                self.report(f"  transformers, {name}: {seconds[name]:.2f} s, {num_tokens} tokens")
        if not seconds:
            return {"failed": failed}
        fastest = min(seconds, key=lambda name: seconds[name])
        model, cache = made[fastest]
        return {
            "versions": peer.versions(),
            "trial_tokens": num_tokens,
            "trial_s": seconds,
            "variants_that_do_not_work": failed,
            "fastest": fastest,
            **self._in_turns(peer, model, cache, tokens),
        }

    def _in_turns(self, peer: Any, model: Any, cache: str, tokens: np.ndarray) -> dict[str, Any]:
        """The whole load by transformers and by ours on either cache, round by round."""
        engines = {name: self.engine(paged=name == "pages") for name in CACHES}
        for engine in engines.values():
            self._decode_all(engine)
        rounds, share = [], 0.0
        for _ in range(self.rounds):
            took = {name: _seconds(self._decode_all, engine) for name, engine in engines.items()}
            theirs_s, found = peer.generate(
                model, self.prompts, new_tokens=self.load.new_tokens, cache=cache
            )
            share = float(np.mean(found == tokens))
            rounds.append({**took, "transformers": theirs_s, "load_average": os.getloadavg()[0]})
            self.report(
                f"  slots {took['slots']:.2f} s, pages {took['pages']:.2f} s, transformers "
                f"{theirs_s:.2f} s: {theirs_s / min(took.values()):.2f}x; {share:.1%} of the "
                "tokens are equal"
            )
        ratios = {
            name: statistics.median(one["transformers"] / one[name] for one in rounds)
            for name in CACHES
        }
        return {
            "rounds": rounds,
            "speedup_by_cache": ratios,
            "speedup": max(ratios.values()),
            "share_of_equal_tokens": share,
        }


def _seconds(run: Callable[..., Any], *arguments: Any) -> float:
    start_s = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start_s
