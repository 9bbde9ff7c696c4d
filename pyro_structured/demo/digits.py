"""Binary images of handwritten digits."""

__all__ = ["Digits", "load_digits"]

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

NUM_TRAINING = 1437


class Digits(NamedTuple):
    """Zeros and ones of shape ``(number, 64)``, row by row, and the digits that the held-out images show."""

    training: Tensor
    held_out: Tensor
    held_out_labels: Tensor


def load_digits(seed: int) -> Digits:
    """Loads the 1,797 images of 8x8 pixels that scikit-learn brings along, and splits them at random.

    A pixel is on where its grey value, between 0 and 16, is at least 8.

    :param int seed: Seed of the split; 1,437 images are for training.
    """
    from sklearn import datasets

    loaded = datasets.load_digits()
    order = np.random.default_rng(seed).permutation(len(loaded.data))
    images = torch.tensor(loaded.data[order] >= 8, dtype=torch.float64)
    return Digits(images[:NUM_TRAINING], images[NUM_TRAINING:], torch.tensor(loaded.target[order][NUM_TRAINING:]))
