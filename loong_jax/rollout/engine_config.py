"""The shapes an engine compiles, and what its samples may ask for."""

import dataclasses

from loong_jax.errors import ConfigError
from loong_jax.rollout import coarse


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageConfig:
    """How a paged engine keeps its cache."""

    num_pages: int
    page_size: int = 16  # positions
    reuse_prefixes: bool = True  # prompts begin with pages that others have left
    view_lengths: tuple[int, ...] = ()  # further lengths to decode over while samples are short

    def __post_init__(self):
        if self.num_pages < 1 or self.page_size < 1:
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

    num_slots: int = 128
    cache_length: int = 96  # S, positions per slot: prompt and response together
    prefill_lengths: tuple[int, ...] = (32, 64)  # buckets, rising
    prefill_batch: int = 8  # prompts per prefill
    prefill_members: int = 64  # samples that may start from one prefill
    block_steps: int = 8  # decode steps per call
    narrow_slots: tuple[int, ...] = ()  # further widths to decode with while few slots are active
    chunked_prefill: bool = False  # prompts past the largest bucket are read in several chunks
    truncation: bool = False  # requests may ask for top-k, top-p and min-p
    max_stop_ids: int = 0  # tokens beside those of the tokenizer that may end a sample
    raw_log_probs: bool = False  # log-probabilities under softmax(logits) are recorded as well
    routing: bool = False  # the targets chosen for every token are recorded, for replay
    speculation: bool = False  # decode with the drafting head: up to two tokens a step
    mantissa_bits: int | None = None  # that weights are rounded to when loaded; see `coarse`
    pages: PageConfig | None = None  # None: every slot owns `cache_length` positions

    def __post_init__(self):
        for name in ("num_slots", "prefill_batch", "prefill_members", "block_steps"):
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
        if any(not 0 < width < self.num_slots for width in self.narrow_slots):
            raise ConfigError(
                f"narrow_slots={self.narrow_slots} must lie between 0 and num_slots="
                f"{self.num_slots}. The full width is always there."
            )
        if self.max_stop_ids < 0:
            raise ConfigError(f"max_stop_ids={self.max_stop_ids} is negative. Use 0 for none.")
        bits = self.mantissa_bits
        if bits is not None and not 1 <= bits <= coarse.MOST_BITS:
            raise ConfigError(
                f"mantissa_bits={bits} is not in 1..{coarse.MOST_BITS}. Use 7 for bfloat16, None "
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

        slots = up(self.num_slots)
        return dataclasses.replace(
            self,
            num_slots=slots,
            prefill_batch=up(self.prefill_batch),
            narrow_slots=tuple(sorted({up(n) for n in self.narrow_slots if up(n) < slots})),
            pages=self.pages
            and dataclasses.replace(self.pages, num_pages=up(self.pages.num_pages)),
        )

    @property
    def reads_in_chunks(self) -> bool:
        """Whether some prompts are read behind others or behind what is kept of others."""
        return self.chunked_prefill or (self.pages is not None and self.pages.reuse_prefixes)
