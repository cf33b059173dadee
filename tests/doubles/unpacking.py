"""What stands in packed rows, sequence by sequence."""


def unpack(packed, name):
    """The values of one field, sequence by sequence: rows from the top, segments from the left."""
    found = []
    for row, segments in enumerate(packed["segment_ids"]):
        for segment in range(1, int(segments.max(initial=0)) + 1):
            found.append(packed[name][row, segments == segment])
    return found
