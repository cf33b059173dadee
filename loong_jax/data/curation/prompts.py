"""Rules on what is asked: incomplete, in several parts, a choice, external, conceptual.

What LongCat-Flash-Thinking screens out of prompts (A.1: URLs, several tables, HTML and XML tags;
A.2.1: incomplete statements and conceptual queries; 3.4.1: multi-part, multiple-choice and
true/false questions, which a lucky guess answers). Each rule reads English and LaTeX; other
languages pass them, save where the form alone tells. Where they err: docs/how-to/curation.md.
"""

import dataclasses
import itertools
import re

from loong_jax.data.curation.stages import Record, prompt_of, text_of

_WORD = re.compile(r"[^\W\d_]+")
_TASK = (
    r"find|compute|determine|calculate|evaluate|solve|simplify|express|estimate|prove|show|list|"
    r"write|give|state|what|how|which|who|when|where|why|is|are|does|do|can|let|name|draw|sketch|"
    r"describe|explain|derive|identify|verify|obtain|factor|expand|plot|deduce|construct"
)
# A label of an item where one may begin: at the start, after white space, a stop or a dollar sign.
_LABEL = re.compile(
    r"(?:^|(?<=[\s.;:?,$]))(?:[(\[]([A-Ha-h]|[ivx]{1,4}|[IVX]{1,4}|[1-9])[)\]]|"
    r"([A-Ha-h]|[ivx]{1,4}|[IVX]{1,4}|[1-9])[).:](?=[ \t]))",
    re.MULTILINE,
)
_LATEX_LABEL = re.compile(r"\\(?:text|textbf|mathrm|bf)\s?\{\s*(?:\([A-Ha-h]\)|[A-Ha-h][).])\s*\}")
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii")


# ---- incomplete

_LEFT_HANGING = frozenset(
    re.findall(
        r"\w+",
        "a an the of and or but with by for from to in on at as is are was were be that which "
        "where when if then than such into between equals equal has have its their let",
    )
)
_MISSING_CONTEXT = re.compile(
    r"\b(?:(?:shown|depicted|illustrated|pictured|given|drawn) (?:in|on) the "
    r"(?:\w+ )?(?:figure|diagram|picture|image|graph|sketch|drawing|map)"
    r"|(?:figure|diagram|picture|image|graph|drawing|table|passage|sketch) "
    r"(?:above|below|at (?:the )?right|at (?:the )?left|on the right|on the left|is shown|shown)"
    r"|(?:the|this|see|in|refer to|from) (?:following |adjacent |accompanying |attached |above )"
    r"(?:figure|diagram|picture|image|graph|passage|sketch|drawing)"
    r"|(?:see|in|refer to|from|using) (?:figure|fig\.|diagram|exhibit|appendix|table|chart) ?\d+"
    r"|in the (?:figure|diagram|picture|image|photo|drawing)|(?:using|from) the (?:graph|chart)"
    r"|(?:the )?(?:previous|preceding|last|earlier|above) "
    r"(?:problem|question|exercise|part|example)"
    r"|(?:in|from|of|to|see) (?:exercise|problem|question|example|part) \(?(?:\d+|[a-h]\b))\b"
    r"|!\[[^\]]*\]\(|\\includegraphics",
    re.IGNORECASE,
)
_FORMULA = re.compile(r"\$|\\\[|\\\(|\d\s?[-+*/=^<>]|[-+*/=^<>]\s?\d")
_POINTER = re.compile(  # one of these is in all of the above: cheaper to look for
    r"fig|gra[pm]|pict|imag|table|pass|sket|draw|map|exhi|app|prob|quest|exer|exam|part|!", re.I
)
_DRAWN = re.compile(r"\[asy\]|\\begin\{tikz")  # a figure in words
# UTF-8 read as Latin-1 or Windows-1252, replacement characters, control characters.
_GARBLED = re.compile(r"\ufffd|\u00c3[\u0080-\u00bf]|\u00e2\u20ac.|\u00e2\u0080[\u0080-\u00bf]"
                      r"|\u00c2[\u00a0-\u00bf]|[\x00-\x08\x0e-\x1f\x7f]")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Incomplete:
    """Drops prompts that are cut off, garbled, or speak of what is not there.

    Reasons: `too short`, `cut off` (ends in a word or mark that something must follow), `unclosed`
    (brackets, dollar signs), `missing context` (a figure, an earlier exercise), `garbled`, `asks
    nothing` (no question and no word that asks, of a prompt in Latin letters).
    """

    name: str = "incomplete"
    min_words: int = 3  # of letters

    def reason(self, record: Record) -> str | None:
        text = prompt_of(record).strip()
        words = _WORD.findall(text)
        has_cjk = any("\u3040" <= c <= "\u9fff" for c in text)
        is_formula = bool(words) and bool(_FORMULA.search(text))
        is_short = len(words) < self.min_words and not is_formula
        if is_short and not (has_cjk and len(text) >= 2 * self.min_words):
            return "too short"
        if _GARBLED.search(text):
            return "garbled"
        found = _POINTER.search(text) and _MISSING_CONTEXT.search(text)
        if found and not _DRAWN.search(text):
            return f"missing context: {found[0][:40]}"
        if _is_cut_off(text):
            return "cut off"
        if _is_unclosed(text):
            return "unclosed"
        return "asks nothing" if words and not has_cjk and not _asks(text) else None


# In any language with Latin letters a question mark asks; the verbs are English.
_ASKS = re.compile(
    r"[?\uff1f=]|\b(?:find|compute|determine|calculate|evaluate|solve|simplify|express|estimate|show|"
    r"list|write|give|state|what|how|name|draw|sketch|describe|explain|derive|identify|verify|obtain|"
    r"factor|expand|plot|deduce|construct|many|much|far|long|old|prove|complete|translate|answer|implement|"
    r"design|convert|round|rank|sort|classify|choose|select|predict|suggest|recommend|create|return|"
    r"why|add|subtract|multiply|divide|reduce|enter|rationali[sz]e|arrange|order|fill|"
    r"print|output|maximi[sz]e|minimi[sz]e)\b|[^\x00-\u024f\u2000-\u2bff]",
    re.IGNORECASE,
)
# "Rationalize the ...", "Price a ...": a sentence that begins with a verb, as far as form tells.
_COMMANDS = re.compile(
    r"(?:^|[.!]\s+)(?!(?:In|On|At|For|From|To|Of|By|With|As|If|When|Since|Given|Let|After|Before|While|"
    r"Over|Under|Into|About|All|Both|Each|Such|That|This|These|Then|And|Or|But|Is|Are|Was|Were|Has|"
    r"Have|Here|There|Suppose|Assume|Consider|Now)\b)[A-Z][a-z]+ (?:the|an?|this|these|all|each)\b"
)


def _asks(text: str) -> bool:
    return "?" in text or "=" in text or bool(_ASKS.search(text) or _COMMANDS.search(text))


def _is_cut_off(text: str) -> bool:
    if text.endswith((",", ";", ":", "...", "\u2026", "=", "+", "\\", "(", "[", "{")):
        # "Find the next term: 1, 4, 9, ..." goes on by intent.
        goes_on = re.search(r"\d\s*,\s*(?:\.\.\.|\u2026|\\ldots|\\dots)$", text)
        return not re.search(r"\\\s*$", text[:-1]) and not goes_on
    last = re.search(r"([^\W\d_]+)$", text)
    # "what is x in terms of a" ends in a name, so single letters hang only where they are "a" in
    # prose: after a word that an article may follow.
    if last is None or "$" in text[-12:]:
        return False
    word = last[1].lower()
    if word == "a":
        before = re.search(r"([^\W\d_]+)\s+a$", text.lower())
        return before is not None and before[1] in _LEFT_HANGING | {"find", "has", "draws", "makes"}
    return word in _LEFT_HANGING


def _is_unclosed(text: str) -> bool:
    if text.replace(r"\$", "").count("$") % 2 and not re.search(r"\$\s?\d", text):
        return True
    plain = text.replace(r"\{", "").replace(r"\}", "")
    if plain.count("{") != plain.count("}"):
        return True
    # Intervals such as [0, 1) balance over both kinds together; labels "a)" only close.
    return plain.count("(") + plain.count("[") > plain.count(")") + plain.count("]")


# ---- several parts, choices, true or false


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiPart:
    """Drops prompts that ask for several things.

    Reasons: `labelled parts`, `several questions`, `several tasks`.
    """

    name: str = "multi_part"

    def reason(self, record: Record) -> str | None:
        text = prompt_of(record)
        _, items = labelled_items(text)
        if sum(_is_task(item) for item in items) >= 2:
            return "labelled parts"
        if re.search(r"\bpart (?:a|1|i|one)\b.*\bpart (?:b|2|ii|two)\b", text, re.I | re.S):
            return "labelled parts"
        if len(_QUESTION_END.findall(text)) >= 2:
            return "several questions"
        return "several tasks" if _ALSO.search(text) else None


_ALSO = re.compile(
    r"\b(?:also|and then|then also|additionally|in addition|secondly)[,]? "
    r"(?:find|compute|determine|calculate|evaluate|state|give|prove|show|explain|what is)\b"
    r"|\band (?:find|compute|determine|calculate|evaluate|explain|prove)\b"
    r"(?! (?:the|their|its) (?:sum|product|number|total|average))"
    r"(?! (?:how many|which|the number) of (?:them|these|those))"
    r"|(?:^|[.!?] )(?:next|finally|lastly|afterwards), "
    r"(?:find|compute|determine|calculate|evaluate)\b"
    r"|\b(?:what|how many|how much|which)\b[^?.]* and "
    r"(?:what|how (?:many|much|far|long)|which)\b[^?]*\?"
    r"|\bdo the following\b|\banswer (?:both|all|each|the following questions)\b",
    re.IGNORECASE,
)


# A question mark at the end of a sentence: the text ends, or a capital or sign follows.
_QUESTION_END = re.compile(r"\w[)\]}$\"'\u201d]*\s?[?\uff1f](?=\s*$|\s+[A-Z(\\$\d]|\s*\n)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoice:
    """Drops prompts that offer the answers to choose from.

    Reasons: `options`, `which of the following`.
    """

    name: str = "multiple_choice"
    min_options: int = 3

    def reason(self, record: Record) -> str | None:
        text = prompt_of(record)
        order, items = labelled_items(text)
        words = max((item.count(" ") + 1 for item in items[:-1]), default=0)
        is_list = order == "numerals" or words > (_MAX_OPTION_WORDS if order == "letters" else 3)
        if len(items) >= self.min_options and not is_list and not any(map(_is_task, items)):
            return "options"
        if len(_LATEX_LABEL.findall(text)) >= self.min_options:
            return "options"
        return "which of the following" if _WHICH.search(text) else None


_MAX_OPTION_WORDS = 30  # longer ones are a list of facts; numbered options are shorter still
_WHICH = re.compile(
    r"\bwhich (?:one )?of (?:the following|these|the (?:options|statements|choices|answers))\b"
    r"|(?:^|[.?!:]\s+)(?:please )?(?:choose|select|pick|circle) "
    r"(?:the|one|all|an?) (?:\w+ )?(?:option|answer|choice|letter|statement|alternative)s?\b"
    r"|\b(?:mark|pick|circle|tick) one\b|\boption (?:1|a)\b.*\boption (?:2|b)\b"
    r"|\banswer choices\b|(?:^|\n|[.?!] )(?:options|choices) ?:|\u4e0b\u5217.{0,20}\u7684\u662f",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrueFalse:
    """Drops questions with two possible answers: `asks for a verdict`, `gold is a verdict`."""

    name: str = "true_false"

    def reason(self, record: Record) -> str | None:
        gold = text_of(record, "gold").strip().strip(".$").lower()
        gold = re.sub(r"^\\(?:text|textbf|mathrm)\{\s*(\w+)\s*\}$", r"\1", gold)
        if gold in _VERDICTS:
            return "gold is a verdict"
        return "asks for a verdict" if _VERDICT.search(prompt_of(record)) else None


_VERDICTS = frozenset(
    re.findall(
        r"\S+",
        "true false yes no correct incorrect t f right wrong \u5bf9 \u9519 \u662f \u5426 "
        "\u6b63\u786e \u9519\u8bef \u221a \u00d7",
    )
)
_VERDICT = re.compile(
    r"(?:\btrue (?:or|/) false\b|\bt(?: ?/ ?| or )f\b|\b(?:yes|true) ?/ ?(?:no|false)\b"
    r"|\byes or no\b)"
    r"(?! (?:questions?|items?|tests?|quiz|exams?|problems?|statements?))"
    r"|(?:^|[.?!:;]\s+)(?:is|are) (?:it|this|the following|these) (?:\w+ )?"
    r"(?:statements? |claims? )?(?:true|false|correct|valid|sound)\b"
    r"|\b(?:state|decide|determine|say|judge|indicate|tell) (?:whether|if) "
    r"(?:the|this|each|it|or not)\b[^.?]*\b(?:true|false|correct|valid|holds?)\b"
    r"|\bprove or disprove\b|(?:^|[.?!]\s+)is it possible\b"
    r"|\u5224\u65ad(?:\u9898|\u5bf9\u9519|\u6b63\u8bef)",
    re.IGNORECASE,
)


def labelled_items(text: str) -> tuple[str, list[str]]:
    """The texts after consecutive labels: (a) ... (b) ..., A. ... B. ..., i) ... ii) ..., 1. ...

    The longest run of labels that counts from the first, with the kind of its labels: letters,
    numerals or digits; [] where no two follow one another.
    """
    found = [(m.start(), m.end(), m[1] or m[2]) for m in _LABEL.finditer(text)]
    best: list[str] = []
    kind = ""
    firsts = [place for place, mark in enumerate(found) if mark[2] in ("a", "A", "i", "I", "1")]
    for first, (name, order) in itertools.product(firsts, _ORDERS.items()):
        if order(found[first][2]) == 1:
            run = _run(found[first:], order)
            if len(run) > max(1, len(best)):
                ends = [start for start, _, _ in run[1:]] + [len(text)]
                best = [text[m[1] : end].strip() for m, end in zip(run, ends, strict=True)]
                kind = name
    return kind, best


def _run(found, order) -> list[tuple[int, int, str]]:
    """The labels from the first on that count 1, 2, 3 in one order; others between are passed."""
    run: list[tuple[int, int, str]] = []
    for mark in found:
        if order(mark[2]) == len(run) + 1 and (not run or run[0][2].isupper() == mark[2].isupper()):
            run.append(mark)
    return run


_ORDERS = {  # the number that a label stands for; 0 for none
    "letters": lambda label: ord(label.lower()) - 96 if len(label) == 1 and label.isalpha() else 0,
    "numerals": lambda label: _ROMAN.index(label.lower()) + 1 if label.lower() in _ROMAN else 0,
    "digits": lambda label: int(label) if label.isdigit() else 0,
}


def _is_task(item: str) -> bool:
    return "?" in item or bool(re.match(rf"(?:\W*)(?:{_TASK})\b", item, re.IGNORECASE))


# ---- external, conceptual


@dataclasses.dataclass(frozen=True, kw_only=True)
class External:
    """Drops prompts that rely on markup or places elsewhere: `url`, `html`, `table`, `image`."""

    name: str = "external"
    max_tables: int = 0

    def reason(self, record: Record) -> str | None:
        text = prompt_of(record)
        if _URL_PART.search(text) and _URL.search(text):
            return "url"
        if _HTML.search(text):
            return "html"
        if _IMAGE.search(text):
            return "image"
        num_tables = len(_TABLE_RULE.findall(text)) + len(_TABULAR.findall(text))
        if "|" in text and not num_tables:
            num_tables += bool(_PIPES.search(text))
        num_tables += "\t" in text and bool(_TABS.search(text))
        num_tables += "  " in text and bool(_COLUMNS.search(text))
        return "table" if num_tables > self.max_tables else None


_URL_PART = re.compile(r"\.(?:com|org|net|edu|gov|io|htm|php)|www\.|://", re.IGNORECASE)
_URL = re.compile(
    r"(?:https?|ftp)://\S|\bwww\.[a-z0-9-]+\.[a-z]|"
    r"\b(?:[a-z0-9-]+\.)*[a-z][a-z0-9-]*\.(?:com|org|net|edu|gov|io|html?|php)\b(?:/\S*)?",
    re.IGNORECASE,
)
_HTML = re.compile(
    r"</?(?:div|p|br|hr|span|table|t[rdh]|thead|tbody|a|img|b|i|u|em|strong|su[bp]|ul|ol|li|h[1-6]|"
    r"font|center|script|style|input|form|iframe|code|pre|html|body|head|section|article)\b"
    r"(?:\s+[\w-]+\s*=[^<>]*)?\s*/?>|<([a-z][\w-]{2,})(?:\s[^<>]*)?>.*?</\1>|&(?:nbsp|lt|gt|amp|quot|"
    r"#\d{2,5});|<!--",
    re.IGNORECASE | re.DOTALL,
)
_IMAGE = re.compile(r"!\[[^\]]*\]\(|\.(?:png|jpe?g|gif|svg)\b", re.IGNORECASE)
_TABLE_RULE = re.compile(
    r"^[ \t]*\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)+\|?[ \t]*$", re.MULTILINE
)
_TABULAR = re.compile(r"\\begin\{(?:tabular|longtable|table)\*?\}|<table\b", re.IGNORECASE)
_TABS = re.compile(r"(?:^[^\t\n]+(?:\t[^\t\n]+)+[ \t]*$\n?){2,}", re.MULTILINE)
_COLUMNS = re.compile(r"(?:^\S+(?: \S+)?(?: {2,}\S+)+[ ]*$\n?){3,}", re.MULTILINE)
_PIPES = re.compile(r"(?:^[ \t]*\|(?:[^|\n]+\|){2,}[ \t]*$\n?){2,}", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conceptual:
    """Drops what no answer can be compared with: `essay`, `proof`. Keeps those with a rubric.

    A proof that is a step towards a gold answer is none.
    """

    name: str = "conceptual"

    def reason(self, record: Record) -> str | None:
        if record.get("rubric"):
            return None
        text = prompt_of(record)
        if _PROOF.search(text) and "?" not in text and not text_of(record, "gold"):
            return "proof"
        if _ESSAY.search(text) or (_WHAT_IS.search(text) and not text_of(record, "gold")):
            return "essay"
        if _ABOUT.search(text) and not re.search(r"\d|\$", text):
            return "essay"
        return None


_PROOF = re.compile(r"\b(?:prove|show|disprove|verify|demonstrate) that\b|\bgive a proof\b", re.I)
_ESSAY = re.compile(
    r"(?:^|[.?!]\s+)(?:please )?(?:(?:explain|describe|discuss|compare and contrast|outline|"
    r"elaborate|summari[sz]e|give an overview)\b|define (?:what|[a-z]{4,}(?![\w(])|"
    r"the (?:term|concept|notion))"
    r"|write (?:an?|one) (?:\w+ )?(?:essay|article|paragraph|story|poem)\b|why\b)"
    r"|^(?:tell me about|compare (?:the|an?|and)|how (?:does|do) [^\d$?]* works?\?)|\bjustify\b"
    r"|\bwhat (?:is meant by|do you understand by|do we mean by|is the meaning of)\b",
    re.IGNORECASE,
)
_WHAT_IS = re.compile(r"^what (?:is|are) (?:an? |the )?[a-z]{4,}(?: [a-z]{4,})?\?$", re.IGNORECASE)
_ABOUT = re.compile(  # of formulas, these ask for a number
    r"\bwhat (?:is|are) the "
    r"(?:advantages|disadvantages|difference between|importance|significance|role)\b",
    re.IGNORECASE,
)
