"""Blocks of exchangeable variables, found by tests of equal means."""

__all__ = ["check_options", "welch_partition"]

from numbers import Real

import numpy as np
import torch
from scipy import special
from torch import Tensor

from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.structures.argument_checks import check_choice, check_dense

LINKAGES = ("anchor", "single")
CORRECTIONS = ("none", "bonferroni")


def welch_partition(
    means: Tensor,
    sizes: Tensor,
    level: float = 0.1,
    linkage: str = "anchor",
    correction: str = "none",
    pair_means: Tensor | None = None,
) -> Partition:
    """Puts binary variables into one block whose means do not differ significantly.

    Exchangeable variables have equal means: condition (1) of Proposition 3.3 (for binary variables, condition (2) on
    variances follows). Each class is partitioned by itself. Variables are sorted by their means; a new block begins
    where Welch's test rejects equal means. Which pair is tested, the paper does not say, and not being rejected is not
    transitive: so choose.

    Exchangeable variables also have equal covariances: condition (3), tested if there are means of pairs. A variable
    then joins the first block whose first two variables occur together as often, up to significance, as it does with
    each of the block's variables. That the covariance is at least ``-variance / (n - 1)`` needs no test: the mean
    covariance of a block always is.

    :param Tensor means: Means of the variables in every class, between 0 and 1, shape ``(..., n)``.
    :param Tensor sizes: Numbers of examples in every class, or sums of their weights, shape ``(...)``.
    :param float level: Significance level of the two-sided tests, between 0 and 1; 0.1 in the paper.
    :param str linkage: ``"anchor"`` tests against the block's smallest mean; ``"single"``, against the neighbour, which
        makes few and large blocks.
    :param str correction: ``"none"``, or ``"bonferroni"`` for the level divided by the number of variables.
    :param Tensor pair_means: Means of the products of two variables, shape ``(..., n, n)``; ``None``: condition (3) is
        not tested.
    :return: Partitions of the same batch shape. Cost O(n) for every block, after sorting; with pairs, O(n) for every
        variable and block.
    :raises ValueError: if an argument is out of range or shapes do not fit.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Proposition 3.3; Section 5.1.
    Welch (1947): The generalization of Student's problem when several different population variances are involved.

    Example::

        >>> welch_partition(torch.tensor([0.5, 0.1, 0.52, 0.11]), torch.tensor(100.0)).blocks()
        [[0, 2], [1, 3]]
    """
    _check(means, sizes, level, linkage, correction)
    _check_pairs(pair_means, means)
    test_level = level / means.shape[-1] if correction == "bonferroni" else level
    rows = means.detach().double().cpu().reshape(-1, means.shape[-1]).numpy()
    numbers = sizes.detach().double().cpu().expand(means.shape[:-1]).reshape(-1).numpy()
    labels = np.stack([_label(row, number, test_level, linkage) for row, number in zip(rows, numbers, strict=True)])
    if pair_means is not None:
        pairs = pair_means.detach().double().cpu().reshape(-1, *pair_means.shape[-2:]).numpy()
        labels = np.stack([_split(*row, test_level) for row in zip(labels, rows, pairs, numbers, strict=True)])
    return Partition(torch.from_numpy(labels).reshape(means.shape).to(means.device))


def _check(means: Tensor, sizes: Tensor, level: float, linkage: str, correction: str) -> None:
    if not isinstance(means, Tensor) or means.dim() < 1 or not means.is_floating_point() or not means.numel():
        raise ValueError(f"means: expected a floating point tensor of shape (..., n), got {means!r}")
    check_dense("means", means)
    if not bool(((means >= 0) & (means <= 1)).all()):
        raise ValueError("means: expected numbers between 0 and 1, got others")
    if isinstance(sizes, Tensor):
        check_dense("sizes", sizes)
    if not isinstance(sizes, Tensor) or sizes.shape != means.shape[:-1] or not bool((sizes >= 0).all()):
        raise ValueError(f"sizes: expected {tuple(means.shape[:-1])} numbers of at least 0, got {sizes!r}")
    check_options(level, linkage, correction)


def check_options(level: float, linkage: str, correction: str) -> None:
    """Raises ValueError for a level, linkage or correction that no test can use."""
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level!r}")
    check_choice("linkage", linkage, LINKAGES)
    check_choice("correction", correction, CORRECTIONS)


def _check_pairs(pair_means: Tensor | None, means: Tensor) -> None:
    if pair_means is None:
        return
    shape = (*means.shape, means.shape[-1])
    if not isinstance(pair_means, Tensor) or pair_means.shape != shape:
        raise ValueError(
            f"pair_means: expected a tensor of shape {shape}, got {getattr(pair_means, 'shape', pair_means)}"
        )
    check_dense("pair_means", pair_means)
    if not bool(((pair_means >= 0) & (pair_means <= 1)).all()):
        raise ValueError("pair_means: expected numbers between 0 and 1, got others")


def _label(means: np.ndarray, size: float, level: float, linkage: str) -> np.ndarray:
    order = np.argsort(means, kind="stable")
    ordered = means[order]
    if linkage == "single":
        starts = _rejected(ordered[:-1], ordered[1:], size, level)
    else:
        starts = np.zeros(len(means) - 1, dtype=bool)
        first = 0
        while first < len(means) - 1:
            rejected = np.flatnonzero(_rejected(ordered[first], ordered[first + 1 :], size, level))
            if not len(rejected):
                break
            starts[first + rejected[0]] = True
            first += 1 + int(rejected[0])
    labels = np.empty(len(means), dtype=np.int64)
    labels[order] = np.concatenate([[0], np.cumsum(starts)])
    return labels


def _split(labels: np.ndarray, means: np.ndarray, pairs: np.ndarray, size: float, level: float) -> np.ndarray:
    """Labels, shape ``(n,)``, of blocks in which pairs of variables also occur equally often."""
    blocks: list[list[int]] = []
    for variable in np.lexsort((np.arange(len(means)), means)).tolist():
        for block in blocks:
            if labels[block[0]] != labels[variable]:
                continue
            if len(block) == 1 or not _rejected(pairs[block[0], block[1]], pairs[block, variable], size, level).any():
                block.append(variable)
                break
        else:
            blocks.append([variable])
    split = np.empty_like(labels)
    for number, block in enumerate(blocks):
        split[block] = number
    return split


def _rejected(left: np.ndarray, right: np.ndarray, size: float, level: float) -> np.ndarray:
    """Whether Welch's test tells the means of two binary variables with as many examples apart."""
    if size <= 1:
        return np.zeros(np.broadcast_shapes(np.shape(left), np.shape(right)), dtype=bool)
    # Unbiased variances of the two means; the same variable counts for both degrees of freedom.
    first, second = (mean * (1 - mean) / (size - 1) for mean in (left, right))
    total = first + second
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(total > 0, np.abs(left - right) / np.sqrt(total), np.where(left == right, 0, np.inf))
    # There are between size - 1 and twice as many degrees of freedom: few statistics need to know exactly.
    most, fewest = -special.stdtrit(np.array([2 * (size - 1), size - 1]), level / 2)
    rejected: np.ndarray = statistic >= fewest
    close = np.flatnonzero((statistic >= most) & ~rejected)
    freedom = (size - 1) * total[close] ** 2 / (first**2 + second**2)[close]
    rejected[close] = 2 * special.stdtr(freedom, -statistic[close]) < level
    return rejected
