"""A small neural scorer: difficulty and tags of a text, learnt from a few thousand labelled ones.

Hashed runs of one and two words are looked up in a table, averaged with weights 1/sqrt(n), and a
hidden layer reads difficulty (a number) and tags (each by itself) off the sum; eight plain features
such as length stand beside it. It is trained in JAX and applied in NumPy, so scoring starts at
once. Labels are `difficulty` (a number) and `tags` (a list of texts), either of which may be
absent. LongCat-Flash-Thinking A.1 (difficulty), A.2.1 (knowledge points, safety categories).
"""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loong_jax.data import json_files
from loong_jax.data.curation import duplicates, stages
from loong_jax.data.curation.stages import Outcome, Record, prompt_of
from loong_jax.errors import ConfigError, refuse_below

NUM_PLAIN = 8
_FILES = ("scorer.json", "weights.npz")
_MAX_PIECES = 512  # of a text; further ones are not read


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScorerConfig:
    """Size and training. The defaults suit a few hundred to some ten thousand labels."""

    num_buckets: int = 1 << 14
    width: int = 32  # of a row of the table
    hidden: int = 32
    epochs: int = 30
    batch: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    min_tag_count: int = 3  # rarer tags are not learnt
    held_out_share: float = 0.1  # of the labels; the epoch that is best on them is kept
    seed: int = 0

    def __post_init__(self):
        refuse_below(self, 1, "num_buckets", "width", "hidden", "epochs", "batch", "min_tag_count")
        if not 0 < self.held_out_share < 1 or self.learning_rate <= 0:
            raise ConfigError(
                f"held_out_share={self.held_out_share} is not in (0, 1), or learning_rate="
                f"{self.learning_rate} is not above 0."
            )


@dataclasses.dataclass(frozen=True)
class Scorer:
    params: dict[str, np.ndarray]
    tags: tuple[str, ...]
    offset: float  # difficulty = offset + scale * what the model says
    scale: float
    has_difficulty: bool
    num_buckets: int

    def score(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Difficulty [N] in the labels' units, and the probability of each tag [N, tags]."""
        if not len(texts):
            return np.zeros(0), np.zeros((0, len(self.tags)))
        pieces = _pieces(texts, self.num_buckets)
        table = self.params["table"]
        sums = np.zeros((len(texts), table.shape[1]), np.float32)
        counts = pieces.counts
        has = np.flatnonzero(counts)
        if len(has):
            rows = table[pieces.values.astype(np.int64)]
            sums[has] = np.add.reduceat(rows, pieces.starts[has], axis=0)
        sums /= np.sqrt(np.maximum(counts, 1))[:, None]
        raw, logits = _heads(np, self.params, sums, plain_features(texts))
        return self.offset + self.scale * raw, 1 / (1 + np.exp(-logits))

    def save(self, directory: Path) -> None:
        """scorer.json and weights.npz."""
        stages.write_arrays(directory / "weights.npz", self.params)
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["params"]
        json_files.write_json(directory / "scorer.json", fields)

    @classmethod
    def load(cls, directory: Path) -> "Scorer":
        try:
            fields = json.loads((directory / "scorer.json").read_text(encoding="utf-8"))
            with np.load(directory / "weights.npz", allow_pickle=False) as saved:
                params = {name: saved[name] for name in saved.files}
            return cls(params=params, **(fields | {"tags": tuple(fields["tags"])}))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{directory} holds no scorer ({error!r}). It needs {' and '.join(_FILES)}; train "
                "one with `loong curate train-scorer`."
            ) from None


loaded = functools.cache(Scorer.load)


def train(
    records: Sequence[Record], config: ScorerConfig | None = None
) -> tuple[Scorer, dict[str, Any]]:
    """A scorer of labelled records, and how well it does on the labels that were held out.

    Raises ConfigError where fewer than ten records have a label.
    """
    import jax
    import optax
    from jax import numpy as jnp

    config = config or ScorerConfig()
    labelled = [r for r in records if _difficulty(r) is not None or _tags(r)]
    if len(labelled) < 10:
        raise ConfigError(f"{len(labelled)} records have a label, ten are the least. Label more.")
    counts = Counter(tag for record in labelled for tag in _tags(record))
    tags = tuple(sorted(tag for tag, n in counts.items() if n >= config.min_tag_count))
    given = [_difficulty(record) for record in labelled]
    values = np.array([value for value in given if value is not None], np.float32)
    offset = float(values.mean()) if len(values) else 0.0
    scale = float(values.std()) or 1.0 if len(values) else 1.0
    data = _arrays([prompt_of(r) for r in labelled], config.num_buckets)
    data["difficulty"] = np.array(
        [0.0 if v is None else (v - offset) / scale for v in given], np.float32
    )
    data["has_difficulty"] = np.array([v is not None for v in given], np.float32)
    data["tags"] = np.array([[t in _tags(r) for t in tags] for r in labelled], np.float32)
    data["tags"] = data["tags"].reshape(len(labelled), len(tags))

    rng = np.random.default_rng(config.seed)
    order = rng.permutation(len(labelled))
    num_held = max(1, round(config.held_out_share * len(labelled)))
    held, rest = order[:num_held], order[num_held:]
    steps = -(-len(rest) // config.batch)
    params = _initial(config, len(tags), rng)
    optimizer = optax.adamw(
        optax.cosine_decay_schedule(config.learning_rate, steps * config.epochs),
        weight_decay=config.weight_decay,
    )
    state = optimizer.init(params)

    def loss(params: Any, batch: Any, weight_B: Any) -> Any:
        rows_BPW = params["table"][batch["pieces"]] * batch["weight"][:, :, None]
        raw_B, logits_BT = _heads(jnp, params, rows_BPW.sum(axis=1), batch["plain"])
        per_record = batch["has_difficulty"] * (raw_B - batch["difficulty"]) ** 2
        if tags:
            cross = optax.sigmoid_binary_cross_entropy(logits_BT, batch["tags"])
            per_record += cross.sum(axis=1)
        return (per_record * weight_B).sum() / weight_B.sum()

    @jax.jit
    def step(params: Any, state: Any, batch: Any, weight_B: Any) -> Any:
        grads = jax.grad(loss)(params, batch, weight_B)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    best, best_loss, measured = params, np.inf, jax.jit(loss)
    for _ in range(config.epochs):
        shuffled = rng.permutation(rest)
        for start in range(0, len(rest), config.batch):
            chosen, weight = _padded(shuffled[start : start + config.batch], config.batch)
            params, state = step(params, state, _take(data, chosen), weight)
        total = 0.0
        for start in range(0, num_held, config.batch):
            chosen, weight = _padded(held[start : start + config.batch], config.batch)
            total += float(measured(params, _take(data, chosen), weight)) * float(weight.sum())
        if total < best_loss:
            best, best_loss = params, total
    scorer = Scorer(
        params={name: np.asarray(value) for name, value in best.items()},
        tags=tags,
        offset=offset,
        scale=scale,
        has_difficulty=bool(len(values)),
        num_buckets=config.num_buckets,
    )
    return scorer, evaluate(scorer, [labelled[i] for i in held]) | {"num_train": len(rest)}


def evaluate(scorer: Scorer, records: Sequence[Record]) -> dict[str, Any]:
    """Spearman's rank correlation of the difficulties, and how often a most likely tag is right."""
    from scipy import stats

    difficulty, probability = scorer.score([prompt_of(record) for record in records])
    given = [_difficulty(record) for record in records]
    known = [i for i, value in enumerate(given) if value is not None]
    result: dict[str, Any] = {"num_records": len(records)}
    if len(known) >= 3:
        found = stats.spearmanr(difficulty[known], [given[i] for i in known])
        result |= {"spearman": float(found.statistic)}  # pyright: ignore[reportAttributeAccessIssue]
    tagged = [i for i, record in enumerate(records) if _tags(record)]
    if tagged and scorer.tags:
        top = [scorer.tags[int(np.argmax(probability[i]))] in _tags(records[i]) for i in tagged]
        result |= {"top_tag_accuracy": sum(top) / len(top)}
    return result


def plain_features(texts: Sequence[str]) -> np.ndarray:
    """float32 [N, 8], each of about unit size: lengths, and shares of kinds of characters."""
    rows = []
    for text in texts:
        size = max(1, len(text))
        digits = sum(map(str.isdigit, text))
        signs = sum(text.count(sign) for sign in "+-*/=<>^")
        words = text.count(" ") + 1
        rows.append(
            (
                np.log1p(len(text)) / 5,
                np.log1p(words) / 4,
                5 * digits / size,
                10 * signs / size,
                10 * text.count("\\") / size,
                10 * text.count("$") / size,
                len(text) / words / 6,
                float(text.count("\n") > 2),
            )
        )
    return np.array(rows, np.float32).reshape(len(texts), NUM_PLAIN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    """Notes `difficulty` and `tags` by a trained scorer.

    Drops what lies outside of a range (reasons `too easy`, `too hard`). Tags are those of
    probability one half and more.
    """

    path: Path
    name: str = "scorer"
    at_least: float | None = None
    at_most: float | None = None

    def judge(self, records: Sequence[Record]) -> Outcome:
        scorer = loaded(self.path)
        difficulty, probability = scorer.score([prompt_of(record) for record in records])
        reasons, notes = {}, {}
        for index in range(len(records)):
            value = float(difficulty[index])
            if self.at_least is not None and value < self.at_least:
                reasons[index] = f"too easy: {value:.3f}"
            elif self.at_most is not None and value > self.at_most:
                reasons[index] = f"too hard: {value:.3f}"
            note: dict[str, Any] = {"difficulty": round(value, 4)} if scorer.has_difficulty else {}
            if scorer.tags:
                places = np.flatnonzero(probability[index] >= 0.5)
                note["tags"] = [scorer.tags[place] for place in places]
            notes[index] = note
        return Outcome(reasons, notes)


# ---- model


def _heads(np_like: Any, params: Any, sums_BW: Any, plain_BF: Any) -> tuple[Any, Any]:
    """Difficulty [B] in standard units and logits of tags [B, T]; NumPy and JAX alike."""
    inputs_BI = np_like.concatenate([sums_BW, plain_BF], axis=1)
    hidden_BH = np_like.maximum(inputs_BI @ params["w1"] + params["b1"][None, :], 0)
    out_BO = hidden_BH @ params["w2"] + inputs_BI @ params["skip"] + params["b2"][None, :]
    return out_BO[:, 0], out_BO[:, 1:]


def _initial(config: ScorerConfig, num_tags: int, rng: np.random.Generator) -> dict[str, Any]:
    inputs, outputs = config.width + NUM_PLAIN, 1 + num_tags

    def normal(*shape: int, scale: float) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    return {
        "table": normal(config.num_buckets, config.width, scale=0.1),
        "w1": normal(inputs, config.hidden, scale=inputs**-0.5),
        "b1": np.zeros(config.hidden, np.float32),
        "w2": normal(config.hidden, outputs, scale=config.hidden**-0.5),
        "skip": np.zeros((inputs, outputs), np.float32),
        "b2": np.zeros(outputs, np.float32),
    }


# ---- texts and labels as arrays


def _pieces(texts: Sequence[str], num_buckets: int) -> duplicates.Ragged:
    """Buckets of the runs of one and of two words of each text, at most so many."""
    words = duplicates.words(texts)
    parts = [duplicates.ngrams(words, size) for size in (1, 2)]
    owners = np.concatenate([part.owners for part in parts])
    values = np.concatenate([parts[0].values, parts[1].values ^ np.uint64(1 << 63)])
    order = np.argsort(owners, kind="stable")
    owners, values = owners[order], values[order] % np.uint64(num_buckets)
    starts = np.searchsorted(owners, np.arange(len(texts) + 1))
    kept = np.arange(len(owners)) - starts[owners] < _MAX_PIECES
    starts = np.concatenate([[0], np.cumsum(np.minimum(np.diff(starts), _MAX_PIECES))])
    return duplicates.Ragged(values[kept], starts)


def _arrays(texts: Sequence[str], num_buckets: int) -> dict[str, np.ndarray]:
    pieces = _pieces(texts, num_buckets)
    counts = pieces.counts
    width = max(1, int(counts.max()))
    found = np.zeros((len(texts), width), np.int32)
    inside = np.arange(width) < counts[:, None]
    found[inside] = pieces.values.astype(np.int32)
    weight = np.where(inside, 1 / np.sqrt(np.maximum(counts, 1))[:, None], 0).astype(np.float32)
    return {"pieces": found, "weight": weight, "plain": plain_features(texts)}


def _padded(chosen: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices filled up to `size` with the first, and weights that are 0 there."""
    weight = np.zeros(size, np.float32)
    weight[: len(chosen)] = 1
    return np.concatenate([chosen, np.repeat(chosen[:1], size - len(chosen))]), weight


def _take(data: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[chosen] for name, values in data.items()}


def _difficulty(record: Record) -> float | None:
    value = record.get("difficulty", record.get("level"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _tags(record: Record) -> list[str]:
    tags = record.get("tags", [])
    if isinstance(tags, str):
        return [tags]
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
