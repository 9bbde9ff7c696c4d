"""Expectation maximisation of latent trees: full batches never lose, counts are what they are said to be."""

import itertools
import math
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.densities.models.latent_tree_em import LatentTreeEM, center_tree
from pyro_structured.distributions import LatentTree
from pyro_structured.structures import HiddenTree

CPU = torch.device("cpu")


def random_learner(seed, dtype=torch.float64, missing=0.2, smoothing=(1.0, 0.5)):
    """Learner of six variables with two or three states, before its first step, and its rows."""
    rng = np.random.RandomState(seed)
    sizes = rng.randint(2, 4, size=6)
    parents = [int(rng.randint(max(d, 1))) for d in range(6)]
    codes = np.stack([rng.randint(size, size=40) for size in sizes], 1)
    codes[rng.random_sample(codes.shape) < missing] = -1
    frequencies = torch.zeros(6, 3, dtype=dtype)
    for d, size in enumerate(sizes):
        frequencies[d, :size] = 1 / size
    weights = torch.from_numpy(rng.gamma(1.0, size=40)).to(dtype)
    learner = LatentTreeEM(parents, 4, frequencies, float(weights.sum()), smoothing, CPU, dtype)
    rows = learner.read(codes)
    noise = torch.from_numpy(rng.exponential(size=(6, 4, 4))).to(dtype)
    learner.start(rows, weights, torch.from_numpy(rng.randint(4, size=40)), noise)
    return learner, rows, weights, codes, HiddenTree(parents, 4, sizes.tolist())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_full_batches_never_lose(seed):
    learner, rows, weights, *_ = random_learner(seed)
    before = -math.inf
    for _ in range(30):
        objective = float(weights @ learner.log_probs(rows)) + learner.log_prior()
        assert objective >= before - 1e-9 * abs(objective)
        before = objective
        learner.step(rows, weights, 1.0, 1.0)


def test_log_probs_are_those_of_the_distribution():
    for seed in range(5):
        learner, rows, weights, codes, tree = random_learner(seed)
        learner.step(rows, weights, 1.0, 0.5)
        d = LatentTree(*learner.logits(), tree)
        values = torch.from_numpy(codes)
        expected = d.marginal_log_prob(values.clamp(min=0), values >= 0)
        torch.testing.assert_close(learner.log_probs(rows), expected)
        single = random_learner(seed, torch.float32)[0]
        single.step(rows, weights.float(), 1.0, 0.5)
        torch.testing.assert_close(single.log_probs(rows).double(), expected, rtol=1e-4, atol=1e-6)


def test_a_step_against_enumeration():
    """Expected counts of all latent values of all rows."""
    learner, rows, weights, codes, tree = random_learner(0, smoothing=(1e-9, 1e-9))
    transitions, emissions = learner.logits()
    latent = torch.tensor(list(itertools.product(range(4), repeat=6)))
    total = torch.zeros(len(latent), len(codes), dtype=torch.double)
    for v, parent in enumerate(tree.parents):
        above = latent[:, parent] if parent != v else torch.zeros_like(latent[:, 0])
        total += transitions[v, above, latent[:, v]].unsqueeze(1)
        seen = codes[:, v] >= 0
        total[:, seen] += emissions[v][latent[:, v]][:, codes[seen, v]]
    shares = total.softmax(0) * weights
    learner.step(rows, weights, 1.0, 1.0)
    found, observed = learner.logits()
    for v, parent in enumerate(tree.parents):
        pairs, single = torch.zeros(4, 4, dtype=torch.double), torch.zeros(4, 3, dtype=torch.double)
        above = latent[:, parent] if parent != v else torch.zeros_like(latent[:, 0])
        pairs.index_put_((above, latent[:, v]), shares.sum(1), accumulate=True)
        for row, code in enumerate(codes[:, v]):
            if code >= 0:
                single[:, code].index_add_(0, latent[:, v], shares[:, row])
        used = slice(1 if parent == v else 4)
        for table, counts in ((found[v, used], pairs[used]), (observed[v], single)):
            torch.testing.assert_close(table.exp(), counts / counts.sum(-1, keepdim=True), atol=1e-6, rtol=0.0)


def test_a_step_where_products_of_matrices_lose_terms():
    """Rows that only improbable latent states explain: the same as in double precision."""
    results = []
    for dtype in (torch.float64, torch.float32):
        learner, rows, weights, *_ = random_learner(0, dtype, missing=0.0)
        transitions, emissions = (table.clone() for table in learner.tables)
        transitions[..., 1:], transitions[..., 0] = -80.0, 0.0
        emissions[:, 0] = -79.0
        for table, new in zip(learner.tables, (transitions, emissions), strict=True):
            table.copy_(new)
        with patch.object(learner, "_score", wraps=learner._score) as again:
            scores = learner.log_probs(rows)
        assert again.called == (dtype == torch.float32)
        with patch.object(learner, "_advance", wraps=learner._advance) as again:
            learner.step(rows, weights, 1.0, 1.0)
        assert again.called == (dtype == torch.float32)
        results.append((scores, *learner.counts))
    for double, single in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


def test_center_tree():
    """The largest of all trees, with the smallest depth that it can have."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        information = rng.random((5, 5))
        information = information + information.T
        parents = center_tree(information)
        assert sum(parent == v for v, parent in enumerate(parents)) == 1
        total = sum(information[v, parent] for v, parent in enumerate(parents) if v != parent)
        best, pairs = 0.0, list(itertools.combinations(range(5), 2))
        for edges in itertools.combinations(pairs, 4):
            reached = {0}
            for _ in range(5):
                reached |= {d for edge in edges if set(edge) & reached for d in edge}
            if len(reached) == 5:
                best = max(best, sum(information[edge] for edge in edges))
        assert math.isclose(total, best)
        depths = [HiddenTree(rooted(parents, root), 1).depth for root in range(5)]
        assert HiddenTree(parents, 1).depth == min(depths)
    # Nothing is known of one pair: any tree.
    assert HiddenTree(center_tree(np.zeros((4, 4))), 1).levels.sizes[0] == 1
    assert center_tree(np.zeros((1, 1))) == [0]


def rooted(parents, root):
    """The same tree with another root."""
    turned, place, before = list(parents), root, root
    while True:
        above, turned[place] = parents[place], before
        if above == place:
            return turned
        before, place = place, above
