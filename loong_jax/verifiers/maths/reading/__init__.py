"""From text to expressions.

`tokens` cut a text, `parser` builds a tree of them by rules: `relations`, `sums`, `postfixes`,
`primaries`, which know `numerals`, `words`, `variables`, `calls`, `commands`, `brackets`,
`integrals`, `pieces`, units and Python's `objects`. `readings` asks the parser for all that a text
may stand for, with what is written in words: `bases`, `number_words`, `word_sets`, `parameters`.
"""
