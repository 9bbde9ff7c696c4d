"""Panels of the picture that show the learned regions."""

__all__ = ["draw_counts", "draw_dendrogram", "draw_image", "region_labels"]

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from scipy.cluster.hierarchy import cophenet, dendrogram, fcluster
from scipy.spatial.distance import squareform

from pyro_structured.demo.gallery import Gallery
from pyro_structured.distributions import PoissonBinomial

CUT = 0.925  # where the picture, and only the picture, cuts the nested regions into a few
COLOURS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#e45756",
    "#72b7b2",
    "#b279a2",
    "#eeca3b",
    "#9d755d",
    "#ff9da6",
    "#7f7fc4",
    "#a3c585",
)
SINGLE = "#d8d8d5"
LINK = "0.55"


def region_labels(linkage: np.ndarray) -> np.ndarray:
    """Cuts the regions: 0 is the largest, 1 the next; -1 marks pixels that are alone."""
    label = fcluster(linkage, CUT, "distance")
    sizes = np.bincount(label)
    rank = np.full(len(sizes), -1)
    large = [cluster for cluster in np.argsort(-sizes, kind="stable") if sizes[cluster] > 1]
    rank[large] = np.arange(len(large))
    labels: np.ndarray = rank[label]
    return labels


def _colour(label: int) -> str:
    return SINGLE if label < 0 else COLOURS[label % len(COLOURS)]


def draw_dendrogram(axes: Axes, linkage: np.ndarray, labels: np.ndarray) -> None:
    """Draws how pixels merge into regions."""
    owner = labels.tolist()
    for left, right, distance in linkage[:, :3]:
        a, b = owner[int(left)], owner[int(right)]
        owner.append(a if a == b and a >= 0 and distance <= CUT else -1)
    colours = [_colour(label) if label >= 0 else LINK for label in owner]
    dendrogram(linkage, ax=axes, no_labels=True, link_color_func=lambda node: colours[node])
    axes.axhline(CUT, color="0.5", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.05 * float(linkage[-1, 2]))
    axes.set_title("Nested regions, learned from correlations", fontsize=11, loc="left")
    axes.set_ylabel("distance, from 1 - correlation", fontsize=10)
    axes.set_xlabel("64 pixels; every branching is a region with a potential on its count", fontsize=10)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw_image(axes: Axes, linkage: np.ndarray, labels: np.ndarray, side: int) -> None:
    """Draws the regions as pixels; the earlier two neighbours merge, the thinner is the line between them."""
    colours = np.array([to_rgb(_colour(label)) for label in labels]).reshape(side, side, 3)
    axes.imshow(colours, interpolation="nearest")
    distance = squareform(cophenet(linkage))
    for pixel in range(side * side):
        row, column = divmod(pixel, side)
        if column + 1 < side:
            width = 0.6 + 5 * distance[pixel, pixel + 1] ** 4
            axes.plot([column + 0.5] * 2, [row - 0.5, row + 0.5], color="white", linewidth=width, solid_capstyle="butt")
        if row + 1 < side:
            width = 0.6 + 5 * distance[pixel, pixel + side] ** 4
            axes.plot(
                [column - 0.5, column + 0.5], [row + 0.5] * 2, color="white", linewidth=width, solid_capstyle="butt"
            )
    axes.set_title("The same in the image", fontsize=11, loc="left")
    axes.set_xlabel("grey: hardly correlated,\nor never on", fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_counts(axes: Axes, gallery: Gallery, labels: np.ndarray) -> None:
    """Draws the counts of the largest region: in the data, in the single model, and for independent pixels."""
    members = np.flatnonzero(labels == 0)
    regions = gallery.single.components.subsets
    (region,) = (i for i, subset in enumerate(regions.subsets) if np.array_equal(subset, members))
    count = torch.arange(len(members) + 1.0, dtype=torch.float64)
    found = regions.counts(gallery.data)[:, region].bincount(minlength=len(count)) / len(gallery.data)
    learned = regions.split(gallery.single.components.count_marginals[0])[region]
    independent = PoissonBinomial(probs=gallery.data[:, members].mean(0)).log_prob(count).exp()
    axes.bar(count.numpy(), found.numpy(), color=_colour(0), alpha=0.4, label="data")
    axes.plot(count.numpy(), learned.numpy(), "o-", color=_colour(0), markersize=5, label="RecursiveCardinality")
    axes.plot(count.numpy(), independent.numpy(), "s:", color="0.35", markersize=4, label="independent pixels")
    axes.set_title("How many pixels of the blue region are on?", fontsize=11, loc="left")
    axes.set_xlabel(f"count, of {len(members)} pixels", fontsize=10)
    axes.set_ylabel("probability", fontsize=10)
    axes.set_xticks(count.tolist())
    axes.tick_params(labelsize=9)
    axes.set_ylim(0, 1.3 * float(independent.max()))
    axes.legend(fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
