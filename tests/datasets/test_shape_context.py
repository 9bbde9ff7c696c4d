"""Counts of few points by hand."""

import numpy as np

from pyro_structured.datasets.shape_context import shape_contexts


def contexts_of(*others):
    """Shape context of a point at the origin: its nonzero counts by ring and sector."""
    counts = shape_contexts(np.array([[(0, 0), *others]], float))[0, 0].reshape(5, 12)
    assert counts.dtype == np.int64
    return {(int(ring), int(sector)): int(counts[ring, sector]) for ring, sector in np.argwhere(counts)}


# Further than twice the mean distance of three points, if the third is near the first.
FAR = (0, 100)


def test_sectors():
    """In the middle of a sector: from the direction of falling x on, first with falling, then with rising y."""
    for sector, angle in enumerate(np.pi + (np.arange(12) + 0.5) * np.pi / 6):
        assert contexts_of((np.cos(angle), np.sin(angle)), FAR) == {(0, sector): 1}


def test_lines_between_sectors():
    """Upper and lower half circle count alike, as seen from the direction of rising x."""
    expected = {(1, 0): 6, (0, 1): 9, (-1, 0): 11, (0, -1): 2}
    assert {point: sector for point in expected for _, sector in contexts_of(point, FAR)} == expected


def test_rings():
    """A distance at which a ring ends is outside of it.

    On a line with points at 0, 1 and d, the mean of the nine ordered pairs is 4 d / 9.
    """
    expected = {18.1: 0, 18: 1, 9.1: 1, 9: 2, 4.6: 2, 4.5: 3, 2.3: 3}
    seen = {d: min(ring for ring, _ in contexts_of((1, 0), (d, 0))) for d in expected}
    assert seen == expected
    assert contexts_of((1, 0), (4.5, 0)) == {(3, 6): 1}


def test_counts():
    found = contexts_of((1, 0.1), (1, 0.2), (-1, 0.1), (-1000, -1), (1000, 1))
    assert found == {(0, 6): 2, (0, 11): 1, (4, 0): 1, (4, 6): 1}


def test_frames_are_independent():
    points = np.random.default_rng(1).normal(size=(3, 6, 2))
    found = shape_contexts(points)
    for frame, counts in zip(points, found, strict=True):
        np.testing.assert_array_equal(shape_contexts(frame[None])[0], counts)
    np.testing.assert_array_equal(shape_contexts(7 * points - 3), found)
