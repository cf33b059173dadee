"""Answers that are words, or notation that is no arithmetic."""
