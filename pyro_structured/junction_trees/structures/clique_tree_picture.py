"""Pictures of junction trees."""

__all__ = ["plot_clique_tree"]

from collections.abc import Sequence
from typing import Any

from pyro_structured.junction_trees.structures.clique_tree import CliqueTree, check_tree


def plot_clique_tree(tree: CliqueTree, names: Sequence[Any] | None = None, ax: Any = None) -> Any:
    """Draws cliques level by level, each below its parent; variables that are not in the parent have a dot.

    :param CliqueTree tree: The cliques.
    :param names: Names of the variables; ``None``: their numbers.
    :param ax: Matplotlib axes; ``None``: axes of a new figure, as large as the tree needs.
    :return: The axes.
    :raises ValueError: if there are not as many names as variables.

    Example::

        >>> ax = plot_clique_tree(CliqueTree.chain(3, 2), names=["rain", "road", "trip"])
        >>> [text.get_text().split() for text in ax.texts]
        [['road', 'rain', '•'], ['road', '•', 'trip', '•']]
    """
    check_tree(tree)
    if names is not None and len(names) != tree.num_variables:
        raise ValueError(f"names: expected {tree.num_variables}, one for each variable, got {len(names)}")
    labels = [str(name) for name in (range(tree.num_variables) if names is None else names)]
    places = _layout(tree)
    if ax is None:
        import matplotlib.pyplot as plt

        width, height = (max(place[axis] for place in places) + 1 for axis in (0, 1))
        longest = max(len(label) for label in labels)
        size = (max(4.0, width * (0.09 * longest + 0.35)), height * (0.9 + 0.16 * tree.treewidth))
        ax = plt.figure(figsize=size, layout="constrained").subplots()
    for index, (parent, place) in enumerate(zip(tree.parents, places, strict=True)):
        if parent != index:
            ax.plot(*zip(place, places[parent], strict=True), color="0.6", linewidth=1, zorder=1)
    for index, (clique, parent, place) in enumerate(zip(tree.cliques, tree.parents, places, strict=True)):
        above = () if parent == index else tree.cliques[parent]
        lines = [labels[d] for d in clique if d in above] + [rf"{labels[d]} •" for d in clique if d not in above]
        box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "tab:blue"}
        ax.text(*place, "\n".join(lines), ha="center", va="center", fontsize=8, bbox=box, zorder=2)
    ax.set(xlim=(-0.6, max(x for x, _ in places) + 0.6), ylim=(max(y for _, y in places) + 0.6, -0.6))
    ax.set_axis_off()
    return ax


def _layout(tree: CliqueTree) -> list[tuple[float, float]]:
    """Positions of the cliques: leaves side by side, and every other clique in the middle of its children."""
    children: list[list[int]] = [[] for _ in tree.cliques]
    for index, parent in enumerate(tree.parents):
        if parent != index:
            children[parent].append(index)
    places: dict[int, tuple[float, float]] = {}
    free = 0.0
    waiting = [(root, 0) for root, parent in enumerate(tree.parents) if root == parent]
    while waiting:
        clique, level = waiting[-1]
        below = [child for child in children[clique] if child not in places]
        if below:
            waiting.append((below[0], level + 1))
            continue
        waiting.pop()
        if children[clique]:
            x = (places[children[clique][0]][0] + places[children[clique][-1]][0]) / 2
        else:
            x, free = free, free + 1.0
        places[clique] = (x, float(level))
    return [places[index] for index in range(len(tree.cliques))]
