"""Samples of counts, by compiled loops, windows and trees, against their probabilities; and most probable vectors."""

import math

import pytest
import torch
from pyro.distributions.testing.gof import multinomial_goodness_of_fit

from pyro_structured.counts.ops import count_sampling, direct_counts, fourier_passes
from pyro_structured.counts.ops.certified_counts import infer_counts, log_partition
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_sampling import CountDraws, most_probable, sample_counts
from pyro_structured.foundation.ops.draws import draw
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing import brute_force

pytestmark = pytest.mark.statistical

FAILURE_RATE = 2e-9


@pytest.fixture(params=["windows", "compiled"])
def loops(request, monkeypatch):
    """Samples with and without compiled loops."""
    is_compiled = request.param == "compiled"
    if is_compiled:
        pytest.importorskip("numba")
    for module in (count_sampling, direct_counts):
        monkeypatch.setattr(module, "is_compiled", lambda tensor: is_compiled)


def test_draw_never_takes_an_impossible_index():
    weights = torch.tensor([0.0, 1e-300, 0.0, 1.0, 0.0]).double().expand(20000, 5)
    assert (draw(weights) == 3).all()
    counts = torch.bincount(draw(torch.tensor([1.0, 0.0, 2.0, 5.0]).double().expand(20000, 4)), minlength=4)
    assert counts[1] == 0
    assert (
        multinomial_goodness_of_fit(torch.tensor([1.0, 2.0, 5.0]) / 8, counts[[0, 2, 3]], total_count=20000)
        > FAILURE_RATE
    )


@pytest.mark.parametrize(
    "subsets",
    [None, [[0, 1], [2, 3, 4], [0, 1, 2, 3, 4, 5]], [[0, 1, 2], [0, 1, 2], [4], []]],
    ids=["one", "nested", "forest"],
)
@pytest.mark.parametrize("steep", [False, True])
def test_samples_follow_enumerated_probabilities(subsets, steep, loops):
    family = NestedSubsets([range(6)] if subsets is None else subsets, 6)
    logits = torch.randn(2, 6, dtype=torch.float64)
    tables = torch.randn(2, family.table_size, dtype=torch.float64)
    if steep:
        logits[0, 2], logits[1, 4] = math.inf, -math.inf
        tables = 8 * tables
        tables[:, 1] = -math.inf
    samples = sample_counts(logits, tables, family.forest, 20000)
    index = (samples @ (2.0 ** torch.arange(5, -1, -1)).double()).long()
    probabilities = brute_force.log_probs(logits, tables, family.subsets).exp()
    for row in range(2):
        counts = torch.bincount(index[:, row], minlength=64)
        assert (counts[probabilities[row] == 0] == 0).all()
        common = probabilities[row] * 20000 > 5
        p = torch.cat([probabilities[row][common], probabilities[row][~common].sum()[None]])
        n = torch.cat([counts[common], counts[~common].sum()[None]])
        keep = p * 20000 > 5
        if keep.sum() > 1:
            assert multinomial_goodness_of_fit(p[keep], n[keep], total_count=20000) > FAILURE_RATE


@pytest.mark.slow(keep=1)
def test_extreme_counts_of_many_variables(loops):
    size = 300
    logits = torch.randn(2, size, dtype=torch.float64)
    logits[:, 0], logits[:, 1] = math.inf, -math.inf
    table = torch.full((2, size + 1), -math.inf, dtype=torch.float64)
    table[:, 1] = 1.0
    table[:, size - 1] = 1.0 - logits[:, 2:].sum(-1)
    table[1, 150] = 0.5
    table[1, 150] -= log_partition(
        logits[1], torch.where(torch.arange(size + 1) == 150, 0.0, -math.inf), CountForest(size)
    )
    samples = sample_counts(logits, table, CountForest(size), 20000)
    assert (samples[..., 0] == 1).all() and (samples[..., 1] == 0).all()
    for row, weights in enumerate(torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.5, 1.0]])):
        counts = torch.stack([(samples[:, row].sum(-1) == k).sum() for k in (1, 150, size - 1)])
        keep = weights > 0
        p = torch.softmax(weights[keep], -1)
        assert counts.sum() == 20000
        assert multinomial_goodness_of_fit(p, counts[keep], total_count=20000) > FAILURE_RATE


@pytest.mark.parametrize("case", ["plain", "windows", "direct", "truncated"])
def test_large_samples_have_the_right_counts_and_marginals(case, monkeypatch, loops):
    size = 300
    logits = torch.randn(1, size, dtype=torch.float64)
    table = torch.randn(1, size + 1, dtype=torch.float64)
    if case == "windows":
        # Two distant counts, equally probable.
        table.fill_(-math.inf)
        for count in (60, 240):
            alone = torch.full_like(table, -math.inf)
            alone[0, count] = 0.0
            table[0, count] = -log_partition(logits, alone, CountForest(size))
    if case == "direct":
        monkeypatch.setattr(direct_counts, "LOG_ODDS_TOLERANCE", 0.0)
        monkeypatch.setattr(fourier_passes, "FOURIER_WIDTH", 16)
    if case == "truncated":
        table[:, 6:] = -math.inf
    forest = CountForest(size)
    samples = sample_counts(logits, table, forest, 4000)[:, 0]
    exact = infer_counts(logits, table, forest)
    marginals = torch.sigmoid(exact.marginal_logits[0])
    error = (samples.mean(0) - marginals) / (marginals * (1 - marginals) / 4000).sqrt().clamp(min=1e-3)
    assert error.abs().max() < 5.5
    counts = torch.bincount(samples.sum(-1).long(), minlength=size + 1)
    common = exact.count_marginals[0] * 4000 > 5
    assert counts[common].sum() > 2000
    assert (
        multinomial_goodness_of_fit(exact.count_marginals[0][common], counts[common], total_count=4000) > FAILURE_RATE
    )


@pytest.mark.parametrize("most", [2**22, 100])
def test_compiled_samples_in_parts(most, monkeypatch):
    """Trees that are kept, and those that are made anew, by chunks of rows; many variables, whose sums are cut off."""
    pytest.importorskip("numba")
    torch.manual_seed(0)
    logits, table = torch.randn(3, 400, dtype=torch.double), torch.randn(3, 401, dtype=torch.double)
    monkeypatch.setattr(direct_counts, "CHUNK_ELEMENTS", most)
    forest, exact = CountForest(400), infer_counts(logits, table, CountForest(400))
    draws = CountDraws(logits, table, forest=forest)
    samples = torch.cat([draws(1), draws(1999), draws(2000)])
    assert samples.shape == (4000, 3, 400) and draws(0).shape == (0, 3, 400)
    marginals = torch.sigmoid(exact.marginal_logits)
    error = (samples.mean(0) - marginals) / (marginals * (1 - marginals) / 4000).sqrt()
    assert 0.8 < (error**2).mean() < 1.2 and error.abs().max() < 5.5
    for row in range(3):
        counts = torch.bincount(samples[:, row].sum(-1).long(), minlength=401)
        common = exact.count_marginals[row] * 4000 > 5
        expected = exact.count_marginals[row][common]
        assert multinomial_goodness_of_fit(expected, counts[common], total_count=4000) > FAILURE_RATE
    table = torch.full((1, 401), -math.inf, dtype=torch.double)
    table[0, 200] = 0.0
    fixed = sample_counts(logits[:1], table, forest, 2000)
    assert bool((fixed.sum(-1) == 200).all())
    assert sample_counts(logits[:0], table[:0], forest, 5).shape == (5, 0, 400)


@pytest.mark.parametrize("subsets", [None, [[0, 1], [2, 3, 4], range(6)], [[0, 1, 2], [4], []]])
@pytest.mark.parametrize("seed", range(5))
def test_mode_is_most_probable(subsets, seed):
    torch.manual_seed(seed)
    family = NestedSubsets([range(6)] if subsets is None else subsets, 6)
    logits, tables = 3 * torch.randn(4, 6).double(), 3 * torch.randn(4, family.table_size).double()
    logits[0, 0], logits[1, 5] = math.inf, -math.inf
    tables[2:, 0] = -math.inf
    found = most_probable(logits, tables, family.forest)
    scores = brute_force.log_probs(logits, tables, family.subsets)
    index = (found @ (2.0 ** torch.arange(5, -1, -1)).double()).long()
    torch.testing.assert_close(scores.gather(-1, index.unsqueeze(-1)).squeeze(-1), scores.amax(-1))
