"""The recursive logit model of route choice, by sparse linear systems: a peer."""

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.sparse.linalg import splu

# Of the negative log-likelihood of one trip, where utilities are so large that expected ones are infinite.
INFEASIBLE = 1e6
START = -3.0


class RecursiveLogit:
    r"""Drivers choose link by link, and know the expected utility of all that follows.

    An edge e has the utility :math:`u_e = \beta^\top \phi_e` and noise. With the value function V of a destination d,

    .. math::
        e^{V_d(i)} = \sum_{e: i \to j} e^{u_e + V_d(j)}, \quad e^{V_d(d)} = 1, \qquad
        \log P(y) = \sum_{e \in y} u_e - V_d(o),

    one linear system for all destinations. Fosgerau, Frejinger, Karlström (2013).

    :param BorlangeTrips data: Network and trips. Nothing leaves destinations, which have the largest numbers.
    """

    def __init__(self, data):
        self.data = data
        self.tails, self.heads = data.edges.T
        self.num_links = int(self.tails.max()) + 1
        self.coefficients = np.full(data.features.shape[1], START)

    def fit(self, trips):
        """Maximum likelihood, by L-BFGS with exact gradients."""
        found = minimize(
            lambda coefficients: self._loss(coefficients, trips), self.coefficients, jac=True, method="L-BFGS-B"
        )
        self.coefficients = found.x
        return self

    def log_likelihood(self, trips):
        """Log-probability of every trip."""
        starts, ends, targets = self._ends(trips)
        _, _, values = self._solve(self.coefficients, targets)
        return self._counts(trips) @ self.coefficients - np.log(values[starts, ends])

    @property
    def costs(self):
        """Costs of edges whose shortest paths are the most probable ones."""
        return -(self.data.features @ self.coefficients)

    def _counts(self, trips):
        return np.stack([self.data.features[self.data.paths[trip]].sum(0) for trip in trips])

    def _ends(self, trips):
        """Their first links, places of their destinations, and all destinations."""
        targets, places = np.unique(self.data.destinations[trips], return_inverse=True)
        return self.data.origins[trips], places, targets

    def _solve(self, coefficients, targets):
        """Exponential utilities, the factors of the system, and exponential values of all nodes for some targets."""
        weights = np.exp(self.data.features @ coefficients)
        size = self.data.num_nodes, self.data.num_nodes
        matrix = sparse.csc_matrix((weights, (self.tails, self.heads)), size)
        inner, last = matrix[: self.num_links, : self.num_links], matrix[: self.num_links, targets]
        factors = splu(sparse.identity(self.num_links, format="csc") - inner)
        values = np.zeros((self.data.num_nodes, len(targets)))
        values[: self.num_links] = factors.solve(last.toarray())
        values[targets, np.arange(len(targets))] = 1.0
        return weights, factors, values

    def _loss(self, coefficients, trips):
        """Negative log-likelihood for each trip, and its gradient: the system once more, transposed."""
        starts, ends, targets = self._ends(trips)
        weights, factors, values = self._solve(coefficients, targets)
        reached, counts = values[starts, ends], self._counts(trips)
        if not (reached > 0).all() or values.min() < -1e-9:
            return INFEASIBLE, np.zeros_like(coefficients)
        begun = np.zeros((self.num_links, len(targets)))
        np.add.at(begun, (starts, ends), 1 / reached)
        expected = factors.solve(begun, trans="T")
        # How often all trips together are expected to use each edge.
        flow = weights * np.einsum("ed,ed->e", expected[self.tails], values[self.heads])
        loss = np.log(reached).sum() - (counts @ coefficients).sum()
        return loss / len(trips), (flow @ self.data.features - counts.sum(0)) / len(trips)
