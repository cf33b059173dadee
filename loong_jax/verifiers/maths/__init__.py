"""Expressions: our own parser, and a ladder of equality.

`reading` makes an expression of a text, `wording` knows answers in words. `matching` compares by
the kind of the gold, other forms of the same thing, sets and functions among them; with `values`
(exact, then numeric, then identities, by the `evaluator`), and `symbolic`, sympy in a child
process, last. `names`, `units` and `languages` know the words, patterns and rewritings of
`tables.toml`.
"""
