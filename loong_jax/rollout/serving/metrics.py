"""Figures of a server, in Prometheus' text format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loong_jax.rollout.records import BlockDecoded

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """One registry per server, so that several may live in one process."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "requests that ended, by outcome", "outcome")
        self.refused = self._counter("refused", "requests refused for want of room")
        self.samples = self._counter("samples", "samples that ended, by reason", "reason")
        self.prompts = self._counter("prompts", "prompts read by prefill")
        self.tokens = self._counter("tokens", "tokens written")
        self.blocks = self._counter("blocks", "blocks decoded")
        self.engine_errors = self._counter("engine_errors", "errors of the engine")
        self.running = self._gauge("running", "samples in slots")
        self.waiting = self._gauge("waiting", "samples that wait for a slot")
        self.pages = self._gauge("pages", "pages of the cache that slots hold")
        self.block_seconds = self._histogram("block_seconds", "a block with its prefills")
        self.request_seconds = self._histogram("request_seconds", "arrival to end of a request")

    def step(self, block: BlockDecoded) -> None:
        self.prompts.inc(block.num_prompts)
        self.tokens.inc(block.num_tokens)
        self.blocks.inc()
        self.block_seconds.observe(block.end_s - block.start_s)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"loong_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"loong_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"loong_{name}", text, buckets=SECONDS, registry=self.registry)
