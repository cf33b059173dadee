"""Judging answers: verdicts, verifiers, and the pool that runs them."""
