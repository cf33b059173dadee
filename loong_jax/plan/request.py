"""The request for a plan: model, topology, mesh, mode and sizes."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from loong_jax import config_kinds, configs
from loong_jax.errors import ConfigError
from loong_jax.models.dense import SHAPES, DenseConfig
from loong_jax.models.families import FAMILIES, ModelConfig
from loong_jax.models.hf import publication_of
from loong_jax.models.hf.quantised import FLOATS
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.rope import YarnScaling
from loong_jax.plan.topology import Topology
from loong_jax.sharding import MESH_AXES

Mode = Literal["train", "prefill", "decode"]
TensorCuts = Literal["heads", "sequences"]
_KINDS = {configs.kind_name(family.config_type): family.config_type for family in FAMILIES}
_NESTED = {  # fields that hold a config, and its kind where there is one only
    "yarn": configs.kind_name(YarnScaling),
    "ngram": configs.kind_name(NgramEmbedding),
    "attention": None,
    "exchange": None,
    "rope": None,
}
_DTYPES = [dtype.name for dtype in FLOATS]
MODELS = {
    "longcat-flash": MoEConfig.flash,
    "longcat-flash-lite": MoEConfig.lite,
    "tiny": MoEConfig.tiny,
    **SHAPES,
    "smollm2-135m": lambda: DenseConfig.smollm2(dtype="bfloat16", param_dtype="bfloat16"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One program on one mesh.

    `length` is tokens per sequence in training and prefill and the capacity of the cache, all of
    it filled, in decoding. `batch` counts sequences over all devices; `num_microbatches` splits
    them in time.
    """

    model: str
    config: ModelConfig
    topology: Topology
    mode: Mode
    mesh: Mapping[str, int]  # size of every axis of MESH_AXES
    batch: int
    length: int
    num_microbatches: int = 1
    offload_moments: bool = False  # training: they lie in host memory between updates
    num_steps: int = 1  # decoding: steps of one call, a block of the engine's
    num_drafts: int = 0  # decoding: drafted tokens that a step verifies, per sequence
    acceptance: float = 0.0  # the chance that a drafted token stays
    tensor_cuts: TensorCuts = "heads"  # decoding: sequences, as `sharding.decoding_rules` has it
    compiler_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        mesh, mode, drafts = self.mesh, self.mode, self.num_drafts
        decodes, by_sequence = mode == "decode", self.tensor_cuts == "sequences"
        shards = self.num_batch_shards * self.num_microbatches
        for is_wrong, said in (
            (
                math.prod(mesh.values()) != self.topology.num_devices,
                f"mesh {show_mesh(mesh)} is of {math.prod(mesh.values())} and {self.topology} has "
                f"{self.topology.num_devices} devices. Make the product equal.",
            ),
            (
                mesh["slice"] != self.topology.num_slices,
                f"mesh axis slice={mesh['slice']} and {self.topology.num_slices} slices in "
                f"{self.topology}. Leave the axis out: it follows the topology.",
            ),
            (
                by_sequence and not decodes,
                f"tensor_cuts='sequences' in mode {mode}: only decoding spreads sequences over "
                "tensor. Set heads.",
            ),
            (
                by_sequence and min(mesh["fsdp"], mesh["tensor"]) > 1,
                f"fsdp={mesh['fsdp']} and tensor={mesh['tensor']} both cut sequences and weights "
                "where tensor cuts sequences. Use data in the place of fsdp, or heads.",
            ),
            (
                self.num_microbatches > 1 and mode != "train",
                f"num_microbatches={self.num_microbatches} in mode {mode}: only training adds up "
                "micro-batches. Set 1.",
            ),
            (
                self.batch % shards,
                f"batch={self.batch} is no multiple of {shards}, the devices along "
                f"{'+'.join(batch_axes(self.tensor_cuts))} times the micro-batches. Choose a "
                "multiple.",
            ),
            (
                self.num_steps > 1 and not decodes,
                f"num_steps={self.num_steps} in mode {mode}: only decoding has several in a call. "
                "Set 1.",
            ),
            (
                drafts < 0 or not 0 <= self.acceptance <= 1,
                f"num_drafts={drafts} must not be negative and acceptance={self.acceptance} lie in "
                "[0, 1]. Correct them.",
            ),
            (
                drafts and not decodes,
                f"num_drafts={drafts} in mode {mode}: only decoding verifies drafts. Set 0.",
            ),
            (
                drafts and not hasattr(self.config, "num_mtp_layers"),
                f"num_drafts={drafts} for a {type(self.config).__name__}: models of its family "
                "have no head that drafts. Set 0.",
            ),
            (
                self.length % mesh["context"],
                f"length={self.length} is no multiple of context={mesh['context']}. Choose one.",
            ),
        ):
            if is_wrong:
                raise ConfigError(said)
        if found := misfit(self.config, mesh, mode, self.tensor_cuts):
            name, size, axes = found
            over = " times ".join(f"{axis}={mesh[axis]}" for axis in axes)
            most = self.topology.num_devices
            fit = [str(d) for d in range(1, min(size, most) + 1) if size % d == most % d == 0]
            raise ConfigError(
                f"{name}={size} is no multiple of {over}, over which it is cut in mode {mode}. "
                f"Choose axes whose product divides it: {', '.join(fit)}."
            )

    @property
    def num_batch_shards(self) -> int:
        return math.prod(self.mesh[axis] for axis in batch_axes(self.tensor_cuts))

    @property
    def num_tokens(self) -> int:
        """Tokens that one call computes, over all devices."""
        if self.mode == "decode":
            return self.batch * self.num_steps * (1 + self.num_drafts)
        return self.batch * self.length

    @property
    def num_kept_tokens(self) -> float:
        """The same without drafts that are rejected: one, and drafts until the first rejection."""
        if self.mode != "decode":
            return self.num_tokens
        per_step = sum(self.acceptance**i for i in range(self.num_drafts + 1))
        return self.batch * self.num_steps * per_step

    def to_json(self) -> dict[str, Any]:
        """The request as JSON, for the child process that compiles."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        config = configs.to_json(self.config)
        return fields | {"config": config, "topology": str(self.topology)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Request":
        config, topology = configs.from_json(value["config"]), Topology.parse(value["topology"])
        return cls(**value | {"config": config, "topology": topology})


def batch_axes(tensor_cuts: TensorCuts) -> tuple[str, ...]:
    """The mesh axes over which sequences are spread."""
    axes = ("slice", "data", "fsdp", "expert")
    return (*axes, "tensor") if tensor_cuts == "sequences" else axes


def misfit(
    config: ModelConfig, mesh: Mapping[str, int], mode: Mode, tensor_cuts: TensorCuts
) -> tuple[str, int, tuple[str, ...]] | None:
    """A size of the model that mesh axes do not divide which cut it: name, size, axes.

    Sizes that a model has not are cut by nothing.
    """
    spreads = tensor_cuts == "sequences"
    cuts = {
        "num_experts": ("expert", "tensor") if spreads else ("expert",),
        "ffn_hidden_size": ("tensor",),
        "vocab_size": ("tensor",),
        "hidden_size": ("fsdp",),
    }
    if not spreads:
        cuts |= dict.fromkeys(("num_kv_heads", "num_heads", "expert_ffn_hidden_size"), ("tensor",))
    if mode == "decode":  # otherwise as far as they can be cut
        cuts |= dict.fromkeys(("q_lora_rank", "kv_lora_rank"), ("fsdp",))
    for name, axes in cuts.items():
        size = getattr(config, name, 0)
        if size % math.prod(mesh[axis] for axis in axes):
            return name, size, axes
    return None


def find_model(name: str) -> ModelConfig:
    """The config of a name in MODELS, of a JSON file with a config's fields, of a run or weights.

    Fields without a kind are those of MoEConfig. Weights are named by the directory that `loong
    import-hf` made or a published one, or by the model.json or config.json there. Of a published
    model the drafting head is left out.
    """
    if name in MODELS:
        return MODELS[name]()
    path = _file_of(Path(name))
    fields = _fields_in(path)
    if "model_type" in fields or "architectures" in fields:
        named = fields.get("torch_dtype") or fields.get("dtype")
        dtype = named if named in _DTYPES else "bfloat16"  # as published weights are
        read_config = publication_of(fields).read_config
        return read_config(fields, dtype=dtype, param_dtype=dtype)
    kind = fields.setdefault(configs.KIND, configs.kind_name(MoEConfig))
    if kind not in _KINDS:
        known = " or a ".join(_KINDS)
        raise ConfigError(
            f"{path} holds a {kind}, and a model is a {known}. Give a file with the fields of one, "
            "or a directory of weights or of a run."
        )
    if config_kinds.older_kind(kind, fields):
        fields = config_kinds.convert(kind, fields)
    config_type = _KINDS[kind]
    known = {field.name for field in dataclasses.fields(config_type)}
    if unknown := sorted(set(fields) - known - {configs.KIND}):
        raise ConfigError(
            f"{path} names {', '.join(unknown)}, which {config_type.__name__} has not. Its fields "
            f"are {', '.join(sorted(known))}."
        )
    kinded = {field: _with_kind(field, value, path) for field, value in fields.items()}
    try:
        return configs.from_json(kinded)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _file_of(path: Path) -> Path:
    """The file that describes the model which `path`, a file or a directory, is of."""
    if path.is_file():
        return path
    for file in (path / "model.json", path / "config.json"):
        if file.is_file():
            return file
    what = "holds neither model.json nor config.json" if path.is_dir() else "is no file"
    raise ConfigError(
        f"model {str(path)!r} is neither one of {', '.join(MODELS)} nor a model on disk: it {what}."
        " Name one of them, a JSON file with the fields of a model's config, or a directory: of a "
        "run, what `loong import-hf` made, or in the published layout."
    )


def _fields_in(path: Path) -> dict[str, Any]:
    """The fields of a model in a file of its own, an import's model.json or a published one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}. Correct it.") from error
    if isinstance(value, dict) and "config" in value:
        value = value["config"]
    if isinstance(value, dict) and configs.KIND in value and isinstance(value.get("model"), dict):
        value = value["model"]  # of a run
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path} holds a value of type {type(value).__name__}, and a model is an object with "
            "the fields of its config. Write one."
        )
    return value


def _with_kind(name: str, value: Any, path: Path) -> Any:
    """A field as `configs.from_json` reads it, which wants the kind of all that is no number."""
    if name in ("dtype", "param_dtype") and isinstance(value, str):
        return {configs.KIND: "dtype", "value": value}
    if name not in _NESTED or value is None:
        return value
    if isinstance(value, dict) and (configs.KIND in value or _NESTED[name] is not None):
        return {configs.KIND: _NESTED[name], **value}
    raise ConfigError(
        f"{path} has {name}={value!r}, which is not null nor an object "
        + ("with its fields" if _NESTED[name] else f"that names its {configs.KIND}")
        + ". Write one, or leave it out."
    )


def parse_mesh(text: str, topology: Topology) -> dict[str, int]:
    """`expert=32,fsdp=4` as sizes of all axes; the slice axis follows the topology."""
    mesh = dict.fromkeys(MESH_AXES, 1) | {"slice": topology.num_slices}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(
            f"mesh {text!r} names no axis. Write expert=32,fsdp=4 or, for one device, data=1; or "
            "leave it out."
        )
    named: set[str] = set()
    for part in parts:
        name, _, size = (word.strip() for word in part.partition("="))
        if name not in MESH_AXES or not size.isdecimal() or int(size) < 1:
            raise ConfigError(
                f"mesh part {part!r} is not AXIS=SIZE with an axis of {MESH_AXES} and a size of at "
                "least 1. Write expert=32,fsdp=4."
            )
        if name in named:
            raise ConfigError(f"mesh {text!r} names {name} twice. Name each axis once.")
        named.add(name)
        mesh[name] = int(size)
    return mesh


def show_mesh(mesh: Mapping[str, int]) -> str:
    """`expert=32,fsdp=4`: the axes that are larger than 1."""
    return ",".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or "one device"
