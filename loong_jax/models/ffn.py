"""The gated feed-forward net of every token."""

from typing import Any, ClassVar

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from loong_jax.models import parameters
from loong_jax.models.decoder import States
from loong_jax.models.products import in_chunks, project
from loong_jax.sharding import ShardingRules


class DenseFFN(parameters.Gathering, nnx.Module):
    """down(silu(gate(x)) * up(x)), each with a bias where asked for."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "gate": ("ffn_embed", "ffn"),
        "up": ("ffn_embed", "ffn"),
        "down": ("ffn", "ffn_embed"),
    }

    def __init__(self, config: Any, *, rngs: nnx.Rngs, rules: ShardingRules, biases: bool = False):
        self.config, self.rules = config, rules
        layers, embed, ffn = config.num_layers, config.hidden_size, config.ffn_hidden_size
        self.gate = self.fresh(rngs, "gate", embed, ffn)
        self.up = self.fresh(rngs, "up", embed, ffn)
        self.down = self.fresh(rngs, "down", ffn, embed, gain=config.residual_gain)
        if biases:
            dtype, wide = config.param_dtype, ((layers, ffn), ("layers", "ffn"))
            self.gate_bias = parameters.zeros(*wide, dtype, rules)
            self.up_bias = parameters.zeros(*wide, dtype, rules)
            self.down_bias = parameters.zeros((layers, embed), ("layers", None), dtype, rules)

    def with_matrices(self, weights: parameters.Matrices) -> "DenseFFN":
        """This net with these matrices in the place of its own."""
        if weights is None:
            return self
        graph, state = nnx.split(self, graph=False)
        return nnx.merge(graph, nnx.State(nnx.to_pure_dict(state) | weights))

    def __call__(self, x: States, kept_as: str = "ffn") -> States:
        """A checkpoint policy finds the products of gate and up under the name `kept_as`."""
        gate_DF, up_DF, down_FD = (self._gather(n, getattr(self, n)[...], x) for n in self.AXES)
        is_alone = self.rules.mesh is None
        rows = self.config.chunk_rows(x.shape[1]) if is_alone else None
        # for a CPU it is less work to make the hidden layer again than to keep its parts
        gated = jax.checkpoint(_gated) if is_alone and self.rules.platform == "cpu" else _gated

        def at_once(x: States) -> States:
            gathered = self.rules.gather_tokens(x, "ffn")
            gate_BTF = checkpoint_name(project(gathered, gate_DF), kept_as)
            up_BTF = checkpoint_name(project(gathered, up_DF), kept_as)
            gate_BTF = self._biased(gate_BTF, "gate", "ffn")
            up_BTF = self._biased(up_BTF, "up", "ffn")
            hidden_BTF = gated(gate_BTF, up_BTF)
            out_BTD = self.rules.scatter_sums(project, hidden_BTF, down_FD, like=x)
            return self._biased(out_BTD, "down", None)

        return in_chunks(at_once, (x,), rows)

    def _biased(
        self, x: Float[Array, "B T width"], name: str, axis: str | None
    ) -> Float[Array, "B T width"]:
        bias = getattr(self, f"{name}_bias", None)
        if bias is None:
            return x
        return x + self.rules.gather(bias[...].astype(x.dtype), axis)[None, None]


def _gated(gate: Float[Array, "B T F"], up: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
    return jax.nn.silu(gate) * up
