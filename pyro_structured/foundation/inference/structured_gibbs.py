"""Structured discrete sites, drawn exactly given everything else."""

__all__ = ["StructuredGibbs", "discrete_blocks"]

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import NUTS
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.distributions.independent_parts import entry_constraint, entry_distribution
from pyro_structured.foundation.inference.binary_gibbs import BinaryGibbs
from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.inference.latent_state import at_random, latent_sites, later_sites
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.inference.site_handlers import confined_sites, handler_of
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.structures.argument_checks import check_flag

# Log-likelihoods add up over entries if those of values differ from the sums by less than this share of their size.
ROUNDING = 1e-5
# Number of times that the entries which log-densities depend on are looked for before a likelihood is refused.
ATTEMPTS = 4


class StructuredGibbs(StepKernel):
    r"""Draws structured discrete sites exactly, all entries at once, where the likelihood is a sum over entries.

    .. math::
        p(z \mid \text{rest}) \propto p(z) \exp\Big(\sum_d g_d(z_d)\Big).

    The terms :math:`g_d` are found by running the model: once for each state, with all entries in this state, where
    each log-density after the site depends on one entry, as emissions do; and once for each entry and further state
    for log-densities of several entries, such as those of ``pyro.factor``. Rows of plates, or any other blocks of
    entries, which no log-density depends on together are changed at the same time. Which entries a log-density depends
    on is found at the start of a run, with some :math:`2 \log_2 D` runs.

    The log-likelihood of each draw is compared with the sum that it was drawn from, and, at the beginning and ever more
    rarely, those of the present value and of values at random: what is found to be no sum over entries, such as the
    likelihood of a regression, is refused. A term that is no sum at few values only, such as a bonus for one of them,
    can go unnoticed, and draws are wrong then; :class:`BinaryGibbs` is right under any likelihood.

    Sites are those whose distribution has ``reweight``:
    :class:`~pyro_structured.distributions.RecursiveCardinality`, :class:`~pyro_structured.distributions.KSubset`,
    :class:`~pyro_structured.distributions.JunctionTree`, and fields of labels such as
    :class:`~pyro_structured.distributions.GridCRF`, where these draw exact samples. A
    :class:`~pyro_structured.distributions.GeneralizedMatching` that is too large for exact draws makes five sweeps
    (``GeneralizedMatching.sweep``) from its present value, and starts with a most probable one given the likelihood;
    other kernels ask for its log Z, unless it is sampled before their sites, or has an estimator. Sites may stand in
    any plates; where a site is masked, its entries are drawn from their likelihoods alone. Alone, it is a composition,
    in which :class:`BinaryGibbs` updates the discrete sites that it cannot, and NUTS the continuous ones.

    :param model: A Pyro model.
    :param bool additive: True declares that all likelihoods are sums over entries, and depend on the same entries in
        each step. Draws are not checked then, which saves a run of the model a step.
    :raises ValueError: at the start of a run, if no site can be drawn, or one that :class:`Gibbs` names for it, because
        of its distribution, a scale, or a budget of exact draws; if a likelihood turns out to be no sum over entries.

    A step costs as many runs of the model as there are states, and one, and a sample of the posterior. Exact where
    likelihoods are sums over entries: draws are independent of the present value, but for large matchings.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC
        >>> from pyro_structured.distributions import JunctionTree
        >>> from pyro_structured.structures import CliqueTree
        >>> stay = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log().flatten().repeat(3)
        >>> def model(y):
        ...     level = pyro.sample("level", dist.Normal(0.0, 3.0))
        ...     z = pyro.sample("z", JunctionTree(stay, CliqueTree.chain(4, 2)))
        ...     pyro.sample("y", dist.Normal(level * z, 0.3).to_event(1), obs=y)
        >>> mcmc = MCMC(StructuredGibbs(model), num_samples=30, warmup_steps=10, disable_progbar=True)
        >>> mcmc.run(torch.tensor([0.1, -0.2, 2.1, 1.8]))
        >>> mcmc.get_samples()["z"].double().mean(0).round()
        tensor([0., 0., 1., 1.], dtype=torch.float64)
    """

    def __init__(self, model: Callable[..., Any], additive: bool = False) -> None:
        super().__init__(model)
        check_flag("additive", additive)
        self.additive = additive

    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain."""
        trace: Any = poutine.trace(at_random(model)).get_trace(*args, **kwargs)
        self._sites = [_StructuredSite(name, trace, model, self.additive, args, kwargs) for name in names]

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """One draw of each site, one after the other."""
        for site in self._sites:
            values = {**values, site.name: site.draw(values)}
        return values

    def report(self) -> dict[str, Any]:
        """Number of runs of the model, for all sites together."""
        return {"runs": sum(site.num_runs for site in self._sites)}

    def state_dict(self) -> dict[str, Any]:
        """What has been found out about the sites."""
        return {site.name: site.state() for site in self._sites}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with it."""
        for site in self._sites:
            site.load_state(state[site.name])

    def composition(self, args: Any, kwargs: Any) -> list[tuple[MCMCKernel, Any]]:
        """Structured sites, then other discrete ones by :class:`BinaryGibbs`, then continuous ones by NUTS."""
        trace: Any = poutine.trace(at_random(NamedLatents(self.model))).get_trace(*args, **kwargs)
        if confined_sites(trace):
            raise ValueError(
                "model: expected no observed RandOM or Argmin site, got some; compose kernels by Gibbs, and let "
                "ConstrainedSlice update their costs"
            )
        names = list(latent_sites(trace))
        able = [name for name in names if hasattr(entry_distribution(trace.nodes[name]["fn"]), "reweight")]
        if not able:
            raise ValueError("model: expected a latent site whose distribution has reweight, got none")
        # If there is none that it can draw, the run says why.
        own = _drawn_exactly(self.model, able, trace, args, kwargs) or able
        rest = [name for name in names if name not in own]
        continuous = [name for name in rest if not trace.nodes[name]["fn"].support.is_discrete]
        discrete = [name for name in rest if name not in continuous]
        others: list[tuple[MCMCKernel, Any]] = [(BinaryGibbs(self.model), discrete)] if discrete else []
        return [(self, own), *others, *([(NUTS(self.model), continuous)] if continuous else [])]


def discrete_blocks(
    model: Callable[..., Any],
    names: Sequence[str],
    trace: Any,
    args: Any,
    kwargs: Any,
    summed_out: Collection[str] = (),
) -> list[tuple[MCMCKernel, Any]]:
    """Blocks for :class:`Gibbs` that update discrete sites: exact draws where these are possible, else single flips.

    :param model: A Pyro model.
    :param names: Names of discrete sites.
    :param trace: Trace of the model, with hidden variables of sites as sites of their own.
    :param summed_out: Names of observed sites whose hidden variables the kernels sum out.
    """
    exact = _drawn_exactly(model, names, trace, args, kwargs, summed_out)
    rest = [name for name in names if name not in exact]
    blocks: list[tuple[MCMCKernel, Any]] = []
    for kernel, own in ((StructuredGibbs(model), exact), (BinaryGibbs(model), rest)):
        kernel.summed_out = frozenset(summed_out)
        blocks += [(kernel, own)] if own else []
    return blocks


def _drawn_exactly(
    model: Callable[..., Any],
    names: Sequence[str],
    trace: Any,
    args: Any,
    kwargs: Any,
    summed_out: Collection[str] = (),
) -> list[str]:
    """Names of the sites that can be drawn exactly, as far as a draw at the values of a trace tells."""
    values = {name: trace.nodes[name]["value"] for name in latent_sites(trace)}
    exact = []
    for name in names:
        others = {other: value for other, value in values.items() if other != name}
        given: Any = poutine.condition(NamedLatents(model, summed_out), data=others)
        try:
            with torch.no_grad():
                _StructuredSite(name, trace, given, False, args, kwargs).draw({name: values[name]})
        except (ValueError, RuntimeError):
            # Also where no exact draws are implemented, or coupling from the past does not meet.
            continue
        exact.append(name)
    return exact


class _Dependence(NamedTuple):
    """Which entries log-densities of later sites depend on, T log-densities and N entries.

    :ivar Tensor owners: Entry of each log-density that depends on one, N where it depends on none, N + 1 where on
        several; shape ``(T,)``.
    :ivar Tensor joint: Marks log-densities of several entries, shape ``(T,)``.
    :ivar Tensor blocks: Blocks of the entries, shape ``(N,)``: entries that some log-density depends on together are in
        one block.
    :ivar Tensor parts: Blocks of the log-densities, shape ``(T,)``; the number of blocks where they depend on no entry.
    :ivar int num_blocks: Number of blocks.
    :ivar list turns: Masks of entries that are changed together where log-densities depend on several: one of each
        block, shape ``(N,)``.
    """

    owners: Tensor
    joint: Tensor
    blocks: Tensor
    parts: Tensor
    num_blocks: int
    turns: list[Tensor]

    def sums(self, terms: Tensor) -> Tensor:
        """Sums of log-densities in each block, and of those of no entry, shape ``(num_blocks + 1,)``."""
        return terms.new_zeros(self.num_blocks + 1).index_add(0, self.parts, terms)


class _Evidence(NamedTuple):
    """Log-likelihoods of all states of all entries, shape ``(K, N)``, and what is added in each block, as
    :meth:`_Dependence.sums` numbers them.
    """

    log_likelihoods: Tensor
    constants: Tensor


class _StructuredSite:
    """Log-likelihoods of the states of all entries of a site, from runs of a model.

    :param str name: Name of the site.
    :param trace: Trace of the model.
    :param model: A Pyro model, conditioned on all other sites.
    :param bool additive: Whether the user says that log-likelihoods are sums over entries.
    :raises ValueError: if the site has no exact draws given evidence, or is scaled.
    """

    def __init__(
        self, name: str, trace: Any, model: Callable[..., Any], additive: bool, args: Any, kwargs: Any
    ) -> None:
        node = trace.nodes[name]
        base = entry_distribution(node["fn"])
        if not hasattr(base, "reweight"):
            raise ValueError(
                f"{name}: expected a distribution with reweight for StructuredGibbs, such as RecursiveCardinality, "
                f"KSubset, JunctionTree or GridCRF, got {node['fn']}; sites of two states are updated by BinaryGibbs"
            )
        if not bool((torch.as_tensor(node["scale"]) == 1).all()):
            raise ValueError(
                f"{name}: expected a site without a scale for StructuredGibbs, got one with; BinaryGibbs updates "
                "scaled sites of two states"
            )
        try:
            handler_of(base).check_exact_draws(base)
        except NotImplementedError as error:
            raise ValueError(self._beyond_budget(name, base, error)) from None
        self.name, self.num_runs, self._num_draws = name, 0, 0
        self._model, self._additive, self._args, self._kwargs = model, additive, args, kwargs
        self._is_binary = isinstance(entry_constraint(base.support), type(constraints.boolean))
        sizes: Tensor | int = 2 if self._is_binary else base.support.base_constraint.upper_bound + 1
        shape = node["value"].shape
        # Numbers of states of all entries, shape (N,), and numbers that name them: the binary digits of their places
        # along all axes.
        self._sizes = sizes.expand(shape).flatten() if isinstance(sizes, Tensor) else torch.full(shape, sizes).flatten()
        self._codes, self._num_digits = _codes(shape, node["value"].device)
        self._num_terms: int | None = None
        # Digits of the entries on which log-densities have turned out to depend: those that are 1, and that are 0,
        # shape (2, T).
        self._seen: Tensor | None = None

    @staticmethod
    def _beyond_budget(name: str, base: Any, error: Exception) -> str:
        return (
            f"{name}: expected a site that StructuredGibbs can draw exactly, got {type(base).__name__} of shape "
            f"{tuple(base.event_shape)}; {error}. FieldGibbs updates fields of any size, BinaryGibbs sites of two "
            "states, entry by entry"
        )

    def state(self) -> dict[str, Any]:
        return {"seen": self._seen, "num_runs": self.num_runs, "num_draws": self._num_draws}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seen, self.num_runs, self._num_draws = state["seen"], state["num_runs"], state["num_draws"]
        if self._seen is not None:
            self._dependence = self._understand(self._seen)

    def draw(self, values: dict[str, Tensor]) -> Tensor:
        """A draw given everything else.

        :raises ValueError: if the likelihood is no sum over entries.
        """
        self._values, self._value = values, values[self.name]
        if not self._value.numel():
            return self._value
        self._sizes = self._sizes.to(self._value.device)
        if self._seen is None:
            self._look(self._present)
        tried = [] if self._additive else self._values_to_check()
        for attempt in range(ATTEMPTS):
            evidence = self._find_evidence()
            drawn = self._sample(evidence.log_likelihoods)
            tried.append(drawn.long().flatten())
            if self._additive or all(self._agrees(value, evidence) for value in tried):
                self._num_draws += 1
                return drawn
            if attempt < ATTEMPTS - 1:
                # Dependencies that do not show at one value may show at others.
                self._look(self._random_value(1.0) if attempt else self._present)
        raise ValueError(
            f"{self.name}: expected log-densities of later sites that add up over the entries of the site, as "
            "elementwise likelihoods do, got others; BinaryGibbs updates sites of two states under any likelihood"
        )

    @property
    def _present(self) -> Tensor:
        return self._value.long().flatten()

    def _sample(self, log_likelihoods: Tensor) -> Tensor:
        base = entry_distribution(self._node["fn"])
        shape = self._value.shape
        by_state = log_likelihoods.T.reshape(*shape, -1)
        mask = _beside(self._node["mask"], self._node["fn"], len(base.event_shape))
        if mask is False or (isinstance(mask, Tensor) and not bool(mask.any())):
            return draw_log(by_state).to(self._value.dtype)
        posterior = base.reweight(*by_state.unbind(-1)) if self._is_binary else base.reweight(by_state)
        try:
            handler = handler_of(base)
            value = self._value if self._num_draws else handler.start(posterior, self._value)
            drawn: Tensor = handler.move(posterior, value).to(self._value.dtype)
        except NotImplementedError as error:
            raise ValueError(
                f"{self.name}: expected a site that can be drawn exactly given evidence, got {type(base).__name__}; "
                f"{error}. BinaryGibbs updates sites of two states, entry by entry"
            ) from error
        except RuntimeError as error:
            raise RuntimeError(self._beyond_budget(self.name, base, error)) from error
        # Where the prior is masked, entries are independent given the rest.
        return torch.where(mask, drawn, draw_log(by_state).to(drawn.dtype)) if isinstance(mask, Tensor) else drawn

    def _values_to_check(self) -> list[Tensor]:
        """At the beginning, and ever more rarely, the present value, and values near it and all over, which show what
        draws do not.
        """
        if self._num_draws & (self._num_draws + 1):
            return []
        return [self._present, self._random_value(float(torch.rand(()))), self._random_value(1.0)]

    def _random_value(self, share: float) -> Tensor:
        """The present value with a share of the entries in states at random, shape ``(N,)``."""
        noise, chosen = torch.rand(2, len(self._sizes), device=self._value.device).unbind(0)
        return torch.where(chosen < share, (noise * self._sizes).long(), self._present)

    def _agrees(self, value: Tensor, evidence: _Evidence) -> bool:
        """Whether the log-likelihood of a value is the sum over entries, in each block."""
        terms = evidence.log_likelihoods.gather(0, value.unsqueeze(0)).squeeze(0)
        sizes = evidence.constants.abs().index_add(0, self._dependence.blocks, terms.abs())
        expected = evidence.constants.index_add(0, self._dependence.blocks, terms)
        total = self._dependence.sums(self._terms(value))
        near = (expected - total).abs() <= ROUNDING * (1 + sizes.masked_fill(sizes.isinf(), 0.0))
        return bool(((expected == total) | near).all())

    def _find_evidence(self) -> _Evidence:
        found = self._dependence
        most, number = int(self._sizes.max()), len(self._sizes)
        sums = torch.zeros(most, number + 2, dtype=torch.double, device=self._value.device)
        for state in range(most):
            states = torch.minimum(self._sizes - 1, self._sizes.new_tensor(state))
            sums[state].index_add_(0, found.owners, self._terms(states))
        log_likelihoods = sums[:, :number]
        constants = torch.nn.functional.pad(sums[0, number : number + 1], (found.num_blocks, 0))
        if found.turns:
            constants = constants + self._add_joint_terms(log_likelihoods)
        if bool(log_likelihoods.isnan().any()):
            raise ValueError(f"{self.name}: expected log-densities of later sites that are numbers, got NaN")
        states = torch.arange(most, device=self._sizes.device).unsqueeze(-1)
        return _Evidence(log_likelihoods.masked_fill(states >= self._sizes, -math.inf), constants)

    def _add_joint_terms(self, log_likelihoods: Tensor) -> Tensor:
        """Adds differences of log-densities of several entries, one entry of each block changed at a time; returns
        their present sums.
        """
        found, present = self._dependence, self._present
        level = self._terms(present).masked_fill(~found.joint, 0.0)
        for turn in found.turns:
            for step in range(1, len(log_likelihoods)):
                entries = (turn & (step < self._sizes)).nonzero().squeeze(-1)
                if len(entries):
                    states = (present[entries] + step) % self._sizes[entries]
                    terms = self._terms(present.index_copy(0, entries, states))
                    gains = found.sums(terms.masked_fill(~found.joint, 0.0) - level)
                    log_likelihoods[states, entries] += gains[found.blocks[entries]]
        return found.sums(level)

    def _look(self, value: Tensor) -> None:
        """Finds which entries log-densities depend on, by changing those whose numbers have, or have not, a digit."""
        other = (value + 1) % self._sizes
        level = self._terms(value)
        seen = torch.zeros(2, len(level), dtype=torch.long, device=level.device)
        for digit in range(self._num_digits):
            is_one = (self._codes >> digit) % 2 == 1
            for row, chosen in enumerate((is_one, ~is_one)):
                seen[row] |= (self._terms(torch.where(chosen, other, value)) != level).long() << digit
        self._seen = seen if self._seen is None else self._seen | seen
        self._dependence = self._understand(self._seen)

    def _understand(self, seen: Tensor) -> _Dependence:
        ones, zeros = seen.to(self._codes.device).unbind(0)
        every = (1 << self._num_digits) - 1
        depends = (ones | zeros) != 0
        entry = torch.searchsorted(self._codes, ones).clamp(max=len(self._codes) - 1)
        # Digits at which entries differ that a log-density depends on: all where changes have cancelled.
        mixed = torch.where(self._codes[entry] == ones, every & ~(ones ^ zeros), every).masked_fill(~depends, 0)
        number = len(self._codes)
        owners = torch.where(mixed == 0, entry, number + 1).masked_fill(~depends, number)
        joint = sum(1 << digit for digit in range(self._num_digits) if bool(((mixed >> digit) % 2).any()))
        names, blocks = torch.unique(self._codes & ~joint, return_inverse=True)
        parts = torch.searchsorted(names, ones & ~joint).masked_fill(~depends, len(names))
        kinds, kind = torch.unique(self._codes & joint, return_inverse=True)
        turns = [kind == each for each in range(len(kinds))] if joint else []
        return _Dependence(owners, mixed != 0, blocks, parts, len(names), turns)

    def _terms(self, value: Tensor) -> Tensor:
        """All log-densities of later sites, before they are summed, in double precision.

        :param Tensor value: States, shape ``(N,)``.
        """
        self.num_runs += 1
        shaped = value.reshape(self._value.shape).to(self._value.dtype)
        model: Any = poutine.trace(poutine.condition(self._model, data={**self._values, self.name: shaped}))
        trace = model.get_trace(*self._args, **self._kwargs)
        self._node = trace.nodes[self.name]
        nodes = [_log_densities(node).flatten() for _, node in later_sites(trace, self.name)]
        terms = torch.cat(nodes) if nodes else torch.zeros(0, dtype=torch.double, device=value.device)
        self._num_terms = len(terms) if self._num_terms is None else self._num_terms
        if len(terms) != self._num_terms:
            raise ValueError(
                f"{self.name}: expected later sites that are the same at all values, got {len(terms)} log-densities in "
                f"place of {self._num_terms}; BinaryGibbs updates sites of two states in any model"
            )
        return terms


def _codes(shape: torch.Size, device: torch.device) -> tuple[Tensor, int]:
    """Numbers of all entries, increasing, shape ``(N,)``, in which each axis has binary digits of its own, and the
    number of digits.
    """
    codes, num_digits = torch.zeros(shape, dtype=torch.long, device=device), 0
    for axis in reversed(range(len(shape))):
        places = torch.arange(shape[axis], device=device) << num_digits
        codes = codes + places.reshape(-1, *(1,) * (len(shape) - axis - 1))
        num_digits += (shape[axis] - 1).bit_length()
    return codes.flatten(), max(1, num_digits)


def _beside(factor: Any, fn: Any, event_dim: int = 0) -> Any:
    """Scale or mask of a site with axes for those of its batch that were declared an event, and for an event."""
    if not isinstance(factor, Tensor):
        return factor
    extra = len(entry_distribution(fn).batch_shape) - len(fn.batch_shape) + event_dim
    return factor.reshape(factor.shape + (1,) * extra)


def _log_densities(node: Any) -> Tensor:
    """Log-densities of a site's value with as many axes as its distribution has before axes are declared an event."""
    fn = node["fn"]
    log_densities = entry_distribution(fn).log_prob(node["value"]).double()
    terms: Tensor = scale_and_mask(log_densities, _beside(node["scale"], fn), _beside(node["mask"], fn))
    return terms
