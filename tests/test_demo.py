import itertools
import re

import numpy as np
import pyro
import pytest
import torch
from scipy.cluster.hierarchy import linkage

from pyro_structured.demo.__main__ import main
from pyro_structured.demo.bernoulli_mixture import BernoulliMixture
from pyro_structured.demo.cardinality_mixture import CardinalityMixture
from pyro_structured.demo.chow_liu_tree import ChowLiuTree
from pyro_structured.demo.digits import load_digits
from pyro_structured.demo.learning import fit_mixture, fit_single
from pyro_structured.demo.region_panels import region_labels, region_linkage
from pyro_structured.demo.regions import curvature_basis
from pyro_structured.demo.settings import Settings
from pyro_structured.structures import NestedSubsets

VECTORS = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)), dtype=torch.float64)


@pytest.fixture
def images():
    """Two groups of three pixels, each of which is mostly on or off as a whole."""
    group = torch.rand(400, 2).lt(torch.tensor([0.3, 0.6])).double().repeat_interleave(3, dim=1)
    return torch.where(torch.rand(400, 6) < 0.1, 1 - group, group)


@pytest.fixture
def mixture():
    regions = NestedSubsets([[0, 1, 2], [3, 4, 5], range(6)], 6)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    logits = torch.randn(2, 6, dtype=torch.float64)
    return CardinalityMixture(weights, logits, torch.randn(2, regions.table_size, dtype=torch.float64), regions)


def test_demo_runs(tmp_path, capsys):
    path = tmp_path / "picture.png"
    main(["--steps", "2", "--output", str(path)])
    printed = capsys.readouterr().out
    for name in (
        "independent pixels",
        "Chow-Liu tree",
        "one RecursiveCardinality",
        "mixture of 10",
        "ThinJunctionTree, treewidth 2",
        "ThinJunctionTree, treewidth 3",
        "JunctionTreeMixture of 10",
        "ExchangeableSPN, 4 networks",
    ):
        assert re.search(rf"{name}.* -\d\d\.\d\d \+- 0\.\d\d\n", printed)
    assert re.search(r"Which to take\? For the likelihood alone, the best of these: \S", printed)
    assert 10_000 < path.stat().st_size < 300_000


@pytest.mark.slow
def test_demo_compares_splits(capsys):
    main(["--steps", "1", "--splits", "1"])
    printed = capsys.readouterr().out
    assert re.search(r"split 1: independent pixels -25\.\d+; Chow-Liu tree -\d", printed)
    assert re.search(r"mixture - mixture of independent pixels .* smallest -?\d+\.\d\d\n", printed)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--output", "digits.txt"], r"--output: expected a file name that ends in .*, got 'digits.txt'"),
        (["--output", "no/such/folder/digits.png"], r"expected a file in an existing folder, but 'no/such/folder'"),
        (["--splits", "0"], r"--splits: expected an integer of at least 1, got '0'"),
        (["--steps", "many"], r"--steps: expected an integer of at least 1, got 'many'"),
        (["--splits", "1", "--validate"], r"not allowed with"),
        (["nonsense"], r"unrecognized arguments: nonsense"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert re.search(message, capsys.readouterr().err)


def test_missing_package(monkeypatch, capsys):
    monkeypatch.setattr("pyro_structured.demo.__main__.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main([])
    assert re.search(r"matplotlib is not installed; .* 'pyro-structured\[demo\]'", capsys.readouterr().err)


def test_digits():
    digits = load_digits(0)
    assert digits.training.shape == (1437, 64) and digits.held_out.shape == (360, 64)
    images = torch.cat([digits.training, digits.held_out])
    assert set(images.unique().tolist()) == {0.0, 1.0}
    assert int((images.mean(0) * (1 - images.mean(0)) == 0).sum()) == 10
    assert not torch.equal(load_digits(1).training, digits.training)
    assert torch.equal(load_digits(0).held_out_labels, digits.held_out_labels)


def test_baselines_are_distributions(images):
    for model in (*BernoulliMixture.fit(images, 3, 0.5, restarts=4), ChowLiuTree(images, 1.0)):
        torch.testing.assert_close(model.log_prob(VECTORS).exp().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_independent_pixels(images):
    (found,) = BernoulliMixture.fit(images, 1, 1.0, restarts=3)
    torch.testing.assert_close(found.probs[0], (images.sum(0) + 0.5) / 401)


def test_expectation_maximisation_improves(images):
    short, long = (BernoulliMixture.fit(images, 4, 0.01, 1, steps)[0] for steps in (1, 200) if not pyro.set_rng_seed(0))
    assert long.log_prob(images).mean() > short.log_prob(images).mean()
    scores = [m.log_prob(images).mean() for m in BernoulliMixture.fit(images, 4, 0.5, restarts=8)]
    assert scores == sorted(scores, reverse=True)


def test_chow_liu_tree_finds_a_chain():
    steps = torch.rand(3000, 6).lt(0.15).double()
    chain = steps.cumsum(-1) % 2
    tree = ChowLiuTree(chain, 1.0)
    assert {frozenset(e) for e in zip(tree.children.tolist(), tree.parents.tolist(), strict=True)} == {
        frozenset((d, d + 1)) for d in range(5)
    }


def test_regions_of_the_picture():
    regions = NestedSubsets.balanced(30)
    assert NestedSubsets.from_linkage(region_linkage(regions)) == regions
    labels = region_labels(regions)
    # Four of 7 or 8 pixels: twice as many would be more than the largest that have a colour.
    assert np.bincount(labels).tolist() == [8, 8, 7, 7]
    alone = region_labels(NestedSubsets([[0, 1], range(14), range(15)], 15))
    assert alone.tolist() == [0, 0] + [-1] * 13


def test_curvature_basis():
    regions = NestedSubsets.from_linkage(linkage(np.array([[0.0], [1.0], [5.0], [7.0], [7.5]])))
    basis = curvature_basis(regions, scale=3.0)
    bends = torch.randn(len(basis), dtype=torch.float64)
    tables = regions.split(bends @ basis)
    expected = [
        2 * 3.0 / n * b for n, b in zip(regions.sizes, bends.split([n - 1 for n in regions.sizes]), strict=True)
    ]
    for table, second in zip(tables, expected, strict=True):
        torch.testing.assert_close(table.diff().diff(), second)
        torch.testing.assert_close(table[[0, -1]], torch.zeros(2, dtype=torch.float64))


def test_mixture_equals_enumeration(mixture):
    probs = mixture.log_prob(VECTORS).exp()
    torch.testing.assert_close(probs.sum(), torch.tensor(1.0, dtype=torch.float64))
    observed = torch.tensor([True, False, True, False, False, False])
    agree = (VECTORS[:, observed] == torch.tensor([1.0, 0.0])).all(-1)
    image = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(mixture.marginal_log_prob(image, observed).exp(), probs[agree].sum().unsqueeze(0))
    marginals, samples = mixture.complete(image, observed, 2000)
    expected = (probs[agree] @ VECTORS[agree] / probs[agree].sum()).unsqueeze(0)
    torch.testing.assert_close(marginals, expected)
    assert samples.shape == (2000, 1, 6) and bool((samples[..., observed] == image[:, observed]).all())
    torch.testing.assert_close(samples.mean(0), expected, atol=0.06, rtol=0.0)
    torch.testing.assert_close(mixture.sample(4000).mean(0), probs @ VECTORS, atol=0.05, rtol=0.0)


def test_models_learn_groups(images):
    settings = Settings(single_steps=60, steps=30, start_steps=10, num_components=2)
    training, held_out = images[:300], images[300:]
    starts = BernoulliMixture.fit(training, 2, 0.5, restarts=4)
    independent = BernoulliMixture.fit(training, 1, 0.5, restarts=1)[0].log_prob(held_out).mean()
    for model in (fit_single(training, settings), fit_mixture(training, starts, settings)):
        assert model.log_prob(held_out).mean() > independent + 0.5
        torch.testing.assert_close(model.log_prob(VECTORS).exp().sum(), torch.tensor(1.0, dtype=torch.float64))
