"""Tokens to text as they come, up to a stop string.

Replicas find the ends of samples by it, and servers the text that they hand out, so that both see
the same end.
"""

from collections.abc import Callable, Sequence

# A character of UTF-8 has at most four bytes and a token at least one, so that as many tokens at
# the end may be the beginning of a character.
MAX_BEGINNING = 3

Decode = Callable[[Sequence[int]], str]


class TextStream:
    """The text of one sample. `decode` gives the text of consecutive tokens.

    A token may end inside a character, and its text may depend on those before it. So what is open
    is decoded together with the tokens before, back to the last place but one where text was whole.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()):
        self._decode, self._stops = decode, tuple(stops)
        self.num_tokens = 0  # that were pushed
        self._tokens: list[int] = []
        self._num_closed = 0  # of these, whose text is given already
        self._held = ""  # text that may be the beginning of a stop string
        self.is_stopped = False  # a stop string is complete; what follows it is dropped

    def push(self, token: int) -> str:
        """The text that is certain now, behind what was returned before."""
        self._tokens.append(token)
        self.num_tokens += 1
        end = self._end_of_certain()
        if end <= self._num_closed:
            return ""
        text = self._open_text(end)
        self._tokens = self._tokens[self._num_closed :]
        self._num_closed = end - self._num_closed
        return self._pass_on(text)

    def finish(self) -> str:
        """The text that is held back still, once no more tokens come."""
        if self.is_stopped:
            return ""
        text = self._pass_on(self._open_text(len(self._tokens)))
        rest, self._held, self._tokens, self._num_closed = self._held, "", [], 0
        return text + rest

    def _end_of_certain(self) -> int:
        """Of how many tokens the text stays as it is, whatever comes."""
        text, end = self._decode(self._tokens), len(self._tokens)
        if not text.endswith("\ufffd"):
            return end
        end -= MAX_BEGINNING
        while end > self._num_closed and not self._parts_at(text, end):
            end -= 1
        return end

    def _parts_at(self, text: str, end: int) -> bool:
        """True where a character ends there: the text of all is that of both sides."""
        before, after = self._decode(self._tokens[:end]), self._decode(self._tokens[end:])
        return text.startswith(before) and text[len(before) :].endswith(after)

    def _open_text(self, end: int) -> str:
        closed = self._decode(self._tokens[: self._num_closed])
        return self._decode(self._tokens[:end])[len(closed) :]

    def _pass_on(self, text: str) -> str:
        if self.is_stopped:
            return ""
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return held[: min(found)]
        num_kept = max((_overlap(held, stop) for stop in self._stops), default=0)
        end = len(held) - num_kept
        self._held = held[end:]
        return held[:end]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
