"""Shape contexts: histograms of the positions of the other points of a set, seen from each point."""

__all__ = ["shape_contexts"]

import numpy as np

# Distances at which the rings end, as multiples of the mean distance, from the inside.
RADII = (1 / 8, 1 / 4, 1 / 2, 1, 2)
NUM_SECTORS = 12
NUM_BINS = len(RADII) * NUM_SECTORS


def shape_contexts(points: np.ndarray) -> np.ndarray:
    """Numbers of other points in five rings of twelve sectors around every point.

    The mean distance is over all ordered pairs of points, those of a point with itself included. Points beyond the last
    ring are not counted. Cost O(frames n²) for n points.

    :param numpy.ndarray points: Positions, shape ``(frames, n, 2)``.
    :return: Counts, int64, shape ``(frames, n, 60)``: the sectors of the innermost ring first. The first sector starts
        at the direction of falling x, and the second coordinate falls from there.

    **References**

    Belongie, Malik, Puzicha (2002): Shape matching and object recognition using shape contexts. IEEE PAMI.
    """
    offsets = points[:, None] - points[:, :, None]
    distances = np.linalg.norm(offsets, axis=-1)
    rings = np.searchsorted(RADII, distances / distances.mean((1, 2), keepdims=True), side="right")
    half = NUM_SECTORS // 2
    # The published contexts count a point on the line between two sectors so: both halves of the circle alike.
    steps = (np.arctan2(abs(offsets[..., 1]), offsets[..., 0]) / (np.pi / half)).astype(int).clip(max=half - 1)
    sectors = np.where(offsets[..., 1] < 0, half - 1 - steps, half + steps)
    bins = rings * NUM_SECTORS + sectors
    counted = (bins[..., None] == np.arange(NUM_BINS)) & ~np.eye(points.shape[1], dtype=bool)[..., None]
    counts: np.ndarray = counted.sum(2)
    return counts
