"""From text to expressions: `tokens` cut a text, `parser` builds a tree of them by rules."""
