"""Author models behind any OpenAI-compatible endpoint: asked in batches, paid for once.

prompts, records   requests and replies; a failed request is a record too
author             parallel requests to one endpoint, within a budget
store              every call on disk, before its reply is used
structured         replies as JSON of an agreed shape
"""

from loong_jax.synth.authors.author import Author, AuthorDown
from loong_jax.synth.authors.records import Reply, Request, Settings, Transcript
from loong_jax.synth.authors.store import CallStore

__all__ = ["Author", "AuthorDown", "CallStore", "Reply", "Request", "Settings", "Transcript"]
