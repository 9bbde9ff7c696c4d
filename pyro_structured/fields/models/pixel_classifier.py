"""Log-odds of the pixels' labels from their descriptors."""

__all__ = ["PixelClassifier"]

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, silu

from pyro_structured.foundation.models.argument_checks import checked_masks, plain_array
from pyro_structured.foundation.models.number_tables import named_conversions
from pyro_structured.foundation.models.old_spellings import old_parameters, old_spellings
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import progress_bar, verbosity
from pyro_structured.foundation.structures.argument_checks import check_size

# Number of pixels in a step of the training; smallest number of steps in a pass.
BATCH_SIZE, FEWEST_STEPS = 1024, 20
# Number of pixels in one batch of predictions.
CHUNK = 2**15


@old_parameters("n_hidden", num_hidden="n_hidden", num_epochs="max_iter")
@methods_on_processor
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

    Terms that are learned on top of the log-odds, such as pairwise ones, should see log-odds of pictures that the
    network has not seen: :meth:`cross_decision_function`.

    :param int n_hidden: Number K of hidden units, at least 1.
    :param float weight_decay: Share of the weights that a step takes off, for each unit of the step's size; at least 0.
    :param float learning_rate: Size of the first step, positive.
    :param int max_iter: Number of passes over all pixels, at least 1; none is left out.
    :param n_jobs: Number of processes for the folds of :meth:`cross_decision_function`, as for scikit-learn; results
        are the same.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
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
        *,
        n_hidden: int = 50,
        weight_decay: float = 0.1,
        learning_rate: float = 0.01,
        max_iter: int = 6,
        n_jobs: int | None = None,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_hidden = n_hidden
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    @old_spellings(features="X", masks="y")
    @lone_fit
    def fit(self, X: Any, y: Any) -> "PixelClassifier":
        """Learns the weights.

        :param X: Numbers that describe pixels, shape ``(N, H, W, F)``.
        :param y: Zeros and ones, of both some, shape ``(N, H, W)``.
        :raises ValueError: if a parameter is out of range, or shapes do not fit.
        """
        self._check_parameters()
        pictures = _checked_features(X)
        labels = checked_masks(y, pictures.shape[:3], "y")
        if labels.all() or not labels.any():
            raise ValueError("y: expected zeros and ones, got only one of them")
        self.n_features_in_ = pictures.shape[-1]
        seed = int(checked_generator(self.random_state).randint(2**31))
        with verbosity(self.verbose):
            self._weights = self._train(pictures.reshape(-1, self.n_features_in_), labels.ravel(), seed)
        return self

    def _check_parameters(self) -> None:
        for name in ("n_hidden", "max_iter"):
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
        """Weights of the two layers, for features that are not standardised."""
        means, scales = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
        constant = scales <= np.maximum(1e-6 * np.abs(means), np.finfo(np.float32).tiny)
        scales[constant] = 1.0
        means, scales = means.astype(np.float32), scales.astype(np.float32)
        inputs = torch.from_numpy((rows - means) / scales)
        targets = torch.from_numpy(labels.astype(np.float32))
        generator = torch.Generator().manual_seed(seed)
        weights = _first_weights(inputs.shape[1], self.n_hidden, generator)
        size = min(BATCH_SIZE, math.ceil(len(inputs) / FEWEST_STEPS))
        decayed: list[dict[str, Any]] = [{"params": weights[::2]}, {"params": weights[1::2], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(decayed, lr=self.learning_rate, weight_decay=self.weight_decay)
        steps = self.max_iter * math.ceil(len(inputs) / size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in progress_bar(range(self.max_iter), desc="passes", unit="pass"):
            for batch in torch.randperm(len(inputs), generator=generator).split(size):
                optimizer.zero_grad()
                loss = binary_cross_entropy_with_logits(_log_odds(inputs[batch], weights), targets[batch])
                loss.backward()
                optimizer.step()
                schedule.step()
        inner, shift, outer, bias = (weight.detach() for weight in weights)
        inner = inner / torch.from_numpy(scales)[:, None]
        return [inner, shift - torch.from_numpy(means) @ inner, outer, bias]

    @old_spellings(features="X")
    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds that pixels are foreground, float32, shape ``(N, H, W)``.

        :param X: As for :meth:`fit`, with the same F.
        """
        check_is_fitted(self)
        pictures = _checked_features(X)
        if pictures.shape[-1] != self.n_features_in_:
            raise ValueError(f"X: expected {self.n_features_in_} for each pixel, got {pictures.shape[-1]}")
        rows = torch.from_numpy(pictures.reshape(-1, self.n_features_in_))
        with torch.no_grad():
            parts = [_log_odds(batch, self._weights) for batch in rows.split(CHUNK)]
        odds: np.ndarray = torch.cat(parts).numpy()
        return odds.reshape(pictures.shape[:3])

    @old_spellings(features="X", masks="y", num_folds="n_splits")
    def cross_decision_function(self, X: Any, y: Any, n_splits: int = 5) -> np.ndarray:
        """Log-odds of the pixels of each picture by a classifier that has learned from other pictures.

        Pictures are parted into folds at random; for each fold, a copy of this classifier learns from all others. This
        one stays as it is.

        :param X: As for :meth:`fit`.
        :param y: As for :meth:`fit`.
        :param int n_splits: Number of folds, from 2 to the number of pictures.
        :return: float32, shape ``(N, H, W)``. The cost is about that of ``n_splits - 1`` calls of :meth:`fit`.
        :raises ValueError: as for :meth:`fit`, or if the number of folds is out of range.
        """
        pictures = _checked_features(X)
        labels = checked_masks(y, pictures.shape[:3], "y")
        check_size("n_splits", n_splits)
        if not 2 <= n_splits <= len(pictures):
            raise ValueError(f"n_splits: expected 2 to {len(pictures)}, the number of pictures, got {n_splits}")
        random = checked_generator(self.random_state)
        order = random.permutation(len(pictures))
        folds = np.array_split(order, n_splits)
        others = [np.setdiff1d(order, fold) for fold in folds]
        if any(labels[rows].all() or not labels[rows].any() for rows in others):
            raise ValueError("y: expected zeros and ones in the pictures outside every fold, got only one of them")
        tasks = (
            (
                clone(self).set_params(random_state=int(random.randint(2**31))),
                pictures[rows],
                labels[rows],
                pictures[fold],
            )
            for rows, fold in zip(others, folds, strict=True)
        )
        log_odds = np.empty(labels.shape, dtype=np.float32)
        with verbosity(self.verbose):
            parts = in_parallel(_held_out_odds, tasks, n_splits, self.n_jobs, desc="folds", unit="fold")
            for fold, odds in zip(folds, parts, strict=True):
                log_odds[fold] = odds
        return log_odds


def _held_out_odds(classifier: PixelClassifier, X: np.ndarray, y: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Log-odds of the held-out pictures, by a classifier that learns from the others."""
    return classifier.fit(X, y).decision_function(held_out)


def _checked_features(X: Any) -> np.ndarray:
    """Features as finite float32, shape ``(N, H, W, F)``, or a ValueError."""
    # Torch takes neither negative strides nor read-only arrays.
    options = {"dtype": np.float32, "order": "C", "force_writeable": True, "ensure_min_samples": 0}
    with named_conversions("X"), np.errstate(over="ignore"):
        values = plain_array(X)
        features: np.ndarray = check_array(
            values, input_name="X", ensure_2d=False, allow_nd=True, ensure_min_features=0, **options
        )
    if features.ndim != 4 or 0 in features.shape:
        raise ValueError(f"X: expected shape (N, H, W, F), not empty, got {features.shape}")
    return features


def _first_weights(num_features: int, num_hidden: int, generator: torch.Generator) -> list[Tensor]:
    """Random weights that keep the scale of the inputs, and shifts of zero."""
    weights = [
        torch.randn(num_features, num_hidden, generator=generator, dtype=torch.float32) / math.sqrt(num_features),
        torch.zeros(num_hidden, dtype=torch.float32),
        torch.randn(num_hidden, generator=generator, dtype=torch.float32) / math.sqrt(num_hidden),
        torch.zeros((), dtype=torch.float32),
    ]
    return [weight.requires_grad_() for weight in weights]


def _log_odds(inputs: Tensor, weights: list[Tensor]) -> Tensor:
    inner, shift, outer, bias = weights
    return silu(torch.addmm(shift, inputs, inner)) @ outer + bias
