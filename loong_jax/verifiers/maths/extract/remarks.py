"""Remarks: what a response says of its answer behind it, be it a reason, an aside or a check.

"The number is 36, since 3 + 6 = 9 (and not 63). Check: ..." states 36, whose last number is another
one. A remark concludes nothing: what has a "so" or an equation of its own is none.
"""

import re

from loong_jax.verifiers.maths.reading import number_words

MAX_CHARS = 400  # of a sentence that is looked at
_WORD = rf"(?:{number_words.PATTERN}|one|half)\b"
_NUMBER = rf"(?:\d[\d.,/:]*(?<![.,/:])\s?(?:\\?%|\^\\circ|°)?|{_WORD})"
_VALUE = rf"(?:\$[^$]+\$|\\\([^()]+\\\)|[-$€£]?{_NUMBER}|\b[xyzn]\s?=\s?-?\d[\d.,]*|[)\]}}])"
_ENDS_ON_VALUE = re.compile(
    rf"{_VALUE}(?:\s\*{{0,2}}[A-Za-z\d/^{{}}²³·]+|\s?[\u4e00-\u9fff]{{1,4}}){{0,5}}"
    r"\*{0,2}\s*\Z"
)
_HAS_VALUE = re.compile(
    r"[\d$\\=√π]|\\text|\b(?:is|are|was|were|be|been|takes|falls|"
    r"faces|shows|points|becomes|ends|describes|represents|lies)\s+\w",
    re.IGNORECASE,
)
_TURNS = r"so|thus|hence|therefore|but|wait|actually|answer|result|instead"
_TURN = re.compile(
    rf"\b(?:{_TURNS})\b|=>|\\implies|\\Rightarrow|所以|因此|故|从而|于是", re.IGNORECASE
)
_CONCLUDES = re.compile(
    rf"{_TURN.pattern}|\b(?:then|now|giving|leaving|leaves|makes?|gives?|means?|total|altogether|"
    r"yields?|implies|if|or|fails?)\b|得",
    re.IGNORECASE,
)
_AMENDS = re.compile(rf"{_TURN.pattern}|\b(?:wrong|mistake|not|fails?)\b|不", re.IGNORECASE)
_COMPARED = (  # ", three times as much as her 15", ", an hour before noon", ", 3 hours of driving"
    r"(?:exactly|just|only|about|nearly|almost)?\s*(?:(?:an?|one|two|three|four|five|half|twice|"
    r"thrice|[\d.,/]+%?)\b[^,;.]{0,40}?|\w+er\s|more |less |fewer )"
    r"\b(?:than|as|of|before|after|slower|faster|later|earlier|times|above|below|with|"
    r"without)\b"
)
_TAIL = re.compile(  # what may begin a remark inside a sentence
    r"(?P<reason>,?\s+(?:because|since|due to|given that|as (?=claimed|required|desired|expected|"
    r"wanted|shown|stated|needed)|因为|由于|理由)|,\s*因为)|"
    r"(?P<contrast>,\s*(?:and\s+)?(?:not(?!\s+only)|rather than|instead of|neither)\s|"
    r",\s*(?:而?不是|而非|不等于))|"
    r"(?P<clause>,\s+(?:which(?!\s+(?:means|gives|leaves|makes|yields|implies|equals|I|we|are|"
    r"corresponds|is\s+(?!about|approx|roughly|nearly|also|twice|half|not|what|why|more|less|because|how))\b)|whose?|of which|"
    r"as(?! a | an | the | well| follows)|where|or (?=about|approx|roughly)|"
    r"with(?!\s+(?:multiplicity|an? (?:remainder|rest)))|"
    r"attained|achieved|reached|assumed|occurring|taken|having|being|including|counting|namely|"
    r"followed by|rejecting|discarding|ignoring|excluding|perpendicular|parallel|orthogonal|about|"
    r"approximately|roughly|compared|measured|rounded|assuming|using|according|corresponding|by|"
    r"up from|down from|from|"
    r"because|when|whenever|once|while|whereas|after|before|"
    r"the (?:other|rest)|all|both|each|none|no)\b|"
    rf",\s+{_COMPARED}|"
    r",\s+and (?:this|that|it(?!\s+(?:also|makes\s+an))|the (?:bound|other))\b(?=.*\d)|"
    r",\s*(?:当且仅当|其中|此时|当|比|大?约|近似|其余|余下|剩下|剩余|另外|经?检验|验证|余|舍去|排除))|"
    r"(?P<bare>\s+(?:(?:when|whenever|once|while|after|before|during|"
    r"in the (?:sequence|list|series|pattern|cycle))\s|(?:out )?of the (?=\d)))|"
    r"(?P<aside>(?<=[\s$\u4e00-\u9fff])\((?!\s*(?:mod|(?:in )?base|(?:with )?multiplicity|double|"
    r"twice|repeated|or\b|[A-H]\)))(?=[^()]*(?:[A-Za-z]{2}[^()]* |=|[\u4e00-\u9fff]|exactly|"
    r"rounded|inclusive))[^()]*\)[\s.!]*\Z)|"
    r"(?P<note>;\s+(?=[^;]*\bwould\b)|;\s+(?:\w+\s+(?:years?|days?|months?|hours?|weeks?|minutes?)\s+"
    r"(?:ago|later|earlier|from\s+now)|the\s+(?:remaining|rest|others?)|"
    r"\w+\s+(?:comes?|came|is|was|finishe[sd])\s+(?:in\s+)?(?:second|third|last|next))\b|"
    r",\s+and\s+(?:it|they|she|he)\s+(?:also|makes\s+an|arrives|leaves\s+at|reaches)\b|"
    r";\s+(?:check|indeed|note|before|earlier|otherwise|the other|for comparison)\b)",
    re.IGNORECASE,
)
_COUNTS = re.compile(  # "there are 4 solutions:", no label as "For n = 4:" or "Case 2:"
    r"(?:\b(?:is|are|was|were|be|has|have|had|takes?|took|needs?|lasts?|gets?|finds?|found|makes?|"
    r"contains?|costs?|equals?)\b|共有?|[有是为])"
)
_NO_COUNT = re.compile(
    r"\b(?:cases?|steps?|parts?|equations?|conditions?|options?|stages?)\s*\Z", re.IGNORECASE
)
_SENTENCE = re.compile(  # a sentence of its own that only checks or explains
    r"\W*(?:(?:sanity check|check|checking|verification|to (?:verify|check)|(?:as|for) a check|"
    r"proof|indeed|remark|note that|this (?:agrees|matches|checks|makes sense|is consistent|"
    r"confirms))\b|"
    r"检验|验证|经检验|验算|\((?=[^()]*[A-Za-z]{3})[^()]*\)\W*\Z)",
    re.IGNORECASE,
)
_BREAK = re.compile(r"(?<=[.!?])\s+(?=\S)|\n+(?=\S)")


def without_remarks(body: str) -> str:
    """The text up to what it states, where remarks follow that."""
    for _ in range(4):
        breaks = list(_BREAK.finditer(body, max(0, len(body) - 2 * MAX_CHARS)))
        start = breaks[-1].end() if breaks else 0
        last = body[start:]
        if breaks and _SENTENCE.match(last) and (last[0] == "(" or not _AMENDS.search(last)):
            before = body[: breaks[-1].start()]
            said = before[-MAX_CHARS:].rstrip(" .!*")
            is_aside = last[0] == "(" and re.search(r"\d[^.!?\n]*\Z", said)
            if not is_aside and _ENDS_ON_VALUE.search(said) is None:
                return body
            body = before
            continue
        if len(last) > MAX_CHARS or (cut := _cut(last)) is None:
            return body
        body = body[:start] + last[:cut].rstrip()
    return body


def _cut(sentence: str) -> int | None:
    """Where the remark begins that ends a sentence; None where none does."""
    for tail in _TAIL.finditer(sentence, 1):
        head, rest = sentence[: tail.start()], sentence[tail.end() :]
        kind = tail.lastgroup
        gives_reason = kind in ("reason", "aside") or tail[0].strip(", ")[:5] in (
            "as",
            "where",
            "which",
        )
        if not (_HAS_VALUE.search(head) or len(head.split()) < 4):
            continue
        if (_TURN if gives_reason else _CONCLUDES).search(rest):
            continue
        ends = _ENDS_ON_VALUE.search(head) is not None
        if kind == "clause" and (": " in rest or (re.search(r"\d", rest) and not ends)):
            continue
        if kind != "bare" or (ends and _may_stand(tail[0], head, rest)):
            return tail.start()
    return None


def count_before(sentence: str) -> str | None:
    """ "There are 4 solutions" of "There are 4 solutions: 1, 2, 5 and 10", for who asks for it."""
    head, colon, rest = sentence[-MAX_CHARS:].partition(": ")
    is_count = colon and head[-1:].strip() and _ENDS_ON_VALUE.search(head) and _COUNTS.search(head)
    if not is_count or _NO_COUNT.search(head) or "=" in head + rest or len(rest.split()) < 2:
        return None
    return None if _CONCLUDES.search(rest) else head


def _may_stand(word: str, head: str, rest: str) -> bool:
    """Whether "when ..." says where a value is taken: "is 0 when x = 3" may be asked for x."""
    if word.strip() in ("after", "before", "during"):
        return re.search(r"\b(?:is|are|was|will be)\b", rest) is None and len(head.split()) > 2
    return "=" not in rest or not re.search(r"=|\b0\b|zero", head)
