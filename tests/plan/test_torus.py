"""Link times against counts by hand."""

import itertools

import pytest

from loong_jax.plan.topology import CHIPS, HOP_S, LINK_EFFICIENCY, Network, Topology


def network(text: str) -> Network:
    """Devices in the order of their coordinates, the cores of a chip side by side.

    Shapes that no slice has make counts by hand short.
    """
    *slices, name = text.split()
    chip, shape = name.split(":")
    topology = Topology(
        chip=CHIPS[chip],
        shape=tuple(map(int, shape.split("x"))),
        num_slices=int(slices[0].rstrip("x")) if slices else 1,
    )
    places = itertools.product(range(topology.num_slices), *map(range, topology.shape))
    cores = topology.chip.num_devices
    return Network(topology, tuple(place for place in places for _ in range(cores)))


def rate(made: Network) -> float:
    return made.topology.chip.link_bandwidth * LINK_EFFICIENCY


def test_all_to_all_on_a_ring_of_four():
    made = network("v5p:4x1x1")
    # each sends 1 one hop each way, and halves of 1 two hops each way: 1 + 2 * 0.5 per link
    seconds = made.seconds("all-to-all", 3e9, ((0, 1, 2, 3),))
    assert seconds == pytest.approx(1e9 * 2.0 / rate(made) + 2 * HOP_S)


def test_all_to_all_on_a_line_of_four():
    made = network("v6e:4x1")  # too short to close
    # over the middle go 2 * 2 messages each way
    seconds = made.seconds("all-to-all", 3e9, ((0, 1, 2, 3),))
    assert seconds == pytest.approx(1e9 * 4 / rate(made) + 3 * HOP_S)


def test_groups_share_links():
    made = network("v5p:4x4x1")
    alone = made.seconds("all-to-all", 1e9, ((0, 1, 2, 3),))
    rows = tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(4))
    columns = tuple(tuple(range(i, 16, 4)) for i in range(4))
    assert made.seconds("all-to-all", 1e9, rows) == pytest.approx(alone)  # on links of their own
    assert made.seconds("all-to-all", 1e9, columns) == pytest.approx(alone)
    same = made.seconds("all-to-all", 1e9, ((0, 1), (2, 3), (4, 5)))
    crossed = made.seconds("all-to-all", 1e9, ((0, 2), (1, 3)))
    assert crossed - 2 * HOP_S == pytest.approx(same - HOP_S)  # two hops, half each way round


def test_gathers_use_all_axes_that_a_group_spans():
    made = network("v5p:4x4x1")
    row, plane = (0, 1, 2, 3), tuple(range(16))
    assert made.seconds("all-gather", 1e9, (row,)) == pytest.approx(
        1e9 / (2 * rate(made)) + 3 * HOP_S
    )
    assert made.seconds("reduce-scatter", 1e9, (plane,)) == pytest.approx(
        1e9 / (4 * rate(made)) + 6 * HOP_S
    )
    line = network("v6e:4x1")
    assert line.seconds("all-gather", 1e9, (row,)) == pytest.approx(1e9 / rate(line) + 3 * HOP_S)
    pair = made.seconds("all-gather", 1e9, ((0, 2), (1, 3)))  # two groups share each link
    assert pair == pytest.approx(1e9 / (2 / 2 * rate(made)) + HOP_S)


def test_devices_of_one_chip_share_its_links():
    one, two = network("v5p:4x4x4"), network("tpu7x:4x4x4")
    single = one.all_to_all_bandwidth((tuple(range(64)),))
    # both devices send to all of both: four times the messages of half the size
    both = two.all_to_all_bandwidth((tuple(range(128)),))
    assert both == pytest.approx(single, rel=0.02)
    assert two.seconds("all-gather", 1e9, ((0, 1),)) == HOP_S  # within the chip


def test_between_slices_the_data_centre_network_carries():
    made = network("2x v5p:2x2x1")
    seconds = made.seconds("all-reduce", 1e9, ((0, 4),))
    assert seconds == pytest.approx(1e9 / made.topology.chip.dcn_bandwidth, rel=1e-3)


def test_nothing_to_send_takes_no_time():
    made = network("v5p:4x4x1")
    assert made.seconds("all-gather", 0.0, ((0, 1),)) == 0
    assert made.seconds("all-gather", 1e9, ((0,),)) == 0
