"""Losses of labels, compared with the right ones."""

__all__ = ["hamming_loss", "intersection_over_union", "intersection_over_union_loss"]

import torch
from torch import Tensor


def intersection_over_union(labels: Tensor, truth: Tensor, num_axes: int = 2) -> Tensor:
    r"""Intersection of the ones of two labelings over their union, :math:`|y \cap y^*| / |y \cup y^*|`; 1 if both are
    empty.

    :param Tensor labels: Zeros and ones; the last axes are those of one value.
    :param Tensor truth: True labels, of a shape that broadcasts with that of ``labels``.
    :param int num_axes: Number of axes of one value: 2 for pictures.
    :return: Without these axes, between 0 and 1, in the dtype of ``labels`` if it is a floating point one. O(D) each.

    Example::

        >>> labels = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> intersection_over_union(labels, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), 1)
        tensor([0.5000, 1.0000])
    """
    axes = tuple(range(-num_axes, 0))
    labels, truth = _numbers(labels), _numbers(truth)
    both = (labels * truth).sum(axes)
    either = (labels + truth).sum(axes) - both
    return (both / either.clamp(min=1)).masked_fill(either == 0, 1.0)


def intersection_over_union_loss(labels: Tensor, truth: Tensor, num_axes: int = 2) -> Tensor:
    """One minus :func:`intersection_over_union`."""
    return 1 - intersection_over_union(labels, truth, num_axes)


def hamming_loss(labels: Tensor, truth: Tensor, num_axes: int = 2) -> Tensor:
    """Share of labels that differ; arguments as for :func:`intersection_over_union`, or integers.

    Example::

        >>> hamming_loss(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([1.0, 0.0, 0.0, 0.0]), 1)
        tensor([0.2500])
    """
    return (labels != truth).to(_numbers(labels).dtype).mean(tuple(range(-num_axes, 0)))


def _numbers(labels: Tensor) -> Tensor:
    """Labels in a floating-point dtype, because sums and products of booleans are booleans."""
    return labels if labels.is_floating_point() else labels.to(torch.get_default_dtype())
