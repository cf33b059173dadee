"""Small things for tests: tiny configuration, fake engine."""
