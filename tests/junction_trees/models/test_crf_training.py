"""Estimates against scikit-learn's, their optimality conditions, and their standard errors."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from pyro_structured.junction_trees.models.crf_potentials import ConditionalField, FieldWeights
from pyro_structured.junction_trees.models.crf_training import FieldData, FieldOptions, train_field
from pyro_structured.structures import CliqueTree

IDENTITY = torch.nn.Identity()


def simulated(sizes, edges, number, seed, num_features=2, edge_features=True, scale=0.7):
    """A field, its weights, and data drawn from it."""
    torch.manual_seed(seed)
    field = ConditionalField(CliqueTree.from_edges(edges, sizes), edges)
    weights = FieldWeights(*(scale * torch.randn_like(each) for each in field.zeros(num_features, edge_features)))
    inputs = torch.randn(number, num_features, dtype=torch.double)
    labels = field.distribution(inputs, weights).sample()
    data = FieldData(inputs, labels, torch.ones_like(labels, dtype=torch.bool), torch.ones(number).double())
    return field, weights, data


def flat(weights):
    return torch.cat([each.reshape(-1) for each in weights])


def loss(field, data, weights):
    log_probs = field.distribution(data.inputs, weights).marginal_log_prob(data.labels, data.known)
    return -(data.weights * log_probs).sum()


def gradient(field, data, weights):
    leaves = [each.detach().clone().requires_grad_() for each in weights]
    return torch.autograd.grad(loss(field, data, FieldWeights(*leaves)), leaves)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("l2", [0.1, 10.0])
def test_single_label_is_logistic_regression(size, l2):
    field, _, data = simulated([size], [], 300, 0)
    data = data._replace(weights=torch.rand(300).double())
    fit = train_field(field, data, IDENTITY, False, FieldOptions(l2, 0.0, 1e-9, 1000))
    peer = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=1000)
    peer.fit(data.inputs, data.labels[:, 0], data.weights)
    table = field.node_tables(fit.weights.nodes)[0]
    expected = np.vstack([peer.intercept_, peer.coef_.T])
    found = table[:, 1:] - table[:, :1] if size == 2 else table - table.mean(1, keepdims=True)
    np.testing.assert_allclose(found, expected - (0 if size == 2 else expected.mean(1, keepdims=True)), atol=1e-5)


@pytest.mark.parametrize("sizes, edges", [([2] * 4, [(0, 1), (1, 2), (0, 2), (2, 3)]), ([3, 2, 3], [(0, 1), (1, 2)])])
@pytest.mark.parametrize("edge_features", [False, True])
def test_parameters_are_recovered(sizes, edges, edge_features):
    """Within three standard errors, of the exact observed information."""
    field, truth, data = simulated(sizes, edges, 4000, 1, edge_features=edge_features)
    fit = train_field(field, data, IDENTITY, edge_features, FieldOptions(0.0, 0.0, 1e-8, 2000))
    shapes = [each.shape for each in truth]

    def log_loss(vector):
        nodes, edge = vector.split([shape.numel() for shape in shapes])
        return loss(field, data, FieldWeights(nodes.reshape(shapes[0]), edge.reshape(shapes[1])))

    information = torch.autograd.functional.hessian(log_loss, flat(fit.weights))
    # Labels of three states have weights that make no difference: there, tables are compared.
    covariance = torch.linalg.pinv(information, rtol=1e-9, hermitian=True).numpy()

    def tables(vector):
        nodes, edge = vector.split([shape.numel() for shape in shapes])
        found = field.node_tables(nodes.reshape(shapes[0])) + field.edge_tables(edge.reshape(shapes[1]))
        return np.concatenate([each.ravel() for each in found])

    jacobian = np.stack([tables(row) for row in torch.eye(len(information), dtype=torch.double)], 1)
    errors = np.sqrt(((jacobian @ covariance) * jacobian).sum(1))
    scores = (tables(flat(fit.weights)) - tables(flat(truth))) / errors
    assert np.abs(scores).max() < 3
    assert 0.5 < np.square(scores).mean() < 1.6


@pytest.mark.parametrize("sizes, edges", [([2] * 5, [(0, 1), (1, 2), (2, 3), (0, 4)]), ([3, 2, 4], [(0, 1), (1, 2)])])
@pytest.mark.parametrize("l2, l1", [(0.0, 10.0), (3.0, 10.0), (0.0, 200.0), (2.0, 0.0)])
def test_optimality_conditions(sizes, edges, l2, l1):
    """Subgradients contain zero; with L1, some weights are exactly zero."""
    field, _, data = simulated(sizes, edges, 200, 2, scale=0.4)
    fit = train_field(field, data, IDENTITY, True, FieldOptions(l2, l1, 1e-9, 5000))
    slopes, penalised = flat(gradient(field, data, fit.weights)), flat(fit.weights).clone()
    free = torch.zeros_like(penalised, dtype=torch.bool)
    free[: fit.weights.nodes.shape[1]] = True
    slopes += l2 * penalised * ~free
    assert slopes[free].abs().max() < 1e-4
    zero = (penalised == 0) & ~free
    assert (slopes[zero].abs() <= l1 + 1e-4).all()
    assert (
        (slopes + l1 * penalised.sign())[~zero & ~free].abs().max(-1).values < 1e-4 if (~zero & ~free).any() else True
    )
    assert bool(zero.any()) == (l1 > 0)
    assert bool((~zero & ~free).any()) == (l1 < 200)


def test_missing_labels_are_summed_out():
    """The gradient of the likelihood of what is known, by sums over what is not, vanishes."""
    field, _, data = simulated([2, 3, 2], [(0, 1), (1, 2)], 60, 3, num_features=1)
    data = data._replace(known=torch.rand(60, 3) < 0.7)
    fit = train_field(field, data, IDENTITY, False, FieldOptions(1.0, 0.0, 1e-9, 2000))
    values = torch.tensor(list(itertools.product(range(2), range(3), range(2))))
    leaves = [each.clone().requires_grad_() for each in fit.weights]
    log_probs = field.distribution(data.inputs, FieldWeights(*leaves)).log_prob(values.unsqueeze(1))
    agrees = ((values.unsqueeze(1) == data.labels) | ~data.known).all(-1)
    total = -log_probs.masked_fill(~agrees, -torch.inf).logsumexp(0).sum()
    total = total + 0.5 * (leaves[0][1:].square().sum() + leaves[1].square().sum())
    for each in torch.autograd.grad(total, leaves):
        assert each.abs().max() < 1e-5


def test_weights_are_copies():
    field, _, data = simulated([2, 2], [(0, 1)], 50, 4)
    weights = torch.arange(50) % 3
    copies = data.part(torch.arange(50).repeat_interleave(weights))
    options = FieldOptions(1.0, 0.5, 1e-10, 2000)
    expected = train_field(field, copies, IDENTITY, True, options).weights
    found = train_field(field, data._replace(weights=weights.double()), IDENTITY, True, options).weights
    torch.testing.assert_close(flat(found), flat(expected), atol=1e-6, rtol=0)


def test_feature_map_is_trained_jointly():
    field, _, data = simulated([2, 2], [(0, 1)], 50, 5)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()).double()
    before = [each.detach().clone() for each in module.parameters()]
    fit = train_field(field, data, module, False, FieldOptions(0.5, 0.0, 1e-8, 5000))
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    total = loss(field, data._replace(inputs=fit.feature_map(data.inputs)), fit.weights)
    for each in torch.autograd.grad(
        total + 0.25 * sum(p.square().sum() for p in fit.feature_map.parameters()), list(fit.feature_map.parameters())
    ):
        assert each.abs().max() < 1e-4


@pytest.mark.parametrize("stop", [1, 4])
def test_interruption_keeps_the_last_iterate(stop):
    field, _, data = simulated([2, 2, 2], [(0, 1), (1, 2)], 100, 6)

    class Impatient(torch.nn.Identity):
        calls = 0

        def forward(self, inputs):
            Impatient.calls += 1
            if Impatient.calls > 7 * stop:
                raise KeyboardInterrupt
            return inputs

    free = train_field(field, data, IDENTITY, True, FieldOptions(0.0, 0.0, 1e-8, 1000))
    fit = train_field(field, data, Impatient(), True, FieldOptions(0.0, 0.0, 1e-12, 1000))
    start = float(loss(field, data, field.zeros(2, True)))
    assert fit.interrupted and not free.interrupted
    assert float(loss(field, data, free.weights)) <= float(loss(field, data, fit.weights)) + 1e-6 < start


def test_number_of_iterations_is_limited():
    field, _, data = simulated([2, 2, 2], [(0, 1), (1, 2)], 100, 6)
    assert train_field(field, data, IDENTITY, True, FieldOptions(0.0, 0.0, 1e-8, 3)).num_iterations == 3
