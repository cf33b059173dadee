"""Conversations: what is read, and on which tokens the loss is."""

import json

import pytest

from loong_jax.data import chat_records
from loong_jax.data.tokenizer import AsciiTokenizer, load_tokenizer
from loong_jax.errors import ConfigError
from tests.doubles import tiny_hf

CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hei, h\u00e4n?"},
    {"role": "assistant", "content": "One."},
    {"role": "user", "content": "And \u4e8c?"},
    {"role": "assistant", "content": "Two.\n"},
]
# A template that shows an answer otherwise once another follows, as those do that drop thinking.
FORGETFUL = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{%- if m.role == 'assistant' and loop.last %}<think>so</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)

WITH_CALLS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.tool_calls[0].name + '()' if m.tool_calls is defined else m.content }}<|im_end|>\n"
    "{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_hf.write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return load_tokenizer(directory, {"vocab_size": 512})


def parts(tokenizer, encoded):
    """What is under the loss, and all of it, as texts."""
    tokens, mask = encoded["tokens"], encoded["loss_mask"]
    return tokenizer.decode(tokens[mask]), tokenizer.decode(tokens)


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_loss_is_on_every_answer_and_its_end(tokenizer, tmp_path):
    (one,) = chat_records.read(write(tmp_path / "chat.jsonl", [{"messages": CHAT, "id": 7}]))
    (one,) = chat_records.taught([one], tokenizer)
    learnt, whole = parts(tokenizer, chat_records.encode(tokenizer, one))
    assert learnt == "One.<|im_end|>Two.\n<|im_end|>"
    assert whole == tokenizer.chat.render(CHAT, add_generation_prompt=False)


def test_prompt_and_response_are_a_conversation_of_two(tokenizer, tmp_path):
    file = write(tmp_path / "pairs.jsonl", [{"prompt": "a?", "response": "b", "rationale": "c"}])
    (one,) = chat_records.read(file)
    learnt, whole = parts(tokenizer, chat_records.encode(tokenizer, one))
    assert learnt == "b<|im_end|>"
    assert whole.startswith("<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nb")


def of_template(directory, place, template):
    (place / "chat_template.jinja").write_text(template)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (place / name).write_text((directory / name).read_text())
    return load_tokenizer(place, {"vocab_size": 512})


def test_a_call_of_a_tool_needs_no_content(directory, tmp_path):
    call = {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    messages = [{"role": "user", "content": "1 + 2?"}, call, *CHAT[4:]]
    read = chat_records.read(write(tmp_path / "calls.jsonl", [{"messages": messages}]))
    tokenizer = of_template(directory, tmp_path, WITH_CALLS)
    (one,) = chat_records.taught(read, tokenizer)
    learnt, _ = parts(tokenizer, chat_records.encode(tokenizer, one))
    assert learnt == "\nadd()<|im_end|>\nTwo.\n<|im_end|>"
    (one,) = chat_records.taught(read, AsciiTokenizer())  # which has no template
    assert "Two." in parts(AsciiTokenizer(), chat_records.encode(AsciiTokenizer(), one))[0]


def test_answers_that_are_rendered_otherwise_later_are_learnt_alone(directory, tmp_path):
    tokenizer = of_template(directory, tmp_path, FORGETFUL)
    ones = chat_records.taught([chat_records.Conversation(tuple(CHAT))], tokenizer)
    shown = [parts(tokenizer, chat_records.encode(tokenizer, one)) for one in ones]
    assert [learnt for learnt, _ in shown] == [
        "<think>so</think>One.<|im_end|>",
        "<think>so</think>Two.\n<|im_end|>",
    ]
    assert "<think>" not in shown[1][1].split("And")[0]


def test_without_a_template_texts_follow_each_other():
    tokenizer = AsciiTokenizer()
    one = chat_records.Conversation(tuple([{**m, "content": "x"} for m in CHAT]))
    encoded = chat_records.encode(tokenizer, chat_records.taught([one], tokenizer)[0])
    assert encoded["tokens"][0] == tokenizer.bos_id
    assert encoded["loss_mask"].any()
    assert not encoded["loss_mask"][0]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("[]", "not an object"),
        ("{", "is not JSON"),
        ('{"prompt": "a"}', "Give messages, or prompt and response"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "does not end with a message of the"),
        ('{"messages": [{"role": "elf", "content": "a"}]}', "a role of"),
        ('{"messages": [{"role": "assistant", "content": 3}]}', "a role of"),
    ],
)
def test_lines_that_are_no_conversations_are_named(record, said, tmp_path):
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": CHAT}) + "\n" + record + "\n")
    with pytest.raises(ConfigError, match=said) as caught:
        chat_records.read(file)
    assert f"line 2 of {file}" in str(caught.value)
