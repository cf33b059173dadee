"""The form of a response: how thinking and answer stand in it, as data, and the one reading of it.

A form given is what a recipe trains and rewards. Text of unknown origin is read by whatever tags
are there, and by boxes and fenced blocks.
"""

import dataclasses
import functools
import re
from typing import Literal, NamedTuple

from loong_jax.errors import ConfigError

THINK_OPEN, THINK_CLOSE = "<longcat_think>", "</longcat_think>"
ANSWER_OPEN, ANSWER_CLOSE = "<longcat_answer>", "</longcat_answer>"


class Reading(NamedTuple):
    """A parsed response; `answer` is "" where there is none, as in thinking that never ends."""

    thinking: str
    answer: str
    is_well_formed: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponseForm:
    """The form of a response, and of its prompt.

    Tags that are "" are not there. A prompt is a message of a `chat` template, the beginning of a
    text that is continued (`completion`), or tokens as they are (`raw`).
    """

    name: str
    think_open: str = ""
    think_close: str = ""
    # The side that writes the tag that opens the thinking: the response, or the end of the prompt.
    opening: Literal["response", "prompt", "either"] = "either"
    needs_thinking: bool = True  # a response without it is not in the form
    answer_open: str = ""  # the tag before the answer
    answer_close: str = ""  # the tag after it
    boxed: bool = False  # the answer is the last \boxed{...}
    end: str = ""  # the text of an end token that is written out
    stop: tuple[str, ...] = ()  # texts that end a sample; they are no part of the answer
    prompt: Literal["raw", "chat", "completion"] = "chat"
    template: str = "{prompt}"  # the text around a problem's prompt: instructions, worked examples

    def __post_init__(self):
        pairs = ((self.think_open, self.think_close), (self.answer_open, self.answer_close))
        if any(bool(opening) != bool(closing) for opening, closing in pairs):
            raise ValueError(f"form {self.name!r} has a tag without its pair in {pairs}. Add it.")
        if "{prompt}" not in self.template:
            raise ValueError(
                f"template={self.template!r:.80} of form {self.name!r} has no place for the "
                "problem. Write {prompt} where it stands."
            )

    def prompt_of(self, prompt: str) -> str:
        return self.template.replace("{prompt}", prompt)


_LONGCAT = ResponseForm(
    name="longcat", think_open=THINK_OPEN, think_close=THINK_CLOSE, needs_thinking=False
)
_THINK = dataclasses.replace(_LONGCAT, name="think", think_open="<think>", think_close="</think>")
FORMS = {
    form.name: form
    for form in (
        dataclasses.replace(
            _LONGCAT,
            name="tagged",
            needs_thinking=True,
            opening="response",
            answer_open=ANSWER_OPEN,
            answer_close=ANSWER_CLOSE,
            end="<eos>",
            prompt="raw",
        ),
        _LONGCAT,
        _THINK,
        dataclasses.replace(
            _THINK,
            name="think-answer",
            needs_thinking=True,
            answer_open="<answer>",
            answer_close="</answer>",
            template="{prompt}\nThink first, between <think> and </think>. Then give the answer "
            "between <answer> and </answer>.",
        ),
        ResponseForm(
            name="boxed",
            boxed=True,
            template="{prompt}\nReason step by step, and put the final answer within \\boxed{}.",
        ),
        ResponseForm(name="plain"),
        ResponseForm(name="completion", stop=("\n",), prompt="completion"),
    )
}


def form_named(name: str) -> ResponseForm:
    """ConfigError where there is none of that name."""
    if name not in FORMS:
        raise ConfigError(f"--form {name} is unknown. Choose one of: {', '.join(FORMS)}.")
    return FORMS[name]


# Thinking of other families, which texts of unknown origin may have.
THINKING = (
    (THINK_OPEN, THINK_CLOSE),
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
ANSWERS = ((ANSWER_OPEN, ANSWER_CLOSE), ("<answer>", "</answer>"))
# Tokens that end a turn, a text or a row of padding in the vocabularies of published models.
END_TEXTS = (
    "<eos>", "<pad>", "</longcat_s>", "<longcat_pad>", "</s>", "<|im_end|>", "<|endoftext|>",
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|eot|>",
    "<|eom|>", "<|eos|>", "<|pad|>", "<|end|>", "<|return|>", "<|call|>", "<|user|>",
    "<|observation|>", "<|endofprompt|>", "<|end_of_turn|>", "<end_of_turn>", "<turn|>", "<eot>",
    "<eod>", "<|im_start|>", "<|role_end|>", "<|message_end|>", "<|end_of_role|>",
    "<|END_OF_TURN_TOKEN|>", "<|END_RESPONSE|>", "<|assistant_end|>", "<|end_of_sentence|>",
    "<|end_of_solution|>", "<|vision_pad|>", "<end_of_utterance>",
    "<|PAD_TOKEN|>", "[EOS]", "[PAD]", "<[EOS]>",
    "<|endofmessage|>", "[e~[", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<\uff5c\u2581pad\u2581\uff5c>", "<\uff5cUser\uff5c>", "<|end\u2581of\u2581sentence|>",
)  # fmt: skip


def without_end(text: str) -> str:
    """The text without the end tokens and the padding at its end; inside they are content."""
    end, position = len(text), len(text)
    while True:
        while position and text[position - 1].isspace():
            position -= 1
        found = None
        if text.endswith(END_TEXTS, 0, position):
            found = next(t for t in END_TEXTS if text.endswith(t, 0, position))
        if found is None or (found == "</s>" and _is_struck_out(text, position - len(found))):
            return text[:end]
        end = position = position - len(found)


def _is_struck_out(text: str, close: int) -> bool:
    """True if the tag at `close` is HTML's and ends a struck-out passage `<s> ... </s>`."""
    start = max(0, close - 600)
    return text.rfind("<s>", start, close) > max(0, text.rfind("</s>", start, close))


def after_thinking(text: str) -> str | None:
    """The text after the thinking, of any family; None for thinking that does not end."""
    return _thought(text)[1]


def read(text: str, form: ResponseForm | None = None) -> Reading:
    """Thinking and answer of a response, in linear time; without a form by the tags it has.

    With a form, `is_well_formed` says that the response has all of it, once and in order. Without
    one it says that there is one answer: thinking that is there ends, answer tags are one pair.
    Tags inside fenced blocks are content.
    """
    text = without_end(text)
    return _by_tags(text) if form is None else _by_form(text, form)


def render(form: ResponseForm, thinking: str, answer: str) -> str:
    """The response of a form, which `read` takes apart again."""
    if form.boxed:
        text = f"{thinking}\n\\boxed{{{answer}}}" if thinking else f"\\boxed{{{answer}}}"
    else:
        text = f"{form.answer_open}{answer}{form.answer_close}"
    if form.think_open and (thinking or form.needs_thinking):
        opened = "" if form.opening == "prompt" else form.think_open
        gap = "" if form.answer_open else "\n"
        text = f"{opened}{thinking}{form.think_close}{gap}{text}"
    return text + (form.stop[0] if form.stop else form.end)


def _by_form(text: str, form: ResponseForm) -> Reading:
    for stop in form.stop:
        text = text.partition(stop)[0]
    thinking, said, is_ok = "", text, True
    if form.think_close:
        head, closed, said = text.rpartition(form.think_close)
        if not closed and (form.think_open in text or form.opening == "prompt"):
            return Reading(text.partition(form.think_open)[2] or text, "", False)
        before, opened, rest = head.partition(form.think_open)
        thinking = rest if opened else head
        if closed:
            is_ok = not before.strip() if opened else form.opening != "response"
        else:
            is_ok = not form.needs_thinking
    answer = said
    if form.answer_close:
        before, opened, rest = said.partition(form.answer_open)
        answer, closed, after = rest.partition(form.answer_close)
        is_ok = is_ok and bool(opened and closed) and not before.strip() and not after.strip()
    elif form.boxed:
        thinking, found = _thought(text)
        if found is None or not (last := boxes(found)[-1:]):
            return Reading(text, "", False)
        return Reading(f"{thinking}{found[: last[0].start]}".strip(), last[0].content, True)
    else:
        answer = said.strip()
        is_ok = is_ok and bool(answer) and _thought(answer) == ("", answer)
    inner = _inner_tags(form)
    if inner.search(thinking) or inner.search(answer):
        is_ok = False
    return Reading(thinking, answer, is_ok)


@functools.cache
def _inner_tags(form: ResponseForm) -> re.Pattern[str]:
    """The tags that neither thinking nor answer of a form may contain."""
    tags = (form.think_open, form.think_close, form.answer_open, form.answer_close)
    patterns = [re.escape(tag) for tag in tags if tag]
    if THINK_OPEN in tags:
        patterns.append(r"</?longcat_\w+>")  # tokens of their own, which nobody writes by chance
    if form.end:
        patterns.append(r"<(?:eos|bos|pad)>")
    if not patterns:  # no tags: none of anybody's
        tags = (tag for pair in (*THINKING, *ANSWERS) for tag in pair)
        patterns = [
            *map(re.escape, tags),
            r"</?(?:longcat_\w+|tool_call)>|(?i:\[/?think(?:ing)?\])",
        ]
    return re.compile("|".join(patterns))


_TAGGED = dataclasses.replace(FORMS["tagged"], opening="either")


def _by_tags(text: str) -> Reading:
    thinking, said = _thought(text)
    if said is None:
        return Reading(thinking, "", False)
    for opening, closing in ANSWERS:
        if opening not in said:
            continue
        opened = _outside(said, re.compile(re.escape(opening)))
        if opened and opening == ANSWER_OPEN:
            return _by_form(text, _TAGGED)
        if opened:
            rest = said[opened[-1].end() :]
            closed = _outside(rest, re.compile(re.escape(closing)))
            answer = rest[: closed[0].start()] if closed else rest
            return Reading(thinking, answer, len(opened) == len(closed) == 1)
    is_ok = THINK_OPEN not in thinking and ANSWER_CLOSE not in said
    return Reading(thinking, said, is_ok and bool(said.strip()))


_OPENS = re.compile("|".join(re.escape(opening) for opening, _ in THINKING))
_CLOSES = re.compile("|".join(re.escape(closing) for _, closing in THINKING))
_QUOTES = ("``", "''", '""', "\u201c\u201d", "\u2018\u2019", "\u300c\u300d")
_STARTS = re.compile(rf"\s*(?:{_OPENS.pattern})")
_IN_SENTENCE = re.compile(r"[^\s.!?:>*\u2026\u3002\uff01\uff1f][ \t]+\Z|[\"'`(]\Z")


def _thought(text: str) -> tuple[str, str | None]:
    """Thinking of any family, and what follows it: None where it does not end."""
    if not any(mark in text for mark in ("think", "THINK", "thought", "<|channel|>")):
        return "", text
    starts = _STARTS.match(text)
    if starts:  # what it closes may stand in a block of code that the thinking did not end
        first = next((m for m in _CLOSES.finditer(text) if not _is_quoted(text, m)), None)
    else:
        first = next(iter(_outside(text, _CLOSES)), None)
    start, end = (first.start(), first.end()) if first else (0, 0)
    said = text[end:]
    if first and (later := _outside(said, _CLOSES)):
        start, said = end + later[-1].start(), said[later[-1].end() :]
    for opening in _outside(said, _OPENS):
        if not _is_mentioned(said, opening):
            return said[opening.end() :], None
    return text[starts.end() if starts else 0 : start], said


def _outside(text: str, tags: re.Pattern[str]) -> list[re.Match[str]]:
    """The tags of a text that stand in no closed block of code and are not only spoken of."""
    code = [block for block in blocks(text) if block.is_closed]
    found, number = [], 0
    for match in tags.finditer(text):
        while number < len(code) and code[number].end <= match.start():
            number += 1
        is_code = number < len(code) and code[number].start < match.start()
        if not is_code and not _is_quoted(text, match):
            found.append(match)
    return found


def _is_quoted(text: str, tag: re.Match[str]) -> bool:
    return text[max(0, tag.start() - 1) : tag.start()] + text[tag.end() : tag.end() + 1] in _QUOTES


def _is_mentioned(text: str, tag: re.Match[str]) -> bool:
    """True if a sentence speaks of an opening tag, as in "the tag <think> opens it"."""
    if tag[0].startswith(("<longcat", "<|")):  # tokens of their own, which nobody writes by chance
        return False
    return _IN_SENTENCE.search(text[max(0, tag.start() - 40) : tag.start()]) is not None


# ---- fenced blocks of Markdown, as models write them: indented, quoted, unfinished ----

_FENCE = re.compile(  # possessive: no backtracking
    r"^(?P<indent>[ \t]*+(?:(?:>|(?:[-*+]|\d{1,3}[.)])(?=[ \t]))[ \t]*+)*+)"
    r"(?P<fence>`{3,}+|~{3,}+)(?P<info>[^`\n]*+)$",
    re.MULTILINE,
)
_MAX_DEEPER = 3  # columns that a fence which closes may stand to the right of the one that opens


class Block(NamedTuple):
    """`info` is what stands behind the opening fence; `body` ends with its last line's end."""

    start: int  # of the text, fences included
    end: int
    info: str
    body: str
    is_closed: bool


def blocks(text: str) -> list[Block]:
    """The blocks of a text in order, in linear time.

    A fence with an info string ends the block before it, closed or not. The body of a block loses
    the marks of a quotation and the columns that all of its lines are indented by.
    """
    if "```" not in text and "~~~" not in text:
        return []
    found: list[Block] = []
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match["fence"][0] == opened["fence"][0] and (
            len(match["fence"]) >= len(opened["fence"])
        ):
            if match["info"].strip():
                found.append(_block(text, opened, match.start(), match.start(), False))
                opened = match
            elif len(match["indent"]) <= len(opened["indent"]) + _MAX_DEEPER:
                found.append(_block(text, opened, match.start(), match.end(), True))
                opened = None
    if opened is not None:
        glued = text.find(opened["fence"], opened.end())  # `print(1)```: on the last line of it
        last = glued if glued >= 0 else len(text)
        found.append(_block(text, opened, last, len(text), False))
    return found


def unframed(text: str, *names: str) -> str:
    """The body where a text is one block without a name or with one of these; else the text."""
    found = blocks(text) if text.startswith(("```", "~~~")) else []
    is_frame = [block.end for block in found] == [len(text)]
    return found[0].body if is_frame and found[0].info.lower() in ("", *names) else text


def _block(text: str, opened: re.Match[str], body_end: int, end: int, is_closed: bool) -> Block:
    lines = text[min(opened.end() + 1, body_end) : body_end].splitlines(keepends=True)
    if ">" in opened["indent"]:
        lines = [re.sub(r"^[ \t]*> ?", "", line) for line in lines]
    margins = [len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()]
    margin = min(margins, default=0)
    body = "".join(line[margin:] if line.strip() else line.lstrip(" \t") for line in lines)
    return Block(opened.start(), end, opened["info"].strip(), body, is_closed)


_BOX = re.compile(
    r"\\(?:boxed|fbox|framebox)\s*(?:\{|(?P<bare>\d+(?:\.\d+)?|\\[A-Za-z]+|"
    r"[A-Za-z]\b(?!\s+[a-z]{2})))"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # a brace, or an escaped one, which is none
MAX_BOXES, MAX_BOX_CHARS = 64, 20_000


class Box(NamedTuple):
    start: int
    end: int
    content: str


def boxes(text: str) -> list[Box]:
    """The last boxes of a text, `\\boxed{...}` outside all others, in order.

    One that is empty or never closes is none. `\\boxed 12` without braces, as TeX has it, is one
    where no other is, so that to speak of the command is no answer.
    """
    if "box" not in text:
        return []
    found: list[Box] = []
    for match in list(_BOX.finditer(text, max(0, len(text) - 200_000)))[-MAX_BOXES:]:
        if match["bare"] is not None:
            found.append(Box(match.start(), match.end(), match["bare"]))
            continue
        depth = 1
        for brace in _BRACE.finditer(text, match.end(), match.end() + MAX_BOX_CHARS):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if not depth:
                if content := text[match.end() : brace.start()].strip():
                    found.append(Box(match.start(), brace.end(), content))
                break
    braced = [box for box in found if text[box.end - 1] == "}"] or found
    return [box for box in braced if not any(o.start < box.start < o.end for o in braced)]


def render_response(thinking: str, answer: str) -> str:
    return render(FORMS["tagged"], thinking, answer)
