"""Author models behind any OpenAI-compatible endpoint: asked in batches, paid for once.

author       parallel requests to one endpoint, within a budget
store        requests and replies, every call on disk; a failed request is a record too
prompts      requests in words
structured   replies as JSON of an agreed shape
"""

from loong_jax.synth.authors.author import Author, AuthorDown
from loong_jax.synth.authors.store import CallStore, Reply, Request, Settings, Transcript

__all__ = ["Author", "AuthorDown", "CallStore", "Reply", "Request", "Settings", "Transcript"]
