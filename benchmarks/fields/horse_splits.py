"""Splits of the horses, the score of masks, and choices by it."""

from typing import NamedTuple

import numpy as np

TRAINING, VALIDATION = 200, 64


class Split(NamedTuple):
    """Numbers of the pictures to learn from, to choose by, and to test on."""

    training: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def horse_split(seed, number=328, training=TRAINING, validation=VALIDATION):
    """200 pictures to learn from, 64 to choose by, 64 to test on: another random order for each seed."""
    order = np.random.default_rng(seed).permutation(number)
    return Split(*np.split(order, [training, training + validation]))


def overlaps(labels, masks):
    """Intersection over union of the foreground for each picture, shape ``(N,)``; 1 where both are empty."""
    labels, masks = (np.asarray(x).astype(bool).reshape(len(x), -1) for x in (labels, masks))
    union = (labels | masks).sum(1)
    return np.where(union > 0, (labels & masks).sum(1) / np.maximum(union, 1), 1.0)


def overlap(odds, masks):
    """Mean intersection over union of what is more likely foreground than not."""
    return overlaps(odds > 0, masks).mean()


def best_shift(odds, masks, shifts):
    """The number to add to all log-odds with the largest mean intersection over union, and this mean."""
    scores = [overlap(odds + shift, masks) for shift in shifts]
    return shifts[int(np.argmax(scores))], max(scores)


def log_odds_of_mean(masks):
    """Log-odds of the mean mask, with half a mask of each kind added."""
    ones = masks.sum(0, dtype=np.float64) + 0.5
    return np.log(ones) - np.log(len(masks) + 1 - ones)
