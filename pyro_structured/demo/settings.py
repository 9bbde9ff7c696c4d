"""Settings of the demonstration's learners."""

__all__ = ["Settings"]

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Choices made by validation inside the training images; ``--validate`` prints the results of others.

    :param int num_components: Number of components of both mixtures.
    :param float tree_pseudocount: Smoothing of the Chow-Liu tree.
    :param float pseudocount: Smoothing of independent pixels, and of the mixture of independent pixels.
    :param int restarts: Number of starts of the mixture of independent pixels.
    :param float region_penalty: Least gain of every number in the tables of learned regions, in nats.
    :param float mean_scale: Prior standard deviation of log-odds; in the mixture, of their mean over the components.
    :param float own_scale: Prior standard deviation of the components' log-odds around their mean.
    :param float single_curvature: Prior scale of the potentials' curvature in the single model.
    :param float curvature: Prior scale of the curvature in the mixture, for the components' mean and the deviations.
    :param float learning_rate: First learning rate of Adam; the last one is 2 % of it.
    :param int single_steps: Number of steps of SVI for the single model.
    :param int steps: Number of steps of SVI for the mixture.
    :param int num_starts: Number of mixtures of independent pixels from which the mixture is tried.
    :param int start_steps: Number of steps of SVI after which the best start is chosen.
    :param int estimator_steps: Largest number of iterations of the package's estimators, not tuned otherwise.
    """

    num_components: int = 10
    tree_pseudocount: float = 2.0
    pseudocount: float = 0.5
    restarts: int = 20
    region_penalty: float = 1.0
    mean_scale: float = 3.0
    own_scale: float = 2.0
    single_curvature: float = 8.0
    curvature: float = 2.0
    learning_rate: float = 0.1
    single_steps: int = 600
    steps: int = 200
    num_starts: int = 5
    start_steps: int = 40
    estimator_steps: int = 50
