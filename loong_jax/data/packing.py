"""Packing: several sequences share a row of fixed length, so one compiled program serves every
batch.

Sequences keep their order of arrival and are placed by first fit, so the same input always gives
the same rows. A sequence never crosses a row. `segment_ids` counts the sequences of a row from 1; 0
is padding.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from loong_jax.errors import ConfigError

Fields = Mapping[str, np.ndarray]  # arrays [length, ...] of one sequence; "tokens" among them
NO_PADDING: Mapping[str, int] = {}


class FirstFit:
    """Places sequences one by one, each into the first row with room for it."""

    def __init__(self, row_length: int, max_rows: int | None = None):
        self.row_length = row_length
        self.max_rows = max_rows
        self.rows: list[list[int]] = []  # the sequences of each row, by order of arrival
        self._room: list[int] = []
        self._num_placed = 0

    def place(self, length: int) -> bool:
        """Places one sequence; False, and nothing changes, where no row has room and no row may be
        added.
        """
        if not 0 < length <= self.row_length:
            raise ConfigError(
                f"a sequence has {length} tokens, a row holds 1 to {self.row_length}. Raise "
                "row_length or drop it."
            )
        row = next((r for r, free in enumerate(self._room) if free >= length), len(self.rows))
        if row == len(self.rows):
            if row == self.max_rows:
                return False
            self.rows.append([])
            self._room.append(self.row_length)
        self.rows[row].append(self._num_placed)
        self._room[row] -= length
        self._num_placed += 1
        return True


def pack(
    sequences: Sequence[Fields],
    row_length: int,
    rows_per_batch: int,
    padding: Mapping[str, int] = NO_PADDING,
) -> list[dict[str, np.ndarray]]:
    """Micro-batches of packed arrays [rows_per_batch, row_length]; the last is filled up with empty
    rows.

    Every field of the sequences, an array [length, ...], is packed, padded with zeros or what
    `padding` says by name, beside `segment_ids` and `positions` (both int32, positions restart at
    each sequence). No sequences give no micro-batches.
    """
    placing = FirstFit(row_length)
    for sequence in sequences:
        placing.place(len(sequence["tokens"]))
    rows = placing.rows
    starts = range(0, len(rows), rows_per_batch)
    return [
        _fill(sequences, rows[start : start + rows_per_batch], row_length, rows_per_batch, padding)
        for start in starts
    ]


def pack_prefix(
    sequences: Iterable[Fields], row_length: int, num_rows: int
) -> tuple[dict[str, np.ndarray], int, Fields | None]:
    """One batch from the start of a stream, how many sequences it holds, and the one left over.

    The left-over sequence is the first that fitted nowhere, already taken from the iterator: it
    belongs first in the next batch. It is None at the end of the stream.
    """
    placing = FirstFit(row_length, num_rows)
    taken: list[Fields] = []
    left_over = None
    for sequence in sequences:
        if not placing.place(len(sequence["tokens"])):
            left_over = sequence
            break
        taken.append(sequence)
    if not taken:
        raise ValueError("the stream of sequences is empty. Give at least one sequence.")
    return _fill(taken, placing.rows, row_length, num_rows), len(taken), left_over


def _fill(
    sequences: Sequence[Fields],
    rows: Sequence[Sequence[int]],
    row_length: int,
    num_rows: int,
    padding: Mapping[str, int] = NO_PADDING,
) -> dict[str, np.ndarray]:
    names = tuple(sequences[0])
    packed = {
        name: np.full((num_rows, row_length, *like.shape[1:]), padding.get(name, 0), like.dtype)
        for name, like in sequences[0].items()
    }
    packed["segment_ids"] = np.zeros((num_rows, row_length), np.int32)
    packed["positions"] = np.zeros((num_rows, row_length), np.int32)
    for row, members in enumerate(rows):
        start = 0
        for segment, index in enumerate(members, start=1):
            length = len(sequences[index]["tokens"])
            here = slice(start, start + length)
            for name in names:
                packed[name][row, here] = sequences[index][name]
            packed["segment_ids"][row, here] = segment
            packed["positions"][row, here] = np.arange(length)
            start += length
    return packed


def unpack(packed: Fields, name: str) -> list[np.ndarray]:
    """The values of one field, sequence by sequence: rows from the top, segments from the left."""
    found = []
    for row, segments in enumerate(packed["segment_ids"]):
        for segment in range(1, int(segments.max(initial=0)) + 1):
            found.append(packed[name][row, segments == segment])
    return found
