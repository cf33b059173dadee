"""The tokenizer of a GGUF file as the files that travel with a published model."""

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as cutting

from loong_jax.errors import CheckpointError

_CONTROL, _OWN = 3, 4  # kinds of tokens: those without text, those that users added
# Tokens that end a turn or a text, whichever of them a file names as its end.
_ENDS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "</s>",
)  # fmt: skip
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_KEY = "tokenizer.ggml."


def written(fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """tokenizer.json, tokenizer_config.json and generation_config.json, by name.

    Raises CheckpointError for a tokenizer that is no byte-level BPE of a known kind.
    """
    tokens, kinds = fields.get(_KEY + "tokens"), fields.get(_KEY + "token_type")
    model, before = fields.get(_KEY + "model"), fields.get(_KEY + "pre", "gpt-2")
    if model != "gpt2" or before not in _CUTS or not tokens or not kinds:
        raise CheckpointError(
            f"the file has a tokenizer of the kind {model!r} that cuts as {before!r}, and "
            f"'gpt2' with one of {', '.join(_CUTS)} is read. Take the model's own files."
        )
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise CheckpointError("the file's tokenizer has a token twice. Fetch the file again.")
    merges = [tuple(pair.split(" ", 1)) for pair in fields.get(_KEY + "merges", [])]
    built = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=before == "llama-bpe"))
    if before == "qwen2":
        built.normalizer = normalizers.NFC()  # type: ignore[assignment]
    built.pre_tokenizer = cutting.Sequence(_CUTS[before]())  # type: ignore[assignment]
    built.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            built.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _OWN:
            built.add_tokens([AddedToken(token, normalized=False)])
    begin, adds_begin = fields.get(_KEY + "bos_token_id"), fields.get(_KEY + "add_bos_token", False)
    if adds_begin and begin is not None:
        built.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
            single=f"{tokens[begin]} $A",
            pair=f"{tokens[begin]} $A {tokens[begin]} $B",
            special_tokens=[(tokens[begin], begin)],
        )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(adds_begin),
        "clean_up_tokenization_spaces": False,
    }
    ids = {"bos": begin, "eos": fields.get(_KEY + "eos_token_id")}
    ids["pad"] = fields.get(_KEY + "padding_token_id")
    config |= {f"{name}_token": tokens[n] for name, n in ids.items() if n is not None}
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    named = [ids["eos"], fields.get(_KEY + "eot_token_id"), fields.get(_KEY + "eom_token_id")]
    known = [vocab[end] for end in _ENDS if end in vocab and kinds[vocab[end]] == _CONTROL]
    ends = [n for n in dict.fromkeys([*named, *known]) if n is not None]
    generation = {"bos_token_id": begin, "eos_token_id": ends, "pad_token_id": ids["pad"]}
    return {
        "tokenizer.json": json.loads(built.to_str()),
        "tokenizer_config.json": config,
        "generation_config.json": {k: v for k, v in generation.items() if v not in (None, [])},
    }


def _by_words(digits: str) -> list[Any]:
    cut = cutting.Split(Regex(_WORDS % digits), "isolated")
    return [cut, cutting.ByteLevel(add_prefix_space=False, use_regex=False)]


_CUTS = {
    "gpt-2": lambda: [cutting.ByteLevel(add_prefix_space=False)],
    "smollm": lambda: [
        cutting.Digits(individual_digits=True),
        cutting.ByteLevel(add_prefix_space=False),
    ],
    "qwen2": lambda: _by_words(""),
    "llama-bpe": lambda: _by_words("{1,3}"),
}
