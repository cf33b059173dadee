"""What the files beside a checkpoint say of its tokens."""

import json
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from loong_jax.data import tokenizer as tokenizers
from loong_jax.data.tokenizer import AsciiTokenizer, load_tokenizer
from loong_jax.errors import CheckpointError, ConfigError
from tests.doubles import bpe


def write(directory, **files):
    """`files` by name, with an underscore for the dot; objects become JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)


@pytest.fixture
def directory(tmp_path):
    bpe.write_files(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("config", "settings", "generation", "ends"),
    [
        ({"eos_token_id": 7}, {}, {}, (7,)),
        ({"eos_token_id": [7, 8]}, {}, {"eos_token_id": [8, 9]}, (8, 9, 7)),
        ({"eos_token_id": None}, {"eos_token": "<|im_end|>"}, {"eos_token_id": 0}, (2, 0)),
        ({}, {"eos_token": {"content": "<|im_end|>"}}, {}, (2,)),
        ({"eos_token_id": 10**9}, {"eos_token": "no such token"}, {}, None),
        ({"eos_token_id": None, "model_type": "qwen2"}, {}, {}, None),
        ({"model_type": "qwen2"}, {}, {}, None),
        ({"model_type": "longcat_flash"}, {}, {}, (2,)),
    ],
)
def test_every_file_may_name_tokens_that_end_an_answer(
    directory, config, settings, generation, ends
):
    write(directory, tokenizer_config__json=settings, generation_config__json=generation)
    if ends is None:
        with pytest.raises(CheckpointError, match="which token ends a text"):
            load_tokenizer(directory, config, 512)
    else:
        found = load_tokenizer(directory, config, 512)
        assert found.end_ids == ends
        assert found.eos_id == found.pad_id == ends[0]


@pytest.mark.parametrize(
    ("config", "settings", "adds", "bos"),
    [
        ({"bos_token_id": 1}, None, False, 1),  # a tokenizer.json alone
        ({"bos_token_id": None}, None, False, None),
        ({"bos_token_id": 1}, {"add_bos_token": False}, True, None),
        ({"bos_token_id": 1}, {"add_bos_token": True}, False, 1),
        ({}, {"bos_token": "<|im_start|>", "add_bos_token": True}, False, 1),
        ({"bos_token_id": 1}, {"bos_token": "<|im_start|>"}, True, 1),
        ({"bos_token_id": 1}, {"bos_token": None}, False, None),
    ],
)
def test_a_text_begins_as_the_tokenizer_says(directory, config, settings, adds, bos):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    if adds:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").unlink()
    if settings is not None:
        write(directory, tokenizer_config__json=settings)
    found = load_tokenizer(directory, config, 512)
    assert found.bos_id == bos
    assert found.prompt_ids("f(x)") == [bos] * (bos is not None) + found.encode("f(x)")


def test_settings_of_training_neither_cut_nor_pad(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=3)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(directory / "tokenizer.json"))
    found = load_tokenizer(directory, {}, 512)
    assert found.decode(found.encode(bpe.TEXT)) == bpe.TEXT


def test_tokens_that_tokenizer_config_alone_knows(directory):
    size = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab_size()
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    added = {str(size): {"content": "<|extra|>", "special": True}}
    write(directory, tokenizer_config__json=settings | {"added_tokens_decoder": added})
    found = load_tokenizer(directory, {}, 512)
    assert found.encode("<|extra|>") == [size]
    assert "<|extra|>" in found.specials
    added[str(size + 3)] = {"content": "<|later|>", "special": True}
    write(directory, tokenizer_config__json=settings | {"added_tokens_decoder": added})
    with pytest.raises(CheckpointError, match="later"):
        load_tokenizer(directory, {}, 512)
    write(directory, tokenizer_config__json=settings)
    with pytest.raises(CheckpointError, match="the model 9"):
        load_tokenizer(directory, {}, 9)


def test_where_a_chat_template_may_stand(directory):
    settings = {"eos_token": "<|im_end|>"}
    named = [
        {"name": "default", "template": "d{{ eos_token }}"},
        {"name": "tool_use", "template": "t"},
    ]
    messages = [{"role": "user", "content": "u"}]
    write(directory, tokenizer_config__json=settings)
    found = load_tokenizer(directory, {}, 512)
    assert found.chat is None
    with pytest.raises(ConfigError, match=r"chat_template\.jinja"):
        found.prompt_ids(messages)
    write(directory, tokenizer_config__json=settings | {"chat_template": named})
    found = load_tokenizer(directory, {}, 512)
    assert found.decode(found.prompt_ids(messages)) == "d<|im_end|>"
    assert found.decode(found.prompt_ids(messages, tools=[{}])) == "t"
    write(directory, chat_template__jinja="{{ messages[0].content }}{{ x }}")
    found = load_tokenizer(directory, {}, 512)
    assert found.decode(found.prompt_ids(messages, x=3)) == "u3"


def test_a_response_is_without_its_end(directory):
    found = load_tokenizer(directory, {}, 512)
    tokens = found.encode("4<|im_end|>2")
    assert found.response_text([*tokens, 2, 0, 0]) == "4<|im_end|>2"
    assert found.response_text([2]) == ""
    ours = AsciiTokenizer()
    assert ours.response_text([*ours.encode("42"), 2, 0]) == "42"


def test_bytes_of_tokens_are_those_of_the_text(directory):
    found = load_tokenizer(directory, {}, 512)
    texts = [bpe.TEXT, "naïve\u200d😀\U0001f3fd中\x00 <tool_call>"]
    for tokens in map(found.encode, texts):
        text = b"".join(map(found.token_bytes, tokens)).decode()
        assert text == found.decode(tokens)
    assert all(len(found.token_bytes(t)) for t in range(len(bpe.SPECIALS), 256))


def sentencepiece_like(directory, decoder):
    """Words with a mark of their beginning, and bytes for what has no word."""
    names = ["<unk>", "<s>", "</s>", "▁the", "▁cat", "s", "▁", "t", "h", "e", "c", "a", "▁c"]
    names += [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {name: i for i, name in enumerate(names)}
    model = models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoder
    tokenizer.save(str(directory / "tokenizer.json"))
    return load_tokenizer(directory, {"bos_token_id": 1, "eos_token_id": 2}, len(names))


SEQUENCE = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


@pytest.mark.parametrize("decoder", [SEQUENCE, decoders.Metaspace()], ids=["sequence", "metaspace"])
def test_the_first_space_of_a_completion_is_kept(tmp_path, decoder):
    found = sentencepiece_like(tmp_path, decoder)
    assert found.decode([4, 5]) == " cats"
    assert found.decode([5]) == "s"
    assert found.decode([3, 4]) == " the cat"
    assert found.token_bytes(4) == b" cat"
    assert found.response_text([4, 2]) == " cat"
    if decoder is SEQUENCE:
        tokens = [13 + byte for byte in "😀".encode()]
        assert found.decode(tokens) == "😀"
        assert b"".join(map(found.token_bytes, tokens)).decode() == "😀"
        chance = random.Random(0)
        for _ in range(50):  # pieces of a text are the text
            tokens = [chance.randrange(3, 13) for _ in range(9)]
            cut = chance.randrange(9)
            assert found.decode(tokens) == found.decode(tokens[:cut]) + found.decode(tokens[cut:])


def test_damaged_files_are_named(directory):
    write(directory, tokenizer_config__json="[1]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        load_tokenizer(directory, {}, 512)
    for settings in (
        {"eos_token": {"a": 1}},
        {"chat_template": [1]},
        {"added_tokens_decoder": {"x": 1}},
    ):
        write(directory, tokenizer_config__json=settings)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json is not what a tokenizer has"):
            load_tokenizer(directory, {"eos_token_id": 2}, 512)
    write(directory, tokenizer_config__json={}, tokenizer__json="{")
    with pytest.raises(CheckpointError, match="is no tokenizer"):
        load_tokenizer(directory, {}, 512)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        load_tokenizer(directory, {}, 512)
    assert "tokenizer.json" in tokenizers.TOKENIZER_FILES
