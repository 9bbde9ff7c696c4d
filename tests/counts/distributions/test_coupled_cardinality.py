"""Counts with references, edges and links, against enumeration over drawn structures."""

import math
import pickle

import numpy as np
import pytest
import torch
from pyro.distributions import Bernoulli
from torch.distributions import kl_divergence

from pyro_structured.counts.ops import coupled_counts
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

CASES = 300
KINDS = (None, "==", "<=", "<", "difference")


def crossing(edges, members):
    return [edge for edge in edges if (edge[0] in members) != (edge[1] in members)]


def compatible(edges, members):
    cut = crossing(edges, members)
    return not cut or bool(set.intersection(*map(set, cut)))


def drawn_edges(rng, size):
    order = rng.permutation(size).tolist()
    share = rng.choice([0.5, 0.9, 1.0])
    pairs = [(order[i], order[rng.integers(i)]) for i in range(1, size) if rng.random() < share]
    return [tuple(rng.permutation(pair).tolist()) for pair in pairs]


def drawn_subsets(rng, size, edges):
    """Nested subsets that are compatible with the edges: pieces of the forest, and sets drawn at random."""
    candidates = []
    for _ in range(60):
        kept = [edge for edge in edges if rng.random() < 0.7]
        piece = {int(rng.integers(size))}
        for _ in range(size):
            piece |= {end for edge in kept if set(edge) & piece for end in edge}
        candidates.append(piece)
        candidates.append(piece - {int(rng.integers(size))})
        candidates.append({d for d in range(size) if rng.random() < rng.choice([0.3, 0.6])})
    chosen = [set()] if rng.random() < 0.2 else []
    for members in candidates:
        nested = all(not members & other or members <= other or other <= members for other in chosen)
        if nested and compatible(edges, members) and len(chosen) < 5:
            chosen.append(members)
    return [rng.permutation(sorted(members)).tolist() for members in chosen]


def drawn_links(rng, subsets, edges):
    sets = [set(members) for members in subsets]
    outermost = [
        i
        for i, s in enumerate(sets)
        if s and not crossing(edges, s) and not any(s < t for t in sets) and sets.index(s) == i
    ]
    # Of equal subsets, the last one is outermost.
    outermost = [max(j for j, t in enumerate(sets) if t == sets[i]) for i in outermost]
    links = []
    for place in range(1, len(outermost)):
        pair = rng.permutation([outermost[place], outermost[rng.integers(place)]]).tolist()
        if rng.random() < 0.8:
            links.append((*pair, KINDS[rng.integers(5)]))
    return links


def drawn_references(rng, subsets):
    """References of every subset: those of the whole, or their complement."""
    whole = rng.integers(0, 2, 1 + max((max(s, default=0) for s in subsets), default=0))
    return [(whole[s] ^ rng.integers(2)).tolist() if s else [] for s in subsets]


class Case:
    """Structure, parameters and all vectors with their weights."""

    def __init__(self, seed, largest=12, links=None, scale=2.0):
        rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        size = int(rng.integers(1, largest + 1))
        self.edges = [] if rng.random() < 0.2 else drawn_edges(rng, size)
        if rng.random() < (0.4 if links is None else links):
            ends = [int(rng.integers(size + 1)) for _ in range(3)]
            pieces = [set(range(*pair)) for pair in zip(sorted([0, *ends]), sorted([*ends, size]), strict=True)]
            self.edges = [edge for edge in self.edges if not any(crossing([edge], piece) for piece in pieces)]
            subsets = [sorted(piece) for piece in pieces if piece]
            subsets += [s for s in drawn_subsets(rng, size, self.edges) if any(set(s) <= piece for piece in pieces)]
        else:
            subsets = drawn_subsets(rng, size, self.edges)
        self.given = subsets
        self.links = drawn_links(rng, subsets, self.edges)
        self.references = drawn_references(rng, subsets) if rng.random() < 0.5 else None
        self.subsets = NestedSubsets(subsets, size, self.references, self.edges, self.links)
        self.logits = self.draw(2, size, scale=scale)
        self.count_logits = self.draw(1, self.subsets.table_size, scale=scale, impossible=0.1)
        self.edge_logits = self.draw(2, len(self.edges), 2, 2, scale=scale, impossible=0.1) if self.edges else None
        free = self.subsets.link_table_size
        self.link_logits = self.draw(free, scale=scale, impossible=0.1) if free else None
        self.values = torch.cartesian_prod(*[torch.arange(2.0)] * size).view(-1, size).double()

    def draw(self, *shape, scale=1.0, impossible=0.0):
        numbers = torch.randn(shape, generator=self.generator, dtype=torch.double) * scale
        return numbers.masked_fill(torch.rand(shape, generator=self.generator) < impossible, -math.inf)

    @property
    def parameters(self):
        given = [self.logits, self.count_logits, self.edge_logits, self.link_logits]
        return [parameter for parameter in given if parameter is not None]

    def make(self, parameters=None):
        logits, count_logits, *others = self.parameters if parameters is None else parameters
        edge_logits = others.pop(0) if self.edges else None
        link_logits = others.pop(0) if others else None
        return RecursiveCardinality(
            logits, count_logits, self.subsets, edge_logits=edge_logits, link_logits=link_logits
        )

    def counts(self):
        """Numbers of differences from the references, by the definition, one row for each vector."""
        columns = []
        for index, members in enumerate(self.given):
            reference = torch.tensor(self.references[index] if self.references else [0] * len(members))
            columns.append((self.values[:, members].long() != reference.long()).sum(-1))
        return torch.stack(columns, -1) if columns else torch.zeros(len(self.values), 0, dtype=torch.long)

    def scores(self, parameters=None):
        """Log-weights of all vectors, by the definition, shape ``(2, 2 ** D)``."""
        logits, count_logits, *others = self.parameters if parameters is None else parameters
        total = logits @ self.values.T
        counts, first = self.counts(), 0
        for column, members in enumerate(self.given):
            total = total + count_logits[..., first + counts[:, column]]
            first += len(members) + 1
        if self.edges:
            table = others.pop(0)
            for index, (a, b) in enumerate(self.edges):
                total = total + table[..., index, self.values[:, a].long(), self.values[:, b].long()]
        first = 0
        for i, j, kind in self.links:
            ci, cj = counts[:, i], counts[:, j]
            width = len(self.given[j])
            if kind is None:
                total = total + others[0][first + ci * (width + 1) + cj]
                first += (len(self.given[i]) + 1) * (width + 1)
            elif kind == "difference":
                total = total + others[0][first + ci - cj + width]
                first += len(self.given[i]) + width + 1
            else:
                held = {"==": ci == cj, "<=": ci <= cj, "<": ci < cj}[kind]
                total = total + torch.zeros(()).double().where(held, -math.inf)
        return total


def possible_cases(number=CASES, **arguments):
    """Cases with a possible vector in both rows."""
    seed = 0
    while number:
        case = Case(seed, **arguments)
        seed += 1
        if (case.scores().logsumexp(-1) > -math.inf).all():
            number -= 1
            yield case


def assert_close(actual, expected, accuracy=1e-10):
    torch.testing.assert_close(actual, expected.expand(actual.shape), rtol=accuracy, atol=accuracy)


@pytest.mark.slow
def test_cases_are_of_all_kinds():
    cases = list(possible_cases())
    kinds = {kind for case in cases for _, _, kind in case.links}
    assert kinds == set(KINDS)
    outside = [
        members
        for case in cases
        for members in case.given
        if len(crossing(case.edges, set(members))) > 1
        and not set.intersection(*map(set, crossing(case.edges, set(members)))) & set(members)
    ]
    assert len(outside) > 5
    assert sum(case.references is not None for case in cases) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("fourier_width", "number"), [(2, 100), (1000, CASES)])
def test_queries(fourier_width, number, monkeypatch):
    """All products by transforms, or none."""
    monkeypatch.setattr(coupled_counts, "FOURIER_WIDTH", fourier_width)
    for case in possible_cases(number):
        d = case.make()
        scores = case.scores()
        log_z = scores.logsumexp(-1)
        probs = (scores - log_z.unsqueeze(-1)).exp()
        assert_close(d.log_partition_function, log_z)
        log_probs = d.log_prob(case.values.unsqueeze(1)).T
        assert_close(log_probs.exp(), probs)
        assert (log_probs == -math.inf).eq(scores == -math.inf).all()
        assert_close(d.marginals, probs @ case.values)
        counts = case.counts()
        assert (case.subsets.counts(case.values) == counts).all()
        tables = [
            probs @ torch.nn.functional.one_hot(counts[:, i], len(members) + 1).double()
            for i, members in enumerate(case.given)
        ]
        if tables:
            assert_close(d.count_marginals, torch.cat(tables, -1))
        for index, (a, b) in enumerate(case.edges):
            cells = torch.nn.functional.one_hot((2 * case.values[:, a] + case.values[:, b]).long(), 4).double()
            assert_close(d.edge_marginals[:, index].flatten(1), probs @ cells)
        for (i, j, _), joint in zip(case.links, d.link_marginals, strict=True):
            cells = counts[:, i] * joint.shape[-1] + counts[:, j]
            expected = probs @ torch.nn.functional.one_hot(cells, joint[0].numel()).double()
            assert_close(joint.flatten(1), expected)
        place = (d.mode @ (2.0 ** torch.arange(case.values.shape[1] - 1, -1, -1)).double()).long()
        assert_close(scores.gather(1, place.unsqueeze(1)).squeeze(1), scores.amax(-1))
        xlogx = torch.special.xlogy(probs, probs)
        assert_close(d.entropy(), -xlogx.sum(-1))
        certificate = d.certificate
        assert (certificate.log_partition_error < 1e-10).all()
        assert (certificate.marginal_logits_error < 1e-9).all()


@pytest.mark.slow
def test_evidence():
    for case in possible_cases():
        d, scores = case.make(), case.scores()
        shape = case.logits.shape
        observed = torch.rand(shape, generator=case.generator) < 0.4
        value = (torch.rand(shape, generator=case.generator) < 0.5).double()
        agrees = ((case.values.unsqueeze(1) == value) | ~observed).all(-1).T
        kept = scores.masked_fill(~agrees, -math.inf)
        expected = kept.logsumexp(-1) - scores.logsumexp(-1)
        assert_close(d.marginal_log_prob(value, observed).exp(), expected.exp())
        off, on = (case.draw(*shape, impossible=0.1) for _ in range(2))
        weighted = scores + torch.where(case.values.unsqueeze(1) == 1, on, off).sum(-1).T
        expected = weighted.logsumexp(-1) - scores.logsumexp(-1)
        assert_close(d.log_evidence(off, on).exp(), expected.exp())
        for new, weights in ((d.condition(value, observed), kept), (d.reweight(off, on), weighted)):
            if (weights.logsumexp(-1) == -math.inf).any():
                continue
            assert_close(new.log_partition_function, weights.logsumexp(-1))
            assert_close(new.marginals, weights.softmax(-1) @ case.values)
            assert_close(new.log_prob(case.values.unsqueeze(1)).T.exp(), weights.softmax(-1))


def finite_parts(tensors):
    return [t.masked_fill(t.isinf(), 0.0) for t in tensors]


@pytest.mark.slow
def test_derivatives():
    for case in possible_cases():
        parameters = [p.clone().requires_grad_() for p in case.parameters]
        directions = [case.draw(*p.shape) for p in parameters]
        results = []
        for log_z in (case.make(parameters).log_partition_function, case.scores(parameters).logsumexp(-1)):
            slopes = torch.autograd.grad(log_z.sum(), parameters, create_graph=True, allow_unused=True)
            slopes = [torch.zeros_like(p) if s is None else s for p, s in zip(parameters, slopes, strict=True)]
            along = sum((s * d).sum() for s, d in zip(slopes, directions, strict=True))
            curves = torch.autograd.grad(along, parameters, allow_unused=True) if along.requires_grad else slopes
            curves = [torch.zeros_like(p) if c is None else c for p, c in zip(parameters, curves, strict=True)]
            results.append([*slopes, *curves])
        for ours, theirs in zip(*results, strict=True):
            # The enumeration's derivatives are NaN where an entry is impossible.
            assert_close(ours, theirs.nan_to_num(nan=0.0))


@pytest.mark.statistical
@pytest.mark.parametrize("fourier_width", [2, 1000])
def test_samples(fourier_width, monkeypatch):
    monkeypatch.setattr(coupled_counts, "FOURIER_WIDTH", fourier_width)
    for case in possible_cases(40, largest=5):
        d = case.make()
        values = d.sample((2000,))
        for row in range(2):
            probs = case.scores()[row].softmax(-1)
            place = (values[:, row] @ (2.0 ** torch.arange(values.shape[-1] - 1, -1, -1)).double()).long()
            observed = torch.bincount(place, minlength=len(probs))
            assert discrete_goodness_of_fit(probs, observed) > 2e-9


def test_equal_counts_are_one_complemented_count():
    """Counts of two groups are equal if one of them and the complement of the other have n ones together."""
    logits = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    linked = RecursiveCardinality(
        logits, torch.zeros(8).double(), NestedSubsets([[0, 1, 2], [3, 4, 5]], 6, links=[(0, 1, "==")])
    )
    table = torch.full((7,), -math.inf, dtype=torch.double)
    table[3] = 0.0
    complemented = RecursiveCardinality(logits, table, NestedSubsets([range(6)], 6, [[0, 0, 0, 1, 1, 1]]))
    assert_close(linked.log_partition_function, complemented.log_partition_function)
    assert_close(linked.marginals, complemented.marginals)
    assert complemented.subsets.coupling is None


def test_references_with_large_lines():
    """Lines that cancel large logits are moved in complemented counts, too."""
    slope = 2.0**45
    counts = torch.arange(4, dtype=torch.double)
    logits = torch.tensor([0.5, -0.25, 1.0], dtype=torch.double)
    references = [[0, 1, 1]]
    subsets = NestedSubsets([range(3)], 3, references)
    small = RecursiveCardinality(logits, -(counts**2), subsets)
    signs = torch.tensor([1.0, -1.0, -1.0]).double()
    large = RecursiveCardinality(logits - slope * signs, slope * counts - counts**2, subsets)
    values = torch.cartesian_prod(*[torch.arange(2.0)] * 3).double()
    assert_close(large.log_prob(values), small.log_prob(values), 1e-3)
    assert_close(large.marginals, small.marginals, 1e-3)
    evidence = torch.tensor([-1.0, 0.5, 2.0]).double(), torch.tensor([0.3, 0.0, -1.0]).double()
    assert_close(large.log_evidence(*evidence), small.log_evidence(*evidence), 1e-3)


def test_many_samples_and_pickles():
    case = Case(7)
    d = case.make()
    copy = pickle.loads(pickle.dumps(d))
    assert_close(copy.log_partition_function, d.log_partition_function)
    assert d.expand((3, 2)).sample((2,)).shape == (2, 3, 2) + d.event_shape
    assert d.subsets == pickle.loads(pickle.dumps(d.subsets))
    assert d.subsets != NestedSubsets(d.subsets.subsets, d.event_shape[0])


def test_divergences():
    for first, second in zip(possible_cases(20), possible_cases(20), strict=True):
        second.logits = second.logits + 1
        p, q = first.make(), second.make()
        scores = [case.scores().log_softmax(-1) for case in (first, second)]
        probs = scores[0].exp()
        expected = torch.where(probs > 0, probs * (scores[0] - scores[1]), 0.0).sum(-1)
        assert_close(kl_divergence(p, q), expected)
    subsets = NestedSubsets([[0, 1]], 2, edges=[(0, 1)])
    d = RecursiveCardinality(torch.zeros(2), torch.zeros(3), subsets, edge_logits=torch.eye(2).unsqueeze(0))
    fair = Bernoulli(torch.tensor([0.5, 0.5])).to_event(1)
    probs = torch.tensor([math.e, 1, 1, math.e]) / (2 + 2 * math.e)
    assert_close(kl_divergence(d, fair), (probs * (4 * probs).log()).sum(), 1e-6)
    linked = NestedSubsets([[0], [1]], 2, links=[(0, 1, "==")])
    with pytest.raises(NotImplementedError, match="links"):
        kl_divergence(RecursiveCardinality(torch.zeros(2), torch.zeros(4), linked), fair)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": [(0, 1), (1, 2), (2, 0)]}, r"edges: expected a forest, but \(2, 0\) closes a cycle"),
        ({"edges": [(0, 0)]}, "edges: expected pairs of two different integers"),
        ({"edges": [(0, 9)]}, r"edges: .* got \(0, 9\)"),
        (
            {"subsets": [[0, 2]], "edges": [(0, 1), (2, 3)]},
            r"subsets: expected for each subset one vertex .* edges \(0, 1\), \(2, 3\) cross that of subsets\[0\]",
        ),
        ({"links": [(0, 1, ">")]}, "links: expected triples"),
        ({"links": [(0, 5, "==")]}, "links: expected triples"),
        ({"links": [(0, 1, "=="), (1, 0, None)]}, "links: expected a forest"),
        (
            {"subsets": [[0], [1], [0, 2]], "links": [(0, 1, "==")]},
            r"links: expected outermost subsets, got subsets\[0\].*subsets\[2\] contains it",
        ),
        (
            {"edges": [(1, 2)], "links": [(0, 1, "==")]},
            r"links: expected subsets that no edge crosses, but edges \(1, 2\)",
        ),
        ({"references": [[0, 1]]}, "references: expected 2 references"),
        ({"references": [[0, 1], [0, 2]]}, r"references: expected 2 zeros and ones in references\[1\]"),
        (
            {"subsets": [[0, 1], [0, 1, 2]], "references": [[0, 1], [1, 1, 0]]},
            r"references: expected in references\[0\] that of subsets\[1\], .*, got \[0, 1\] beside \[1, 1\]",
        ),
    ],
)
def test_wrong_structures(arguments, message):
    with pytest.raises(ValueError, match=message):
        NestedSubsets(**{"subsets": [[0, 1], [2, 3]], "num_variables": 4, **arguments})


def test_wrong_tables():
    subsets = NestedSubsets([[0], [1]], 2, edges=[], links=[(0, 1, None)])
    with pytest.raises(
        ValueError, match=r"link_logits: expected a tensor of shape \(..., 4\), as in subsets, got None"
    ):
        RecursiveCardinality(torch.zeros(2), torch.zeros(4), subsets)
    with pytest.raises(ValueError, match=r"link_logits: expected shape \(..., 4\), got \(5,\)"):
        RecursiveCardinality(torch.zeros(2), torch.zeros(4), subsets, link_logits=torch.zeros(5))
    with pytest.raises(ValueError, match="edge_logits: expected None, as in subsets, got Tensor"):
        RecursiveCardinality(
            torch.zeros(2), torch.zeros(4), subsets, edge_logits=torch.zeros(1, 2, 2), link_logits=torch.zeros(4)
        )
    with pytest.raises(ValueError, match="the support is empty"):
        never = torch.full((4,), -math.inf)
        RecursiveCardinality(torch.zeros(2), torch.zeros(4), subsets, link_logits=never).sample()
    assert subsets.pack_links([torch.eye(2)]).tolist() == [1.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="tables: expected 1 tables, one for each link"):
        subsets.pack_links([])
