"""A byte-level BPE tokenizer in the files that a checkpoint has, to test what reads them."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\n' ~ tools | tojson ~ '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{%- if loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- else %}"
    "{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TEXT = 'def f(x):\n    return {"name": "python", "arguments": x}  # the sum of 12 and 34 is é中😀 '


def trained(texts, vocab_size: int, special_tokens) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write(directory: Path, tokenizer: tokenizers.Tokenizer, settings: dict, end_ids) -> None:
    """tokenizer.json and what lies beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    common = {"add_bos_token": False, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(common | settings))
    ends = {"eos_token_id": list(end_ids)}
    (directory / "generation_config.json").write_text(json.dumps(ends))


def write_files(directory: Path, *, vocab_size: int = 512, template: str | None = TEMPLATE) -> None:
    """Those of a tokenizer where two tokens end an answer."""
    settings = {} if template is None else {"chat_template": template}
    write(directory, trained([TEXT], vocab_size, SPECIALS), settings, (2, 0))
