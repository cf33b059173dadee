"""From a directory in the published layout to a model, one tensor at a time."""

import collections
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from loong_jax import remote
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models import parameters
from loong_jax.models.hf import files, published, quantised, unfinished, writing
from loong_jax.models.hf.files import CODES, Opened
from loong_jax.models.hf.publication import Place, Publication, Region, Tensors
from loong_jax.models.hf.quantised import FLOATS
from loong_jax.models.hf.reading import Reader
from loong_jax.remote import AnyPath
from loong_jax.sharding import ShardingRules


class HfCheckpoint:
    """A directory in the published layout whose manifest has been checked: its parts, unread.

    Raises ConfigError or CheckpointError where the directory is not what `load_hf` can load.
    """

    def __init__(self, directory: AnyPath | str, dtype: DTypeLike | None = None):
        self.directory = directory = remote.located(directory)
        chosen = None if dtype is None else weight_dtype(dtype)
        if isinstance(directory, Path):
            unfinished.refuse_unfinished(directory)
        self.config_text, record = read_config_json(directory)
        self.publication = published.publication_of(record)
        stored = files.stored_tensors(directory)
        found = quantised.dequantised(stored, record)
        self.layout = writing.read_layout(directory, stored)
        if quantised.is_quantised(found):
            record, self.layout = quantised.without_quantisation(record), None
            self.config_text = json.dumps(record, indent=2) + "\n"
        opened: Opened = {}
        told, self.found = self.publication.select(found, opened, record)
        embedding = self.found.get(self.publication.embedding)
        activations = chosen or (embedding.dtype if embedding else np.dtype(np.float32))
        self.config = self.publication.read_config(
            record, dtype=activations, param_dtype=activations, **told
        )
        for size in ("num_layers", "num_experts"):  # else every tensor that is missing is named
            if (wanted := getattr(self.config, size, 0)) > len(self.found):
                raise CheckpointError(
                    f"{directory} holds {len(self.found)} tensors, and its config.json describes "
                    f"{size}={wanted}. Fetch config.json and files of one checkpoint."
                )
        _, abstract = self.publication.abstract_weights(self.config)
        self.shapes = parameters.by_path(abstract)
        self.places = list(self.publication.places(self.config, self.shapes))
        stored_dtypes = _check(self.places, self.found, self.config, self.publication)
        self.publication.check_values(self.places, self.found, opened, record, self.config)
        self.stored_dtype = self.found[self.publication.embedding].dtype.name
        self.dtypes = {
            leaf: kept if chosen is None else np.dtype(self.shapes[leaf].dtype)
            for leaf, kept in stored_dtypes.items()
        }
        self._reader = Reader(self.found, self.places)

    def read(self, leaf: str, region: Region, dtype: np.dtype | None = None) -> np.ndarray:
        """A region of a leaf, put together from the tensors that meet it."""
        return self._reader.read(leaf, region, dtype or self.dtypes[leaf])

    def load(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The weights, nested, in the dtypes and shardings of `jax.ShapeDtypeStruct` by path.

        Raises CheckpointError where these are of another model.
        """
        for path in sorted({*wanted, *self.shapes}):
            here, there = (
                tuple(leaves[path].shape) if path in leaves else None
                for leaves in (self.shapes, wanted)
            )
            if here != there:
                raise CheckpointError(
                    f"the checkpoint holds {path} of shape {here}, and the model has {there}. "
                    "Give the model the sizes that config.json has, or take another checkpoint."
                )
        return parameters.as_tree({p: self._reader.load(p, spec) for p, spec in wanted.items()})


def read_config_json(directory: AnyPath) -> tuple[str, dict[str, Any]]:
    """The text of config.json and what it says. Raises CheckpointError where there is none."""
    path = directory / "config.json"
    try:
        text = files.read_text(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} holds no config.json. Name a directory in the published layout: "
            "config.json and safetensors files."
        ) from None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}. Fetch it again.") from error
    if not isinstance(record, dict):
        raise CheckpointError(
            f"{path} holds no JSON object but {str(record)[:40]!r}. Fetch it again."
        )
    return text, record


def read_weights(
    directory: AnyPath | str, config: Any, template: Mapping[str, Any]
) -> dict[str, Any]:
    """The weights of a directory in the published layout as those of `config`.

    `template`, the tree of weights as `jax.ShapeDtypeStruct`, gives dtypes and shardings; files are
    cast leaf by leaf while they are read, and each process reads what its devices hold. Raises
    ConfigError or CheckpointError as `load_hf`, and where files and `template` are of two models.
    """
    checkpoint = HfCheckpoint(directory)
    if not isinstance(config, checkpoint.publication.config_type):
        raise ConfigError(
            f"{directory} holds a model of {type(checkpoint.config).__name__}, and the run's is of "
            f"{type(config).__name__}. Take the config of the directory, or another directory."
        )
    return checkpoint.load(parameters.by_path(template))


def load_hf(
    directory: AnyPath | str, *, dtype: DTypeLike | None = None, rules: ShardingRules | None = None
) -> Any:
    """The model of a directory in the published layout: config.json and safetensors files.

    With `dtype` None every tensor keeps the dtype it is stored in, and activations get that of the
    embedding; else matrices and activations get `dtype`, and routers and norms float32. `rules` say
    how weights are sharded. The directory may be a URL that fsspec reads.

    Raises:
      ConfigError: config.json describes a model that is not built here, or weights cannot have
        this `dtype`.
      CheckpointError: a file is missing, damaged or truncated; an export to the directory was not
        finished; tensors are missing, extra, of another shape or dtype, not finite, or scaled
        otherwise than the published ones.
    """
    checkpoint = HfCheckpoint(directory, dtype)
    graphdef, abstract = checkpoint.publication.abstract_weights(checkpoint.config, rules)
    placed = rules is not None and rules.mesh is not None
    template = {
        leaf: jax.ShapeDtypeStruct(
            spec.shape, checkpoint.dtypes[leaf], sharding=spec.sharding if placed else None
        )
        for leaf, spec in parameters.by_path(abstract).items()
    }
    model = nnx.merge(graphdef, nnx.State(checkpoint.load(template)))
    model.imported_config = checkpoint.config_text
    model.imported_dtype = checkpoint.stored_dtype
    model.imported_layout = checkpoint.layout
    return model


def weight_dtype(dtype: DTypeLike) -> np.dtype:
    """The dtype of that name. Raises ConfigError for one that weights cannot have."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found not in quantised.FLOATS:
        allowed = ", ".join(known.name for known in quantised.FLOATS)
        raise ConfigError(
            f"dtype={dtype if found is None else found.name!r} is none that weights can have. "
            f"Choose one of {allowed}."
        )
    return found


def _check(
    expected: Sequence[Place], found: Tensors, config: Any, publication: Publication
) -> dict[str, np.dtype]:
    """The dtype of every leaf, by path. Raises CheckpointError where `found` is not `expected`.

    All tensors are of one floating dtype, vectors perhaps float32, and leaves that a family keeps
    in float32 of any.
    """
    _check_names({place.name for place in expected}, set(found), config, publication)
    for place in expected:
        shape = found[place.name].shape
        if shape != place.shape:
            raise CheckpointError(
                f"{place.name} has the shape {list(shape)}, and by config.json it is "
                f"{list(place.shape)}. Take config.json and weights from the same checkpoint."
            )
    matrices = [place for place in expected if not publication.is_float32(place.leaf)]
    common, _ = collections.Counter(found[place.name].dtype for place in matrices).most_common(1)[0]
    dtypes: dict[str, np.dtype] = {}
    for place in expected:
        dtype = found[place.name].dtype
        if publication.is_float32(place.leaf):
            allowed, kept = FLOATS, FLOATS[0]
        else:
            norms = (FLOATS[0],) if len(place.shape) == 1 else ()
            allowed, kept = (*norms, common if common in FLOATS else FLOATS[0]), dtype
        if dtype not in allowed or dtypes.setdefault(place.leaf, kept) != kept:
            wanted = dtypes.get(place.leaf, allowed[-1])
            raise CheckpointError(
                f"{place.name} is {CODES[dtype]} and must be {CODES[wanted]}: all tensors are of "
                "one floating dtype, norms perhaps float32. Take the tensor from the published "
                "checkpoint, or export the model again in one dtype."
            )
    return dtypes


def _check_names(
    expected: set[str], found: set[str], config: Any, publication: Publication
) -> None:
    missing, extra = expected - found, found - expected
    reason = publication.explain(missing, extra, config) if missing or extra else None
    if reason is not None:
        raise CheckpointError(reason)
    again = "Fetch the checkpoint again, or correct the sizes in config.json."
    sizes = "Correct the sizes in config.json, or delete what does not belong to the model."
    for names, fault, remedy in (
        (missing, "missing", again),
        (extra, "not in the published layout at these sizes", sizes),
    ):
        if names:
            raise CheckpointError(f"{_some(names)} {fault}. {remedy}")


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{rest} {'is' if len(names) == 1 else 'are'}"
