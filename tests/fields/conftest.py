"""All queries of binary fields, and fields with their hidden units that can be enumerated."""

import math
from types import SimpleNamespace

import pytest
import torch

from pyro_structured.fields.ops.field import Field, binary_states, edges_of
from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit


@pytest.fixture(scope="session")
def check_binary_field():
    """A function that compares all queries of a field, also given random evidence, with enumerated log-weights.

    It returns the value whose parts were observed, and the field given them; ``None`` if no labels are possible.
    """
    return _check_binary_field


def _check_binary_field(d, y, scores, seed):
    def close(found, expected):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    log_z, shape = scores.logsumexp(0), d.event_shape
    if log_z == -math.inf:
        with pytest.raises(ValueError, match="expected at least one value of positive probability"):
            _ = d.log_partition_function
        return None
    log_probs = scores - log_z
    probs = log_probs.exp()
    close(d.log_partition_function, log_z)
    close(d.log_prob(y.reshape(-1, *shape)), log_probs)
    close(d.unnormalized_log_prob(y.reshape(-1, *shape)), scores)
    close(d.marginals.flatten(), probs @ y)
    close(d.entropy(), -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum())
    close(d.log_prob(d.mode), log_probs.amax())
    torch.manual_seed(seed)
    value, observed = y[torch.multinomial(probs, 1)[0]], torch.rand(y.shape[1]) < 0.4
    agrees = ((y == value) | ~observed).all(-1)
    value, observed = value.reshape(shape), observed.reshape(shape)
    given_value, evidence = d.condition(value, observed), log_probs[agrees].logsumexp(0)
    close(d.marginal_log_prob(value, observed), evidence)
    close(given_value.marginals.flatten(), (log_probs - evidence).exp().where(agrees, 0.0) @ y)
    return value, given_value


@pytest.fixture(scope="session")
def joint_fields():
    """Functions ``make(...)``, ``probabilities(field)`` of all labelings, and ``p_values(probabilities, labels)``."""
    return SimpleNamespace(make=_random_field, probabilities=_probabilities, p_values=_p_values)


def _random_field(composition="sum", replicas=1, shape=(2, 3), rows=2, paired=True, units=3, seed=0):
    torch.manual_seed(seed)
    size, edges = shape[0] * shape[1], len(edges_of(shape, torch.device("cpu"))) if paired else 0
    odds = torch.randn(rows, size).double()
    odds[0, 1], odds[-1, 2] = math.inf, -math.inf
    biases = torch.randn(rows, units).double()
    biases[:, :1] = -math.inf
    table = torch.tensor([[0.5, 1.0, -math.inf, 2.0]]).double()
    states, base = binary_states(odds)
    return Field(
        states=states,
        base=base,
        penalties=torch.randn(1, edges).double(),
        shape=shape,
        weights=2 * torch.randn(rows, units, size).double(),
        biases=biases,
        composition=table if composition == "table" else composition,
        temperature=float(replicas),
    )


def _probabilities(field):
    """Probabilities of all labelings, shape ``(rows, 2 ** D)``."""
    y = all_labelings(field.num_pixels, field.odds)
    odds = field.odds.unsqueeze(1)
    possible = ~((odds == math.inf) & (y == 0)).any(-1)
    score = (odds.masked_fill(odds == math.inf, 0.0).where(y == 1, 0.0)).sum(-1)
    score = score.masked_fill(~possible, -math.inf)
    ends = y[:, edges_of(field.shape, torch.device("cpu"))[: field.penalties.shape[-1]]]
    score = score - (field.penalties.unsqueeze(1) * (ends[..., 0] != ends[..., 1])).sum(-1)
    activations = y @ field.weights.mT + field.biases.unsqueeze(1)
    table = field.composition if isinstance(field.composition, str) else field.composition.unsqueeze(1)
    return (score + pattern_potential(activations, table, field.temperature)).softmax(-1)


def _p_values(probs, labels):
    codes = labels.long() @ 2 ** torch.arange(labels.shape[-1] - 1, -1, -1)
    counts = [torch.bincount(each, minlength=probs.shape[1]) for each in codes]
    return [discrete_goodness_of_fit(*pair) for pair in zip(probs, counts, strict=True)]
