"""Pictures of nested subsets and of the numbers of their variables that are one."""

__all__ = ["plot_nested_subsets"]

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyro_structured.plotting.arrays import as_array, current_axes
from pyro_structured.structures import NestedSubsets

# Of each level of the picture, the share that subsets take.
SHARE = 0.72


def plot_nested_subsets(
    subsets: NestedSubsets,
    count_marginals: Any = None,
    names: Sequence[Any] | None = None,
    ax: Any = None,
    cmap: str = "Blues",
) -> Any:
    """Draws subsets above those that they contain, each as wide as its variables, with the probabilities of its counts.

    Variables are put in an order in which every subset is an interval. A subset of n variables is divided into n + 1
    cells, one for each count from 0 to n, from left to right: the darker, the more probable. Its mean stands above it.

    :param NestedSubsets subsets: The subsets.
    :param count_marginals: Probabilities of their counts, shape ``(table_size,)``, as ``count_marginals`` of
        ``RecursiveCardinality`` has them; ``None``: subsets are drawn with their sizes.
    :param names: Names of the variables; ``None``: their numbers, if there are at most 30.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :param str cmap: A sequential colour map.
    :return: The axes.
    :raises ValueError: if an argument is of another kind or shape.

    Example::

        >>> import torch
        >>> from matplotlib.figure import Figure
        >>> from pyro_structured.distributions import RecursiveCardinality
        >>> subsets = NestedSubsets([[0, 1], [2, 3], range(4)], num_variables=4)
        >>> d = RecursiveCardinality(torch.zeros(4), torch.zeros(subsets.table_size), subsets)
        >>> ax = plot_nested_subsets(subsets, d.count_marginals, ax=Figure().subplots())
        >>> sum(len(mesh.get_paths()) for mesh in ax.collections)
        11
    """
    if not isinstance(subsets, NestedSubsets):
        raise ValueError(f"subsets: expected NestedSubsets, got {type(subsets).__name__}")
    size = subsets.table_size
    if names is not None and len(names) != subsets.num_variables:
        raise ValueError(f"names: expected {subsets.num_variables}, one for each variable, got {len(names)}")
    probs = None if count_marginals is None else as_array("count_marginals", count_marginals, f"({size},)", size)
    ax = current_axes(ax)
    members = [frozenset(int(variable) for variable in subset) for subset in subsets.subsets]
    order = _order(members, subsets.num_variables)
    place = {variable: number for number, variable in enumerate(order)}
    levels = _levels(members)
    starts = np.cumsum([0, *(len(subset) + 1 for subset in members)])
    for subset, level, start in zip(members, levels, starts[:-1], strict=True):
        if not subset:
            continue
        left, number = min(place[variable] for variable in subset), len(subset)
        mass = np.zeros(number + 1) if probs is None else probs[start : start + number + 1]
        x, y = left + np.linspace(0, number, number + 2), [-level, -level + SHARE]
        if probs is not None:
            ax.pcolormesh(x, y, mass[None], cmap=cmap, vmin=0.0, vmax=max(float(mass.max()), 1e-300))
        ax.plot(left + np.array([0, number, number, 0, 0]), np.array([0, 0, 1, 1, 0]) * SHARE - level, color="0.4")
        if probs is None:
            ax.text(left + number / 2, -level + SHARE / 2, str(number), ha="center", va="center")
        else:
            mean = float(mass @ np.arange(number + 1))
            top = -level + SHARE + 0.02
            ax.text(left + number, top, f"{mean:.3g}", ha="right", va="bottom", fontsize="x-small")
    labels = [str(variable) for variable in order] if names is None else [str(names[variable]) for variable in order]
    shown = names is not None or subsets.num_variables <= 30
    ax.set_xticks(np.arange(len(order)) + 0.5 if shown else [], labels if shown else [])
    ax.set(yticks=[], xlim=(-0.1, len(order) + 0.1), ylim=(-max(levels, default=0) - 0.1, 1.0))
    ax.tick_params(axis="x", length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


def _levels(members: list[frozenset[int]]) -> list[int]:
    """Numbers of other subsets that contain each subset; of equal ones, the earlier contain the later."""
    return [
        sum(subset < other or (subset == other and index < number) for index, other in enumerate(members))
        for number, subset in enumerate(members)
    ]


def _order(members: list[frozenset[int]], num_variables: int) -> list[int]:
    """Variables in an order in which those of each subset stand together."""
    keys: dict[int, list[int]] = {variable: [] for variable in range(num_variables)}
    for subset in sorted(set(members), key=lambda subset: (-len(subset), min(subset, default=0))):
        for variable in subset:
            keys[variable].append(min(subset))
    return sorted(range(num_variables), key=lambda variable: (*keys[variable], variable))
