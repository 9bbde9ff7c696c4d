"""Panels of the picture that show the learned regions."""

__all__ = ["draw_counts", "draw_dendrogram", "draw_image", "region_labels", "region_linkage"]

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from scipy.cluster.hierarchy import cophenet, dendrogram
from scipy.spatial.distance import squareform

from pyro_structured.demo.gallery import Gallery
from pyro_structured.distributions import PoissonBinomial
from pyro_structured.structures import NestedSubsets

LARGEST = 12  # pixels of the regions that the picture, and only the picture, gives a colour of their own
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


def region_labels(regions: NestedSubsets) -> np.ndarray:
    """Cuts the regions into a few: 0 is the largest, 1 the next; -1 marks pixels that are alone."""
    label = np.full(regions.num_variables, -1)
    chosen = 0
    for members in sorted(regions.subsets, key=len, reverse=True):
        if len(members) <= LARGEST and (label[members] < 0).all():
            label[members] = chosen
            chosen += 1
    return label


def region_linkage(regions: NestedSubsets) -> np.ndarray:
    """The regions of a binary tree, smallest first, as scipy's linkage; heights are logarithms of their sizes."""
    owner = np.arange(regions.num_variables)
    rows = []
    for row, members in enumerate(regions.subsets):
        left, right = np.unique(owner[members])
        rows.append([left, right, np.log2(len(members)), len(members)])
        owner[members] = regions.num_variables + row
    return np.array(rows)


def _colour(label: int) -> str:
    return SINGLE if label < 0 else COLOURS[label % len(COLOURS)]


def draw_dendrogram(axes: Axes, linkage: np.ndarray, labels: np.ndarray) -> None:
    """Draws how pixels merge into regions."""
    owner = labels.tolist()
    for left, right in linkage[:, :2].astype(int).tolist():
        owner.append(owner[left] if owner[left] == owner[right] else -1)
    colours = [_colour(label) if label >= 0 else LINK for label in owner]
    dendrogram(linkage, ax=axes, no_labels=True, link_color_func=lambda node: colours[node])
    ticks = range(round(float(linkage[-1, 2])) + 1)
    axes.set_yticks(ticks, [str(2**tick) for tick in ticks])
    axes.set_ylim(0, 1.05 * float(linkage[-1, 2]))
    axes.set_title("Nested regions, learned from the data", fontsize=11, loc="left")
    axes.set_ylabel("pixels in the region", fontsize=10)
    axes.set_xlabel("64 pixels; every branching is a region with a potential on its count", fontsize=10)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw_image(axes: Axes, linkage: np.ndarray, labels: np.ndarray, side: int) -> None:
    """Draws the regions as pixels; the smaller a region of two neighbours, the thinner is the line between them."""
    colours = np.array([to_rgb(_colour(label)) for label in labels]).reshape(side, side, 3)
    axes.imshow(colours, interpolation="nearest")
    distance = squareform(cophenet(linkage)) / linkage[-1, 2]
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
    axes.set_xlabel("colours: regions of at most\n12 pixels", fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_counts(axes: Axes, gallery: Gallery, labels: np.ndarray) -> None:
    """Draws the counts of the largest region: in the data, in the single model, and for independent pixels."""
    members = np.flatnonzero(labels == 0)
    regions = gallery.single.components.subsets
    (region,) = (i for i, subset in enumerate(regions.subsets) if np.array_equal(subset, members))
    count = torch.arange(len(members) + 1.0, dtype=torch.float64)
    observed = regions.counts(gallery.data)[:, region].bincount(minlength=len(count)) / len(gallery.data)
    learned = regions.split(gallery.single.components.count_marginals[0])[region]
    independent = PoissonBinomial(probs=gallery.data[:, members].mean(0)).log_prob(count).exp()
    axes.bar(count.numpy(), observed.numpy(), color=_colour(0), alpha=0.4, label="data")
    axes.plot(count.numpy(), learned.numpy(), "o-", color=_colour(0), markersize=5, label="RecursiveCardinality")
    axes.plot(count.numpy(), independent.numpy(), "s:", color="0.35", markersize=4, label="independent pixels")
    axes.set_title("How many pixels of the blue region are on?", fontsize=11, loc="left")
    axes.set_xlabel(f"count, of {len(members)} pixels", fontsize=10)
    axes.set_ylabel("probability", fontsize=10)
    axes.set_xticks(count.tolist())
    axes.tick_params(labelsize=9)
    axes.set_ylim(0, 1.3 * float(torch.maximum(independent, observed).max()))
    axes.legend(fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
