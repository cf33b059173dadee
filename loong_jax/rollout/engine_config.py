"""The shapes an engine compiles, and what its samples may ask for."""

import dataclasses
from collections.abc import Sequence

from loong_jax.errors import ConfigError
from loong_jax.rollout.records import SamplingSettings

MOST_MANTISSA_BITS = 23  # of float32, the leading one not counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageConfig:
    """How a paged engine keeps its cache."""

    num_pages: int
    page_size: int = 16  # positions
    reuse_prefixes: bool = True  # prompts begin with pages that others have left
    view_lengths: tuple[int, ...] = ()  # further lengths to decode over while samples are short

    def __post_init__(self):
        if min(self.num_pages, self.page_size) < 1:
            raise ConfigError(
                f"num_pages={self.num_pages} and page_size={self.page_size} must be at least 1. "
                "Raise them."
            )
        if any(length < 1 or length % self.page_size for length in self.view_lengths):
            raise ConfigError(
                f"view_lengths={self.view_lengths} must be multiples of page_size="
                f"{self.page_size}. Round them up."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The shapes an engine compiles. A sample depends on them only through rounding."""

    slots_per_replica: int = 128
    cache_length: int = 96  # S, positions per slot: prompt and response together
    prefill_lengths: tuple[int, ...] = (32, 64)  # buckets, rising
    prefill_prompts: int = 8  # prompts per prefill
    prefill_members: int = 64  # samples that may start from one prefill
    decode_steps: int = 8  # decode steps per call
    narrow_slots: tuple[int, ...] = ()  # further widths to decode with while few slots are active
    chunked_prefill: bool = False  # prompts past the largest bucket are read in several chunks
    truncation: bool = False  # requests may ask for top-k, top-p and min-p
    max_stop_ids: int = 0  # tokens beside those of the tokenizer that may end a sample
    raw_log_probs: bool = False  # log-probabilities under softmax(logits) are recorded as well
    routing: bool = False  # the targets chosen for every token are recorded, for replay
    speculation: bool = False  # decode with the drafting head: up to two tokens a step
    mantissa_bits: int | None = None  # that weights are rounded to when loaded; 7 is bfloat16
    pages: PageConfig | None = None  # None: every slot owns `cache_length` positions
    # on a CPU without a mesh a program runs in the thread that calls it: where as many threads call
    # as there are cores, sharing out its small pieces only takes time
    single_threaded: bool = False

    def __post_init__(self):
        for name in ("slots_per_replica", "prefill_prompts", "prefill_members", "decode_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1. Raise it.")
        lengths = self.prefill_lengths
        if not lengths or list(lengths) != sorted(set(lengths)) or lengths[0] < 1:
            raise ConfigError(f"prefill_lengths={lengths} must rise from at least 1. Sort them.")
        if lengths[-1] > self.cache_length:
            raise ConfigError(
                f"prefill_lengths={lengths} reach past cache_length={self.cache_length}. Drop the "
                "long ones or lengthen the cache."
            )
        if any(not 0 < width < self.slots_per_replica for width in self.narrow_slots):
            raise ConfigError(
                f"narrow_slots={self.narrow_slots} must lie between 0 and slots_per_replica="
                f"{self.slots_per_replica}. The full width is always there."
            )
        if self.max_stop_ids < 0:
            raise ConfigError(f"max_stop_ids={self.max_stop_ids} is negative. Use 0 for none.")
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
        if pages is None:
            return
        if self.cache_length % pages.page_size or any(
            view >= self.cache_length for view in pages.view_lengths
        ):
            raise ConfigError(
                f"cache_length={self.cache_length} must be a multiple of page_size="
                f"{pages.page_size} and exceed view_lengths={pages.view_lengths}."
            )
        if pages.num_pages * pages.page_size < self.cache_length:
            raise ConfigError(
                f"{pages.num_pages} pages of {pages.page_size} hold no sequence of cache_length="
                f"{self.cache_length}: a single sample could not end. Raise num_pages."
            )

    def shared_by(self, parts: int) -> "EngineConfig":
        """With numbers of sequences, and of pages, rounded up to multiples of `parts`."""

        def up(count: int) -> int:
            return -(-count // parts) * parts

        slots = up(self.slots_per_replica)
        return dataclasses.replace(
            self,
            slots_per_replica=slots,
            prefill_prompts=up(self.prefill_prompts),
            narrow_slots=tuple(sorted({up(n) for n in self.narrow_slots if up(n) < slots})),
            pages=self.pages
            and dataclasses.replace(self.pages, num_pages=up(self.pages.num_pages)),
        )

    @property
    def reads_in_chunks(self) -> bool:
        """Some prompts are read behind others, or behind what is kept of others."""
        return self.chunked_prefill or (self.pages is not None and self.pages.reuse_prefixes)

    def num_stops(self, end_ids: Sequence[int]) -> int:
        """How many tokens may end a sample beside the first of `end_ids`, the tokenizer's."""
        return self.max_stop_ids + len(end_ids) - 1

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
