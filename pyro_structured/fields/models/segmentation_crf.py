"""Segmentation of pictures by conditional random fields with patterns."""

__all__ = ["SegmentationCRF"]

import math
from numbers import Real
from typing import Any

import numpy as np
import pyro
import torch
from pyro.optim import PyroOptim
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, clone
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pyro_structured.fields.distributions.pattern_crf import PatternCRF
from pyro_structured.fields.inference.mean_field_loss import LOSSES, MeanFieldLoss
from pyro_structured.fields.models.edge_features import edge_features
from pyro_structured.fields.models.pixel_classifier import PixelClassifier
from pyro_structured.fields.models.pixel_features import pixel_features
from pyro_structured.fields.models.segmentation_field import SegmentationData, SegmentationField
from pyro_structured.fields.ops.label_losses import intersection_over_union
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.inference.early_stopping import EarlyStopping
from pyro_structured.foundation.models.argument_checks import (
    checked_array,
    checked_masks,
    checked_pictures,
    picture_scale,
    remedy,
    weighted_mean,
)
from pyro_structured.foundation.models.old_spellings import old_parameters, old_spellings
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.foundation.structures.argument_checks import check_choice, check_size

# Steps between looks at the validation pictures, and how many looks without improvement end the training.
STEPS, PATIENCE = 25, 8
# Constants of which validation pictures choose the one that is added to all log-odds at the end.
SHIFTS = np.linspace(-1.0, 1.0, 11)
# The largest logarithm of a temperature.
MOST_LOG = math.log(1000)


@old_parameters("n_patterns", patterns="n_patterns", max_steps="max_iter")
@methods_on_processor
class SegmentationCRF(BaseEstimator):  # type: ignore[misc]
    r"""Tells foreground from background in pictures of one size, by a field of labels with patterns that are learned.

    .. math::
        p(y \mid x) \propto \exp\Bigl(\sum_i \bigl(s\, o_i(x) + t + b_i\bigr) y_i - \sum_{(i, j)} p_{ij}(x)\, [y_i \ne
        y_j] + f\bigl(W y + c(x)\bigr)\Bigr),

    a :class:`~pyro_structured.distributions.PatternCRF`. The log-odds o of pixels by themselves come from a classifier,
    for training pictures one that has not seen them. Penalties p of unequal neighbours are small where colours differ
    (:func:`edge_features`), b says where foreground is as a rule, and patterns W which pixels belong together.
    Everything but o is learned by :class:`~pyro_structured.inference.MeanFieldLoss`, as long as predictions for
    validation pictures get better, the start included. In the end the validation pictures choose a constant that is
    added to all log-odds, and a temperature, by which the log-odds of the mean-field approximation are divided for
    probabilities of the smallest logistic loss; the temperature changes no label.

    **Not exact**: predictions and probabilities are those of a mean-field approximation, or predictions are local
    optima, by expectation maximisation with exact cuts. ``to_pyro`` returns the field itself, whose queries say what
    they are.

    :param int n_patterns: Number J of patterns, at least 0.
    :param bool image_dependent: Whether the biases c of patterns depend on the picture, linearly in an overview of o.
    :param str composition: ``"sum"``: any number of patterns is used in a picture; ``"min"``: one; ``"counts"``: any
        number, whose log-weights are learned with the rest, in ``field_.count_logits``, of shape ``(J + 1,)``.
    :param bool positioned: Whether pixels have biases b of their own.
    :param str inference: Method of prediction, also for validation pictures: ``"mean_field"``, the labels that the
        mean-field approximation, which is what is learned, makes more likely than not; or ``"map"``, labels that are
        most probable together, as far as ``map("em", num_switches=0)`` finds them.
    :param str loss: ``"intersection_over_union"`` or ``"logistic"``, as for ``MeanFieldLoss``.
    :param classifier: An estimator with the methods of :class:`PixelClassifier`; ``None``: that one. It is cloned; its
        folds are learned in parallel if it says so, ``PixelClassifier(n_jobs=-1)``.
    :param int shifts: Largest number of pixels by which pictures are moved at random in each step, at least 0: for few
        pictures of things that are not in one place.
    :param float learning_rate: Learning rate of Adam, positive.
    :param float weight_decay: Share of W, and of the weights of the overview, that a step takes off, for each unit of
        the learning rate; at least 0.
    :param int max_iter: Largest number of steps, of 50 pictures each, at least 1.
    :param float validation_fraction: Share of the pictures that validate, between 0 and 1, unless :meth:`fit` is given
        others.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``. Torch's generator and Pyro's parameters stay as they
        are.
    :ivar SegmentationField field\_: The module that was learned, with ``weights``, of shape ``(J, H, W)``.
    :ivar classifier\_: The classifier that was learned.
    :ivar float validation_score\_: Mean intersection over union of the validation pictures.
    :ivar float temperature\_: Number that divides the log-odds of the mean-field approximation for probabilities.

    A step costs O(50 J H W); a prediction, O(J H W), or a few minimum cuts.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Equations (4.6) and (4.10), Chapter 5.
    Guo, Pleiss, Sun, Weinberger (2017): On calibration of modern neural networks. ICML. Section 4.2, for the
    temperature. Platt (1999): Probabilistic outputs for support vector machines. Advances in large margin classifiers.

    Example::

        >>> from pyro_structured.datasets import ellipse_figures, noisy_observations
        >>> masks = ellipse_figures(0, 150, seed=0)
        >>> images = noisy_observations(masks, seed=1)
        >>> model = SegmentationCRF(n_patterns=8, max_iter=50, random_state=0).fit(images[:100], masks[:100])
        >>> model.predict(images[100:]).shape
        (50, 32, 32)
        >>> model.score(images[100:], masks[100:]) > 0.7
        True
    """

    def __init__(
        self,
        *,
        n_patterns: int = 32,
        image_dependent: bool = False,
        composition: str = "sum",
        positioned: bool = True,
        inference: str = "mean_field",
        loss: str = "intersection_over_union",
        classifier: Any = None,
        shifts: int = 0,
        learning_rate: float = 0.003,
        weight_decay: float = 1.0,
        max_iter: int = 1000,
        validation_fraction: float = 0.2,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_patterns = n_patterns
        self.image_dependent = image_dependent
        self.composition = composition
        self.positioned = positioned
        self.inference = inference
        self.loss = loss
        self.classifier = classifier
        self.shifts = shifts
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.max_iter = max_iter
        self.validation_fraction = validation_fraction
        self.verbose = verbose
        self.random_state = random_state

    @old_spellings("X_val", "y_val", images="X", masks="y", images_val="X_val", masks_val="y_val")
    # Also where gradients are switched off.
    @torch.inference_mode(False)
    @torch.enable_grad()
    @lone_fit
    def fit(self, X: Any, y: Any, *, X_val: Any = None, y_val: Any = None) -> "SegmentationCRF":
        """Learns the classifier and the field.

        :param X: Pictures as for :func:`pixel_features`, in colour, shape ``(N, H, W, 3)``, grey, ``(N, H, W)``
            or ``(N, H, W, 1)``, or with transparency, ``(N, H, W, 4)``; or other numbers for each pixel, shape ``(N, H,
            W)`` or ``(N, H, W, F)``, with the same penalty everywhere: floats not all from 0 to 1, integers of other
            types, or any number F but 1, 3 and 4. What these pictures are, all others have to be.
        :param y: Zeros and ones, shape ``(N, H, W)``.
        :param X_val: Validation pictures, of the size of X; ``None``: some of X.
        :param y_val: Masks of ``X_val``.
        :raises ValueError: if a parameter is out of range, or shapes do not fit.
        """
        self._check_parameters()
        pictures = _numbers(X, "X")
        truth = checked_array("y", y)
        if truth.shape != pictures.shape[:3] and remedy(pictures.shape, "X"):
            raise ValueError(
                f"X: expected shape (N, H, W, F), and y of shape (N, H, W), got {pictures.shape} and "
                f"{truth.shape}{remedy(pictures.shape, 'X')}"
            )
        truth = checked_masks(truth, pictures.shape[:3], "y")
        self._are_pictures = _are_pictures(pictures)
        pixels, edges = self._described(pictures)
        self._shape = pixels.shape[1:3] if self._are_pictures else pixels.shape[1:]
        random = checked_generator(self.random_state)
        if (X_val is None) != (y_val is None):
            raise ValueError("y_val: expected both X_val and y_val, or neither, got one of them")
        if X_val is None:
            order = random.permutation(len(pixels))
            number = round(self.validation_fraction * len(pixels))
            if not 0 < number < len(pixels):
                raise ValueError(f"X: expected enough to keep some for validation, got {len(pixels)}")
            kept, rest = order[:number], order[number:]
            validation = pixels[kept], edges[kept], truth[kept]
            pixels, edges, truth = pixels[rest], edges[rest], truth[rest]
        else:
            others = self._described(X_val, "X_val", "like X, of shape {}")
            validation = *others, checked_masks(y_val, others[0].shape[:3], "y_val")
        if len(pixels) < 2:
            raise ValueError(f"X: expected at least 2 to learn from, got {len(pixels)}")
        classifier = PixelClassifier() if self.classifier is None else clone(self.classifier)
        self.classifier_ = classifier.set_params(random_state=int(random.randint(2**31)))
        with verbosity(self.verbose):
            odds = self.classifier_.cross_decision_function(pixels, truth, min(5, len(pixels)))
            self.classifier_.fit(pixels, truth)
        held_out = _data(self.classifier_.decision_function(validation[0]), *validation[1:])
        with verbosity(self.verbose), torch.random.fork_rng(devices=[]), pyro.get_param_store().scope():
            torch.manual_seed(int(random.randint(2**31)))
            self._train(_data(odds, edges, truth), held_out)
        return self

    def _described(self, images: Any, name: str = "X", expected: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Features of pixels, shape ``(N, H, W, F)``, and of pairs of neighbours, shape ``(N, E, K)``.

        :param str expected: Text of the error for pictures that are not of the shape of those in ``fit``; ``None``
            allows any shape.
        """
        numbers = _numbers(images, name)
        numbers = numbers if numbers.ndim == 4 else numbers[..., None]
        colours = None
        if self._are_pictures or numbers.shape[-1] == 3:
            colours = checked_pictures(numbers, name)
        if expected and numbers.shape[1 : 1 + len(self._shape)] != self._shape:
            got = np.shape(images)
            raise ValueError(
                f"{name}: expected pictures {expected.format(self._shape)}, got {got[1:]}{remedy(got, name)}"
            )
        grid = Grid(*numbers.shape[1:3])
        if colours is not None:
            return pixel_features(colours), edge_features(colours, grid)
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise ValueError(f"{name}: expected finite numbers in single precision, got others")
        return numbers, np.ones((len(numbers), grid.num_edges, 1), dtype=np.float32)

    def _check_parameters(self) -> None:
        if not isinstance(self.composition, str) or self.composition not in ("sum", "min", "counts"):
            raise ValueError(f"composition: expected 'sum', 'min' or 'counts', got {self.composition!r}")
        if not isinstance(self.inference, str) or self.inference not in ("mean_field", "map"):
            raise ValueError(f"inference: expected 'mean_field' or 'map', got {self.inference!r}")
        for name, least in (("n_patterns", int(self.composition == "min")), ("shifts", 0), ("max_iter", 1)):
            check_size(name, getattr(self, name), least)
        for name in ("image_dependent", "positioned"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        known = hasattr(self.classifier, "cross_decision_function") and not isinstance(self.classifier, type)
        if self.classifier is not None and not known:
            raise ValueError(f"classifier: expected one like PixelClassifier, or None, got {self.classifier!r}")
        check_choice("loss", self.loss, LOSSES)
        for name, low, high in (("learning_rate", 0, math.inf), ("validation_fraction", 0, 1)):
            value = getattr(self, name)
            if not isinstance(value, Real) or not low < float(value) < high:
                raise ValueError(f"{name}: expected a number between {low} and {high}, got {value!r}")
        if not isinstance(self.weight_decay, Real) or not 0 <= float(self.weight_decay) < math.inf:
            raise ValueError(f"weight_decay: expected a number of at least 0, got {self.weight_decay!r}")

    def _train(self, data: SegmentationData, validation: SegmentationData) -> None:
        field = SegmentationField(data, self.n_patterns, self.composition, self.image_dependent, self.positioned)

        def model() -> None:
            learned = pyro.module("field", field)
            with pyro.plate("pictures", len(data.odds), subsample_size=min(50, len(data.odds))) as rows:
                batch = data.shifted(torch.as_tensor(rows), self.shifts)
                pyro.sample("masks", self._fields(learned, batch), obs=batch.masks)

        def options(name: str) -> dict[str, float]:
            decays = name.rpartition(".")[2] in ("weights", "gates")
            return {"lr": self.learning_rate, "weight_decay": self.weight_decay * decays}

        learner = MeanFieldLoss(model, lambda: None, PyroOptim(torch.optim.AdamW, options), self.loss)
        stopping = EarlyStopping(learner, lambda: self._score(field, validation), STEPS, PATIENCE)
        stopping.run(self.max_iter)
        self.field_ = field.requires_grad_(False)
        first = field.shift.clone()
        scores = [self._shifted_score(first + shift, validation) for shift in SHIFTS]
        best = int(np.argmax(scores))
        self.validation_score_ = self._shifted_score(first + SHIFTS[best], validation)
        logits = self.field_(validation.odds, validation.edges).mean_field_logits()
        self.temperature_ = _calibrating_temperature(logits, validation.masks)

    def _shifted_score(self, shift: Tensor, validation: SegmentationData) -> float:
        self.field_.shift.copy_(shift)
        return self._score(self.field_, validation)

    @torch.no_grad()
    def _score(self, field: SegmentationField, data: SegmentationData) -> float:
        return float(intersection_over_union(self._labels(self._fields(field, data)), data.masks).mean())

    def _fields(self, field: torch.nn.Module, data: SegmentationData) -> PatternCRF:
        fields: PatternCRF = field(data.odds, data.edges)
        if not bool(fields.pairwise.isfinite().all()):
            raise ValueError(
                f"learning_rate: expected one with which penalties stay finite, got {self.learning_rate!r}"
            )
        return fields

    def _labels(self, field: PatternCRF) -> Tensor:
        if self.inference == "map":
            return field.map("em", num_switches=0)[0]
        logits = field.mean_field_logits()
        return (logits > 0).to(logits.dtype)

    @old_spellings(images="X")
    def to_pyro(self, X: Any) -> PatternCRF:
        """Distribution of the labels of pictures, of batch shape ``(N,)`` and event shape ``(H, W)``.

        :param X: As for :meth:`fit`, of the same size.
        """
        check_is_fitted(self)
        pixels, edges = self._described(X, "X", "of shape {}, as in fit")
        data = _data(self.classifier_.decision_function(pixels), edges, np.zeros(pixels.shape[:3]))
        with torch.no_grad():
            labels: PatternCRF = self.field_(data.odds, data.edges)
        return labels

    @old_spellings(images="X")
    def predict(self, X: Any) -> np.ndarray:
        """Predicted labels of pictures.

        :param X: As for :meth:`fit`, of the same size.
        :return: Zeros and ones, uint8, shape ``(N, H, W)``.
        """
        labels: np.ndarray = self._labels(self.to_pyro(X)).numpy().astype(np.uint8)
        return labels

    @old_spellings(images="X")
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities that pixels are foreground: log-odds of a mean-field approximation, which are overconfident as
        a rule, divided by ``temperature_``.

        :param X: As for :meth:`fit`, of the same size.
        :return: Shape ``(N, H, W)``.
        """
        probs: np.ndarray = (self.to_pyro(X).mean_field_logits() / self.temperature_).sigmoid().numpy()
        return probs

    @old_spellings(images="X", masks="y")
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean over pictures of the intersection over union of predictions and masks.

        :param X: As for :meth:`fit`, of the same size.
        :param y: Zeros and ones, shape ``(N, H, W)``.
        :param sample_weight: Weights of the pictures, at least 0, not all 0, shape ``(N,)``.
        """
        labels = self.predict(X)
        truth = checked_masks(y, labels.shape, "y")
        scores = intersection_over_union(torch.from_numpy(labels).double(), torch.from_numpy(truth).double())
        return weighted_mean(scores.numpy(), sample_weight)


def _numbers(images: Any, name: str) -> np.ndarray:
    """Pictures as an array of shape ``(N, H, W, F)`` or ``(N, H, W)``, or a ValueError."""
    pictures = checked_array(name, images)
    if pictures.ndim not in (3, 4) or 0 in pictures.shape or pictures.dtype.kind not in "biuf":
        raise ValueError(
            f"{name}: expected numbers of shape (N, H, W, F) or (N, H, W), none of them 0, got {pictures.dtype} of "
            f"{pictures.shape}{remedy(pictures.shape, name)}"
        )
    assert_all_finite(pictures, input_name=name, estimator_name="SegmentationCRF")
    return pictures


def _are_pictures(numbers: np.ndarray) -> bool:
    """Whether an array holds pictures in colour or grey, rather than other features of pixels."""
    channels, scale = (*numbers.shape, 1)[3], picture_scale(numbers.dtype)
    if channels == 3:
        return True
    return channels in (1, 4) and scale > 0 and bool(((numbers >= 0) & (numbers <= scale)).all())


def _calibrating_temperature(logits: Tensor, masks: Tensor) -> float:
    """Temperature, from 1/1000 to 1000, by which log-odds are divided for the smallest logistic loss.

    One pixel more of each kind is taken for one of the other kind (Platt), so that log-odds stay finite where all
    labels are right.
    """
    logits, masks = logits.double(), masks.double()
    ones = masks.sum()
    masks = torch.where(masks > 0, (ones + 1) / (ones + 2), 1 / (masks.numel() - ones + 2))

    def loss(log_temperature: float) -> float:
        return float(binary_cross_entropy_with_logits(logits / math.exp(log_temperature), masks))

    # Convex in the inverse of the temperature, so that there is one minimum.
    return math.exp(minimize_scalar(loss, bounds=(-MOST_LOG, MOST_LOG), method="bounded").x)


def _data(odds: np.ndarray, edges: np.ndarray, masks: np.ndarray) -> SegmentationData:
    return SegmentationData(
        *(torch.from_numpy(np.asarray(values, dtype=np.float32)) for values in (odds, edges, masks))
    )
