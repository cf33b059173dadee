"""Other languages: a text is put into English before anything is looked for in it.

Only what stands beside a number or announces an answer is translated.
"""

# ruff: noqa: RUF001 - full-width signs and Cyrillic letters are what these tables are about
import re
from fractions import Fraction

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.reading import numerals

MAX_DIGITS = 40
_SIGNS = {0xFF01 + i: 0x21 + i for i in range(0x5E)} | str.maketrans({
    "。": ". ", "．": ".", "，": ", ", "、": ", ", "；": "; ", "：": ": ", "！": "! ",
    "？": "? ", "\u201c": '"', "\u201d": '"', "\u3000": " ", "\u2212": "-", "\u2236": ":",
    "٫": ".", "٬": ",", "\u00a0": " ", "\u202f": " ", "\u2009": " ",
    **dict.fromkeys("「」\u2061\u200b\u200e\u200f\u2060\ufeff", ""),
    **{chr(zero + i): str(i) for zero in (0x660, 0x966) for i in range(10)},
})  # fmt: skip

_SAID = names.patterns("languages")

# ---- what stands after a number
_POWERS = {word: int(power) for word, power in names.by_word("magnitudes").items()}
_POWERS |= {"mil millones": 9, "Thousand": 3, "Billion": 9, "Trillion": 12}
_LETTERS = {"k": 3, "K": 3, "M": 6, "m": 6, "mn": 6, "MM": 6, "B": 9, "b": 9, "bn": 9}
_UNITS = names.by_word("units")  # after a number: the English word, which `units` knows
_POWERED = {"平方": "square ", "立方": "cubic ", "квадратных ": "square ", "кубических ": "cubic "}


def _either(words) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_NUMBER = _SAID.NUMBER.pattern
_GAP = _SAID.GAP.pattern
_END = r"(?![^\W\d_\u2e80-\uffff])"  # no letter but an ideograph follows
_MAGNITUDE = (
    rf"(?:(?!千[米克瓦焦帕卡伏]|百分)(?:{_either(w for w in _POWERS if ord(w[0]) > 0x2E7F)})|"
    rf"(?:{_either(w for w in _POWERS if ord(w[0]) <= 0x2E7F)}){_END})"
)
_AMOUNT = re.compile(
    rf"(?<![\d.,])({_NUMBER})({_GAP})({_MAGNITUDE}(?:{_NUMBER}{_MAGNITUDE}){{0,4}})"
)
_PART = re.compile(rf"({_NUMBER})?({_MAGNITUDE})")
_DOLLARS = re.compile(
    rf"((?:\\?\$|[€£¥])\s?)({_NUMBER})\s?({_either(_LETTERS)})(?![A-Za-z\d]|\s*[=+*/^\\-]|[^$\n]{{0,80}}\$)"
)
_UNIT = (
    rf"(?P<{{0}}>{_either(_POWERED)})?"
    rf"(?:(?P<{{1}}>{_either(w for w in _UNITS if ord(w[0]) > 0x2E7F)})|"
    rf"(?P<{{2}}>{_either(w for w in _UNITS if ord(w[0]) <= 0x2E7F)}){_END})"
)
_MEASURED = re.compile(
    rf"(?:(?<![\d.,])(?P<whole>\d{{1,12}}),(?P<part>\d{{1,2}}))?(?:(?<=[\d)}}$])|(?<=\\pi))"
    rf"(?P<gap>{_GAP}){_UNIT.format('power', 'word', 'other')}"
    rf"(?:\s*(?:/|每|per |в |pro |por |par )\s*{_UNIT.format('below', 'under', 'beneath')})?"
)
_AMOUNTS = frozenset(word.partition(" ")[0] for word in (*_UNITS, *_POWERS) if word.isascii())
_AMOUNT_SIGNS = frozenset("".join((*_UNITS, *_POWERS))) - frozenset(map(chr, range(128)))

# ---- dates, and what announces an answer or joins two
_MORNING = ("上午", "早上", "早晨", "凌晨", "清晨", "午前", "오전")
MONTHS = str.split(
    "January February March April May June July August September October November December"
)
_MONTH_NAMES, _WEEKDAYS = names.by_word("months"), names.by_word("weekdays")
_JOINS = dict.fromkeys("和与及且", " and ") | {"或": " or "}
_LATIN = re.compile("Antwort|Endergebnis|[Rr]es?posta|[Rr]espuesta|[Rr]isposta|lternativa")

# ---- whole answers
TRUTHS = names.by_word("truths")
NOTHING = _SAID.NOTHING


def translated(text: str) -> str:
    """A response or gold with what such words say in English and in digits."""
    if "dollars" in text or ("(" in text and _AGAIN.search(text)):
        text = _IN_WORDS.sub(_amount, text)
    text = names.rewritten(text, _REAIS)
    if not text.isascii():
        text = names.rewritten(text.translate(_SIGNS), _CJK)
    if not text.isascii() or _LATIN.search(text):
        text = names.rewritten(text, _ANNOUNCED)
    if re.search(r"\d", text) is not None:
        is_measured = not (  # it may have some of the words that stand after a number
            _AMOUNT_SIGNS.isdisjoint(text) and _AMOUNTS.isdisjoint(re.findall("[A-Za-z]{2,}", text))
        )
        if is_measured:
            text = _AMOUNT.sub(_multiplied, text)
        if "$" in text or not text.isascii():
            text = _DOLLARS.sub(lambda m: m[1] + _times(m[2], 10 ** _LETTERS[m[3]]), text)
        if is_measured:
            text = _MEASURED.sub(_measured, text)
    return names.rewritten(text, _ENDS if text.isascii() else _ENDS_OF_OTHERS)


_AGAIN = re.compile(r"[a-z]\s*\((?:\\?\$)?\d[\d,./]*\)")
_IN_WORDS = re.compile(  # two dollars and five cents ($2.05); twenty chairs (20)
    rf"\b({numerals.PATTERN})(?: ([a-z]+))?(?: and ({numerals.PATTERN}|one) cents?)?"
    r"(?:\s*\((?:\\?\$)?(\d[\d,]*(?:\.\d+)?|\d+/\d+)\))?",
    re.IGNORECASE,
)


def _amount(match: re.Match[str]) -> str:
    """The amount in digits, unless those behind it in brackets are others."""
    whole, word, cents, again = match.groups()
    is_money = (word or "").lower() == "dollars"
    if again is not None and "/" in again:  # fourteen thirds (14/3)
        is_same = numerals.number_from_words(f"{whole} {word}") == Fraction(again)
        return again if is_same else match[0]
    value = Fraction(numerals.number_from_words(whole) or 0)
    value += Fraction(numerals.number_from_words(cents or "zero") or 0, 100)
    is_other = again is not None and Fraction(again.replace(",", "")) != value
    if is_other or not (is_money or again) or (cents and not is_money):
        return match[0]
    amount = f"{float(value):.2f}" if cents else _digits(value)
    return f"\\${amount}" if is_money else f"{amount} {word or ''}".strip()


def _date(match: re.Match[str]) -> str:
    year, month, day = match.groups()
    if not 1 <= int(month) <= 12:
        return match[0]
    return f" {MONTHS[int(month) - 1]} {int(day)}" + (f", {year} " if year else " ")


def _multiplied(match: re.Match[str]) -> str:
    """35000 of "3.5万", 12000 of "1万2千"; as it is where its parts do not fall."""
    total, before = Fraction(0), 100
    for count, word in _PART.findall(match[1] + match[3]):
        if _POWERS[word] >= before or len(count) > MAX_DIGITS:
            return match[0]
        before = _POWERS[word]
        total += Fraction(_plain(count, word)) * 10**before
    return _digits(total) + match[2]


def _times(count: str, factor: int) -> str:
    return count if len(count) > MAX_DIGITS else _digits(Fraction(_plain(count)) * factor)


def _plain(count: str, word: str = "") -> str:
    """Digits of a number whose comma sets thousands apart, or is that of its decimals."""
    whole, comma, decimals = count.rpartition(",")
    is_decimal = comma and "." not in count and len(decimals) != 3
    return f"{whole.replace(',', '')}.{decimals}" if is_decimal else count.replace(",", "")


def _digits(value: Fraction) -> str:
    whole, rest = divmod(value, 1)
    return f"{whole}.{int(rest * 10**MAX_DIGITS):0{MAX_DIGITS}}".rstrip("0").rstrip(".")


def _measured(match: re.Match[str]) -> str:
    unit = _POWERED.get(match["power"], "") + _UNITS[match["word"] or match["other"]]
    if under := match["under"] or match["beneath"]:
        unit += "/" + _POWERED.get(match["below"], "") + _UNITS[under]
    number = f"{match['whole']}.{match['part']}" if match["part"] else ""
    return f"{number}{match['gap'] or ' '}{unit}" + ("" if "{" in match["gap"] else " ")


_REAIS = [("$", re.compile(r"R\\?\$\s?(\d[\d.]*)(?:,(\d\d))?(?![\d,])"),
           lambda m: f"{m[1].replace('.', '')}.{m[2] or '00'} reais")]  # fmt: skip
_CJK = [  # in the order in which they rewrite
    ("分之", re.compile(r"(\d+)\s*分之\s*(\d+)"), r"\2/\1"),
    ("", _SAID.CLOCK,
     lambda m: f" {m[2]}:{int(m[3] or 0):02} {'AM' if m[1] in _MORNING else 'PM'} "),
    ("\\", re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*([年月日号])\s*\}"), r"\1"),
    ("月", re.compile(r"(?:(\d{4})\s*年\s*)?(\d{1,2})\s*月\s*(\d{1,2})\s*[日号號]"), _date),
    ("", re.compile(r"(?:星期|礼拜|周)([一二三四五六日天])(?![年岁])"),
     lambda m: f" {_WEEKDAYS[m[1]]} "),
    ("月", _SAID.MONTH, lambda m: str(numerals.number_from_words(m[0]))),
    ("根号", re.compile(r"根号\s*([一二三四五六七八九十\d]+)"),
     lambda m: f"\\sqrt{{{numerals.number_from_words(m[1]) or m[1]}}}"),
    ("百分之", re.compile(r"百分之([零一二三四五六七八九十点两]+)"),
     lambda m: _digits(Fraction(numerals.number_from_words(m[1]) or 0)) + "%"),
    ("", re.compile(r"((?:[共只]有|需要?|一共是?|总共有?)\s*)([一二三四五六七八九十两百]+)"
                    rf"(\s*{names.TABLES['rewrites']['WORDS']['C']})(?=[^\d.;,\n$]*[.\s]*\Z)"),
     lambda m: f"{m[1]}{numerals.number_from_words(m[2])}{m[3]}"),  # 共有三种方法, at the end
    ("其中", re.compile("(?s).+"),
     lambda m: _SAID.ANY_NUMBER.sub(" is any real number", m[0].replace("其中", " where "))),
    ("时", re.compile("(?<=[/每])时"), "小时"),
    *names.rewrites("CJK"),
]  # fmt: skip
_ANNOUNCED = [
    ("", _SAID.ANNOUNCED, "\nAnswer: "),
    ("【", re.compile("【[^】]{1,8}】"), "\n"),
    ("", _SAID.CHOSEN, "\nAnswer: \\1\\2.\n"),
    ("项", re.compile(r"选项\s*\(?([A-H])(?![A-Za-z])\)?|(?<![A-Za-z])([A-H])\s*选?项"),
     r"option \1\2"),
]  # fmt: skip
_ENDS = [
    *((year, re.compile(rf"(?i)(\d{{1,2}})(?:er|\.)?\s+(?:de\s+)?({'|'.join(_MONTH_NAMES)})"
                        r"(?:\s+de)?\s+(\d{4})"),
       lambda m: f"{_MONTH_NAMES[m[2].lower()]} {m[1]}, {m[3]}") for year in (" 20", " 19")),
    *names.rewrites("LATIN"),
]  # fmt: skip
_ENDS_OF_OTHERS = [
    ("", re.compile(r"(?<=[\d$)}])\s*([和与及或且])\s*(?=[\d$(\\-]|[a-zA-Z]\b)"),
     lambda m: _JOINS[m[1]]),
    ("", _SAID.SAYS, " is "),
    *_ENDS,
]  # fmt: skip
