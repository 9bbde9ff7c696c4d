"""Frames of a video whose landmarks are to be matched."""

__all__ = ["load_house_pairs"]

import numpy as np

from pyro_structured.datasets.argument_checks import check_number
from pyro_structured.datasets.house_frames import ARCHIVE, load_house_frames

NUM_FRAMES, MOST_LANDMARKS = 111, 30


def load_house_pairs(gap: int) -> tuple[np.ndarray, np.ndarray]:
    """Loads all pairs of frames of the CMU house sequence with a given gap, to match by shape contexts.

    The pairs come in the order of their first frames. The published split takes every third pair for training, from
    pair 0 on, those from pair 1 on for validation, and those from pair 2 on for tests. A matching by the sum of the
    features is right for this fraction of the landmarks:

    ====  =========  ==============
    gap   all pairs  training pairs
    ====  =========  ==============
    10    .999       1.000
    30    .988       .993
    60    .688       .676
    90    .460       .438
    ====  =========  ==============

    A matching by positions is right for all of them, at all of these gaps: so there are no features of positions.

    :param int gap: Difference of the frames' numbers, 1 to 110.
    :return: Squared differences of the 60 counts of :func:`load_house_frames` between the landmarks of the first and
        those of the second frame, float64, shape ``(111 - gap, 30, 30, 60)``; and for every landmark of the first frame
        its index in the second, int64, shape ``(111 - gap, 30)``, a value of
        :class:`~pyro_structured.structures.Matching`. All matchings are 0, ..., 29.
    :raises ValueError: if the gap is out of range, a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``matching/cmu_house.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    Caetano, McAuley, Cheng, Le, Smola (2009): Learning graph matching. IEEE PAMI.

    Example::

        >>> features, matchings = load_house_pairs(90)  # doctest: +SKIP
        >>> features.shape, matchings.shape  # doctest: +SKIP
        ((21, 30, 30, 60), (21, 30))
        >>> train, test = features[::3], features[2::3]  # doctest: +SKIP
    """
    check_number("gap", gap, NUM_FRAMES - 1)
    _, contexts = load_house_frames()
    if len(contexts) != NUM_FRAMES or contexts.shape[1] > MOST_LANDMARKS:
        expected = f"{NUM_FRAMES} frames of {MOST_LANDMARKS} landmarks"
        raise ValueError(f"{ARCHIVE}: expected {expected}, got {contexts.shape[0]} of {contexts.shape[1]}")
    first, second = contexts[:-gap], contexts[gap:]
    features = (first[:, :, None] - second[:, None]) ** 2
    num_pairs, num_landmarks = first.shape[:2]
    return features.astype(np.float64), np.tile(np.arange(num_landmarks), (num_pairs, 1))
