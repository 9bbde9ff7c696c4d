"""Pictures: what is drawn where, and what is refused."""

import matplotlib
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_structured import plotting
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.inference import BinaryGibbs
from pyro_structured.plotting import (
    plot_chains,
    plot_clique_tree,
    plot_field,
    plot_matching,
    plot_nested_subsets,
    plot_path,
    plot_patterns,
    plot_pictures,
)
from pyro_structured.structures import CliqueTree, NestedSubsets

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

SUBSETS = NestedSubsets([[2, 0], [1, 3, 4], range(5), [2, 0], []], num_variables=5)
TREE = CliqueTree([[0, 1], [1, 2], [1, 3]], [2, 2, 2, 2])
EDGES, PLACES = [[0, 1], [1, 2], [0, 2]], [[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]]
CALLS = {
    "plot_chains": lambda ax: plot_chains(torch.randn(2, 10), ax=ax),
    "plot_clique_tree": lambda ax: plot_clique_tree(TREE, ax=ax),
    "plot_field": lambda ax: plot_field(torch.eye(3), ax=ax),
    "plot_matching": lambda ax: plot_matching([1, 0], ax=ax),
    "plot_nested_subsets": lambda ax: plot_nested_subsets(SUBSETS, ax=ax),
    "plot_path": lambda ax: plot_path(EDGES, PLACES, ax=ax),
    "plot_patterns": lambda ax: plot_patterns(torch.randn(3, 2, 2), ax=ax),
    "plot_pictures": lambda ax: plot_pictures([torch.rand(3, 2, 2)], ax=ax),
}


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_all_functions_are_tried():
    assert sorted(CALLS) == sorted(plotting.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_axes_are_returned_and_no_style_is_changed(ax, name):
    before = dict(matplotlib.rcParams)
    assert CALLS[name](ax) is ax
    ax.figure.canvas.draw()
    assert dict(matplotlib.rcParams) == before
    plt.figure()
    assert CALLS[name](None) is plt.gca()
    plt.close()


@pytest.mark.parametrize("values", [torch.eye(2).bool(), torch.eye(2, requires_grad=True), np.eye(2), [[1, 0], [0, 1]]])
def test_field(ax, values):
    plot_field(values, ax, title="here")
    (image,) = ax.images
    assert (image.get_array() == np.eye(2)).all() and image.get_clim() == (0, 1) and ax.get_title() == "here"


def test_field_of_other_numbers(ax):
    plot_field([[1.0, np.nan], [3.0, 2.0]], ax, cmap="viridis")
    assert ax.images[0].get_clim() == (1, 3) and ax.images[0].get_cmap().name == "viridis"
    plot_field(np.full((2, 2), np.nan), ax)


def test_patterns(ax):
    weights = torch.randn(5, 2, 3)
    plot_patterns(weights, torch.arange(5.0), ax, num_columns=2)
    drawn = ax.images[0].get_array()
    assert np.sort(drawn.compressed()) == pytest.approx(np.sort(weights.double().numpy().ravel()))
    low, high = ax.images[0].get_clim()
    assert high == -low == pytest.approx(float(weights.abs().max()))
    # Every bias stands above the upper edge of its pattern, in the middle.
    for number, text in enumerate(ax.texts):
        x, y = text.get_position()
        corner = np.argwhere(np.isclose(drawn.filled(np.nan), float(weights[number, 0, 0])))[0]
        assert text.get_text() == str(number) and (y, x) == (corner[0] - 1, corner[1] + 1)


def test_pictures(ax):
    """Grey, colored and signed ones keep their places and colors."""
    grey, colored = torch.eye(2).expand(3, 2, 2), torch.randint(0, 256, (3, 2, 2, 3), dtype=torch.uint8)
    colored[0, 0, 0] = 255
    signed = np.array([[[-1.0, 2.0], [np.nan, 0.5]]] * 3)
    plot_pictures([grey.bool(), colored, signed], ["mask", "picture", "log-odds"], ax)
    drawn = ax.images[0].get_array()
    assert drawn.shape == (8, 8, 4)
    assert np.allclose(drawn[:2, 3:5, :3], np.eye(2)[..., None])
    assert np.allclose(drawn[3:5, 6:8, :3], colored[2] / 255)
    assert np.allclose(drawn[6, :2, 0], [0, 1]) and np.allclose(drawn[7, 1, :3], 0.5, atol=0.01)
    assert drawn[7, 0, 3] == 0
    assert np.allclose(drawn[2], 1) and np.allclose(ax.get_yticks(), [0.5, 3.5, 6.5])


def test_clique_tree(ax):
    plot_clique_tree(TREE, list("abcd"), ax)
    assert [text.get_text().split() for text in ax.texts] == [["a", "•", "b", "•"], ["b", "c", "•"], ["b", "d", "•"]]
    assert len(ax.lines) == 2


@pytest.mark.parametrize("points", [None, (np.arange(4).reshape(2, 2), 3.0 + np.arange(6).reshape(3, 2))])
def test_matching(ax, points):
    probs = torch.tensor([[0.0, 0.75, 0.25], [1.0, 0.0, 0.0]])
    plot_matching(torch.tensor([1, 0]), torch.arange(6.0).reshape(2, 3), probs, points, ax=ax, color="red")
    lines = {(line.get_color(), round(line.get_linewidth(), 2)) for line in ax.lines if len(line.get_xdata()) == 2}
    assert ("red", 3.1) in lines and ("red", 4.0) in lines and ("0.6", 1.3) in lines
    left, right = points or ([(0, 0), (0, -1)], [(1, 0), (1, -1), (1, -2)])
    ends = [np.column_stack(line.get_data()).tolist() for line in ax.lines if line.get_color() == "red"]
    assert [list(left[0]), list(right[1])] in ends and [list(left[1]), list(right[0])] in ends
    assert {"1", "3"} <= {text.get_text() for text in ax.texts}


def test_path(ax):
    plot_path(torch.tensor(EDGES), PLACES, [1, 0, 1], [0.5, 1.0, 2.0], [0.0, 0.5, 1.0], ax=ax, label="driven")
    every, path = ax.collections
    assert [line.tolist() for line in path.get_segments()] == [[PLACES[0], PLACES[1]], [PLACES[0], PLACES[2]]]
    assert every.get_linewidths() == pytest.approx([0.4, 2.2, 4.0]) and list(path.get_linewidths()) == [0.4, 4.0]
    assert path.get_label() == "driven" and [text.get_text() for text in ax.texts] == ["0.5", "1", "2"]


def test_several_paths(ax):
    plot_path(EDGES, PLACES, [[1, 1, 0], [0, 0, 1]], ax=ax, color=["red", "blue"], label=["there", "back"])
    _, *paths = ax.collections
    assert [len(path.get_segments()) for path in paths] == [2, 1]
    assert [path.get_label() for path in paths] == ["there", "back"]
    # They are beside each other: a line's width apart.
    ax.figure.canvas.draw()
    first, second = (path.get_transform().transform([1.0, 1.0]) for path in paths)
    assert np.allclose(second - first, np.array([3.5, -3.5]) * ax.figure.dpi / 72)


def test_colors_of_pairs(ax):
    plot_matching([1, 0], ax=ax, color=["red", "blue"])
    assert [line.get_color() for line in ax.lines if len(line.get_xdata()) == 2][:2] == ["red", "blue"]


def test_nested_subsets(ax):
    """Every subset is an interval inside those that contain it, and has a cell for each count."""
    d = RecursiveCardinality(torch.randn(5), torch.randn(SUBSETS.table_size), SUBSETS)
    plot_nested_subsets(SUBSETS, d.count_marginals, list("abcde"), ax)
    cells = [mesh.get_array().ravel() for mesh in ax.collections]
    tables = [table for table in SUBSETS.split(d.count_marginals) if len(table) > 1]
    for drawn, table in zip(cells, tables, strict=True):
        assert np.allclose(drawn, table.double().numpy())
    boxes = [line.get_xydata() for line in ax.lines]
    assert len(boxes) == 4
    sizes = [box[:, 0].max() - box[:, 0].min() for box in boxes]
    assert sizes == [2, 3, 5, 2] and [box[0, 1] for box in boxes] == [-1, -1, 0, -2]
    assert boxes[0][:, 0].min() == boxes[3][:, 0].min()
    assert sorted(label.get_text() for label in ax.get_xticklabels()) == list("abcde")
    means = [float(table.double() @ torch.arange(len(table)).double()) for table in tables]
    assert [text.get_text() for text in ax.texts] == [f"{mean:.3g}" for mean in means]


def test_chains(ax):
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5).expand([2]).to_event(1))
        pyro.sample("x", dist.Normal(z.sum(), 1.0), obs=torch.tensor(1.0))

    mcmc = MCMC(BinaryGibbs(model), num_samples=40, warmup_steps=1, disable_progbar=True)
    mcmc.run()
    plot_chains(mcmc, "z", 1, ax)
    assert (ax.lines[0].get_ydata() == mcmc.get_samples()["z"][:, 1].numpy()).all()
    assert ax.get_ylabel() == "z[1]" and ax.get_title().startswith("R-hat ")
    plot_chains(torch.zeros(3, 5, dtype=torch.long), ax=ax)
    with pytest.raises(ValueError, match=r"site: expected one of \('z',\), got 'y'"):
        plot_chains(mcmc, "y", ax=ax)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plot_field(torch.zeros(3)), r"values: expected shape \(H, W\), got \(3,\)"),
        (lambda: plot_field(torch.zeros(0, 3)), r"values: expected at least one pixel, got shape \(0, 3\)"),
        (lambda: plot_field("picture"), r"values: expected numbers of shape \(H, W\), got str"),
        (lambda: plot_patterns(torch.zeros(2, 2)), r"weights: expected shape \(J, H, W\), got \(2, 2\)"),
        (lambda: plot_patterns(torch.zeros(0, 2, 2)), "weights: expected at least one pattern"),
        (lambda: plot_patterns(torch.zeros(2, 2, 2), [1.0]), r"biases: expected shape \(2,\), got \(1,\)"),
        (lambda: plot_patterns(torch.zeros(2, 2, 2), num_columns=0), "num_columns: expected a positive integer, got 0"),
        (lambda: plot_matching([0, 5], torch.zeros(2, 2)), r"costs: expected shape \(2, 6\), got \(2, 2\)"),
        (lambda: plot_pictures([]), "rows: expected at least one, got none"),
        (lambda: plot_pictures([[]]), "rows: expected at least one picture in each, got none"),
        (lambda: plot_pictures([torch.zeros(2, 2)]), r"rows: expected shape \(P, H, W\) or \(P, H, W, 3\) in each row"),
        (
            lambda: plot_pictures([torch.zeros(2, 4, 4), torch.zeros(3, 4, 4)]),
            r"rows: expected shape \(2, 4, 4\) or \(2, 4, 4, 3\) in each row, got \(3, 4, 4\)",
        ),
        (lambda: plot_pictures([torch.zeros(1, 2, 2)], ["a", "b"]), "names: expected 1, one for each row, got 2"),
        (lambda: plot_matching([1, 0], color=["red"]), "color: expected 2, one for each line, got 1"),
        (lambda: plot_path(EDGES, PLACES, [[1, 0, 0]], label=[]), "label: expected 1, one for each line, got 0"),
        (lambda: plot_matching([0.5]), r"matching: expected integers in range\(1\)"),
        (lambda: plot_path([[0, 3]], PLACES), r"edges: expected integers in range\(3\)"),
        (lambda: plot_path(EDGES, PLACES, [1, 0]), r"path: expected shape \(3,\) or \(P, 3\), got \(2,\)"),
        (lambda: plot_nested_subsets([[0]]), "subsets: expected NestedSubsets, got list"),
        (lambda: plot_nested_subsets(SUBSETS, [0.5]), r"count_marginals: expected shape \(17,\), got \(1,\)"),
        (lambda: plot_nested_subsets(SUBSETS, names="ab"), "names: expected 5, one for each variable, got 2"),
        (lambda: plot_clique_tree(TREE, "ab"), "names: expected 4, one for each variable, got 2"),
        (lambda: plot_chains(torch.zeros(3)), r"chains: expected shape \(chains, draws, ...\), got \(3,\)"),
        (lambda: plot_chains(torch.zeros(2, 3, 4)), "index: expected 1 numbers for values of shape"),
        (lambda: plot_chains(torch.zeros(2, 3, 4), index=7), "index: expected an entry of values of shape"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_matplotlib_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("pyro_structured.plotting.arrays.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'pyro-structured\[plot\]' installs it"):
        plot_field(torch.eye(2))


def test_smallest_pictures(ax):
    plot_field(torch.zeros(1, 1), ax)
    plot_pictures([np.full((1, 1, 1), np.nan)], ax=ax)
    plot_matching([], ax=ax)
    plot_path(np.zeros((0, 2)), PLACES, ax=ax)
    plot_nested_subsets(NestedSubsets([], num_variables=1), ax=ax)
    ax.figure.canvas.draw()
