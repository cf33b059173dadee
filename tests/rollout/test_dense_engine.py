"""The tests of both engines again, over a dense decoder: what they say holds for every family."""

import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models.dense import DenseConfig, abstract_weights
from loong_jax.rollout.paged_engine import engine_for
from tests.rollout import test_paged_engine as pages
from tests.rollout import test_slot_engine as slots

MODEL = DenseConfig.tiny(
    num_layers=2, hidden_size=24, head_dim=8, ffn_hidden_size=32, qk_norm=True, tied=False
)
_CACHED = slots.setup, slots.samples, slots.plain_forward, pages.setup, pages.expected


@pytest.fixture(scope="module", autouse=True)
def dense_decoder():
    """Their model, and nothing kept of the one they have of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (slots, pages):
            patch.setattr(module, "MODEL", MODEL)
        for function in _CACHED:
            function.cache_clear()
        yield
    for function in _CACHED:
        function.cache_clear()


# Those with pytest.mark.slow there have it here.
test_equals_the_plain_model = slots.test_equals_the_plain_model
test_a_sample_does_not_depend_on_slot = slots.test_a_sample_does_not_depend_on_slot_or_batch
test_group_prefill_equals_separate_prefills = slots.test_group_prefill_equals_separate_prefills
test_extract_and_insert = slots.test_extract_and_insert_continue_the_sample_identically
test_a_narrow_block_equals_a_full_one = slots.test_a_narrow_block_equals_a_full_one
test_finished_slots_write_nothing = slots.test_finished_and_cancelled_slots_write_nothing
test_versions_share_compiled_code = slots.test_versions_share_compiled_code
test_the_stop_token_ends_a_sample = slots.test_the_stop_token_ends_a_sample_and_is_part_of_it
test_pages_change_no_bit = pages.test_pages_change_no_bit
test_a_group_shares_its_prompt = pages.test_a_group_shares_its_prompt
test_a_later_turn_reads_only_what_is_new = pages.test_a_later_turn_reads_only_what_is_new
test_chunks_equal_one_whole_prefill = pages.test_chunks_equal_one_whole_prefill
test_two_versions_in_one_pool = pages.test_two_versions_decode_in_one_pool_without_compiling_again
test_a_sample_moves = pages.test_a_sample_moves_to_another_slot_and_to_another_engine
test_short_pages_are_told = pages.test_short_pages_are_told_before_they_hurt


def test_truncated_sampling_draws_among_the_likeliest():
    shapes = slots.dataclasses.replace(slots.SHAPES, truncation=True, narrow_slots=())
    _, _, graphdef = slots.setup()
    engine = engine_for(graphdef, MODEL, AsciiTokenizer(), shapes)
    requests = slots.requests_of(top_k=3, top_p=0.9)
    samples = slots.run(slots.PROMPTS, slots.SLOTS, requests, engine=engine)
    for prompt, (tokens, _) in zip(slots.PROMPTS, samples, strict=True):
        full = slots.full_log_probs(prompt, tokens, 1.0)
        rank = (full > full[range(len(tokens)), tokens][:, None]).sum(axis=-1)
        assert rank.max() < 3


@pytest.mark.parametrize("asks", ["routing", "speculation"])
def test_what_the_model_does_not_have_is_refused(asks):
    graphdef, _ = abstract_weights(MODEL)
    shapes = slots.dataclasses.replace(slots.SHAPES, **{asks: True})
    with pytest.raises(ConfigError, match=asks):
        engine_for(graphdef, MODEL, AsciiTokenizer(), shapes)
