"""Auxiliary losses and measures of LongCat-Flash's training, beside the next token's loss.

    L = L_model + w_mtp L_mtp + sum over layers of L_balance + L_z

L_mtp trains the head that drafts one more token, L_balance evens out the devices of an expert
group, L_z holds down massive activations. A term without a weight is absent from the program, so
with the default settings a step is the step without this module. Source: arXiv:2509.01322, sections
2.1.2 (load balance) and 3.1.3 (stability); arXiv:2412.19437, section 2.2, for L_mtp.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError, refuse_outside
from loong_jax.models.moe import balance, mtp
from loong_jax.models.moe.balance import DeviceBalance
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.model import LongcatFlash, ModelOutput
from loong_jax.models.products import in_chunks
from loong_jax.rl import logprobs
from loong_jax.sharding import by_rows, place_like

Batch = dict[str, Any]
Metrics = dict[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliaryLosses:
    """Weights of the terms; 0 and None leave a term out."""

    mtp: float = 0.0  # of the head that drafts
    balance: DeviceBalance | None = None
    hidden_z: float = 0.0  # against massive activations

    def __post_init__(self):
        refuse_outside(self, "[0, inf)", "mtp", "hidden_z", why="the weight of a loss, 0 for none")

    @property
    def are_any(self) -> bool:
        return bool(self.mtp or self.hidden_z or self.balance)

    def refuse_misfit(self, config: MoEConfig) -> None:
        """Raises ConfigError where a model of `config` cannot be trained with these."""
        if self.mtp and not config.num_mtp_layers:
            raise ConfigError(
                f"losses.mtp={self.mtp} weighs the loss of a head that num_mtp_layers=0 leaves "
                "out. Set num_mtp_layers to 1, or losses.mtp to 0."
            )
        if self.balance is not None:
            balance.expert_groups(config, self.balance)


NONE = AuxiliaryLosses()


def terms(
    model: LongcatFlash, output: ModelOutput, batch: Batch, losses: AuxiliaryLosses
) -> tuple[Float[Array, ""], Metrics]:
    """The sum of the weighted terms, and each of them by name.

    `output` is what `model` made of `batch`. All tokens count in the balance and in the z-loss; in
    the loss of the head rows count whose drafted token is under the loss mask.
    """
    total, metrics = jnp.zeros(()), {}
    if losses.balance is not None:
        mask = _is_token(batch, output)
        each_L = balance.device_balance_loss(output, model.config, losses.balance, mask)
        metrics["balance_loss"] = jnp.sum(each_L)
        total += metrics["balance_loss"]
    if losses.hidden_z:
        mask = _is_token(batch, output)
        z_loss = balance.hidden_z_loss(output.hidden, mask, weight=losses.hidden_z)
        metrics["hidden_z_loss"] = z_loss
        total += z_loss
    if losses.mtp:
        draft, accepted = draft_loss(model, output, batch)
        metrics |= {"mtp/loss": draft, "mtp/greedy_acceptance": accepted}
        total += losses.mtp * draft
    return total, metrics


def draft_loss(
    model: LongcatFlash, output: ModelOutput, batch: Batch
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean nll, in nats, of token i + 2 under the draft of row i, and the greedy acceptance rate.

    Over the `mtp.drafted_rows`; 0 if there are none. Greedy decoding accepts a draft that is the
    model's own likeliest token, here after the tokens of the batch. The gradient reaches the head
    and, through the states that the head reads, the model. Logits are made in chunks, of the tokens
    that the batch lists, or of all.
    """
    tokens, segment_ids = batch["tokens"], batch["segment_ids"]
    drafting, _ = model.draft_states(
        output.hidden,
        mtp.shift_left(tokens),
        positions=batch["positions"],
        segment_ids=segment_ids,
    )
    place, source = batch.get("predicted") or logprobs.all_of(tokens)
    drafted_BT = mtp.drafted_rows(segment_ids, batch["loss_mask"])
    counts_BT = jnp.pad(drafted_BT, ((0, 0), (2, 0)))[:, :-2]  # tokens that count: row i's is i + 2
    own_FND, token_FN = by_rows(logprobs.listed, output.hidden, tokens, place, source)
    drafting_FND, counts_FN = by_rows(
        logprobs.listed, drafting, counts_BT.astype(jnp.int32), place, source - 1
    )

    logits_of = model.logits_for(token_FN.size)

    def of_states(
        own_FnD: Float[Array, "F n D"],
        drafting_FnD: Float[Array, "F n D"],
        token_Fn: Int[Array, "F n"],
    ) -> tuple[Float[Array, "F n"], Bool[Array, "F n"]]:
        logits_FnV = logits_of(drafting_FnD)
        own_FnV = logits_of(jax.lax.stop_gradient(own_FnD))
        home_Fn, token_Fn = token_Fn, place_like(token_Fn, logits_FnV)
        nll_Fn = jax.nn.logsumexp(logits_FnV, axis=-1) - logprobs.at(logits_FnV, token_Fn)
        is_same_Fn = jnp.argmax(logits_FnV, axis=-1) == jnp.argmax(own_FnV, axis=-1)
        return place_like(nll_Fn, home_Fn), place_like(is_same_Fn, home_Fn)

    rows, again = logprobs.chunk_rows(logits_of, own_FND, tokens)
    states = own_FND, drafting_FND, token_FN
    nll_FN, is_same_FN = in_chunks(of_states, states, rows, axis=1, recompute=again)
    num_drafted = jnp.maximum(jnp.sum(counts_FN), 1)
    accepted = jnp.sum(counts_FN * is_same_FN) / num_drafted
    return jnp.sum(counts_FN * nll_FN) / num_drafted, accepted


def routing_metrics(
    run: Callable[[Float[Array, "L A"] | None], ModelOutput],
    kernel: Float[Array, "L D A"],
    batch: Batch,
    loss: Callable[[ModelOutput], Float[Array, ""]],
    config: MoEConfig,
    losses: AuxiliaryLosses,
) -> Metrics:
    """The mean cosine of the routers' rows and, with a balance loss, R_g of the worst layer.

    `run(score_shift)` is the model over `batch`, `loss(output)` its loss without the terms of this
    module. R_g takes a forward and a backward pass of its own, so it is not for each step.
    """
    metrics = {"router/row_cosine": jnp.mean(balance.router_row_cosine(kernel))}
    if losses.balance is None:
        return metrics

    def shifted(score_shift: Float[Array, "L A"]) -> tuple[Float[Array, ""], ModelOutput]:
        output = run(score_shift)
        return loss(output), output

    zeros = jnp.zeros((config.num_layers, config.num_targets))
    score_gradient, output = jax.grad(shifted, has_aux=True)(zeros)
    mask = _is_token(batch, output)
    ratio_L = balance.stability_ratio(output, score_gradient, config, losses.balance, mask)
    return metrics | {"router/stability_ratio": jnp.max(ratio_L)}


def _is_token(batch: Batch, output: ModelOutput) -> Bool[Array, "B T"]:
    return place_like(batch["segment_ids"] > 0, output.hidden[..., 0])
