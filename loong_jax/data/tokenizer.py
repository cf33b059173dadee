"""Tokenizers: text to token ids and back, and what a checkpoint says of both.

`HfTokenizer` reads the files that lie beside a checkpoint of Hugging Face. `AsciiTokenizer` is that
of the miniature recipe: ids below 128 are ASCII codes; unused control codes carry the special
tokens, so V = 128 and the ids of beginning and end are those of LongCat-Flash (1 and 2).
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tokenizers

from loong_jax.data import json_files
from loong_jax.data.chat_template import ChatTemplate, Messages
from loong_jax.errors import CheckpointError, ConfigError, LoongError
from loong_jax.remote import AnyPath

# Files of a model beside weights and config: text, template, tokens that end an answer.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "chat_template.json", "generation_config.json", "tokenizer.model",
    "vocab.json", "merges.txt",
)  # fmt: skip

SPECIAL_TOKENS = {
    "<pad>": 0,
    "<bos>": 1,
    "<eos>": 2,
    "<longcat_think>": 3,
    "</longcat_think>": 4,
    "<longcat_answer>": 5,
    "</longcat_answer>": 6,
    "<longcat_tool_call>": 7,
    "</longcat_tool_call>": 8,
    "<longcat_tool_response>": 9,
    "</longcat_tool_response>": 11,  # 10 is the newline
}
_PIECE = re.compile("|".join(SPECIAL_TOKENS) + "|.", re.DOTALL)
_TOKEN_OF = {chr(code): code for code in (10, *range(32, 127))} | SPECIAL_TOKENS
_TEXT_OF = {number: name for name, number in _TOKEN_OF.items()} | {SPECIAL_TOKENS["<pad>"]: ""}


Tokens = Sequence[int] | np.ndarray


@runtime_checkable
class Tokenizer(Protocol):
    vocab_size: int
    pad_id: int
    bos_id: int | None  # stands before every text; None: nothing does
    eos_id: int  # the first of end_ids
    end_ids: tuple[int, ...]  # each of them ends an answer
    chat: ChatTemplate | None
    specials: frozenset[str]  # texts that become one token with a meaning of its own

    def encode(self, text: str) -> list[int]:
        """Without special tokens around it; those that the text names are tokens."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of tokens that follow others, special tokens and tags included."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 of one token, which may be a part of a character."""
        ...

    def response_text(self, tokens: Tokens) -> str:
        """The text of a response: without the end tokens and padding at its end."""
        return self.decode(without_end(self, tokens))

    def prompt_ids(
        self,
        prompt: str | Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """A text that the model is to go on with, or a conversation that it is to answer.

        Without a chat template messages follow each other as they are: such recipes have no roles.
        `variables` go to the template. Raises ConfigError for what that refuses.
        """
        if not isinstance(prompt, str):
            if self.chat is not None:
                return self.encode(self.chat.render(prompt, tools=tools, **variables))
            prompt = "\n".join(message["content"] for message in prompt)
        start = [] if self.bos_id is None else [self.bos_id]
        return [*start, *self.encode(prompt)]


class AsciiTokenizer(Tokenizer):
    """Maps text to ids and back, without loss for printable ASCII, newlines and the tags."""

    vocab_size = 128
    pad_id = SPECIAL_TOKENS["<pad>"]
    bos_id: int | None = SPECIAL_TOKENS["<bos>"]
    eos_id = SPECIAL_TOKENS["<eos>"]
    end_ids: tuple[int, ...] = (eos_id,)
    chat: ChatTemplate | None = None
    specials = frozenset(SPECIAL_TOKENS)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; raises ValueError on a character it has no token for."""
        tokens: list[int] = []
        for piece in _PIECE.finditer(text):
            if piece[0] not in _TOKEN_OF:
                raise ValueError(
                    f"character {piece[0]!r} at {piece.start()} has no token: it must be "
                    "printable ASCII, newline or a tag. Transliterate the text first."
                )
            tokens.append(_TOKEN_OF[piece[0]])
        return tokens

    def decode(self, tokens: Tokens) -> str:
        """Text of `tokens`; padding is dropped, unused ids appear as U+FFFD."""
        return "".join(_TEXT_OF.get(int(token), "\ufffd") for token in tokens)

    def token_bytes(self, token: int) -> bytes:
        return self.decode([token]).encode()


class HfTokenizer(Tokenizer):
    """A tokenizer.json of Hugging Face, with what the files beside it say."""

    def __init__(
        self,
        file: AnyPath,
        *,
        vocab_size: int | None,
        config: Mapping[str, Any],
        settings: Mapping[str, Any],
        generation: Mapping[str, Any],
        templates: str | Mapping[str, str] | None,
    ):
        """`config`, `settings` and `generation` are config.json, tokenizer_config.json and
        generation_config.json. Raises CheckpointError where they do not fit together.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(file.read_bytes())
        except Exception as error:  # the library raises bare Exceptions
            raise CheckpointError(f"{file} is no tokenizer: {error}. Fetch it again.") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._add_tokens(file, settings)
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.specials = frozenset(token.content for token in added)
        num_tokens = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        self.vocab_size = num_tokens if vocab_size is None else vocab_size
        if num_tokens > self.vocab_size:
            raise CheckpointError(
                f"{file} has {num_tokens} tokens, and the model {self.vocab_size}. Take the "
                "tokenizer that belongs to the model."
            )
        named: dict[str, Any] = {n: _content(settings[n]) for n in _NAMED if settings.get(n)}
        self.end_ids = self._end_ids(file, config, generation, named)
        self.eos_id = self.end_ids[0]
        pads = (*self._ids(named.get("pad_token")), *self._ids(config.get("pad_token_id")))
        self.pad_id = next(iter(pads), self.eos_id)
        self.bos_id = self._beginning(config, settings, named)
        self.chat = None
        if templates is not None:
            more = settings.get("additional_special_tokens") or settings.get("extra_special_tokens")
            if isinstance(more, Mapping):
                named |= {name: _content(token) for name, token in more.items()}
            elif more:
                named["additional_special_tokens"] = [_content(token) for token in more]
            self.chat = ChatTemplate(templates, named, str(file.parent))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Tokens) -> str:
        """Behind a word, so that a space which the decoder drops in front of a text is kept."""
        ids = [int(token) for token in tokens]
        if self._word is None:
            return self._tokenizer.decode(ids, skip_special_tokens=False)
        word, text = self._word
        return self._tokenizer.decode([word, *ids], skip_special_tokens=False)[len(text) :]

    def token_bytes(self, token: int) -> bytes:
        text = self.decode([token])
        piece = self._tokenizer.id_to_token(token)
        if "\ufffd" not in text or piece is None:
            return text.encode("utf-8", "replace")
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        if all(letter in _byte_of_letter() for letter in piece):
            return bytes(_byte_of_letter()[letter] for letter in piece)
        return text.encode()

    def prompt_ids(self, prompt: str | Messages, **settings: Any) -> list[int]:
        if self.chat is None and not isinstance(prompt, str):
            raise ConfigError(
                "the tokenizer of this model has no chat template, and a conversation was given. "
                "Give a text, or put chat_template.jinja beside its tokenizer.json."
            )
        return super().prompt_ids(prompt, **settings)

    def _add_tokens(self, file: AnyPath, settings: Mapping[str, Any]) -> None:
        """Tokens that tokenizer_config.json alone knows, in the order of their ids."""
        added = settings.get("added_tokens_decoder") or {}
        for number, entry in sorted(added.items(), key=lambda item: int(item[0])):
            if self._tokenizer.token_to_id(entry["content"]) is not None:
                continue
            flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip")}
            token = tokenizers.AddedToken(
                entry["content"], **flags, normalized=bool(entry.get("normalized", False))
            )
            if entry.get("special"):
                self._tokenizer.add_special_tokens([token])
            else:
                self._tokenizer.add_tokens([token])
            found = self._tokenizer.token_to_id(entry["content"])
            if found != int(number):
                raise CheckpointError(
                    f"tokenizer_config.json beside {file} gives {entry['content']!r} the id "
                    f"{number}, where {found} would be next. Take files that belong together."
                )

    def _ids(self, value: Any) -> Iterator[int]:
        """Ids of what a file names: a token, its id, or a list of these; others are left out."""
        if isinstance(value, str):
            value = self._tokenizer.token_to_id(value)
        if isinstance(value, list | tuple):
            for one in value:
                yield from self._ids(one)
        elif isinstance(value, int) and 0 <= value < self.vocab_size:
            yield value

    def _end_ids(
        self,
        file: AnyPath,
        config: Mapping[str, Any],
        generation: Mapping[str, Any],
        named: Mapping[str, str],
    ) -> tuple[int, ...]:
        given = (named.get("eos_token"), generation.get("eos_token_id"), config.get("eos_token_id"))
        found = tuple(dict.fromkeys(self._ids(list(given))))
        if not found and "eos_token_id" not in config and _has_defaults(config):
            found = (2,)
        if not found:
            raise CheckpointError(
                f"nothing beside {file} says which token ends a text. Write eos_token_id into "
                "config.json, or into generation_config.json."
            )
        return found

    def _beginning(
        self, config: Mapping[str, Any], settings: Mapping[str, Any], named: Mapping[str, str]
    ) -> int | None:
        """The token that the tokenizer itself puts before a text.

        tokenizer_config.json says whether it does, or the post-processor of tokenizer.json does it.
        A tokenizer.json alone says nothing, and then the config's token stands before a text.
        """
        default = 1 if "bos_token_id" not in config and _has_defaults(config) else None
        given = (named.get("bos_token"), config.get("bos_token_id"), default)
        bos = next(self._ids(list(given)), None)
        adds = settings.get("add_bos_token")
        if adds is None:
            first = self._tokenizer.encode("", add_special_tokens=True).ids[:1]
            adds = not settings or (bos is not None and first == [bos])
        return bos if adds else None

    @functools.cached_property
    def _word(self) -> tuple[int, str] | None:
        """A word with its text, where the decoder drops the space in front of one; else None."""
        for piece, token in sorted(self._tokenizer.get_vocab(with_added_tokens=False).items()):
            if piece.startswith("\u2581") and piece.strip("\u2581").isalpha():
                text = self._tokenizer.decode([token])
                twice = self._tokenizer.decode([token, token])
                return None if twice == text + text else (token, text)
        return None


def load_tokenizer(
    path: AnyPath, config: Mapping[str, Any] | str | None = None, vocab_size: int | None = None
) -> HfTokenizer:
    """The tokenizer in a directory, or that of a tokenizer.json and the files beside it.

    `config` is the model's config.json, as a text or read; None: the one beside the tokenizer.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.exists():
        raise CheckpointError(f"{file} does not exist. Name a tokenizer.json or its directory.")
    if config is None:
        config = _beside(file, "config.json")
    elif isinstance(config, str):
        config = dict(json.loads(config))
    settings = _beside(file, "tokenizer_config.json")
    size = config.get("vocab_size") if vocab_size is None else vocab_size
    try:
        return HfTokenizer(
            file,
            vocab_size=size,
            config=config,
            settings=_beside(file, "special_tokens_map.json") | settings,
            generation=_beside(file, "generation_config.json"),
            templates=_templates(file.parent, settings),
        )
    except LoongError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # of a value of another kind
        raise CheckpointError(
            f"a file beside {file} is not what a tokenizer has: {error!r:.200}. Fetch it again."
        ) from error


def without_end(tokenizer: Tokenizer, tokens: Tokens) -> Tokens:
    """Without the end tokens and padding at the end."""
    ends, length = {*tokenizer.end_ids, tokenizer.pad_id}, len(tokens)
    while length and int(tokens[length - 1]) in ends:
        length -= 1
    return tokens[:length]


_NAMED = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip


def _beside(file: AnyPath, name: str) -> dict[str, Any]:
    """The object in a file beside `file`; {} where there is none."""
    path = file.parent / name
    if not path.exists():
        return {}
    found = json_files.read_json(path)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is a JSON {type(found).__name__}. Fetch it again.")
    return found


def _templates(directory: AnyPath, settings: Mapping[str, Any]) -> str | dict[str, str] | None:
    """chat_template.jinja goes before chat_template of tokenizer_config.json."""
    if (file := directory / "chat_template.jinja").exists():
        return file.read_text("utf-8")
    found = settings.get("chat_template")
    found = _beside(directory / "x", "chat_template.json").get("chat_template", found)
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found}
    return found


def _content(token: Any) -> str:
    """The text of a token that a file names as a text, or as an object."""
    return token["content"] if isinstance(token, Mapping) else token


def _has_defaults(config: Mapping[str, Any]) -> bool:
    """True where transformers leaves bos 1 and eos 2 out of config.json: LongCat, Llama."""
    kind = str(config.get("model_type", "longcat"))
    return kind.startswith(("longcat", "llama"))


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """The letters that stand for bytes in tokens of byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
