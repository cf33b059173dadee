"""Models. Each package holds one family."""
