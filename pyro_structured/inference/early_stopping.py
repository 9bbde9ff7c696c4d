"""Learning as long as other data are predicted better."""

__all__ = ["EarlyStopping"]

import copy
import math
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from tqdm import tqdm

from pyro_structured.structures.argument_checks import check_size


class EarlyStopping:
    """Runs a learner with steps, looks from time to time at how good its parameters are, and keeps the best of them.

    The start is looked at as well, and kept if nothing is better.

    :param learner: ``pyro.infer.SVI``, :class:`ExpectedLoss`, :class:`ContrastiveDivergence`, :class:`MCEM`, or
        anything else with ``model``, ``guide``, and a method ``step`` that changes Pyro's parameters.
    :param score: Takes nothing and returns how good the present parameters are, the larger the better: the accuracy on
        validation data, for example. NaN counts as worst.
    :param int num_steps: Steps between scores, at least 1.
    :param int patience: Number of scores in a row that are no better than the best before the run ends, at least 1.
    :raises ValueError: if an argument is of another kind.

    Example::

        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> def model(x):
        ...     pyro.sample("x", dist.Normal(pyro.param("mean", torch.tensor(0.0)), 1.0), obs=x)
        >>> pyro.clear_param_store()
        >>> svi = SVI(model, lambda x: None, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        >>> stopping = EarlyStopping(svi, lambda: -abs(pyro.param("mean").item() - 1.0), num_steps=1)
        >>> scores = stopping.run(100, torch.tensor(2.0))
        >>> len(scores) < 30, bool((pyro.param("mean") - 1).abs() < 0.1)
        (True, True)
    """

    def __init__(self, learner: Any, score: Callable[[], float], num_steps: int = 10, patience: int = 10) -> None:
        if not all(callable(getattr(learner, name, None)) for name in ("step", "model", "guide")):
            raise ValueError(f"learner: expected an object with a model, a guide and a method 'step', got {learner!r}")
        if not callable(score):
            raise ValueError(f"score: expected a function, got {score!r}")
        check_size("num_steps", num_steps)
        check_size("patience", patience)
        self.learner, self.score, self.num_steps, self.patience = learner, score, num_steps, patience

    def run(self, max_steps: int, *args: Any, **kwargs: Any) -> list[float]:
        """Runs the learner, with a progress bar on terminals; arguments but the first are those of its steps.

        Afterwards, or after an interruption from the keyboard, parameters are those with the best score, the first if
        there are several; optimisers and chains stay where they are.

        :return: Scores, the first of which is that of the start.
        """
        check_size("max_steps", max_steps)
        self._create_parameters(args, kwargs)
        scores, best, kept, number = [], -math.inf, None, 0
        with tqdm(total=max_steps, desc=type(self.learner).__name__, disable=None) as bar:
            try:
                while True:
                    scores.append(float(self.score()))
                    if kept is None or scores[-1] > best:
                        best, kept, last = max(best, scores[-1]), _parameters(), len(scores)
                    bar.set_postfix(score=f"{scores[-1]:.4g}", best=f"{best:.4g}", refresh=False)
                    if number >= max_steps or len(scores) - last >= self.patience:
                        break
                    for _ in range(min(self.num_steps, max_steps - number)):
                        self.learner.step(*args, **kwargs)
                        number += 1
                        bar.update()
            finally:
                if kept is not None:
                    _restore(kept)
        return scores

    @torch.no_grad()
    def _create_parameters(self, args: Any, kwargs: Any) -> None:
        """Models and guides have them from their first run on."""
        with torch.random.fork_rng(devices=[]):
            guide: Any = poutine.trace(self.learner.guide).get_trace(*args, **kwargs)
            poutine.replay(self.learner.model, trace=guide)(*args, **kwargs)


def _parameters() -> Any:
    return copy.deepcopy(pyro.get_param_store().get_state())


def _restore(state: Any) -> None:
    """In place, as modules hold the tensors as well."""
    present = pyro.get_param_store().get_state()["params"]
    for name, value in state["params"].items():
        present[name].data.copy_(value.data)
