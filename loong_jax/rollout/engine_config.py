"""Settings of the replicas: where they live, the shapes they compile, what samples may ask for.

A `SampleRequest` names the settings and the random stream of a sample, which therefore does not
depend on its slot, batch or replica.
"""

import dataclasses
import hashlib
from typing import Annotated, Literal

import tyro

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.rollout.records import SamplingSettings, Ticket

MOST_MANTISSA_BITS = 23  # of float32, the leading one not counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadReplicas:
    """Replicas in threads of the trainer's process."""

    # shared: the trainer's, in turns with it; own: those after the trainer's, but for elastic ones
    devices: Literal["shared", "own"] = "shared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessReplicas:
    """Replicas in processes of this machine."""

    replicas_per_process: int = 1
    # accelerators of each process, after those of the trainer: --replica-mesh needs as many for a
    # mesh; 0: whatever JAX finds there
    devices_per_process: int = 0
    cores: tuple[int, ...] = ()  # process i runs on core cores[i % len] alone; () for anywhere
    single_threaded: bool = False  # XLA's CPU programs use one thread


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayReplicas:
    """Replicas in Ray actors, each with its own devices. Amounts are per actor."""

    replicas_per_actor: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    num_tpus: float = 0.0
    address: str | None = None  # of a running Ray; None: the one there is, or a local one


Placement = ThreadReplicas | ProcessReplicas | RayReplicas


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageConfig:
    """The paged cache of an engine."""

    num_pages: int
    page_size: int = 16  # positions
    reuse_prefixes: bool = True  # prompts begin with pages that others have left
    view_lengths: tuple[int, ...] = ()  # further lengths to decode over while samples are short

    def __post_init__(self):
        refuse_below(self, 1, "num_pages", "page_size")
        if any(length < 1 or length % self.page_size for length in self.view_lengths):
            raise ConfigError(
                f"view_lengths={self.view_lengths} must be multiples of page_size="
                f"{self.page_size}. Round them up."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The replicas of a recipe, and the shapes that their engines compile.

    A sample depends on the shapes only through rounding. Lengths are in tokens; what exceeds the
    slots is cut to them.
    """

    num_replicas: int = 2
    num_elastic: int = 0  # the last of them, which share the trainer's devices in turns
    placement: Placement = ThreadReplicas()
    offload_versions: bool = False  # older ones that nobody decodes under wait in host memory
    slots_per_replica: int = 128  # samples that are written at the same time
    groups_per_replica: int | None = None  # decoded at once in RL; None: what the slots hold
    narrow_slots: tuple[int, ...] = ()  # widths to decode with while few slots are active
    cache_length: int = 0  # S, prompt and response together; 0: what the problems need
    # buckets that prompts are padded to, rising; (): one, of what the problems need
    prefill_lengths: Annotated[
        tuple[int, ...], tyro.conf.arg(aliases=["--engine.prefill-length"])
    ] = ()
    prefill_prompts: int = 4  # prompts read in one call
    prefill_members: int = 64  # samples that may start from one call
    decode_steps: int = 8  # in one call
    chunked_prefill: bool = False  # prompts past the largest bucket are read in several chunks
    speculation: bool = False  # decode with the drafting head: up to two tokens a step
    pages: PageConfig | None = None  # None: every slot owns cache_length positions
    mantissa_bits: int | None = None  # that weights are rounded to when loaded; 7 is bfloat16
    truncation: bool = False  # samples may ask for top-k, top-p and min-p
    max_stop_ids: int = 0  # tokens beside those of the tokenizer that may end a sample
    routing: bool = False  # the targets chosen for every token are recorded, for replay

    def __post_init__(self):
        refuse_below(self, 1, "num_replicas", "slots_per_replica", "decode_steps")
        refuse_below(self, 1, "prefill_prompts", "prefill_members")
        refuse_below(self, 0, "max_stop_ids")
        if not 0 <= self.num_elastic <= self.num_replicas:
            raise ConfigError(
                f"num_elastic={self.num_elastic} is not in 0..{self.num_replicas}, num_replicas."
            )
        if self.num_elastic and not isinstance(self.placement, ThreadReplicas):
            raise ConfigError(
                f"num_elastic={self.num_elastic} replicas would share the trainer's devices, and "
                f"placement={self.placement} puts them into other processes. Use ThreadReplicas."
            )
        if self.num_replicas % self.replicas_per_host:
            raise ConfigError(
                f"num_replicas={self.num_replicas} is no multiple of the {self.replicas_per_host} "
                "that a process of `placement` holds. Change one of the two."
            )
        lengths, capacity = self.prefill_lengths, self.cache_length
        if list(lengths) != sorted(set(lengths)) or min(lengths, default=1) < 1:
            raise ConfigError(f"prefill_lengths={lengths} must rise from at least 1. Sort them.")
        if capacity and max(lengths, default=0) > capacity:
            raise ConfigError(
                f"prefill_lengths={lengths} reach past cache_length={capacity}. Drop the "
                "long ones or lengthen the cache."
            )
        if any(width < 1 for width in self.narrow_slots):
            raise ConfigError(f"narrow_slots={self.narrow_slots} must be at least 1. Raise them.")
        bits = self.mantissa_bits
        if bits is not None and not 1 <= bits <= MOST_MANTISSA_BITS:
            raise ConfigError(
                f"mantissa_bits={bits} is not in 1..{MOST_MANTISSA_BITS}. Use 7 for bfloat16, None "
                "for weights as they are."
            )
        if self.speculation and self.routing:
            raise ConfigError(
                "speculation and routing are both on, but the choices of the router are recorded "
                "by plain decode steps only. Turn one of them off."
            )
        pages = self.pages
        if pages is None or not capacity:
            return
        if capacity % pages.page_size or any(view >= capacity for view in pages.view_lengths):
            raise ConfigError(
                f"cache_length={capacity} must be a multiple of page_size="
                f"{pages.page_size} and exceed view_lengths={pages.view_lengths}."
            )
        if pages.num_pages * pages.page_size < capacity:
            raise ConfigError(
                f"{pages.num_pages} pages of {pages.page_size} hold no sequence of cache_length="
                f"{capacity}: a single sample could not end. Raise num_pages."
            )

    @property
    def replicas_per_host(self) -> int:
        """The number of replicas in one process."""
        match self.placement:
            case ThreadReplicas():
                return self.num_replicas
            case ProcessReplicas(replicas_per_process=number):
                return max(1, number)
            case RayReplicas(replicas_per_actor=number):
                return max(1, number)

    def shared_by(self, parts: int) -> "EngineSettings":
        """The settings of an engine over `parts` devices: numbers of sequences, and of pages, are
        rounded up to multiples of `parts`, and what exceeds the slots is cut to them.
        """

        def up(count: int) -> int:
            return -(-count // parts) * parts

        slots, pages = up(self.slots_per_replica), self.pages
        return dataclasses.replace(
            self,
            slots_per_replica=slots,
            prefill_prompts=up(self.prefill_prompts),
            prefill_members=min(self.prefill_members, slots),
            narrow_slots=tuple(sorted({up(n) for n in self.narrow_slots if up(n) < slots})),
            pages=pages and dataclasses.replace(pages, num_pages=up(pages.num_pages)),
        )

    def prefill_length(self, prompt_length: int) -> int:
        """The bucket of a prompt, by its own length alone. Raises ValueError where none fits."""
        if prompt_length < 1:
            raise ValueError("a prompt has no token. Begin it with <bos>.")
        largest = self.prefill_lengths[-1]
        if prompt_length <= largest:
            return next(length for length in self.prefill_lengths if length >= prompt_length)
        if not self.chunked_prefill:
            raise ValueError(
                f"a prompt of {prompt_length} tokens is longer than the largest bucket, "
                f"{largest}. Shorten it, extend prefill_lengths or set chunked_prefill."
            )
        if prompt_length > self.cache_length:
            raise ValueError(
                f"a prompt of {prompt_length} tokens is longer than cache_length="
                f"{self.cache_length}. Shorten it or lengthen the cache."
            )
        return largest

    def check_sampling(self, sampling: SamplingSettings) -> None:
        """Raises ConfigError for settings that such an engine is not built for."""
        if sampling.is_truncated and not self.truncation:  # it costs a sort of all logits
            raise ConfigError(
                f"top_p={sampling.top_p}, top_k={sampling.top_k}, min_p={sampling.min_p}: this "
                "engine draws from the whole distribution. Use top_p=1.0, top_k=0 and min_p=0.0 "
                "and lower the temperature for sharper samples, or build the engine with "
                "truncation=True."
            )
        if len(sampling.stop_ids) > self.max_stop_ids:
            raise ConfigError(
                f"{len(sampling.stop_ids)} stop_ids are more than max_stop_ids="
                f"{self.max_stop_ids} of this engine. Raise that, or pass fewer."
            )

    def room(self, prompt_length: int) -> int:
        """The most tokens that can follow a prompt: the last one is never read back."""
        return self.cache_length + 1 - prompt_length

    def check_length(self, prompt_length: int, max_new_tokens: int) -> None:
        """Raises ValueError for a sample that no slot can hold."""
        if max_new_tokens > self.room(prompt_length):
            raise ValueError(
                f"a prompt of {prompt_length} tokens and max_new_tokens={max_new_tokens} need more "
                f"than cache_length={self.cache_length}. Lower max_new_tokens or lengthen the "
                "cache."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """The sampling of one sequence. Equal requests draw equal tokens from equal weights."""

    stream: tuple[int, int, int, int, int]  # uint32: run seed, hash of problem (2), issue, attempt
    sampling: SamplingSettings = dataclasses.field(default_factory=SamplingSettings)

    @classmethod
    def of(
        cls, ticket: Ticket, attempt: int, sampling: SamplingSettings, *, seed: int
    ) -> "SampleRequest":
        digest = hashlib.blake2b(ticket.problem.uid.encode(), digest_size=8).digest()
        problem = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")
        return cls(stream=(seed, *problem, ticket.issue, attempt), sampling=sampling)
