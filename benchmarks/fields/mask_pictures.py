"""Pictures of predictions, and of patterns."""

import numpy as np


def draw_predictions(path, images, masks, labels, gains, weights, names):
    """Test pictures with the largest gains, with middle ones, and with the least; and the strongest patterns.

    ``labels`` are those of the models named, ``gains`` of what a picture's score gains.
    """
    order = np.argsort(-gains)
    middle = len(order) // 2
    shown = [*order[:4], *order[middle - 2 : middle + 2], *order[-4:]]
    limits = [(images.min(), images.max()), (0, 1)] + [(0, 1)] * len(labels)
    rows = [images, masks, *labels]
    figure, axes = _axes(len(rows) + 1, len(shown))
    for column, number in enumerate(shown):
        for axis, pictures, (low, high) in zip(axes[:, column], rows, limits, strict=False):
            axis.imshow(pictures[number], cmap="gray", vmin=low, vmax=high)
        axes[0, column].set_title(f"{gains[number]:+.2f}", fontsize=8)
    _patterns(axes[-1], weights)
    _save(figure, axes, ["picture", "mask", *names, "weights"], path)


def draw_patterns(path, weights):
    """The strongest patterns of several models, a row for each."""
    figure, axes = _axes(len(weights), 12)
    for row, each in zip(axes, weights.values(), strict=True):
        _patterns(row, each)
    _save(figure, axes, list(weights), path)


def _axes(rows, columns):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(1.15 * columns, 1.2 * rows))


def _patterns(axes, weights):
    strongest = weights.flatten(1).std(1).argsort(descending=True)[: len(axes)]
    limit = float(weights.abs().max())
    for axis, number in zip(axes, strongest.tolist(), strict=False):
        axis.imshow(weights[number], cmap="RdBu_r", vmin=-limit, vmax=limit)


def _save(figure, axes, names, path):
    for axis, name in zip(axes[:, 0], names, strict=True):
        axis.set_ylabel(name, fontsize=7)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=110)
