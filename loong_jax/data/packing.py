"""Packing: several sequences share a row of fixed length, so one compiled program serves every
batch.

Sequences keep their order of arrival and are placed by first fit, so the same input always gives
the same rows. A sequence never crosses a row. `segment_ids` counts the sequences of a row from 1; 0
is padding.

Responses to one prompt may share it: `sharing` makes one sequence of several segments, the prompt
and then each response, whose tokens see the prompt beside their own segment.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Int

from loong_jax.errors import ConfigError

Fields = Mapping[str, np.ndarray]  # arrays [length, ...] of one sequence; "tokens" among them
NO_PADDING: Mapping[str, int] = {}


class Predicted(NamedTuple):
    """The tokens of some rows whose log-probability is asked for.

    A list for each of F equal parts of the rows, which different devices may hold. Places are
    those in the rows of the part laid end to end: token t of its row b is at b * T + t.
    """

    place: Int[Array, "F N"]  # of the token; past the last place where the list is filled up
    source: Int[Array, "F N"]  # of the position whose state predicts it


def predicted(packed: Fields, mask: Bool[np.ndarray, "B T"], parts: int = 1) -> Predicted:
    """The tokens under `mask`; lists are filled up to 1, 1/2, 1/4 or 1/8 of all places, so that
    few programs are compiled. `parts` divides the number of rows.
    """
    length = mask.shape[1]
    found_F = [np.flatnonzero(part).astype(np.int32) for part in np.split(mask, parts)]
    whole = mask.size // parts
    most = max(1, *map(len, found_F))
    num_listed = next(whole >> k for k in (3, 2, 1, 0) if whole >> k >= most)
    place: Any = np.full((parts, num_listed), whole, np.int32)
    source: Any = np.zeros((parts, num_listed), np.int32)
    for part, found in enumerate(found_F):
        place[part, : len(found)] = found
        source[part, : len(found)] = found - 1
        if "source" in packed:  # within the row
            of_part = np.split(np.asarray(packed["source"]), parts)[part]
            within = of_part.reshape(-1)[found]
            source[part, : len(found)] = found // length * length + within
    return Predicted(place, source)


def sharing(sequences: Sequence[Fields], prompt_length: int) -> dict[str, np.ndarray]:
    """One sequence that holds the prompt, with which all of `sequences` begin, once.

    The prompt is segment 1, the rest of each sequence a segment whose tokens also see that of
    `parent_ids`, 0 for none. Positions go on behind the prompt. `source` is the place of the token
    before each one: for the first of a response that is the last of the prompt.
    """
    lengths = [len(sequence["tokens"]) - prompt_length for sequence in sequences]
    rests = [np.arange(prompt_length, prompt_length + length) for length in lengths]
    segment_ids = np.repeat(np.arange(1, len(lengths) + 2), [prompt_length, *lengths])
    source = np.arange(len(segment_ids)) - 1
    source[np.cumsum([prompt_length, *lengths[:-1]])] = prompt_length - 1
    laid_out = {
        "segment_ids": segment_ids,
        "parent_ids": (segment_ids > 1).astype(np.int32),
        "positions": np.concatenate([np.arange(prompt_length), *rests]),
        "source": source,
    }
    return {
        name: np.concatenate([first[:prompt_length], *(s[name][prompt_length:] for s in sequences)])
        for name, first in sequences[0].items()
    } | {name: values.astype(np.int32) for name, values in laid_out.items()}


def place(room: list[int], length: int, row_length: int, max_rows: int | None = None) -> int | None:
    """The row of a sequence: the first with room for it, or a further one; None where there may be
    no more than `max_rows`. `room`, the free places of every row so far, is brought up to date.
    """
    if not 0 < length <= row_length:
        raise ConfigError(
            f"a sequence has {length} tokens, a row holds 1 to {row_length}. Raise "
            "row_length or drop it."
        )
    row = next((r for r, free in enumerate(room) if free >= length), len(room))
    if row == max_rows:
        return None
    if row == len(room):
        room.append(row_length)
    room[row] -= length
    return row


def pack(
    sequences: Sequence[Fields],
    row_length: int,
    rows_per_batch: int,
    padding: Mapping[str, int] = NO_PADDING,
    *,
    fits_rows: bool = False,
    parts: int = 1,
) -> list[dict[str, np.ndarray]]:
    """Micro-batches of packed arrays [rows_per_batch, row_length]; the last is filled up with empty
    rows, with `fits_rows` only to a power of two that `parts` divides, or a multiple of these.

    Every field of the sequences, an array [length, ...], is packed, padded with zeros or what
    `padding` says by name, beside `segment_ids` and `positions` (both int32, positions restart at
    each sequence). Sequences of several segments have these and what else `sharing` makes. No
    sequences give no micro-batches.
    """
    room: list[int] = []
    members: dict[int | None, list[int]] = {}  # of each row, in their order
    for index, sequence in enumerate(sequences):
        row = place(room, len(sequence["tokens"]), row_length)
        members.setdefault(row, []).append(index)
    rows = list(members.values())
    batches = [rows[i : i + rows_per_batch] for i in range(0, len(rows), rows_per_batch)]

    def height(count: int) -> int:
        if not fits_rows:
            return rows_per_batch
        fitting = 1 << (count - 1).bit_length()
        return min(rows_per_batch, -(-fitting // parts) * parts)

    return [_fill(sequences, batch, row_length, height(len(batch)), padding) for batch in batches]


def pack_prefix(
    sequences: Iterable[Fields], row_length: int, num_rows: int
) -> tuple[dict[str, np.ndarray], int, Fields | None]:
    """One batch from the start of a stream, how many sequences it holds, and the one left over.

    The left-over sequence is the first that fitted nowhere, already taken from the iterator: it
    belongs first in the next batch. It is None at the end of the stream.
    """
    room: list[int] = []
    members: dict[int, list[int]] = {}
    taken: list[Fields] = []
    left_over = None
    for sequence in sequences:
        row = place(room, len(sequence["tokens"]), row_length, num_rows)
        if row is None:
            left_over = sequence
            break
        members.setdefault(row, []).append(len(taken))
        taken.append(sequence)
    return _fill(taken, list(members.values()), row_length, num_rows), len(taken), left_over


def _fill(
    sequences: Sequence[Fields],
    rows: Sequence[Sequence[int]],
    row_length: int,
    num_rows: int,
    padding: Mapping[str, int] = NO_PADDING,
) -> dict[str, np.ndarray]:
    packed = {
        name: np.full((num_rows, row_length, *like.shape[1:]), padding.get(name, 0), like.dtype)
        for name, like in sequences[0].items()
    }
    packed["segment_ids"] = np.zeros((num_rows, row_length), np.int32)
    packed["positions"] = np.zeros((num_rows, row_length), np.int32)
    for row, members in enumerate(rows):
        start = num_segments = 0
        for sequence in (sequences[index] for index in members):
            length = len(sequence["tokens"])
            here = slice(start, start + length)
            one = {"segment_ids": np.ones(length, np.int32), "positions": np.arange(length)}
            for name, values in (one | dict(sequence)).items():
                packed[name][row, here] = values
            packed["segment_ids"][row, here] += num_segments
            if "parent_ids" in sequence:
                packed["parent_ids"][row, here] += num_segments * (sequence["parent_ids"] > 0)
                packed["source"][row, here] += start
            num_segments = packed["segment_ids"][row, start + length - 1]
            start += length
    return packed
