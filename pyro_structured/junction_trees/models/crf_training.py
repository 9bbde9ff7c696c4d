"""Penalised maximum likelihood of conditional fields."""

__all__ = ["FieldData", "FieldFit", "FieldOptions", "train_field"]

import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from pyro_structured.foundation.models.sparse_descent import descend
from pyro_structured.junction_trees.models.crf_potentials import ConditionalField, FieldWeights
from pyro_structured.junction_trees.ops.junction_tree import log_partition_of_tree


class FieldData(NamedTuple):
    """Training rows.

    :ivar Tensor inputs: Inputs of the feature map, shape ``(N, columns)``.
    :ivar Tensor labels: States of the labels, shape ``(N, n)``.
    :ivar Tensor known: Whether labels are known, shape ``(N, n)``.
    :ivar Tensor weights: Weights of the rows, shape ``(N,)``.
    """

    inputs: Tensor
    labels: Tensor
    known: Tensor
    weights: Tensor

    def part(self, rows: Tensor) -> "FieldData":
        """Data of some of the rows, given by a mask or by numbers."""
        return FieldData(*(tensor[rows] for tensor in self))


class FieldOptions(NamedTuple):
    """Options of the training.

    :ivar float l2: Factor of half the sum of squares of the weights.
    :ivar float l1: Factor of the sum of absolute values of the weights.
    :ivar float tol: Tolerance for the largest entry of the projected gradient of the objective per row.
    :ivar int max_iter: Largest number of iterations.
    """

    l2: float
    l1: float
    tol: float
    max_iter: int


class FieldFit(NamedTuple):
    """Result of the training.

    :ivar FieldWeights weights: Weights of the last iteration.
    :ivar torch.nn.Module feature_map: Module that maps inputs to features.
    :ivar int num_iterations: Number of iterations.
    :ivar bool converged: Whether the tolerance was reached.
    :ivar bool interrupted: Whether there was an interrupt from the keyboard.
    """

    weights: FieldWeights
    feature_map: torch.nn.Module
    num_iterations: int
    converged: bool
    interrupted: bool


class _Objective:
    """Mean negative log-likelihood with penalties, as a function of a flat vector of all parameters."""

    def __init__(
        self,
        field: ConditionalField,
        data: FieldData,
        feature_map: torch.nn.Module,
        edge_features: bool,
        l2: float,
    ) -> None:
        self.field, self.data, self.feature_map = field, data, feature_map
        self.total = float(data.weights.sum())
        self.entries = field.tree.plan.table_index(data.labels)
        self.evidence = None if bool(data.known.all()) else _evidence(field, data)
        num_features = _num_features(feature_map, data.inputs[:2])
        trained = {
            name: parameter.detach() for name, parameter in feature_map.named_parameters() if parameter.requires_grad
        }
        self.names = list(trained)
        self.start = [*field.zeros(num_features, edge_features), *trained.values()]
        self.penalised = self.flat([torch.ones_like(parameter) for parameter in self.start])
        self.penalised[: self.start[0].shape[1]] = 0.0  # the labels' intercepts
        self.num_potentials = self.start[0].numel() + self.start[1].numel()
        self.scale = l2 / self.total

    @staticmethod
    def flat(tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def unpack(self, vector: Tensor) -> tuple[FieldWeights, dict[str, Tensor]]:
        sizes = [start.numel() for start in self.start]
        nodes, edges, *rest = (
            values.reshape(start.shape) for values, start in zip(vector.split(sizes), self.start, strict=True)
        )
        return FieldWeights(nodes, edges), dict(zip(self.names, rest, strict=True))

    def __call__(self, vector: Tensor) -> Tensor:
        weights, parameters = self.unpack(vector)
        features = functional_call(self.feature_map, parameters, self.data.inputs)
        logits, plan = self.field.clique_logits(features, weights), self.field.tree.plan
        if self.evidence is None:
            scores = logits.gather(1, self.entries).sum(1)
        else:
            scores = log_partition_of_tree(logits, self.evidence, plan)
        log_probs = scores - log_partition_of_tree(logits, logits.new_zeros(1, 0), plan)
        return 0.5 * self.scale * (self.penalised @ vector.square()) - self.data.weights @ log_probs / self.total

    def gradient(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(vector).requires_grad_()
        value = self(leaf)
        (slopes,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), slopes.numpy()


@torch.no_grad()
def _num_features(feature_map: torch.nn.Module, inputs: Tensor) -> int:
    """Number of features that the module makes of some rows, or a ValueError if its output is of another kind."""
    try:
        output = feature_map(inputs)
    except RuntimeError as error:
        raise ValueError(
            f"feature_map: expected a module for inputs of shape (N, {inputs.shape[1]}), got one that fails: {error}"
        ) from error
    if (
        not isinstance(output, Tensor)
        or output.dim() != 2
        or len(output) != len(inputs)
        or output.dtype != torch.double
    ):
        got = f"{output.dtype} of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"feature_map: expected an output in float64 of shape ({len(inputs)}, p), got {got}")
    return output.shape[1]


def _evidence(field: ConditionalField, data: FieldData) -> Tensor:
    """Log-weights of the states of all labels, shape ``(N, num_states)``: -inf for states other than a known label."""
    sizes = field.tree.cardinalities
    columns = [data.labels[:, d : d + 1] != torch.arange(size) for d, size in enumerate(sizes)]
    excluded = torch.cat([column & data.known[:, d : d + 1] for d, column in enumerate(columns)], 1)
    return torch.zeros(excluded.shape, dtype=torch.double).masked_fill(excluded, -torch.inf)


def train_field(
    field: ConditionalField,
    data: FieldData,
    feature_map: torch.nn.Module,
    edge_features: bool,
    options: FieldOptions,
) -> FieldFit:
    """Minimises the negative log-likelihood, ``l2 / 2`` times the sum of squares, and ``l1`` times the sum of absolute
    values of the weights.

    Labels' intercepts are not penalised; parameters of the module are in the sum of squares only. L-BFGS-B keeps the
    bounds of the positive and negative parts of weights under L1: zeros are exact, and only the tolerance is
    approximate.

    :raises ValueError: if the features are so large that no step improves the objective.
    """
    feature_map = copy.deepcopy(feature_map)
    objective = _Objective(field, data, feature_map, edge_features, options.l2)
    positions = torch.arange(len(objective.penalised)) < objective.num_potentials
    prices = (options.l1 / objective.total * positions * objective.penalised).numpy()
    start = objective.flat(objective.start).numpy()
    vector, number, slope = descend(objective.gradient, start, prices, options.tol, options.max_iter)
    # The slope is at most 1 if features are at most 1.
    if slope is not None and number == 0 and not slope <= 1:
        raise ValueError(_what_is_wrong(feature_map, data.inputs))
    weights, parameters = objective.unpack(torch.from_numpy(vector))
    feature_map.load_state_dict({**feature_map.state_dict(), **parameters})
    return FieldFit(weights, feature_map, number, slope is not None and slope <= options.tol, slope is None)


@torch.no_grad()
def _what_is_wrong(feature_map: torch.nn.Module, inputs: Tensor) -> str:
    largest = float(feature_map(inputs).abs().max())
    if not np.isfinite(largest):
        return "feature_map: expected finite features, got others"
    return (
        f"X: expected features with which some step improves the objective, got numbers up to {largest:g}; standardise "
        "them"
    )
