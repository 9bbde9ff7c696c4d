"""The Pyro models of the demonstration, fitted by stochastic variational inference."""

__all__ = ["fit_mixture", "fit_single"]

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.distributions import Categorical, Dirichlet, Independent, Normal
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta, init_to_value
from pyro.optim import PyroLRScheduler
from torch import Tensor
from tqdm import trange

from pyro_structured.demo.bernoulli_mixture import BernoulliMixture
from pyro_structured.demo.cardinality_mixture import CardinalityMixture
from pyro_structured.demo.regions import curvature_basis, learn_linkage
from pyro_structured.demo.settings import Settings
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets

Values = dict[str, Tensor]


def fit_single(images: Tensor, settings: Settings) -> CardinalityMixture:
    """Learns regions and one RecursiveCardinality.

    :param Tensor images: Zeros and ones, shape ``(number, pixels)``.
    :param Settings settings: How to learn.
    """
    regions = NestedSubsets.from_linkage(learn_linkage(images.mT.cov(), settings.linkage, settings.single_power))
    basis = curvature_basis(regions, settings.single_curvature)

    def model() -> None:
        logits = pyro.sample("logits", _normal(settings.mean_scale, images.shape[-1]))
        bends = pyro.sample("bends", _normal(1.0, len(basis)))
        with pyro.plate("images", len(images)):
            pyro.sample("image", RecursiveCardinality(logits, bends @ basis, regions), obs=images)

    start = {"logits": images.mean(0).logit(eps=0.01), "bends": images.new_zeros(len(basis))}
    fit = _Fit(model, Trace_ELBO(), settings, len(images))
    values, _ = fit.run(start, settings.single_steps, "one RecursiveCardinality")
    return CardinalityMixture(images.new_ones(1), values["logits"][None], (values["bends"] @ basis)[None], regions)


def fit_mixture(images: Tensor, starts: list[BernoulliMixture], settings: Settings) -> CardinalityMixture:
    """Learns regions and a mixture of RecursiveCardinality distributions.

    :param Tensor images: Zeros and ones, shape ``(number, pixels)``.
    :param starts: Mixtures of independent pixels. Each gives initial values, and regions of pixels that go together
        inside its components; the start that is best after a few steps is used.
    :param Settings settings: How to learn.
    """
    trials = []
    for number, start in enumerate(starts, 1):
        covariance = start.covariance_within(images) if settings.within else images.mT.cov()
        mixture = _MixtureModel(images, covariance, len(start.weights), settings)
        label = f"mixture, start {number} of {len(starts)}"
        values, loss = mixture.fit.run(mixture.initial_values(start), settings.start_steps, label)
        trials.append((loss, number, values, mixture))
    _, _, values, mixture = min(trials)
    values, _ = mixture.fit.run(values, settings.steps, "mixture, best start")
    return CardinalityMixture(values["weights"], *mixture.components(values), mixture.regions)


class _MixtureModel:
    """Components that share their regions, and in part their parameters."""

    def __init__(self, images: Tensor, covariance: Tensor, num_components: int, settings: Settings) -> None:
        self.images = images
        self.num_components = num_components
        self.settings = settings
        self.regions = NestedSubsets.from_linkage(learn_linkage(covariance, settings.linkage, settings.power))
        self.basis = curvature_basis(self.regions, settings.curvature)
        self.fit = _Fit(self.model, TraceEnum_ELBO(max_plate_nesting=1), settings, len(images))

    def model(self) -> None:
        num_pixels, num_bends = self.images.shape[-1], len(self.basis)
        values = {
            "weights": pyro.sample("weights", Dirichlet(self.images.new_full((self.num_components,), 2.0))),
            "mean_logits": pyro.sample("mean_logits", _normal(self.settings.mean_scale, num_pixels)),
            "mean_bends": pyro.sample("mean_bends", _normal(1.0, num_bends)),
        }
        with pyro.plate("components", self.num_components):
            values["own_logits"] = pyro.sample("own_logits", _normal(1.0, num_pixels))
            values["own_bends"] = pyro.sample("own_bends", _normal(1.0, num_bends))
        logits, count_logits = self.components(values)
        with pyro.plate("images", len(self.images)):
            z = pyro.sample("z", Categorical(values["weights"]), infer={"enumerate": "parallel"})
            pyro.sample("image", RecursiveCardinality(logits[z], count_logits[z], self.regions), obs=self.images)

    def components(self, values: Values) -> tuple[Tensor, Tensor]:
        """Log-odds and potentials of all components: what they have in common, and what is their own."""
        logits = values["mean_logits"] + self.settings.own_scale * values["own_logits"]
        return logits, (values["mean_bends"] + values["own_bends"]) @ self.basis

    def initial_values(self, start: BernoulliMixture) -> Values:
        logits = start.probs.logit()
        mean = logits.mean(0)
        return {
            "weights": start.weights,
            "mean_logits": mean,
            "mean_bends": mean.new_zeros(len(self.basis)),
            "own_logits": (logits - mean) / self.settings.own_scale,
            "own_bends": mean.new_zeros(len(logits), len(self.basis)),
        }


class _Fit:
    """The most probable parameters of a model, by SVI with a guide that puts all mass on one point."""

    def __init__(self, model: Callable[[], None], elbo: Any, settings: Settings, num_images: int) -> None:
        self.model = model
        self.elbo = elbo
        self.settings = settings
        self.num_images = num_images

    def run(self, start: Values, steps: int, label: str) -> tuple[Values, float]:
        """Takes all steps from a start; returns the parameters and the last loss, in nats per image."""
        pyro.clear_param_store()
        parameters = pyro.poutine.block(self.model, expose=list(start))
        guide = AutoDelta(parameters, init_loc_fn=init_to_value(values=start))
        adam = {"lr": self.settings.learning_rate, "betas": (0.9, 0.99)}
        schedule = {"optimizer": torch.optim.Adam, "optim_args": adam, "gamma": 0.02 ** (1 / steps)}
        optimizer = PyroLRScheduler(torch.optim.lr_scheduler.ExponentialLR, schedule)
        svi = SVI(self.model, guide, optimizer, self.elbo)
        loss = float("nan")
        progress = trange(steps, desc=f"{label:24}", unit="step", ncols=90, disable=None)  # on terminals only
        for _ in progress:
            loss = svi.step() / self.num_images
            optimizer.step()
            progress.set_postfix_str(f"loss {loss:.2f}", refresh=False)
        return {name: value.detach() for name, value in guide.median().items()}, loss


def _normal(scale: float, size: int) -> Independent:
    return Independent(Normal(torch.zeros(size, dtype=torch.float64), scale), 1)
