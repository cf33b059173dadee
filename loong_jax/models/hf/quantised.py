"""Checkpoints whose matrices are stored in 8-bit floats with scales beside them, read as they mean.

`X.weight` is float8 and `X.weight_scale_inv`, or `X.weight_scale`, multiplies it: one number for
all, one for every row, or one for every block (DeepSeek's and LongCat's files: 128 by 128, or as
`weight_block_size` in config.json has it). Scales of activations and caches are left out: nothing
is rounded to 8 bits here. Weights packed to 4 bits and int8 ones are refused.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models.hf.files import CODES, DTYPES, Opened, StoredTensor
from loong_jax.remote import AnyPath

FLOATS = tuple(DTYPES[code] for code in ("F32", "BF16", "F16"))  # that weights can have
_KEYS = ("quantization_config", "compression_config")  # of config.json
_FLOAT8 = (DTYPES["F8_E4M3"], DTYPES["F8_E5M2"])
_SCALES = ("_scale_inv", "_scale")  # after the name of a weight
_OF_ACTIVATIONS = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".input_scale_ub")
_PACKED = (
    ".qweight", ".qzeros", ".g_idx", ".weight_packed", ".weight_shape", ".weight_zero_point",
    ".weight_scale_2", ".weight_global_scale", ".absmax", ".quant_map",
)  # fmt: skip
_BLOCK = (128, 128)


class ScaledTensor(NamedTuple):
    """A float8 matrix times its scales, as a tensor of `dtype`."""

    weight: StoredTensor
    scale: StoredTensor
    block: tuple[int, int]  # rows and columns that one scale multiplies
    dtype: np.dtype

    @property
    def file(self) -> AnyPath:
        return self.weight.file

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def view(self, opened: Opened) -> np.ndarray:
        return self.rows(opened, 0, self.shape[0])

    def rows(self, opened: Opened, start: int, stop: int) -> np.ndarray:
        """A run of its rows; rounded once, from float32."""
        scale = self.scale.view(opened).astype(np.float32)
        scale = scale.reshape(_num_blocks(self.shape, self.block))
        of_row = scale[np.arange(start, stop) // self.block[0]]
        wide = self.weight.rows(opened, start, stop).astype(np.float32)
        wide *= np.repeat(of_row, self.block[1], axis=1)[:, : self.shape[1]]
        return wide.astype(self.dtype, copy=False)


Tensor = StoredTensor | ScaledTensor


def dequantised(found: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors with float8 matrices as what they mean, without scales.

    Their dtype is the one that config.json names, else bfloat16. Raises CheckpointError for a
    float8 tensor without scales, for scales without one and for weights in other small formats,
    ConfigError where config.json says that there are such and no tensor is.
    """
    said = next((config[key] for key in _KEYS if config.get(key)), None)
    said = said if isinstance(said, dict) else {}
    method = said.get("quant_method", "none is named")
    read: dict[str, Tensor] = {
        name: tensor for name, tensor in found.items() if not name.endswith(_OF_ACTIVATIONS)
    }
    for name, tensor in found.items():
        if name.endswith(_PACKED):
            raise CheckpointError(
                f"{name} belongs to a weight packed to a few bits (quant_method: {method}), and "
                "such are not read here. Take the bfloat16 or fp8 files of the model."
            )
        scales = [name + ending for ending in _SCALES if name + ending in found]
        if tensor.dtype in _FLOAT8 and not name.endswith(_SCALES):
            if not scales:
                raise CheckpointError(
                    f"{name} is {CODES[tensor.dtype]} without a scale: neither {name}_scale_inv "
                    f"nor {name}_scale is there. Take the bfloat16 files of the model."
                )
            scale = found[scales[0]]
            block = _block(name, tensor, scale, said.get("weight_block_size") or _BLOCK)
            read[name] = ScaledTensor(tensor, scale, block, _named_dtype(config))
            for scale_name in scales:
                del read[scale_name]
        elif scales:
            raise CheckpointError(
                f"{name} is {CODES[tensor.dtype]} and has {scales[0]} beside it; only float8 "
                "weights have scales here. Take the bfloat16 files of the model."
            )
    if alone := [name for name in read if name.endswith(tuple(f"weight{s}" for s in _SCALES))]:
        raise CheckpointError(
            f"{alone[0]} is the scale of a weight that is not there. Fetch the checkpoint again."
        )
    if said and not any(isinstance(tensor, ScaledTensor) for tensor in read.values()):
        raise ConfigError(
            f"config.json has a quantization_config (quant_method: {method}), and no tensor is "
            "float8 with scales, the kind that is read here. Take the bfloat16 files of the model, "
            "or remove the key if it is wrong."
        )
    return read


def is_quantised(tensors: Mapping[str, Tensor]) -> bool:
    return any(isinstance(tensor, ScaledTensor) for tensor in tensors.values())


def without_quantisation(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of the weights once they are dequantised."""
    return {key: value for key, value in config.items() if key not in _KEYS}


def _block(
    name: str, weight: StoredTensor, scale: StoredTensor, known: Sequence[int]
) -> tuple[int, int]:
    if len(weight.shape) == 2:
        rows, columns = weight.shape
        if math.prod(scale.shape) == 1:
            return rows, columns
        if len(known) == 2 and scale.shape == _num_blocks(weight.shape, known):
            return known[0], known[1]
        if scale.shape in ((rows,), (rows, 1)):
            return 1, columns
    raise CheckpointError(
        f"{name} of shape {list(weight.shape)} has scales of shape {list(scale.shape)}, and these "
        f"are one for all, one for every row, or one for every block of {list(known)}. Correct "
        "weight_block_size in config.json, or take the bfloat16 files of the model."
    )


def _num_blocks(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    return tuple(-(-n // size) for n, size in zip(shape, block, strict=True))


def _named_dtype(config: Mapping[str, Any]) -> np.dtype:
    named = config.get("dtype") or config.get("torch_dtype")
    return next((kind for kind in FLOATS if kind.name == named), np.dtype(ml_dtypes.bfloat16))
