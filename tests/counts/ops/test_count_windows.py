import math

import torch

from pyro_structured.counts.ops.convolution_tree import upward
from pyro_structured.counts.ops.count_windows import cumulant, heaviest, tilt_windows


def test_cumulant_has_no_threshold():
    logits = torch.tensor([[-40.0, 0.3, 25.0, math.inf, -math.inf]], dtype=torch.float64)
    expected = math.log1p(math.exp(-39.0)) + math.log1p(math.exp(1.3)) + 26.0 + math.log1p(math.exp(-26.0)) + 1.0
    found = cumulant(logits, torch.tensor([1.0], dtype=torch.float64)) + heaviest(logits)
    assert abs(found.item() - expected) < 1e-14


def test_huge_logits_cancel():
    logits = torch.tensor([[1e300, 1e17, -1e17, 0.5]], dtype=torch.float64)
    tilt = torch.tensor([-2.0], dtype=torch.float64)
    assert abs(cumulant(logits, tilt).item() - (-2 - 2 + math.log1p(math.exp(-1.5)) - 0.5)) < 1e-14


def test_windows_cover_all_counts_and_bring_them_near_the_peak():
    logits = torch.stack([torch.randn(900), 100 * torch.rand(900) - 50]).double()
    tilts, window, _ = tilt_windows(logits, torch.zeros(2, 901, dtype=torch.float64), 901, math.inf)
    assert window.min() == 0
    for row in range(2):
        for index in window[row].unique():
            tilted = logits[row : row + 1] + tilts[row, index]
            mass = upward(torch.sigmoid(tilted), torch.sigmoid(-tilted)).root[0]
            # The interpolation that chooses windows may be off a little at the ends.
            assert mass[window[row] == index].min() > mass.max() * math.exp(-11.0)


def test_only_possible_and_relevant_counts_get_a_window():
    potential = torch.full((1, 101), -math.inf, dtype=torch.float64)
    potential[0, [10, 50, 100]] = torch.tensor([0.0, 0.0, -1e4], dtype=torch.float64)
    _, window, _ = tilt_windows(torch.zeros(1, 100, dtype=torch.float64), potential, 8)
    assert (window[0] >= 0).nonzero().squeeze(-1).tolist() == [10, 50]
