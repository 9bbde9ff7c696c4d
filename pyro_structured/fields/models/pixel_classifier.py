"""Log-odds of the pixels' labels from their descriptors."""

__all__ = ["PixelClassifier"]

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, silu
from tqdm import tqdm

from pyro_structured.foundation.models.argument_checks import checked_masks
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.structures.argument_checks import check_size

# Pixels for a step of the training; where there are few, a pass takes this many steps.
BATCH_SIZE, FEWEST_STEPS = 1024, 20
# Pixels whose log-odds are computed at a time.
CHUNK = 2**15


class PixelClassifier(BaseEstimator):  # type: ignore[misc]
    r"""Classifies pixels one by one: a network with one hidden layer sees the descriptor of each.

    .. math::
        \log \frac{p(y = 1 \mid x)}{p(y = 0 \mid x)} = b + \sum_k v_k\, s(c_k + w_k \cdot x), \qquad
        s(a) = \frac{a}{1 + e^{-a}},

    where x are the features, standardised over all pixels. The weights come from a fixed number of passes of Adam over
    all pixels in random order, with decoupled weight decay and steps that shrink along half a cosine; they minimise the
    logistic loss of the pixels, each of which counts the same. Pixels of a class that is rare therefore need log-odds
    well below zero to be told apart best by intersection over union: a threshold chosen on other pictures does what
    weights of the classes would.

    What is learned on top of the log-odds, such as pairwise terms, should see those of pictures that the network has
    not: :meth:`cross_decision_function`.

    :param int num_hidden: Number of hidden units K.
    :param float weight_decay: What a step takes off the weights, for each unit of the step's size; at least 0.
    :param float learning_rate: Size of the first step, positive.
    :param int num_epochs: Passes over all pixels.
    :param random_state: Seed, or ``numpy.random.RandomState``: of the first weights, of the order of pixels, and of the
        folds. Torch's generator stays as it is.
    :ivar int n_features_in\_: Number of features F.

    Cost O(pixels · F · K) for a pass; in float32. The training nears a local minimum; nothing checks how close it came.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Chapter 5.
    Loshchilov, Hutter (2019): Decoupled weight decay regularization. ICLR.

    Example::

        >>> masks = np.random.default_rng(0).random((20, 16, 16)) < 0.5
        >>> features = np.stack([masks + 0.1, 1 - masks], -1)
        >>> classifier = PixelClassifier(random_state=0).fit(features, masks)
        >>> bool(((classifier.decision_function(features) > 0) == masks).all())
        True
    """

    def __init__(
        self,
        num_hidden: int = 50,
        *,
        weight_decay: float = 0.1,
        learning_rate: float = 0.01,
        num_epochs: int = 6,
        random_state: Any = None,
    ) -> None:
        self.num_hidden = num_hidden
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.num_epochs = num_epochs
        self.random_state = random_state

    def fit(self, features: Any, masks: Any) -> "PixelClassifier":
        """Learns the weights.

        :param features: Numbers, shape ``(N, H, W, F)``.
        :param masks: Zeros and ones, of both some, shape ``(N, H, W)``.
        :raises ValueError: if a parameter is out of range, or shapes do not fit.
        """
        self._check_parameters()
        pictures = _checked_features(features)
        labels = checked_masks(masks, pictures.shape[:3])
        if labels.all() or not labels.any():
            raise ValueError("masks: expected zeros and ones, got only one of them")
        self.n_features_in_ = pictures.shape[-1]
        seed = int(checked_generator(self.random_state).randint(2**31))
        self._weights = self._train(pictures.reshape(-1, self.n_features_in_), labels.ravel(), seed)
        return self

    def _check_parameters(self) -> None:
        for name in ("num_hidden", "num_epochs"):
            check_size(name, getattr(self, name))
        for name, least in (("weight_decay", "at least 0"), ("learning_rate", "more than 0")):
            value = getattr(self, name)
            if (
                not isinstance(value, Real)
                or not 0 <= float(value) < math.inf
                or (value == 0 and least != "at least 0")
            ):
                raise ValueError(f"{name}: expected a number of {least}, got {value!r}")

    # Also where gradients are switched off.
    @torch.inference_mode(False)
    @torch.enable_grad()
    def _train(self, rows: np.ndarray, labels: np.ndarray, seed: int) -> list[Tensor]:
        """Weights of the two layers, for features as they are given."""
        means, scales = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
        constant = scales <= np.maximum(1e-6 * np.abs(means), np.finfo(np.float32).tiny)
        scales[constant] = 1.0
        means, scales = means.astype(np.float32), scales.astype(np.float32)
        inputs = torch.from_numpy((rows - means) / scales)
        targets = torch.from_numpy(labels.astype(np.float32))
        generator = torch.Generator().manual_seed(seed)
        weights = _first_weights(inputs.shape[1], self.num_hidden, generator)
        size = min(BATCH_SIZE, math.ceil(len(inputs) / FEWEST_STEPS))
        decayed: list[dict[str, Any]] = [{"params": weights[::2]}, {"params": weights[1::2], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(decayed, lr=self.learning_rate, weight_decay=self.weight_decay)
        steps = self.num_epochs * math.ceil(len(inputs) / size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(self.num_epochs):
            for batch in torch.randperm(len(inputs), generator=generator).split(size):
                optimizer.zero_grad()
                loss = binary_cross_entropy_with_logits(_log_odds(inputs[batch], weights), targets[batch])
                loss.backward()
                optimizer.step()
                schedule.step()
        inner, shift, outer, bias = (each.detach() for each in weights)
        inner = inner / torch.from_numpy(scales)[:, None]
        return [inner, shift - torch.from_numpy(means) @ inner, outer, bias]

    def decision_function(self, features: Any) -> np.ndarray:
        """Log-odds that pixels are foreground, float32, shape ``(N, H, W)``.

        :param features: As for :meth:`fit`, with the same F.
        """
        check_is_fitted(self)
        pictures = _checked_features(features)
        if pictures.shape[-1] != self.n_features_in_:
            raise ValueError(f"features: expected {self.n_features_in_} for each pixel, got {pictures.shape[-1]}")
        rows = torch.from_numpy(pictures.reshape(-1, self.n_features_in_))
        with torch.no_grad():
            parts = [_log_odds(part, self._weights) for part in rows.split(CHUNK)]
        odds: np.ndarray = torch.cat(parts).numpy()
        return odds.reshape(pictures.shape[:3])

    def cross_decision_function(self, features: Any, masks: Any, num_folds: int = 5) -> np.ndarray:
        """Log-odds of the pixels of each picture by a classifier that has learned from other pictures.

        Pictures are parted into folds at random; for each fold, a copy of this classifier learns from all others. This
        one stays as it is.

        :param features: As for :meth:`fit`.
        :param masks: As for :meth:`fit`.
        :param int num_folds: Number of folds, from 2 to the number of pictures.
        :return: float32, shape ``(N, H, W)``. The cost is about that of ``num_folds - 1`` calls of :meth:`fit`.
        :raises ValueError: as for :meth:`fit`, or if the number of folds is out of range.
        """
        pictures = _checked_features(features)
        labels = checked_masks(masks, pictures.shape[:3])
        check_size("num_folds", num_folds)
        if not 2 <= num_folds <= len(pictures):
            raise ValueError(f"num_folds: expected 2 to {len(pictures)}, the number of pictures, got {num_folds}")
        random = checked_generator(self.random_state)
        order = random.permutation(len(pictures))
        found = np.empty(labels.shape, dtype=np.float32)
        for fold in tqdm(np.array_split(order, num_folds), desc="folds", disable=None, leave=False):
            others = np.setdiff1d(order, fold)
            if labels[others].all() or not labels[others].any():
                raise ValueError(
                    "masks: expected zeros and ones in the pictures outside every fold, got only one of them"
                )
            copied = clone(self).set_params(random_state=int(random.randint(2**31)))
            found[fold] = copied.fit(pictures[others], labels[others]).decision_function(pictures[fold])
        return found


def _checked_features(features: Any) -> np.ndarray:
    """Finite float32, or a ValueError."""
    try:
        # Torch takes neither axes that go backwards nor what must not be written to.
        with np.errstate(over="ignore"):
            found: np.ndarray = np.require(features, dtype=np.float32, requirements=["C", "W"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"features: expected numbers, got others: {error}") from None
    if found.ndim != 4 or 0 in found.shape:
        raise ValueError(f"features: expected shape (N, H, W, F), not empty, got {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("features: expected finite numbers, got others")
    return found


def _first_weights(num_features: int, num_hidden: int, generator: torch.Generator) -> list[Tensor]:
    """Random ones that keep the scale of the inputs, and shifts of zero."""
    weights = [
        torch.randn(num_features, num_hidden, generator=generator, dtype=torch.float32) / math.sqrt(num_features),
        torch.zeros(num_hidden, dtype=torch.float32),
        torch.randn(num_hidden, generator=generator, dtype=torch.float32) / math.sqrt(num_hidden),
        torch.zeros((), dtype=torch.float32),
    ]
    return [each.requires_grad_() for each in weights]


def _log_odds(inputs: Tensor, weights: list[Tensor]) -> Tensor:
    inner, shift, outer, bias = weights
    return silu(torch.addmm(shift, inputs, inner)) @ outer + bias
