"""`loong serve`: a checkpoint behind an OpenAI-compatible HTTP interface and JetStream's gRPC."""

import asyncio
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from loong_jax import options
from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.models import families
from loong_jax.models.parameters import Weights
from loong_jax.recipes import MeshSettings
from loong_jax.remote import AnyPath
from loong_jax.rollout import paged_engine
from loong_jax.rollout.engine_config import EngineSettings, PageConfig
from loong_jax.rollout.serving import request as requests
from loong_jax.rollout.serving.request import ServingLimits
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.run import devices, sources, starting
from loong_jax.sharding import NO_MESH, ShardingRules

API_KEY_VARIABLE = "LOONG_API_KEY"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Answers requests for a model until SIGTERM or Ctrl-C, then lets the running ones end.

    RUN_DIR is a run (its last finished stage is served), a stage of one, what `loong import-hf`
    made, or a directory or URL in the layout of Hugging Face. HTTP speaks OpenAI's /v1/models,
    /v1/completions and /v1/chat/completions, with /health and /metrics (Prometheus) beside them;
    gRPC speaks JetStream's Orchestrator. See docs/how-to/serving.md. Examples:
    loong serve runs/quickstart --port 8000 --grpc-port 9000
    curl 127.0.0.1:8000/v1/completions -d '{"prompt": "1 + 1 =", "max_tokens": 8}'
    """

    run_dir: tyro.conf.Positional[AnyPath]
    host: str = "127.0.0.1"  # another one needs an API key, or --allow-anyone
    port: int = 8000  # of HTTP; 0 takes a free one and says which
    grpc_port: int | None = None  # of gRPC; without it there is none
    name: str | None = None  # of the model; the directory's unless given
    tokenizer: AnyPath | None = None  # a tokenizer.json; RUN_DIR's unless given
    chat_style: requests.ChatStyle | None = None  # the chat template of the weights, if any
    api_key_file: Path | None = None  # holds the key; the variable LOONG_API_KEY does as well
    allow_anyone: bool = False  # serve other hosts without an API key
    # samples that are written at the same time
    slots_per_replica: Annotated[int, tyro.conf.arg(aliases=["--num-slots"])] = 16
    # tokens of prompt and answer together
    cache_length: Annotated[int, tyro.conf.arg(aliases=["--context-tokens"])] = 1024
    num_pages: int | None = None  # of the cache; for half of the slots at full length unless given
    page_size: int = 16  # tokens
    prefill_lengths: tuple[int, ...] = (64, 256)  # buckets; longer prompts are read in pieces
    # tokens per sample between two looks at the queue
    decode_steps: Annotated[int, tyro.conf.arg(aliases=["--block-steps"])] = 8
    mesh: MeshSettings = MeshSettings()  # that the model is cut over; one device unless given
    limits: ServingLimits = ServingLimits()

    def engine_config(self) -> EngineSettings:
        """The shapes to compile. Raises ConfigError where they do not fit each other."""
        refuse_below(self, 1, "cache_length", "num_pages", "page_size")
        if self.cache_length % self.page_size:
            raise ConfigError(
                f"cache_length={self.cache_length} must be a multiple of page_size="
                f"{self.page_size}. Round it up."
            )
        per_slot = self.cache_length // self.page_size
        lengths = tuple(n for n in self.prefill_lengths if n <= self.cache_length)
        return EngineSettings(
            slots_per_replica=self.slots_per_replica,
            cache_length=self.cache_length,
            prefill_lengths=lengths or (self.cache_length,),
            prefill_prompts=min(4, self.slots_per_replica),
            prefill_members=min(16, self.slots_per_replica),
            decode_steps=self.decode_steps,
            narrow_slots=(self.slots_per_replica // 4,) if self.slots_per_replica >= 8 else (),
            chunked_prefill=True,
            truncation=True,
            pages=PageConfig(
                num_pages=self.num_pages or max(per_slot, per_slot * self.slots_per_replica // 2),
                page_size=self.page_size,
            ),
        )


def main(arguments: Sequence[str]) -> int:
    return serve(options.parse(ServeOptions, "loong serve", arguments))


def serve(chosen: ServeOptions) -> int:
    """Loads, warms up and serves; the exit status is 0, or 1 where requests were cut off."""
    from loong_jax.rollout.serving import server
    from loong_jax.rollout.serving.frontend import Frontend
    from loong_jax.rollout.serving.scheduler import Metrics, Scheduler

    address = server.Address(host=chosen.host, port=chosen.port, grpc_port=chosen.grpc_port)
    key = read_key(chosen)
    if key is None and not address.is_loopback and not chosen.allow_anyone:
        raise ConfigError(
            f"host={chosen.host} lets other machines in, and there is no API key. Set "
            f"{API_KEY_VARIABLE}, name an --api-key-file, or say --allow-anyone."
        )
    server.refuse_busy(address)  # before minutes of loading and compiling
    shapes = chosen.engine_config()
    source = sources.find(chosen.run_dir)
    tokenizer = find_tokenizer(source, chosen.tokenizer, where=chosen.run_dir)
    chat_style = requests.choose_style(chosen.chat_style, tokenizer, source.hf_config)
    print(f"loading {source.weights}; conversations: {chat_style}", flush=True)
    rules = devices.serving_rules(chosen.mesh, source.config)
    engine, weights = load(source, tokenizer, shapes, rules)
    started_s = time.monotonic()
    print("compiling; the first time takes longest", flush=True)
    scheduler = Scheduler(engine, weights, limits=chosen.limits, metrics=Metrics())
    scheduler.start()
    print(f"compiled in {time.monotonic() - started_s:.0f} s", flush=True)
    frontend = Frontend(
        scheduler=scheduler,
        tokenizer=tokenizer,
        limits=chosen.limits,
        model_name=chosen.name or chosen.run_dir.resolve().name,
        chat_style=chat_style,
        api_key=key,
        started_s=int(time.time()),
    )

    def on_ready(bound: server.Bound) -> None:
        print(f"HTTP: http://{chosen.host}:{bound.port}/v1", flush=True)
        if bound.grpc_port is not None:
            print(f"gRPC: {chosen.host}:{bound.grpc_port}", flush=True)

    all_ended = asyncio.run(server.serve(frontend, address, on_ready=on_ready))
    print("stopped" if all_ended else "stopped; some requests were cut off", flush=True)
    return 0 if all_ended else 1


def read_key(chosen: ServeOptions) -> str | None:
    """The API key, from the file or the environment. Raises ConfigError where it is none."""
    file, key = chosen.api_key_file, os.environ.get(API_KEY_VARIABLE)
    if file is not None:
        if not file.is_file():
            raise ConfigError(f"{file} is no file. Write the API key into one.")
        try:
            key = file.read_text("utf-8")
        except UnicodeDecodeError:
            raise ConfigError(
                f"{file} is no text in UTF-8. Write the API key into it alone."
            ) from None
    if key is not None and not key.strip():
        raise ConfigError("the API key is empty. Write one, or leave it out altogether.")
    return key and key.strip()


def find_tokenizer(source: sources.Source, path: AnyPath | None, *, where: AnyPath) -> Tokenizer:
    """The tokenizer asked for, that of an imported model, or that of our own recipes."""
    if path is not None and source.hf_config is None and not (path / "config.json").exists():
        raise ConfigError(
            f"{path} was given, and {where} does not say which tokens begin and end a text. Serve "
            "what `loong import-hf` made."
        )
    return sources.tokenizer_of(
        source.config, source.hf_config, path or source.files, where=str(where)
    )


def load(
    source: sources.Source,
    tokenizer: Tokenizer,
    shapes: EngineSettings,
    rules: ShardingRules = NO_MESH,
) -> tuple[SlotEngine, Weights]:
    """An engine, and weights on its devices. Raises CheckpointError where they do not fit."""
    model, shapes = source.config, shapes.shared_by(rules.parts("act_batch"))
    graphdef, _ = families.family_of(model).abstract_weights(model, rules)
    weights = starting.load_on(source.weights, model, rules)
    engine = paged_engine.engine_for(graphdef, model, tokenizer, shapes, rules)
    return engine, engine.load_params(weights)
