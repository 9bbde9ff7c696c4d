"""The picture that the demonstration saves."""

__all__ = ["draw_picture"]

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from pyro_structured.demo.gallery import Gallery
from pyro_structured.demo.region_panels import draw_counts, draw_dendrogram, draw_image, region_labels, region_linkage

SIDE = 8
PAPER = torch.tensor([1.0, 1.0, 1.0])
INK = torch.tensor([0.13, 0.14, 0.17])
BLUE = torch.tensor([0.00, 0.37, 0.75])
HIDDEN = torch.tensor([0.85, 0.91, 0.98])
GAP = torch.tensor([0.91, 0.91, 0.90])

# All lengths are in inches; PIXEL is the side of a digit's pixel.
WIDTH, HEIGHT = 11.6, 8.35
PIXEL = 0.0545
COLUMNS = 10


def draw_picture(gallery: Gallery, path: Path) -> None:
    """Draws data, samples, marginals, completions and regions.

    :param Gallery gallery: The images to draw.
    :param Path path: File to write; its suffix says the format.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT))
    FigureCanvasAgg(figure)
    top = 0.4
    for title, images in (
        ("Data: handwritten digits, 8x8 pixels, on or off", gallery.data[:20]),
        ("Exact samples of one RecursiveCardinality", gallery.single_samples),
        ("Exact samples of a mixture of ten", gallery.mixture_samples),
        ("The ten components: how likely each pixel is on", gallery.component_marginals),
    ):
        canvas = _grid(images)
        _draw_canvas(figure, 0.15, top, canvas, title)
        top += len(canvas) * PIXEL + 0.36
    _draw_completions(figure, WIDTH - 0.15 - (COLUMNS * (SIDE + 1) + 1) * PIXEL, 0.4, gallery)
    regions = gallery.single.components.subsets
    labels, linkage = region_labels(regions), region_linkage(regions)
    draw_dendrogram(_place(figure, 0.6, 5.8, 4.4, 2.0), linkage, labels)
    draw_image(_place(figure, 5.3, 5.8, 2.0, 2.0), linkage, labels, SIDE)
    draw_counts(_place(figure, 8.15, 5.8, 3.3, 2.0), gallery, labels)
    figure.savefig(path, dpi=125)


def _place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    return figure.add_axes((left / WIDTH, 1 - (top + height) / HEIGHT, width / WIDTH, height / HEIGHT))


def _draw_canvas(figure: Figure, left: float, top: float, canvas: Tensor, title: str) -> Axes:
    axes = _place(figure, left, top, canvas.shape[1] * PIXEL, canvas.shape[0] * PIXEL)
    axes.imshow(canvas.numpy(), interpolation="nearest", aspect="auto")
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes


def _grid(images: Tensor, known: Tensor | None = None) -> Tensor:
    """Lays out images in rows of ten. Where a pixel is not known, its paper and its ink are blue."""
    known = torch.ones(SIDE * SIDE, dtype=torch.bool) if known is None else known
    paper, ink = (torch.where(known.unsqueeze(-1), a, b) for a, b in ((PAPER, HIDDEN), (INK, BLUE)))
    tiles = paper + images.to(torch.float32).unsqueeze(-1) * (ink - paper)
    pitch = SIDE + 1
    canvas = GAP.expand(-(-len(images) // COLUMNS) * pitch + 1, COLUMNS * pitch + 1, 3).clone()
    for index, tile in enumerate(tiles):
        row, column = index // COLUMNS * pitch + 1, index % COLUMNS * pitch + 1
        canvas[row : row + SIDE, column : column + SIDE] = tile.reshape(SIDE, SIDE, 3)
    return canvas


def _draw_completions(figure: Figure, left: float, top: float, gallery: Gallery) -> None:
    seen = torch.where(gallery.observed, gallery.truth, torch.zeros_like(gallery.truth))
    samples = len(gallery.completed_samples)
    blocks = [
        _grid(torch.cat([seen, gallery.completed_marginals]), gallery.observed),
        _grid(gallery.completed_samples.flatten(0, 1), gallery.observed),
        _grid(gallery.truth),
    ]
    white = torch.ones(2, blocks[0].shape[1], 3)
    canvas = torch.cat([blocks[0], white, blocks[1], white, blocks[2]])
    title = "New digits, lower half hidden: the mixture completes them,\nconditioned exactly on what is seen"
    axes = _draw_canvas(figure, left, top + 0.18, canvas, title)
    pitch = SIDE + 1
    starts = [0, pitch, 2 * pitch + 3, (samples + 2) * pitch + 6]
    heights = [pitch, pitch, samples * pitch, pitch]
    names = ["seen", "P(on | seen)", f"{samples} samples", "truth"]
    axes.set_yticks([a + b / 2 for a, b in zip(starts, heights, strict=True)], names)
    axes.tick_params(length=0, labelsize=10)
