"""A distribution under test, and other members of its family with changed parameters."""

__all__ = [
    "DistributionCase",
    "DistributionFactory",
    "Parameter",
    "arguments",
    "log_prob_refusal",
    "narrow",
    "nudge",
    "optional_query",
    "parameters",
    "rebuild",
    "substitute",
]

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, transform_to

DistributionFactory = Callable[..., Any]


@dataclass(frozen=True)
class DistributionCase:
    """A factory with its arguments.

    :param factory: Called as ``factory(batch_shape, dtype, device=device)``.
    :param torch.Size batch_shape: The batch shape to ask for.
    :param torch.dtype dtype: The dtype of the parameters.
    :param str device: Device of the parameters.

    Example::

        >>> import pyro.distributions as dist
        >>> case = DistributionCase(
        ...     lambda shape, dtype, device: dist.Poisson(torch.ones(shape, dtype=dtype)), (3,), torch.float32
        ... )
        >>> case.make().batch_shape
        torch.Size([3])
    """

    factory: DistributionFactory
    batch_shape: tuple[int, ...]
    dtype: torch.dtype
    device: str = "cpu"

    def make(self) -> Any:
        """A new instance."""
        return self.factory(torch.Size(self.batch_shape), self.dtype, device=self.device)

    @property
    def tolerance(self) -> float:
        """Tolerance of a result beside the same number computed in another way: 1e-4 or, in float64, 1e-8."""
        return 1e-4 if torch.finfo(self.dtype).bits < 64 else 1e-8

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"batch_shape={tuple(self.batch_shape)}, dtype={dtype}, device={self.device}"


@dataclass(frozen=True)
class Parameter:
    """A tensor with which a distribution, or a distribution among its arguments, was constructed.

    ``name`` is the argument's, such as ``"logits"``, or ``"selector.logits"`` in a distribution that is an
    argument itself. ``trailing`` counts the axes behind those of the batch shape of the whole distribution.
    """

    name: str
    tensor: Tensor
    constraint: constraints.Constraint
    trailing: int

    @property
    def is_differentiable(self) -> bool:
        """Whether log-probabilities have derivatives with respect to the parameter."""
        return self.tensor.is_floating_point() and not self.constraint.is_discrete


def arguments(distribution: Any) -> dict[str, Any]:
    """Arguments of the constructor, read from the attributes of the same names.

    Of two spellings of one parameter, ``probs`` and ``logits``, it is the one that was given.

    :param distribution: Any distribution.

    Example::

        >>> import pyro.distributions as dist
        >>> arguments(dist.Bernoulli(torch.tensor(0.5)))
        {'probs': tensor(0.5000)}
    """
    state = vars(distribution)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(distribution).__init__).parameters.items():
        if name in ("self", "validate_args") or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        attribute = "base_dist" if name == "base_distribution" else name
        if attribute in state:
            found[name] = state[attribute]
        elif parameter.default is parameter.empty:
            found[name] = getattr(distribution, attribute)
    if "probs" in found and "logits" in found:
        del found["probs"]
    return found


def parameters(distribution: Any) -> list[Parameter]:
    """Lists the tensors among the constructor's arguments, also those of distributions among them.

    Arguments are read from the attributes of the same names.

    :param distribution: Any distribution.

    Example::

        >>> import pyro.distributions as dist
        >>> [p.name for p in parameters(dist.Normal(0.0, torch.ones(2)).to_event(1))]
        ['base_distribution.loc', 'base_distribution.scale']
    """
    return list(_walk(distribution, "", len(distribution.batch_shape)))


def _walk(distribution: Any, prefix: str, batch_rank: int) -> Iterator[Parameter]:
    known, extra = distribution.arg_constraints, len(distribution.batch_shape) - batch_rank
    for name, value in arguments(distribution).items():
        for place, part in _parts(prefix + name, value):
            if isinstance(part, Distribution):
                yield from _walk(part, f"{place}.", batch_rank)
            elif isinstance(part, Tensor):
                # Tables in a list of structures are vectors.
                vector = constraints.real if part is value else constraints.real_vector
                constraint = known.get(name, vector)
                yield Parameter(place, part, constraint, constraint.event_dim + extra)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """An argument, or the entries of a tuple of any depth, by names such as ``families[0][1]``."""
    if not isinstance(value, tuple):
        yield name, value
        return
    for index, part in enumerate(value):
        yield from _parts(f"{name}[{index}]", part)


def rebuild(
    distribution: Any, tensors: Mapping[str, Tensor], validate_args: bool | None = None, prefix: str = ""
) -> Any:
    """Constructs a distribution like another, with some parameters exchanged.

    :param distribution: The pattern; it is not changed.
    :param tensors: The new tensors by the names that :func:`parameters` tells.
    :param bool validate_args: Passed on to the constructors.

    Example::

        >>> import pyro.distributions as dist
        >>> rebuild(dist.Normal(0.0, 1.0), {"loc": torch.tensor(5.0)}).mean
        tensor(5.)
    """

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(changed(f"{name}[{index}]", part) for index, part in enumerate(value))
        if isinstance(value, Distribution):
            return rebuild(value, tensors, validate_args, f"{name}.")
        return tensors.get(name, value)

    given = {name: changed(prefix + name, value) for name, value in arguments(distribution).items()}
    return type(distribution)(**given, validate_args=validate_args)


def substitute(distribution: Any, change: Callable[[Parameter], Tensor], validate_args: bool | None = None) -> Any:
    """Constructs a distribution like another whose differentiable parameters are changed by a function.

    Example::

        >>> import pyro.distributions as dist
        >>> substitute(dist.Normal(1.0, 1.0), lambda p: 2 * p.tensor)
        Normal(loc: 2.0, scale: 2.0)
    """
    changed = {p.name: change(p) for p in parameters(distribution) if p.is_differentiable}
    return rebuild(distribution, changed, validate_args)


def narrow(distribution: Any) -> Any:
    """Constructs the distribution of the first elements along the last batch axis, which keeps a size of 1.

    Example::

        >>> import pyro.distributions as dist
        >>> narrow(dist.Normal(torch.zeros(2, 3), 1.0)).batch_shape
        torch.Size([2, 1])
    """
    tensors = {}
    for parameter in parameters(distribution):
        axis = parameter.tensor.dim() - parameter.trailing - 1
        tensors[parameter.name] = parameter.tensor.narrow(axis, 0, 1) if axis >= 0 else parameter.tensor
    return rebuild(distribution, tensors)


def nudge(parameter: Parameter, amount: Tensor) -> Tensor:
    """Moves a parameter a little, differentiably, within its constraint.

    Infinite entries stay the same, such as potentials of -inf.

    :param Parameter parameter: The parameter.
    :param Tensor amount: Size of the move, of a shape that broadcasts with the batch shape.

    Example::

        >>> nudge(Parameter("scale", torch.tensor(1.0), constraints.positive, 0), torch.tensor(-100.0)) > 0
        tensor(True)
    """
    shift = 0.1 * amount.to(parameter.tensor).reshape(amount.shape + (1,) * parameter.trailing)
    try:
        transform = transform_to(parameter.constraint)
        free = transform.inv(parameter.tensor)
        if not bool((free.isfinite() | parameter.tensor.isinf()).all()):
            raise NotImplementedError
    except NotImplementedError:
        finite = parameter.tensor.isfinite()
        return torch.where(finite, parameter.tensor + shift, parameter.tensor)
    moved: Tensor = transform(free + shift)
    return moved


def optional_query(distribution: Any, name: str) -> Any:
    """Asks for a result that not all distributions have; methods are called.

    :param distribution: Any distribution.
    :param str name: The attribute.
    :return: The result, or ``None`` where there is none.

    Example::

        >>> import pyro.distributions as dist
        >>> optional_query(dist.Bernoulli(torch.tensor(0.5)), "entropy").exp()
        tensor(2.)
    """
    try:
        query = getattr(distribution, name, None)
        return query() if callable(query) else query
    except NotImplementedError:
        return None


def log_prob_refusal(distribution: Any) -> str | None:
    """The message of the NotImplementedError that ``log_prob`` raises, or ``None``.

    :param distribution: Any distribution.

    Example::

        >>> import pyro.distributions as dist
        >>> log_prob_refusal(dist.Bernoulli(torch.tensor(0.5)))
    """
    try:
        distribution.log_prob(distribution.sample())
    except NotImplementedError as error:
        return str(error)
    except Exception:
        return None  # The checks report the error.
    return None
