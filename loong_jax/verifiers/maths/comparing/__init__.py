"""Equality of answers that look different, one kind a module, over the kinds of `nodes`."""
