"""The contract suite accepts what is right, and finds every single thing that is wrong."""

import random
import re
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints, register_kl

from pyro_structured.distributions import JunctionTree, NanMasked
from pyro_structured.foundation.ops.requirements import require_support
from pyro_structured.structures import CliqueTree, NestedSubsets
from pyro_structured.testing import brute_force, check_distribution
from pyro_structured.testing.check_queries import impossible_rows
from pyro_structured.testing.distribution_case import DistributionCase, nudge, parameters, rebuild


class Chain(dist.TorchDistribution):
    """Three binary variables, the first two of which prefer to agree; everything is done by enumeration."""

    arg_constraints = {"logits": constraints.real_vector, "coupling": constraints.real}
    subsets = NestedSubsets([[0, 1], [2], [0, 1, 2]], num_variables=3)

    def __init__(self, logits, coupling, validate_args=None):
        batch_shape = torch.broadcast_shapes(logits.shape[:-1], coupling.shape)
        # Parameters that are not expanded stay leaves, which can be copied.
        self.logits, self.coupling = logits, coupling
        if logits.shape[:-1] != coupling.shape:
            self.logits, self.coupling = logits.expand(batch_shape + (3,)), coupling.expand(batch_shape)
        super().__init__(batch_shape, torch.Size([3]), validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(type(self), _instance)
        new.logits = self.logits.expand(torch.Size(batch_shape) + (3,))
        new.coupling = self.coupling.expand(torch.Size(batch_shape))
        dist.TorchDistribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @staticmethod
    def infer_shapes(logits, coupling):
        return torch.broadcast_shapes(logits[:-1], coupling), logits[-1:]

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self):
        return constraints.independent(constraints.boolean, 1)

    has_enumerate_support = True

    def enumerate_support(self, expand=True):
        values = brute_force.binary_vectors(3).to(self.logits)
        values = values.reshape((8,) + (1,) * len(self.batch_shape) + (3,))
        return values.expand((8, *self.batch_shape, 3)) if expand else values

    def score(self, value):
        agree = value[..., 0] * value[..., 1] + (1 - value[..., 0]) * (1 - value[..., 1])
        return (value * self.logits).sum(-1) + agree * self.coupling

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        is_binary = ((value == 0) | (value == 1)).all(-1)
        score = self.score((value == 1).to(self.logits.dtype))
        return score.masked_fill(~is_binary, -torch.inf) - self.log_partition_function

    @property
    def log_z(self):
        return torch.logsumexp(self.score(self.enumerate_support(False)), 0)

    @property
    def log_partition_function(self):
        return require_support(self.log_z, "theta: expected a vector of positive probability")

    @property
    def table(self):
        return Chain.log_prob(self, self.enumerate_support(False))

    def sample(self, sample_shape=()):
        shape = torch.Size(sample_shape) + self.batch_shape
        classes = dist.Categorical(logits=self.table.detach().movedim(0, -1))
        rows = classes.sample(torch.Size(sample_shape)) if shape.numel() else torch.zeros(shape, dtype=torch.long)
        return brute_force.binary_vectors(3).to(self.logits)[rows]

    @property
    def mean(self):
        return (self.table.exp().unsqueeze(-1) * self.enumerate_support(False)).sum(0)

    @property
    def variance(self):
        return self.mean * (1 - self.mean)

    @property
    def mode(self):
        return brute_force.binary_vectors(3).to(self.logits)[self.table.argmax(0)]

    def entropy(self):
        return -(self.table.exp() * finite(self.table)).sum(0)

    @property
    def marginals(self):
        return self.mean

    @property
    def marginal_logits(self):
        on = self.enumerate_support(False) == 1
        joint = self.table.unsqueeze(-1)
        log_off, log_on = (torch.logsumexp(joint.masked_fill(wrong, -torch.inf), 0) for wrong in (on, ~on))
        return log_on - log_off

    @property
    def count_marginals(self):
        counts = self.subsets.counts(self.enumerate_support(False))
        probs = self.table.exp()
        cells = [(index, count) for index, size in enumerate(self.subsets.sizes) for count in range(size + 1)]
        return torch.stack([(probs * (counts[..., index] == count)).sum(0) for index, count in cells], -1)

    def marginal_log_prob(self, value, observed):
        return self.condition(value, observed).log_z - self.log_partition_function

    def condition(self, value, observed):
        return Given(self, value, observed)

    def conjugate_update(self, other):
        updated = type(self)(self.logits + other.base_dist.logits, self.coupling.expand(other.batch_shape))
        weight = torch.nn.functional.logsigmoid(-other.base_dist.logits).sum(-1)
        return updated, updated.log_partition_function - self.log_partition_function + weight


class Given(Chain):
    """A chain of which some entries are known."""

    def __init__(self, base, value, observed):
        shape = torch.broadcast_shapes(value.shape, observed.shape, base.logits.shape)
        self.base, self.value, self.observed = base, value, observed
        super().__init__(base.logits.expand(shape), base.coupling.expand(shape[:-1]), validate_args=False)

    def score(self, value):
        agrees = ((value == self.value) | ~self.observed).all(-1)
        return self.base.score(value).masked_fill(~agrees, -torch.inf)


class NeverAll(Chain):
    """A chain whose variables are never all on."""

    def score(self, value):
        return super().score(value).masked_fill(value.all(-1), -torch.inf)


def finite(log_probs):
    return log_probs.masked_fill(log_probs == -torch.inf, 0.0)


@register_kl(Chain, Chain)
def divergence(p, q):
    return (p.table.exp() * (finite(p.table) - finite(q.table))).sum(0)


def factory_of(cls):
    def factory(batch_shape, dtype, device="cpu"):
        size = torch.Size(batch_shape).numel()
        logits = torch.linspace(-1.0, 1.5, 3 * size, dtype=dtype, device=device).reshape(*batch_shape, 3)
        coupling = torch.linspace(0.2, 1.0, size, dtype=dtype, device=device).reshape(batch_shape)
        return cls(logits, coupling)

    return factory


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("cls", [Chain, NeverAll])
def test_a_right_distribution_passes(cls):
    check_distribution(factory_of(cls))


def normal(batch_shape, dtype, device="cpu"):
    loc = torch.linspace(-1.0, 1.0, torch.Size(batch_shape).numel(), dtype=dtype, device=device).reshape(batch_shape)
    return dist.Normal(loc, 1.0 + loc.abs())


def normal_vector(batch_shape, dtype, device="cpu"):
    size = 2 * torch.Size(batch_shape).numel()
    loc = torch.linspace(-1.0, 1.0, size, dtype=dtype, device=device).reshape(*batch_shape, 2)
    return dist.Normal(loc, 1.0 + loc.abs()).to_event(1)


@pytest.mark.parametrize("factory", [normal, normal_vector])
def test_distributions_of_pyro_pass(factory):
    check_distribution(factory, batch_shapes=[(), (3,)])


BROKEN = []


def breaks(check, **changes):
    """Registers a variant of the chain with a defect that the named check has to find."""

    def register(cls):
        BROKEN.append(pytest.param(cls, check, changes, id=cls.__name__))
        return cls

    return register


@breaks("constructor")
class AcceptsNan(Chain):
    def __init__(self, logits, coupling, validate_args=None):
        super().__init__(logits, coupling, validate_args=False)


@breaks("constructor")
class RealForAVector(Chain):
    arg_constraints = {"logits": constraints.real, "coupling": constraints.real}


@breaks("constructor")
class NoValidateArgs(Chain):
    def __init__(self, logits, coupling):
        super().__init__(logits, coupling)


@breaks("support")
class SupportOfScalars(Chain):
    support = constraints.boolean


@breaks("support")
class SupportUnknownToTheClass(Chain):
    @constraints.dependent_property
    def support(self):
        return constraints.independent(constraints.boolean, 1)


class _NotDiscrete(constraints.Constraint):
    event_dim = 1

    def check(self, value):
        return ((value == 0) | (value == 1)).all(-1)


@breaks("support")
class SupportNotDiscrete(Chain):
    support = _NotDiscrete()


class _ChecksTheWholeBatch(constraints.Constraint):
    event_dim, is_discrete = 1, True

    def check(self, value):
        return ((value == 0) | (value == 1)).all()


@breaks("support")
class SupportChecksTheWholeBatch(Chain):
    support = _ChecksTheWholeBatch()


@breaks("sample")
class SamplesOfRankOne(Chain):
    def sample(self, sample_shape=()):
        return super().sample(tuple(sample_shape)[:1])


@breaks("sample")
class NoEmptySamples(Chain):
    def sample(self, sample_shape=()):
        return torch.stack(
            [super(NoEmptySamples, self).sample() for _ in range(torch.Size(sample_shape).numel())]
        ).reshape(torch.Size(sample_shape) + self.batch_shape + (3,))


@breaks("sample")
class SamplesInSinglePrecision(Chain):
    def sample(self, sample_shape=()):
        return super().sample(sample_shape).float()


@breaks("sample")
class SamplesWithGradients(Chain):
    def sample(self, sample_shape=()):
        return super().sample(sample_shape) + 0 * self.logits


@breaks("sample")
class SamplesFromAnotherGenerator(Chain):
    def sample(self, sample_shape=()):
        uniform = torch.from_numpy(np.random.default_rng().random((*sample_shape, *self.batch_shape, 1)))
        rows = (uniform > self.table.exp().movedim(0, -1).cumsum(-1)).sum(-1).clamp(max=7)
        return brute_force.binary_vectors(3).to(self.logits)[rows]


@breaks("sample")
class RsampleWithoutSayingSo(Chain):
    def rsample(self, sample_shape=()):
        return self.sample(sample_shape)


@breaks("sample")
class RsampleWithoutGradients(Chain):
    has_rsample = True

    def rsample(self, sample_shape=()):
        return self.sample(sample_shape)


@breaks("log_prob")
class IntegersFail(Chain):
    def log_prob(self, value):
        if not value.is_floating_point():
            raise TypeError("float expected")
        return super().log_prob(value)


@breaks("log_prob")
class SinglePrecisionResult(Chain):
    def log_prob(self, value):
        return super().log_prob(value).float()


@breaks("log_prob")
class ValuesDoNotBroadcast(Chain):
    def log_prob(self, value):
        return super().log_prob(value).reshape(value.shape[:-1])


@breaks("log_prob")
class DrawsInLogProb(Chain):
    def log_prob(self, value):
        torch.rand(1)
        return super().log_prob(value)


@breaks("batch_elements")
class SharesParametersOverTheBatch(Chain):
    def log_prob(self, value):
        mixed = Chain(self.logits.flip(0), self.coupling.flip(0)) if self.batch_shape else super()
        return mixed.log_prob(value)


@breaks("expand")
class DefaultExpand(Chain):
    def expand(self, batch_shape, _instance=None):
        return dist.TorchDistribution.expand(self, batch_shape, _instance)


@breaks("plates")
class DefaultExpandInPlates(Chain):
    def expand(self, batch_shape, _instance=None):
        return dist.TorchDistribution.expand(self, batch_shape, _instance)


@breaks("expand")
class StaleCache(Chain):
    @property
    def log_partition_function(self):
        if not hasattr(self, "cache"):
            self.cache = super().log_partition_function
        return self.cache

    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new.cache = self.log_partition_function
        return new


@breaks("expand")
class ExpandTakesAnything(Chain):
    def expand(self, batch_shape, _instance=None):
        try:
            return super().expand(batch_shape, _instance)
        except RuntimeError:
            return self


@breaks("expand")
class ExpandShiftsParameters(Chain):
    def expand(self, batch_shape, _instance=None):
        new = super().expand(batch_shape, _instance)
        new.logits = new.logits + 0.1
        return new


@breaks("enumerate_support")
class EnumeratesBackwards(Chain):
    def enumerate_support(self, expand=True):
        return super().enumerate_support(expand).flip(0)


@breaks("enumerate_support")
class EnumeratesTwice(Chain):
    def enumerate_support(self, expand=True):
        return super().enumerate_support(expand)[[0, 0, *range(1, 8)]]

    @property
    def log_partition_function(self):
        return torch.logsumexp(self.score(Chain.enumerate_support(self, False)), 0)

    @property
    def table(self):
        return Chain.log_prob(self, Chain.enumerate_support(self, False))


@breaks("enumerate_support")
class AlwaysExpands(Chain):
    def enumerate_support(self, expand=True):
        return super().enumerate_support(True)


@breaks("infer_shapes")
class SwappedShapes(Chain):
    @staticmethod
    def infer_shapes(logits, coupling):
        return logits, torch.Size()


@breaks("copies")
class HoldsALambda(Chain):
    def __init__(self, logits, coupling, validate_args=None):
        self.function = lambda: None
        super().__init__(logits, coupling, validate_args)


@breaks("copies", batch_shapes=[()])
class HoldsItsGraph(Chain):
    @property
    def log_partition_function(self):
        if not hasattr(self, "cache"):
            self.cache = super().log_partition_function
        return self.cache


@breaks("normalisation")
class Unnormalised(Chain):
    def log_prob(self, value):
        return super().log_prob(value) + 1e-6


@breaks("normalisation")
class NotANumberInTheSupport(Chain):
    def log_prob(self, value):
        result = super().log_prob(value)
        return result.masked_fill(value.all(-1), torch.nan)


@breaks("out_of_support")
class NumbersOutsideOfTheSupport(Chain):
    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        return self.score(value.to(self.logits.dtype)) - self.log_partition_function


@breaks("out_of_support")
class NeverValidates(Chain):
    def log_prob(self, value):
        validate, self._validate_args = self._validate_args, False
        try:
            return super().log_prob(value)
        finally:
            self._validate_args = validate


@breaks("sampler")
class BiasedSampler(Chain):
    def sample(self, sample_shape=()):
        return Chain(self.logits + 0.2, self.coupling).sample(sample_shape)


@breaks("sampler")
class IgnoresCoupling(Chain):
    def sample(self, sample_shape=()):
        return (torch.rand(torch.Size(sample_shape) + self.logits.shape) < self.mean).to(self.logits.dtype)


@breaks("sampler")
class CopiesInExpandedAxes(Chain):
    def sample(self, sample_shape=()):
        if len(self.batch_shape) < 2:
            return super().sample(sample_shape)
        one = Chain(self.logits[0], self.coupling[0]).sample(sample_shape)
        return one.unsqueeze(len(sample_shape)).expand((*sample_shape, *self.batch_shape, 3))


@breaks("sampler", batch_shapes=[(4,)])
class OneDrawForTheBatch(Chain):
    def sample(self, sample_shape=()):
        uniform = torch.rand((*sample_shape, 1)).expand((*sample_shape, *self.batch_shape[-1:]))
        if len(self.batch_shape) > 1:
            uniform = torch.rand((*sample_shape, *self.batch_shape[:-1], 1)).expand((*sample_shape, *self.batch_shape))
        rows = (uniform.unsqueeze(-1) > self.table.exp().movedim(0, -1).cumsum(-1)).sum(-1).clamp(max=7)
        return brute_force.binary_vectors(3).to(self.logits)[rows]


@breaks("sampler", batch_shapes=[(2, 3)])
class OneDrawForEachRow(OneDrawForTheBatch):
    """Rows themselves are independent."""


@breaks("moments")
class WrongMean(Chain):
    mean = property(lambda self: torch.sigmoid(self.logits))


@breaks("moments")
class WrongVariance(Chain):
    variance = property(lambda self: 0.25 + 0 * self.logits)


@breaks("moments")
class WrongMode(Chain):
    mode = property(lambda self: (self.logits > 0).to(self.logits) * 0)


@breaks("moments")
class WrongEntropy(Chain):
    def entropy(self):
        return super().entropy() / 0.6931


@breaks("moments")
class EntropyOfTheWrongShape(Chain):
    def entropy(self):
        return super().entropy().sum()


@breaks("conditional")
class WrongCondition(Chain):
    def condition(self, value, observed):
        return Given(self, value, observed & (torch.arange(3) < 2))


@breaks("conditional")
class WrongMarginal(Chain):
    def marginal_log_prob(self, value, observed):
        return super().marginal_log_prob(value, observed) + 0.01


class WrongDivergence(Chain):
    pass


@register_kl(WrongDivergence, WrongDivergence)
def wrong_divergence(p, q):
    return (q.table.exp() * (q.table - p.table)).sum(0)


breaks("divergence")(WrongDivergence)


@breaks("gradient")
class DetachedNormaliser(Chain):
    def log_prob(self, value):
        return super().log_prob(value) + self.log_partition_function - self.log_partition_function.detach()


@breaks("gradient")
class NotANumberInTheGradient(Chain):
    def log_prob(self, value):
        return super().log_prob(value) + 0 * (self.coupling - self.coupling).sqrt()


class _FirstDerivativeOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        ctx.save_for_backward(logits)
        return torch.nn.functional.softplus(logits)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.sigmoid(ctx.saved_tensors[0]).detach()


@breaks("second_gradient", batch_shapes=[()])
class DetachedFirstDerivative(Chain):
    def log_prob(self, value):
        softplus = torch.nn.functional.softplus(self.logits)
        return super().log_prob(value) + (_FirstDerivativeOnly.apply(self.logits) - softplus).sum(-1)


@breaks("count_marginals")
class ScaledCountMarginals(Chain):
    count_marginals = property(lambda self: 1.5 * super().count_marginals.flip(-1))


@breaks("count_marginals")
class CountMarginalsOfIndependentVariables(Chain):
    count_marginals = property(lambda self: Chain(self.logits, 0 * self.coupling).count_marginals)


@breaks("marginal_logits")
class MarginalLogitsWithoutCoupling(Chain):
    marginal_logits = property(lambda self: self.logits)


@breaks("conjugate_update")
class NormaliserOffByOne(Chain):
    def conjugate_update(self, other):
        updated, log_normalizer = super().conjugate_update(other)
        return updated, log_normalizer + 1


@breaks("conjugate_update")
class UpdateForgetsTheEvidence(Chain):
    def conjugate_update(self, other):
        _, log_normalizer = super().conjugate_update(other)
        return self.expand(other.batch_shape), log_normalizer


@breaks("query_gradient", batch_shapes=[()])
class DetachedMarginalLogits(Chain):
    marginal_logits = property(lambda self: super().marginal_logits.detach())


@breaks("query_gradient", batch_shapes=[()])
class DetachedCountMarginals(Chain):
    count_marginals = property(lambda self: super().count_marginals.detach())


@breaks("query_gradient", batch_shapes=[()])
class EntropyOfDetachedParameters(Chain):
    def entropy(self):
        return Chain.entropy(Chain(self.logits, self.coupling.detach()))


@breaks("query_gradient", batch_shapes=[()])
class EntropyWithDetachedFirstDerivative(Chain):
    def entropy(self):
        softplus = torch.nn.functional.softplus(self.logits)
        return super().entropy() + (_FirstDerivativeOnly.apply(self.logits) - softplus).sum(-1)


@breaks("single_parameter", batch_shapes=[()])
class DifferentiatesAllParametersOrNone(Chain):
    @property
    def marginal_logits(self):
        result = super().marginal_logits
        if result.requires_grad:
            both = torch.autograd.grad(self.log_partition_function, (self.logits, self.coupling), create_graph=True)
            result = result + 0 * both[0]
        return result


@breaks("single_parameter", batch_shapes=[()])
class EntropyRefusesFunctionTransforms(Chain):
    def entropy(self):
        softplus = torch.nn.functional.softplus(self.logits)
        return super().entropy() + 0 * (_FirstDerivativeOnly.apply(self.logits) - softplus).sum(-1)


@breaks("impossible_evidence")
class LogOfZeroEvidence(NeverAll):
    def marginal_log_prob(self, value, observed):
        return super().marginal_log_prob(value, observed).exp().log()


@breaks("impossible_evidence")
class LogOfZeroOutsideOfTheSupport(Chain):
    def log_prob(self, value):
        return super().log_prob(value).exp().log()


@breaks("single_precision", dtypes=[torch.float32])
class Cancels(Chain):
    def log_prob(self, value):
        return (super().log_prob(value) + 3e4) - 3e4


@breaks("vmap_values")
class BranchesOnValues(Chain):
    def log_prob(self, value):
        return super().log_prob(value) if bool((value >= 0).all()) else -torch.inf * torch.ones(value.shape[:-1])


@breaks("vmap_values", batch_shapes=[()])
class LooksUpSingleValues(Chain):
    def log_prob(self, value):
        inside = (value[..., 0] == 1).long()
        return super().log_prob(value) + torch.zeros(2)[inside]


@breaks("vmap_parameters")
class BranchesOnParameters(Chain):
    def log_prob(self, value):
        return super().log_prob(value) if bool((self.logits < 100).all()) else None


@breaks("normalisation")
class Warns(Chain):
    def log_prob(self, value):
        warnings.warn("look", stacklevel=2)
        return super().log_prob(value)


@breaks("enumeration")
class EnumeratesWithTooManyAxes(Chain):
    def enumerate_support(self, expand=True):
        return super().enumerate_support(expand).unsqueeze(0).movedim(0, 1)


@breaks("mask")
class MaskForgets(Chain):
    def mask(self, mask):
        return self


@breaks("to_event")
class EventsForget(Chain):
    def to_event(self, reinterpreted_batch_ndims=None):
        return self


@breaks("predictive")
class SamplesWithoutPlates(Chain):
    def expand(self, batch_shape, _instance=None):
        return super().expand(tuple(batch_shape)[-1:], _instance)


@breaks("dependencies")
class CountsRowsOfParameters(Chain):
    def log_prob(self, value):
        # Under Pyro's tracking of provenance, part of a shape is a tuple.
        return super().log_prob(value) + 0.0 * self.logits.shape[:-1].numel()


@breaks("nuts_observed")
class UnderflowsWithoutValidation(Chain):
    def log_prob(self, value):
        result = super().log_prob(value)
        return result if self._validate_args else torch.full_like(result, -torch.inf) + 0 * result


@breaks("nuts_enumerated")
class ForgetsValuesWithoutValidation(Chain):
    def enumerate_support(self, expand=True):
        values = super().enumerate_support(expand)
        return values if self._validate_args else values[:4]

    @property
    def log_partition_function(self):
        return torch.logsumexp(self.score(Chain.enumerate_support(self, False)), 0)


@pytest.mark.slow(keep=20)
@pytest.mark.parametrize("cls, check, changes", BROKEN)
def test_a_defect_is_found(cls, check, changes):
    arguments = {"batch_shapes": [(3,)], "dtypes": [torch.float64], "devices": ["cpu"], **changes}
    with pytest.raises(AssertionError, match=f"{cls.__name__} breaks the contract") as error:
        check_distribution(factory_of(cls), **arguments)
    assert f"\n- {check} (batch_shape=" in str(error.value)


class Trials(dist.TorchDistribution):
    """A Binomial whose cumulative probabilities are asked for in every way."""

    arg_constraints = {"probs": constraints.unit_interval}
    support = constraints.integer_interval(0, 4)
    has_enumerate_support = True

    def __init__(self, probs, validate_args=None):
        self.probs = probs
        super().__init__(probs.shape, torch.Size(), validate_args=validate_args)

    @staticmethod
    def infer_shapes(probs):
        return probs, torch.Size()

    def expand(self, batch_shape, _instance=None):
        return type(self)(self.probs.expand(batch_shape), validate_args=self._validate_args)

    @property
    def base(self):
        return dist.Binomial(4, self.probs, validate_args=False)

    def enumerate_support(self, expand=True):
        values = torch.arange(5).to(self.probs).reshape((5,) + (1,) * len(self.batch_shape))
        return values.expand((5, *self.batch_shape)) if expand else values

    def sample(self, sample_shape=()):
        return self.base.sample(torch.Size(sample_shape))

    def log_prob(self, value):
        if self._validate_args:
            self._validate_sample(value)
        inside = (value >= 0) & (value <= 4) & (value == value.to(self.probs.dtype).floor())
        safe = torch.where(inside, value, 0 * inside)
        return self.base.log_prob(safe.to(self.probs.dtype)).masked_fill(~inside, -torch.inf)

    def cdf(self, value):
        counts = self.enumerate_support(False).reshape(-1)
        table = self.log_prob(counts.reshape((5,) + (1,) * (value.dim()))).exp()
        return (table * (counts.reshape((5,) + (1,) * value.dim()) <= value)).sum(0)

    def log_survival(self, value):
        return torch.log1p(-self.cdf(value).clamp(max=1.0)).masked_fill(value >= 4, -torch.inf)

    def icdf(self, value):
        return (self.cdf(self.enumerate_support(False)).unsqueeze(1) < value).sum(0).to(self.probs.dtype)

    mean = property(lambda self: 4 * self.probs)
    variance = property(lambda self: 4 * self.probs * (1 - self.probs))


class StrictCdf(Trials):
    def cdf(self, value):
        return super().cdf(value - 1)


class ShiftedSurvival(Trials):
    def log_survival(self, value):
        return super().log_survival(value - 1)


class RoundedQuantile(Trials):
    def icdf(self, value):
        return super().icdf(value).clamp(min=1)


def trials_of(cls):
    def factory(batch_shape, dtype, device="cpu"):
        size = torch.Size(batch_shape).numel()
        return cls(torch.linspace(0.2, 0.7, size, dtype=dtype, device=device).reshape(batch_shape))

    return factory


def test_a_count_passes():
    check_distribution(trials_of(Trials))


@pytest.mark.parametrize("cls", [StrictCdf, ShiftedSurvival, RoundedQuantile])
def test_wrong_cumulative_probabilities_are_found(cls):
    with pytest.raises(AssertionError, match=r"\n- cumulative \(batch_shape=\(3,\)"):
        check_distribution(trials_of(cls), batch_shapes=[(3,)], dtypes=[torch.float64], devices=["cpu"])


class WideNormal(dist.Normal):
    """Draws from a wider normal than it says."""

    def sample(self, sample_shape=()):
        return dist.Normal(self.loc, 1.15 * self.scale).sample(torch.Size(sample_shape))


def test_wrong_density_is_found():
    def factory(batch_shape, dtype, device="cpu"):
        return WideNormal(torch.zeros(batch_shape, dtype=dtype), torch.ones(batch_shape, dtype=dtype))

    with pytest.raises(AssertionError, match=r"\n- sampler \(batch_shape=\(3,\)"):
        check_distribution(factory, batch_shapes=[(3,)], dtypes=[torch.float64], devices=["cpu"])


class LogOfZeroBehindNan(NanMasked):
    def log_prob(self, value):
        result = super().log_prob(value)
        return result.exp().log() if bool(value.isnan().any()) else result


def test_impossible_evidence_behind_nan_is_found():
    def factory(batch_shape, dtype, device="cpu"):
        return LogOfZeroBehindNan(factory_of(NeverAll)(batch_shape, dtype, device))

    with pytest.raises(AssertionError, match=r"\n- impossible_evidence .* derivative of log_prob of values with NaN"):
        check_distribution(factory, batch_shapes=[(3,)], dtypes=[torch.float64], devices=["cpu"])


class NamesNoRows(JunctionTree):
    @property
    def marginals(self):
        try:
            return super().marginals
        except ValueError:
            raise ValueError("value: expected other evidence") from None


class AnswersImpossibleRows(JunctionTree):
    @property
    def marginals(self):
        return self._cast(self._single_beliefs.marginals)


class CallsImpossibleRowsUnlikely(JunctionTree):
    def marginal_log_prob(self, value, observed):
        return super().marginal_log_prob(value, observed).clamp(min=-700.0)


@pytest.mark.parametrize("batch_shape", [(), (2, 3)])
@pytest.mark.parametrize(
    "cls, message",
    [
        (NamesNoRows, "marginals: expected rows .* and so on, got: value: expected other evidence"),
        (AnswersImpossibleRows, "marginals: expected an error that names rows .*, got none"),
        (CallsImpossibleRowsUnlikely, "marginal_log_prob: expected -inf in rows"),
    ],
)
def test_impossible_rows_have_to_be_named(cls, message, batch_shape):
    tree = CliqueTree.chain(3, 2)

    def factory(batch_shape, dtype, device="cpu"):
        return cls(torch.zeros(*batch_shape, tree.table_size, dtype=dtype, device=device), tree)

    with pytest.raises(AssertionError, match=f"(?s){message}"):
        impossible_rows(DistributionCase(factory, batch_shape, torch.float64))


def test_message_names_cases_and_numbers():
    with pytest.raises(AssertionError) as error:
        check_distribution(factory_of(WrongEntropy), batch_shapes=[(), (3,)], devices=["cpu"])
    name = "WrongEntropy breaks the contract of a Pyro distribution; failed checks:\n"
    line = r"- moments \(batch_shape=\(\), dtype=float32, device=cpu, and 3 more\): entropy: expected \S+, got \S+ "
    assert re.fullmatch(name + line + r"\(tolerance 0\.001; 1 of 1 entries differ\)", str(error.value))
    assert isinstance(error.value.__cause__, AssertionError)


def test_no_trace_is_left():
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    pyro.param("kept", torch.tensor(1.0))
    before = states()
    check_distribution(normal, batch_shapes=[(2,)], dtypes=[torch.float32])
    assert states() == before
    assert list(pyro.get_param_store()) == ["kept"]


def test_parameters_of_nested_distributions():
    base = dist.Bernoulli(logits=torch.zeros(2, 3)).to_event(1)
    (parameter,) = parameters(base)
    assert (parameter.name, parameter.trailing) == ("base_distribution.logits", 1)
    changed = rebuild(base, {"base_distribution.logits": torch.ones(2, 3)})
    assert changed.base_dist.logits.eq(1.0).all() and changed.event_shape == (3,)


def test_nudge_keeps_constraints_and_infinities():
    (probs,) = parameters(dist.Bernoulli(torch.tensor([0.01, 0.99])))
    assert ((nudge(probs, torch.tensor(50.0)) > 0.5) & (nudge(probs, torch.tensor(50.0)) <= 1)).all()
    table = torch.tensor([-torch.inf, 0.0])
    (infinite,) = parameters(dist.Bernoulli(logits=table, validate_args=False))
    amount = torch.tensor(1.0, requires_grad=True)
    moved = nudge(infinite, amount)
    assert moved[0] == -torch.inf and moved[1] > 0
    (gradient,) = torch.autograd.grad(moved[1], amount)
    assert gradient.isfinite()


def test_case_describes_itself():
    case = DistributionCase(normal, (2, 3), torch.float32)
    assert str(case) == "batch_shape=(2, 3), dtype=float32, device=cpu"


class Refusing(dist.Binomial):
    """Draws, but tells no probabilities."""

    has_enumerate_support = False
    refusal = "log_prob: there is none; use sample() instead"

    def enumerate_support(self, expand=True):
        raise NotImplementedError

    def expand(self, batch_shape, _instance=None):
        return super().expand(batch_shape, self._get_checked_instance(type(self), _instance))

    def log_prob(self, value):
        raise NotImplementedError(self.refusal)


class RefusingWithoutAdvice(Refusing):
    refusal = "log_prob: not implemented"


class RefusingWithWrongShapes(Refusing):
    def sample(self, sample_shape=()):
        return super().sample(sample_shape)[..., :1]


def refusing(cls):
    def factory(batch_shape, dtype, device="cpu"):
        return cls(3, probs=torch.full(batch_shape, 0.4, dtype=dtype, device=device))

    return factory


def test_distributions_may_refuse_log_prob():
    check_distribution(refusing(Refusing), batch_shapes=[(2,)])


@pytest.mark.parametrize(
    "cls, message",
    [
        (RefusingWithoutAdvice, "expected an error that says what to use instead, got 'log_prob: not implemented'"),
        (RefusingWithWrongShapes, r"- sample .*expected shape"),
    ],
)
def test_refusing_is_no_excuse(cls, message):
    with pytest.raises(AssertionError, match=message):
        check_distribution(refusing(cls), batch_shapes=[(2,)])
