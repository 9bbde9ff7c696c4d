"""Block Gibbs sampling of fields under patterns, all labels of one colour at a time."""

__all__ = ["FieldGibbs"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import Independent

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.field_sites import field_of
from pyro_structured.fields.ops.field_sweeps import check_sweeps, sweep
from pyro_structured.foundation.distributions.independent_parts import unmasked
from pyro_structured.foundation.inference.binary_gibbs import BinaryGibbs
from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.inference.latent_state import at_random, later_sites
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.inference.structured_gibbs import discrete_blocks
from pyro_structured.foundation.structures.argument_checks import check_size

# Relative difference up to which log-densities count as equal.
ROUNDING = 1e-4


class _LabelLikelihood:
    """Log-densities of later sites, entry by entry, for all K values of every label.

    :param str name: Name of the field's site.
    :param trace: Trace of the model with the present labels.
    :param others: K - 1 traces of the model with other labels: the present ones plus 1, plus 2, and so on, modulo K,
        wherever these are possible.
    :raises NotImplementedError: if the log-density of a site that depends on the labels is no sum over them.
    """

    def __init__(self, name: str, trace: Any, others: Sequence[Any]) -> None:
        self.name = name
        self._labels: Tensor = trace.nodes[name]["value"]
        self._nodes = dict(later_sites(trace, name))
        self._num_labels = len(others) + 1
        # Log-densities of sites with the present labels, and with the others, by name.
        self._entries: dict[str, tuple[Tensor, ...]] = {}
        for site, node in self._nodes.items():
            alternatives = [other.nodes[site] for other in others]
            if not all(_same_field(node, other) for other in alternatives):
                present, *exchanged = (_entries(entries_node, self._labels) for entries_node in (node, *alternatives))
                if not all(torch.equal(present, entries_node) for entries_node in exchanged) and not _covers(
                    present, self._labels
                ):
                    self._refuse(site, f"got log-densities of shape {tuple(present.shape)}")
                self._entries[site] = present, *exchanged

    def log_weights(self) -> Tensor:
        """Log-likelihoods of all K labels less those of the present ones, of shape ``(K,)`` and that of the labels."""
        shape = self._labels.shape
        log_weights = torch.zeros((self._num_labels, *shape), dtype=torch.double, device=self._labels.device)
        for present, *exchanged in self._entries.values():
            for step, other in enumerate(exchanged, 1):
                if not torch.equal(present, other):
                    label = ((self._labels + step) % self._num_labels).long().unsqueeze(0)
                    log_weights.scatter_add_(0, label, (other - present).sum_to_size(shape).unsqueeze(0))
        return log_weights

    def check(self, moved: Any) -> None:
        """Checks that the log-densities of new labels are the sums that follow from single labels.

        :param moved: Trace of the model with the new labels.
        :raises NotImplementedError: if the log-densities differ.
        """
        steps = (moved.nodes[self.name]["value"] - self._labels) % self._num_labels
        for site, node in self._nodes.items():
            if site not in self._entries:
                if not _same_field(node, moved.nodes[site]):
                    self._refuse(site, "got a field whose parameters change with several labels")
                continue
            expected, *exchanged = self._entries[site]
            entries = _entries(moved.nodes[site], self._labels)
            for step, other in enumerate(exchanged, 1):
                expected = torch.where(steps == step, other, expected) if _covers(other, steps) else expected
            close = (entries == expected) | ((entries - expected).abs() <= ROUNDING * (1 + expected.abs()))
            if not bool(close.all()):
                self._refuse(site, "got entries that depend on several labels")

    def _refuse(self, site: str, found: str) -> None:
        remedy = "; BinaryGibbs updates labels under any likelihood" if self._labels.is_floating_point() else ""
        raise NotImplementedError(
            f"{site}: expected log-densities of which each entry depends on one label of {self.name!r}, in the shape "
            f"of its values, {tuple(self._labels.shape)}, with any axes before it, and with axes after it if they "
            f"belong to an event, {found}{remedy}"
        )


def _covers(entries: Tensor, labels: Tensor) -> bool:
    """Whether every entry of log-densities belongs to one label."""
    wanted = labels.shape
    entries_shape = entries.shape[max(0, entries.dim() - len(wanted)) :]
    return len(entries_shape) == len(wanted) and all(
        size in (1, entries_size) for size, entries_size in zip(wanted, entries_shape, strict=True)
    )


def _same_field(node: Any, other: Any) -> bool:
    """Whether both are fields with the same parameters, whose log partition functions need not be known."""
    first, second = field_of(node["fn"]), field_of(other["fn"])
    if first is None or second is None:
        return False
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in first.arg_constraints)


def _entries(node: Any, labels: Tensor) -> Tensor:
    """Log-densities, summed over as few axes as possible of those that ``to_event`` made part of an event, so that
    every entry has one label; over all of them if none will do.
    """
    fn, rank = node["fn"], 0
    while isinstance(fn, Independent):
        rank += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    scale, mask = (
        factor.reshape(factor.shape + (1,) * rank) if isinstance(factor, Tensor) and factor.dim() else factor
        for factor in (node["scale"], node["mask"])
    )
    entries: Tensor = scale_and_mask(fn.log_prob(node["value"]), scale, mask).double()
    for _ in range(rank):
        if not _covers(entries, labels):
            entries = entries.sum(-1)
    return entries


class FieldGibbs(StepKernel):
    r"""Block Gibbs sampler of latent fields: :class:`~pyro_structured.distributions.PatternCRF`,
    :class:`~pyro_structured.distributions.GridCRF`, :class:`~pyro_structured.distributions.RBM` and
    :class:`~pyro_structured.distributions.CategoricalPatternCRF`, of any size, and
    :class:`~pyro_structured.distributions.DeepPatternCRF` while 2^min(J, U), U upper units, is at most 2^16; a kernel
    for ``MCMC``.

    It draws the hidden units given the labels, both layers together, and then the labels given the hidden units, first
    of the pixels of one colour of the checkerboard, and then of the other colour. Without a likelihood, it samples
    the field itself; the elements of a batch, such as ``field.expand([100])``, are as many chains that run together.

    A likelihood may depend on the labels one by one, as that of noisy pixels does,

    .. math::
        p(\text{rest} \mid y) = \prod_i \ell_i(y_i),

    so that the labels given the rest are a field with log-odds :math:`u_i + \log \ell_i(1) / \ell_i(0)`. The model is
    run with the present labels, and once more with all of them exchanged, which tells these ratios (with each pixel's
    other labels one after the other, if there are more than two); then the field is
    swept some times, and the model run with the new labels, whose likelihood has to be the one that follows; a
    likelihood of another form is refused. Sites that come later and depend on the labels have the shape of the field's
    values, in plates or by ``to_event``, with any axes before it, as of several images, and, if they are part of an
    event, after it, as of colours. For likelihoods of other forms, and other
    temperatures, there is :class:`BinaryGibbs`.

    Alone, it is the composition ``Gibbs([(FieldGibbs(model), fields), (StructuredGibbs(model), discrete sites that it
    can draw), (BinaryGibbs(model), other discrete sites), (NUTS(model), continuous)])``. The log partition function is
    never needed here, but by kernels of sites on which a field depends; other sites are best sampled after the field,
    so that it is a constant for them, if the field does not depend on them.

    Labels of a ``CategoricalPatternCRF`` are integers, floats in runs with continuous sites (:func:`restore_dtypes`).
    Pyro's ``summary`` and ``diagnostics`` fail where all sites are integers; :func:`to_arviz` takes them.

    :param model: A Pyro model.
    :param int num_sweeps: Number of sweeps in each step, at least 1.
    :raises ValueError: at the start of a run, if a site is not a field, or is scaled or masked.
    :raises NotImplementedError: if a likelihood does not factorise; if the temperature of patterns is no positive
        integer, or a penalty is +inf.

    A step runs the model K + 1 times, three for two labels, or once if there are no later sites; each sweep costs
    O(T·J·K·D) for every element of the batch, with a second layer O(2^min(J, U)·max(J, U)) more, and is the same for
    all of it. Labels mix slowly where couplings are strong.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 4.3.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC
        >>> from pyro_structured.distributions import GridCRF
        >>> from pyro_structured.structures import Grid
        >>> grid = Grid(20, 30)
        >>> prior = GridCRF(torch.zeros(20, 30), torch.ones(grid.num_edges), grid)
        >>> def model(image):
        ...     y = pyro.sample("y", prior)
        ...     pyro.sample("image", dist.Normal(y, 1.0).to_event(2), obs=image)
        >>> picture = torch.zeros(20, 30)
        >>> picture[5:15, 5:15] = 1.0
        >>> mcmc = MCMC(FieldGibbs(model), num_samples=50, warmup_steps=50, disable_progbar=True)
        >>> mcmc.run(picture + torch.randn(20, 30))
        >>> bool(((mcmc.get_samples()["y"].mean(0) > 0.5) == (picture > 0.5)).double().mean() > 0.9)
        True
    """

    def __init__(self, model: Callable[..., Any], num_sweeps: int = 10) -> None:
        super().__init__(model)
        check_size("num_sweeps", num_sweeps)
        self.num_sweeps = num_sweeps

    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain."""
        trace: Any = poutine.trace(at_random(model)).get_trace(*args, **kwargs)
        for name in names:
            _field(name, trace)
        self._model, self._args, self._kwargs = model, args, kwargs
        self._num_steps, self._num_labels, self._num_stuck, self._num_changed = 0, 0, 0, 0.0

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """New labels of all fields, which are drawn one after the other."""
        before = values
        for name in values:
            values = {**values, name: self._move(name, values)}
        changed = sum(float((value != before[name]).sum()) for name, value in values.items())
        self._num_steps += 1
        self._num_labels += sum(value.numel() for value in values.values())
        self._num_changed += changed
        self._num_stuck += changed == 0
        return values

    def _move(self, name: str, values: dict[str, Tensor]) -> Tensor:
        """New labels of one field, of the shape of the present ones."""
        if not values[name].numel():
            return values[name]
        present = self._run(values)
        field = _field(name, present).description
        # Chains are elements of the batch that have their parameters in common.
        labels = values[name].reshape(field.num_rows, -1, field.num_pixels).double()
        if not any(later_sites(present, name)):
            return sweep(field, labels, self.num_sweeps).reshape(values[name].shape).to(values[name].dtype)
        others = []
        for step in range(1, field.num_labels):
            larger = (labels + step) % field.num_labels
            allowed = field.label_log_weights(larger.transpose(0, 1)).transpose(0, 1) > -torch.inf
            exchanged = torch.where(allowed, larger, labels)
            others.append(self._run({**values, name: exchanged.reshape(values[name].shape).to(values[name].dtype)}))
        likelihood = _LabelLikelihood(name, present, others)
        log_weights = likelihood.log_weights().reshape(-1, *labels.shape)
        moved = sweep(field, labels, self.num_sweeps, log_weights)
        new_labels = moved.reshape(values[name].shape).to(values[name].dtype)
        likelihood.check(self._run({**values, name: new_labels}))
        return new_labels

    def _run(self, values: dict[str, Tensor]) -> Any:
        model: Any = poutine.trace(poutine.condition(self._model, data=values))
        return model.get_trace(*self._args, **self._kwargs)

    def report(self) -> dict[str, Any]:
        """Share of the labels that a step changed, and number of steps that changed none."""
        return {"changed labels": self._num_changed / max(1, self._num_labels), "stuck steps": self._num_stuck}

    def composition(self, args: Any, kwargs: Any) -> list[tuple[MCMCKernel, Any]]:
        """Fields, then other discrete sites, exactly or entry by entry, and all continuous ones by NUTS."""
        (_, discrete), *others = BinaryGibbs(self.model).composition(args, kwargs)
        trace: Any = poutine.trace(at_random(NamedLatents(self.model))).get_trace(*args, **kwargs)
        fields = [name for name in discrete if field_of(trace.nodes[name]["fn"]) is not None]
        rest = [name for name in discrete if name not in fields]
        return [(self, fields), *discrete_blocks(self.model, rest, trace, args, kwargs), *others]


def _field(name: str, trace: Any) -> FieldDistribution:
    node = trace.nodes[name]
    field = field_of(unmasked(node["fn"]))
    if field is None:
        raise ValueError(
            f"{name}: expected a PatternCRF, GridCRF, RBM, DeepPatternCRF or CategoricalPatternCRF for FieldGibbs, got "
            f"{node['fn']}; BinaryGibbs takes any binary site"
        )
    is_masked = field_of(node["fn"]) is None or (node["mask"] is not None and node["mask"] is not True)
    if is_masked or not bool(torch.as_tensor(node["scale"] == 1).all()):
        raise ValueError(
            f"{name}: expected a field without a scale or a mask for FieldGibbs, got one with; BinaryGibbs takes "
            "it if there are two labels"
        )
    check_sweeps(field.description)
    return field
