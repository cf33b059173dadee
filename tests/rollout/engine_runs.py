"""Samples on an engine by its own calls: prompts are read, slots filled, blocks decoded."""

import numpy as np

from loong_jax.rollout.engine_config import SampleRequest
from loong_jax.rollout.records import SamplingSettings


def prompts_of(*lengths):
    return [np.arange(length, dtype=np.int32) * 7 % 90 + 33 for length in lengths]


def request(attempt: int, **sampling) -> SampleRequest:
    settings = SamplingSettings(**{"max_new_tokens": 12} | sampling)
    return SampleRequest(stream=(9, 1, 2, 0, attempt), sampling=settings)


class Run:
    """Slots of one engine, and what each sample has written, by name."""

    def __init__(self, engine, weights):
        self.engine, self.weights, self.state = engine, weights, engine.init_decode_state()
        self.tokens, self.log_probs, self.targets, self.names = {}, {}, {}, {}

    def fill(
        self,
        prompts,
        slots,
        requests,
        *,
        rows=None,
        names=None,
        version=0,
        find=False,
        weights=None,
    ) -> "Run":
        """One prompt a slot unless `rows` says which; names are those of `requests` in order."""
        prefix, first = self.engine.prefill_batch(
            params=weights or self.weights,
            prompts=prompts,
            rows=range(len(prompts)) if rows is None else rows,
            requests=requests,
            existing_prefix=self.engine.find(self.state, prompts, version) if find else None,
            version=version,
        )
        names = range(len(slots)) if names is None else names
        self._note(first, names)
        return self.insert(prefix, slots, names)

    def insert(self, prefix, slots, names) -> "Run":
        self.state = self.engine.bulk_insert(prefix, self.state, slots)
        self.names |= dict(zip(slots, names, strict=True))
        return self

    def decode(self, blocks=1, *, slots=None, weights=None) -> "Run":
        for _ in range(blocks):
            self.state, result = self.engine.generate(
                weights or self.weights, self.state, slots=slots
            )
            order = range(self.engine.config.slots_per_replica) if slots is None else slots
            self._note(result, [self.names.get(slot) for slot in order])
        return self

    def move(self, slot, target, name) -> "Run":
        """The sample of a slot goes on in another one."""
        moved = self.engine.extract(self.state, slot)
        self.state = self.engine.cancel(self.state, [slot])
        return self.insert(moved, [target], [name])

    def _note(self, result, names) -> None:
        result = result.convert_to_numpy()
        for row, name in enumerate(names):
            tokens, log_probs = result.written(row)
            valid = result.data[row, result.tokens.shape[1] : -1]
            assert valid[: len(tokens)].all(), "what was written stands together"
            if name is None:
                assert not len(tokens), "a slot that is not in use writes"
            else:
                self.tokens.setdefault(name, []).extend(tokens.tolist())
                self.log_probs.setdefault(name, []).extend(log_probs.tolist())
            if result.target is not None:
                self.targets.setdefault(name, []).append(result.target[row])
            assert not len(tokens) or result.length[row] == len(self.tokens[name])
