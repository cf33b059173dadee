"""A problem: what is posed, and the means to check an answer to it."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

_OF_SOURCE = re.compile(r"(?<=\w)-[0-9a-f]{8}(?=/[0-9]+/[0-9]+$)")

Domain: TypeAlias = str  # an open word: what an expert is trained in, and pass rates are shown by


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One question with the means to check an answer to it.

    `gold` and `rubric` may both be absent: such a problem is checked without a reference, from
    `arguments` alone. `canonical` is equal for equal problems, however they were drawn or worded,
    and decides the split, so that equal problems never sit on both sides of it.
    """

    uid: str  # "<environment>-<its version>/<level>/<seed>"
    domain: Domain
    environment: str
    level: int
    seed: int
    canonical: str
    prompt: str
    verifier: str  # name for `loong_jax.verifiers.get_verifier`
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # JSON values
    gold: str | None = None
    rubric: str | None = None
    origin: str = "generated"
    licence: str = "Apache-2.0"
    # (role, content) of a conversation whose last message is answered; () where `prompt` is all
    messages: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"arguments": json.loads(json.dumps(self.arguments))}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Problem":
        messages = tuple((role, content) for role, content in record.get("messages", ()))
        return cls(**{**record, "uid": current_uid(record["uid"]), "messages": messages})


def current_uid(uid: str) -> str:
    """The uid as it is written now: runs of before hold a hash of source where a version stands.

    Environments of that time are version 1, and draw the same problems.
    """
    return _OF_SOURCE.sub("-1", uid)


def split_of(canonical: str, held_out_share: float = 0.1) -> Literal["train", "validation", "test"]:
    """Side of the split a canonical form falls on: a pure function of its hash.

    `held_out_share` of the problem space goes to validation, and the same again to test.
    """
    digest = hashlib.blake2b(canonical.encode(), digest_size=8).digest()
    position = int.from_bytes(digest, "big") / 2**64
    if position < held_out_share:
        return "test"
    return "validation" if position < 2 * held_out_share else "train"
