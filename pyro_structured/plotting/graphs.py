"""Pictures of matchings and of paths, with costs and probabilities."""

__all__ = ["plot_matching", "plot_path"]

from typing import Any

import numpy as np

from pyro_structured.plotting.arrays import as_array, current_axes

# Widths of lines, in points, of probability 0 and 1.
THINNEST, THICKEST = 0.4, 4.0


def plot_matching(
    matching: Any,
    costs: Any = None,
    probabilities: Any = None,
    points: tuple[Any, Any] | None = None,
    names: tuple[Any, Any] | None = None,
    ax: Any = None,
    color: Any = None,
) -> Any:
    """Draws which of the right nodes each of the left nodes is matched with, and how probable all pairs are.

    :param matching: The right nodes of the n left ones, integers of shape ``(n,)``, as ``Matching`` has them.
    :param costs: Costs of pairs, shape ``(n, m)``, of which those of the matching are written at their lines.
    :param probabilities: Probabilities of pairs, shape ``(n, m)``, which say how thick lines are; also of pairs that
        are not matched, in grey.
    :param points: Places of the left and of the right nodes, shapes ``(n, 2)`` and ``(m, 2)``; ``None``: two columns.
    :param names: Names of the left and of the right nodes; ``None``: their numbers, or none where there are points.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :param color: Color of the matching's lines, or a list of one for each; ``None``: the next one of the cycle.
    :return: The axes.
    :raises ValueError: if a shape or the number of colors is another one, or the matching names no right node.

    Example::

        >>> from matplotlib.figure import Figure
        >>> ax = plot_matching([1, 0], costs=[[3.0, 1.0], [2.0, 4.0]], ax=Figure().subplots())
        >>> [text.get_text() for text in ax.texts]
        ['0', '1', '0', '1', '1', '2']
    """
    chosen = as_array("matching", matching, "(n,)", None)
    number = len(chosen)
    tables = {"costs": costs, "probabilities": probabilities}
    given = {
        name: as_array(name, table, f"({number}, m)", number, None)
        for name, table in tables.items()
        if table is not None
    }
    if points is None:
        most = max([int(chosen.max()) + 1 if number else 0, number, *(table.shape[1] for table in given.values())])
        left, right = (
            np.column_stack([np.full(size, x), -np.arange(size)]) for size, x in ((number, 0.0), (most, 1.0))
        )
    else:
        left = as_array("points", points[0], f"({number}, 2)", number, 2)
        right = as_array("points", points[1], "(m, 2)", None, 2)
    size = len(right)
    for name, table in given.items():
        if table.shape[1] != size:
            raise ValueError(f"{name}: expected shape ({number}, {size}), got {table.shape}")
    if ((chosen < 0) | (chosen >= size) | (chosen != chosen.round())).any():
        raise ValueError(f"matching: expected integers in range({size}), got {chosen.tolist()}")
    ax, pairs = current_axes(ax), chosen.astype(int)
    sure = given.get("probabilities")
    if sure is not None:
        for row, column in np.argwhere(sure > 0.01):
            if pairs[row] != column:
                ax.plot(*zip(left[row], right[column], strict=True), color="0.6", linewidth=_width(sure[row, column]))
    colors = _one_each("color", color or ax.plot([], [])[0].get_color(), number)
    for row, column in enumerate(pairs):
        width = THICKEST / 2 if sure is None else _width(sure[row, column])
        ax.plot(*zip(left[row], right[column], strict=True), color=colors[row], linewidth=width)
    for side, places in enumerate((left, right)):
        ax.plot(*places.T, "o", color="0.2", markersize=4)
        labels = names[side] if names is not None else (range(len(places)) if points is None else ())
        for label, (x, y) in zip(labels, places, strict=False):
            shift = (-7, 0) if side == 0 else (7, 0)
            align = "right" if side == 0 else "left"
            ax.annotate(str(label), (x, y), shift, textcoords="offset points", ha=align, va="center")
    if "costs" in given:
        for row, column in enumerate(pairs):
            # Near the left node, where lines do not cross yet.
            x, y = 0.85 * left[row] + 0.15 * right[column]
            cost = f"{given['costs'][row, column]:.3g}"
            ax.text(x, y, cost, ha="center", va="center", fontsize="small", backgroundcolor="w")
    if points is None:
        ax.margins(x=0.2)
    ax.set_axis_off()
    return ax


def plot_path(
    edges: Any,
    positions: Any,
    path: Any = None,
    costs: Any = None,
    probabilities: Any = None,
    ax: Any = None,
    color: Any = None,
    label: Any = None,
) -> Any:
    """Draws a graph in grey, and on it a path, a tree or any set of edges, or several of them side by side.

    :param edges: Pairs of nodes, integers of shape ``(E, 2)``, as ``ShortestPath`` and ``SpanningTree`` have them.
    :param positions: Places of the nodes, shape ``(V, 2)``.
    :param path: Which edges belong to it, zeros and ones, shape ``(E,)``, or ``(P, E)`` for P of them; ``None``: none.
    :param costs: Costs of the edges, shape ``(E,)``, written at their middles.
    :param probabilities: Probabilities of the edges, shape ``(E,)``, which say how thick they are drawn.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :param color: Color of the path, or a list of P colors; ``None``: the next ones of the cycle.
    :param label: Label of the path in a legend, or a list of P labels; ``None``: none.
    :return: The axes.
    :raises ValueError: if a shape or a number of colors or labels is another one, or an edge names no node.

    Example::

        >>> from matplotlib.figure import Figure
        >>> ax = plot_path([[0, 1], [1, 2], [0, 2]], [[0, 0], [1, 1], [2, 0]], path=[1, 1, 0], ax=Figure().subplots())
        >>> [len(collection.get_segments()) for collection in ax.collections]
        [3, 2]
    """
    from matplotlib.collections import LineCollection
    from matplotlib.transforms import ScaledTranslation

    pairs = as_array("edges", edges, "(E, 2)", None, 2)
    places = as_array("positions", positions, "(V, 2)", None, 2)
    number = len(pairs)
    if ((pairs < 0) | (pairs >= len(places)) | (pairs != pairs.round())).any():
        raise ValueError(f"edges: expected integers in range({len(places)}), got others")
    lines = places[pairs.astype(int)]
    ax = current_axes(ax)
    sure = None if probabilities is None else as_array("probabilities", probabilities, f"({number},)", number)
    widths = 1.0 if sure is None else _width(sure)
    ax.add_collection(LineCollection(lines, colors="0.75", linewidths=widths, zorder=1))
    if path is not None:
        several = len(np.shape(path)) == 2
        table = as_array("path", path, f"({number},) or (P, {number})", *([None] if several else []), number) > 0
        chosen = table if several else table[None]
        colors, labels = _one_each("color", color, len(chosen)), _one_each("label", label, len(chosen))
        for place, edges_of_path in enumerate(chosen):
            width = 3.0 if sure is None else _width(sure)[edges_of_path]
            drawn = colors[place] or ax.plot([], [])[0].get_color()
            # Beside each other, whatever the scale: a line's width apart.
            points = 3.5 * (place - (len(chosen) - 1) / 2)
            shift = ScaledTranslation(points / 72, -points / 72, ax.figure.dpi_scale_trans)
            collection = LineCollection(
                lines[edges_of_path],
                colors=[drawn],
                linewidths=width,
                label=labels[place],
                zorder=2,
                transform=ax.transData + shift,
            )
            ax.add_collection(collection)
    ax.plot(*places.T, "o", color="0.3", markersize=3, zorder=3)
    if costs is not None:
        for (x, y), cost in zip(lines.mean(1), as_array("costs", costs, f"({number},)", number), strict=True):
            ax.text(x, y, f"{cost:.3g}", ha="center", va="center", fontsize="small", backgroundcolor="w", zorder=4)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _one_each(name: str, value: Any, number: int) -> list[Any]:
    values = value if isinstance(value, list) else [value] * number
    if len(values) != number:
        raise ValueError(f"{name}: expected {number}, one for each line, got {len(values)}")
    return values


def _width(probability: Any) -> Any:
    return THINNEST + (THICKEST - THINNEST) * np.clip(probability, 0.0, 1.0)
