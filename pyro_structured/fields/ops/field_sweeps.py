"""Gibbs sweeps of fields: hidden units given labels, and labels given hidden units."""

__all__ = [
    "chain_activations",
    "check_sweeps",
    "checkerboard",
    "draw_binary_labels",
    "draw_shares",
    "independent_labels",
    "neighbour_pull",
    "shares_from_noise",
    "sweep",
    "times",
]

from functools import lru_cache

import torch
from torch import Tensor

from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_sampling import sample_counts
from pyro_structured.fields.ops.deep_pattern_potential import deep_states
from pyro_structured.fields.ops.field import Field
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.requirements import any_true


def check_sweeps(field: Field) -> None:
    """Refuses fields whose labels and hidden units cannot be drawn in turn.

    :raises NotImplementedError: if the temperature is no positive integer, so that labels have no joint distribution
        with hidden units, or a penalty is infinite, so that no label can change alone.
    """
    if field.num_patterns and not 1 <= int(field.temperature) == field.temperature:
        remedy = "; BinaryGibbs samples labels at any temperature" if field.is_binary else ""
        raise NotImplementedError(
            f"temperature: expected an integer of at least 1 to sample hidden units, got {field.temperature}{remedy}"
        )
    if any_true(field.penalties == torch.inf):
        raise NotImplementedError(
            "pairwise: expected finite penalties, as labels that have to be alike cannot change one by one, got +inf"
        )
    field.check_units()


@torch.no_grad()
def sweep(field: Field, labels: Tensor, number: int, log_weights: Tensor | None = None) -> Tensor:
    r"""Labels after some sweeps: all hidden units are drawn given the labels, and then the labels of one colour of the
    checkerboard after the other, given hidden units.

    At temperature n there are n replicas of the hidden units h, whose sum over h is the field:

    .. math::
        p(y, h) \propto \exp\Bigl(\sum_i s_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + \frac{1}{n} \sum_{r=1}^n
        \bigl((c + W x(y))^\top h_r + g(\textstyle\sum_j h_{rj})\bigr)\Bigr).

    Units of a second layer are drawn together with those of the first layer, and not returned.

    :param Field field: One that :func:`check_sweeps` lets pass.
    :param Tensor labels: The present ones, integers in double precision, shape ``(rows, chains, D)``.
    :param int number: Number of sweeps. Each costs O(n·J·K·D) a chain, with a table O(log J) for each unit more.
    :param Tensor log_weights: Log-weights of the K labels in addition, for each chain, shape ``(K, rows, chains, D)``.
    :return: Labels of the same shape.

    Example::

        >>> zero, pair = torch.zeros(1, 4).double(), torch.full((1, 1), 9.0).double()
        >>> field = Field(zero, zero[:, 0], pair, (1, 2), zero[:, None, :2][:, :0], zero[:, :0], "sum", 1.0)
        >>> labels = sweep(field, torch.zeros(1, 1000, 2).double(), 20)
        >>> bool((labels[..., 0] == labels[..., 1]).double().mean() > 0.99)
        True
    """
    if field.is_binary:
        return _sweep_binary(field, labels, number, log_weights)
    size = (field.num_labels, field.num_pixels)
    states = field.label_states.unsqueeze(1)
    if log_weights is not None:
        never = states == -torch.inf
        states = (states + log_weights.movedim(0, -2)).masked_fill(never, -torch.inf)
    for _ in range(number):
        weights = states
        if field.num_patterns:
            shares = draw_shares(field, chain_activations(field, field.indicators(labels)))
            weights = states + times(shares, field.weights).unflatten(-1, size)
        labels = _draw_labels(field, labels, weights)
    return labels


def _sweep_binary(field: Field, labels: Tensor, number: int, log_weights: Tensor | None) -> Tensor:
    odds = field.odds.unsqueeze(1)
    if log_weights is not None:
        odds = torch.where(odds.isinf(), odds, odds + log_weights[1] - log_weights[0])
    for _ in range(number):
        total = odds
        if field.num_patterns:
            shares = draw_shares(field, chain_activations(field, labels))
            total = odds + times(shares, field.weights)
        labels = draw_binary_labels(labels, total, field.penalties.unsqueeze(1), field.shape, torch.rand_like(labels))
    return labels


def chain_activations(field: Field, indicators: Tensor) -> Tensor:
    """Log-odds of the hidden units, shape ``(rows, chains, J)``.

    :param Tensor indicators: Indicators of the last n labels, shape ``(rows, chains, n D)``.
    """
    return times(indicators, field.weights.mT) + field.biases.unsqueeze(1)


def draw_shares(field: Field, activations: Tensor) -> Tensor:
    """Share of the replicas in which each hidden unit is on, drawn given the labels, shape ``(rows, chains, J)``.

    :param Field field: Field of which composition, temperature n and upper units are used.
    :param Tensor activations: Log-odds of the hidden units, shape ``(rows, chains, J)``, J at least 1.

    Cost O(n·J) a chain, with a table O(n·J·log J), with U upper units O(2^min(J, U)·max(J, U)).
    """
    if field.upper is not None:
        return _draw_deep(field, activations)
    replicas = int(field.temperature)
    activations = activations / replicas
    if isinstance(field.composition, Tensor):
        tables = (field.composition.unsqueeze(1) / replicas).expand(*activations.shape[:2], -1).flatten(0, 1)
        drawn = sample_counts(activations.flatten(0, 1), tables, _forest(activations.shape[-1]), replicas)
        return drawn.mean(0).reshape(activations.shape)
    repeated = activations.unsqueeze(-2).expand(-1, -1, replicas, -1)
    if field.composition == "min":
        return torch.nn.functional.one_hot(draw_log(repeated), activations.shape[-1]).to(activations.dtype).mean(-2)
    return shares_from_noise(activations, torch.rand_like(repeated))


def shares_from_noise(activations: Tensor, noise: Tensor) -> Tensor:
    """Share of the replicas in which each independent unit is on: those whose uniform number is below its probability.

    :param Tensor activations: Log-odds of the units of one replica, shape ``(rows, chains, J)``.
    :param Tensor noise: Uniform numbers, shape ``(rows, chains, n, J)``.
    """
    return (noise < activations.sigmoid().unsqueeze(-2)).to(activations.dtype).mean(-2)


def _draw_deep(field: Field, activations: Tensor) -> Tensor:
    """Patterns drawn together with the upper units, the states of whose smaller layer are enumerated."""
    assert field.upper is not None
    upper_weights, upper_logits = field.upper.weights.unsqueeze(1), field.upper.logits.unsqueeze(1)
    states, log_weights = deep_states(activations, upper_weights, upper_logits)
    drawn = states[draw_log(log_weights)]
    if activations.shape[-1] <= upper_logits.shape[-1]:
        return drawn
    odds = activations + (drawn.unsqueeze(-2) @ upper_weights).squeeze(-2)
    return (torch.rand_like(odds) < odds.sigmoid()).to(activations.dtype)


def draw_binary_labels(
    labels: Tensor, odds: Tensor, penalties: Tensor, shape: tuple[int, int], noise: Tensor
) -> Tensor:
    """Zeros and ones, drawn for one colour after the other; 1 where the uniform number is below the probability.

    :param Tensor labels: The present ones, shape ``(rows, chains, D)``.
    :param Tensor odds: Log-odds of the pixels given the hidden units, of the same shape.
    :param Tensor penalties: Shape ``(rows, 1, E)``; without columns if there are none.
    :param shape: Height and width.
    :param Tensor noise: Uniform numbers of the shape of ``labels``.
    """
    needed = noise.logit()
    if not penalties.shape[-1]:
        return (needed < odds).to(labels.dtype)
    for colour in checkerboard(shape, labels.device):
        pull = neighbour_pull(labels, penalties, shape)
        labels = torch.where(colour, (needed < odds + pull).to(labels.dtype), labels)
    return labels


def _draw_labels(field: Field, labels: Tensor, weights: Tensor) -> Tensor:
    """Labels drawn for one colour after the other.

    :param Tensor weights: Log-weights of the labels given the hidden units, shape ``(rows, chains, K, D)``.
    """
    # The largest of log-weights with Gumbel noise is a draw.
    noise = torch.empty(labels.shape[:2] + weights.shape[-2:], dtype=labels.dtype, device=labels.device)
    weights = weights - noise.exponential_().clamp_(min=1e-300).log_()
    if not field.is_paired:
        return weights.argmax(-2).to(labels.dtype)
    penalties = field.penalties[:, None, None]
    for colour in checkerboard(field.shape, labels.device):
        alike = torch.stack([labels == label for label in range(field.num_labels)], -2).to(labels.dtype)
        pull = neighbour_pull(alike, penalties, field.shape) / 2
        labels = torch.where(colour, (weights + pull).argmax(-2).to(labels.dtype), labels)
    return labels


@torch.no_grad()
def independent_labels(field: Field, number: int) -> Tensor:
    """Labels drawn from their own log-weights alone, without penalties and patterns, as starts of chains.

    :param int number: Number of rows; the same as the field's if that has several.
    :return: Integers of shape ``(number, D)``.
    """
    states = field.label_states
    noise = torch.empty((number, *states.shape[1:]), dtype=states.dtype, device=states.device)
    return (states - noise.exponential_().clamp_(min=1e-300).log_()).argmax(-2)


def neighbour_pull(values: Tensor, penalties: Tensor, shape: tuple[int, int]) -> Tensor:
    """Log-odds that neighbours lend to the pixels, shape ``(..., D)``.

    :param Tensor values: Labels, or probabilities of 1, shape ``(..., D)``.
    :param Tensor penalties: Finite, in the order of ``structures.Grid``, shape ``(..., E)``.
    :param shape: Height and width.
    """
    height, width = shape
    number = (height - 1) * width
    signs = (2 * values - 1).unflatten(-1, shape)
    vertical = penalties[..., :number].unflatten(-1, (height - 1, width))
    horizontal = penalties[..., number:].unflatten(-1, (height, width - 1))
    pull = torch.zeros_like(signs)
    pull[..., :-1, :] += vertical * signs[..., 1:, :]
    pull[..., 1:, :] += vertical * signs[..., :-1, :]
    pull[..., :-1] += horizontal * signs[..., 1:]
    pull[..., 1:] += horizontal * signs[..., :-1]
    return pull.flatten(-2)


@lru_cache(maxsize=64)
def checkerboard(shape: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Masks of the pixels of the first and of the second colour of a checkerboard, each of shape ``(D,)``."""
    pixels = torch.arange(shape[0] * shape[1], device=device)
    odd = (pixels // shape[1] + pixels % shape[1]) % 2 == 1
    return ~odd, odd


def times(vectors: Tensor, matrices: Tensor) -> Tensor:
    """Products of row vectors, ``(rows, chains, m)``, and matrices, ``(rows, m, n)``."""
    return vectors @ (matrices[0] if len(matrices) == 1 else matrices)


@lru_cache(maxsize=16)
def _forest(number: int) -> CountForest:
    return CountForest(number)
