"""Published Bayesian networks, and samples of one."""

__all__ = ["NetworkSamples", "load_alarm_samples", "network_file"]

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyro_structured.datasets.argument_checks import check_name
from pyro_structured.datasets.local_archive import damaged_archive, local_file, read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind
from pyro_structured.junction_trees.models.bayesian_network import BayesianNetwork
from pyro_structured.junction_trees.models.bif import read_bif

REPOSITORY = "pgmpy/pgmpy"
COMMIT = "94105f10d4177e4420e2fa6766d819c19aa6b66e"
SHA256 = {
    "cancer": "dcfafbaadabcd1b8c9ec531e16721a19fc06829e980a3967d6345496ea081818",
    "earthquake": "77a41f1d509cea15eb7caf9dba932907837149e7145a2cc9d6c95c80849e62b0",
    "survey": "676e1fe97efec18b31d1a0a3bcd9b7d52985129c60a78b69172c99e82902ef96",
    "asia": "7d5e7b8549834824c1b05f367eb7860fa3fca3adaf3649f0c7be6035af197197",
    "sachs": "ed1830fbde101ed50cce3c7a3c8cbf1d2f5225531cf35ff09fb3cec0af101bce",
    "alarm": "f5860caa7137b5817e0c4f169cce0f1451ce6c246b96f5ce4fb4a8167993be29",
}
SAMPLES = "bif/alarm_samples.npz"
SAMPLES_SEED, NUM_ROWS = 20090101, (10_000, 2_000, 10_000)
KINDS = {
    "train": ArrayKind("iu", ("training rows", "variables")),
    "valid": ArrayKind("iu", ("validation rows", "variables")),
    "test": ArrayKind("iu", ("test rows", "variables")),
    "card": ArrayKind("iu", ("variables",)),
    "names": ArrayKind("U", ("variables",)),
    "true_test_ll": ArrayKind("f", (), most=0),
}


class NetworkSamples(NamedTuple):
    """Independent rows of a Bayesian network: states of all variables, uint8, counted from 0.

    :param numpy.ndarray train: For fitting, shape ``(10000, n)``.
    :param numpy.ndarray validation: Rows for choosing hyperparameters, shape ``(2000, n)``.
    :param numpy.ndarray test: Rows for the final comparison, shape ``(10000, n)``.
    :param tuple cardinalities: Numbers of states of the variables.
    :param tuple names: Names of the variables.
    :param float log_likelihood: Mean log-probability of a test row in nats, under the network itself.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    cardinalities: tuple[int, ...]
    names: tuple[str, ...]
    log_likelihood: float


def network_file(name: str) -> Path:
    """Finds the file of a published Bayesian network, for :func:`pyro_structured.models.read_bif`.

    ==============  =========  =====  ===============
    name            variables  edges  free parameters
    ==============  =========  =====  ===============
    ``cancer``              5      4               10
    ``earthquake``          5      4               10
    ``survey``              6      6               21
    ``asia``                8      8               18
    ``sachs``              11     17              178
    ``alarm``              37     46              509
    ==============  =========  =====  ===============

    It is a file of the local folder, if there is one; or else 2 kB at most are downloaded from the GitHub repository
    pgmpy/pgmpy, checked and cached. The networks are those of the bnlearn repository, under CC BY-SA 3.0.

    :param str name: One of the names above.
    :return: A file of the Bayesian Interchange Format, compressed by gzip.
    :raises ValueError: if the name is unknown, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``bif/<name>.bif.gz``.
    :raises ConnectionError: if a download fails.

    **References**

    Beinlich, Suermondt, Chavez, Cooper (1989): The ALARM monitoring system. AIME. (``alarm``.)
    Lauritzen, Spiegelhalter (1988): Local computations with probabilities on graphical structures and their application
    to expert systems. JRSS B 50(2). (``asia``.)
    Sachs, Perez, Pe'er, Lauffenburger, Nolan (2005): Causal protein-signaling networks derived from multiparameter
    single-cell data. Science. (``sachs``.)

    Example::

        >>> from pyro_structured.models import read_bif  # doctest: +SKIP
        >>> read_bif(network_file("alarm")).num_parameters  # doctest: +SKIP
        509
    """
    check_name(name, SHA256)
    file = _network(name)
    return local_file(f"bif/{name}.bif.gz", file) or file.fetch()


def load_alarm_samples() -> NetworkSamples:
    """Loads rows that were drawn from the ALARM network, to compare learners on.

    They are read from the local folder, if there is one; or else drawn from the network that :func:`network_file`
    finds, by a seed that gives the same rows.

    :return: Training, validation and test rows.
    :raises ValueError: if a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``bif/alarm_samples.npz``.
    :raises ConnectionError: if a download fails.

    Example::

        >>> samples = load_alarm_samples()  # doctest: +SKIP
        >>> samples.train.shape, round(samples.log_likelihood, 3)  # doctest: +SKIP
        ((10000, 37), -10.53)
    """
    archive = read_archive(SAMPLES, _network("alarm"), KINDS)
    if archive is None:
        return _draw_samples(read_bif(network_file("alarm")))
    if not all(((archive[name] >= 0) & (archive[name] < archive["card"])).all() for name in ("train", "valid", "test")):
        raise damaged_archive(SAMPLES, "states of at least 0, below the numbers of states in 'card'")
    return NetworkSamples(
        archive["train"],
        archive["valid"],
        archive["test"],
        tuple(archive["card"].tolist()),
        tuple(archive["names"].tolist()),
        float(archive["true_test_ll"]),
    )


def _network(name: str) -> PublicFile:
    return PublicFile(REPOSITORY, COMMIT, f"pgmpy/utils/example_models/{name}.bif.gz", SHA256[name])


def _draw_samples(network: BayesianNetwork) -> NetworkSamples:
    """Rows drawn variable by variable, parents first, by inversion of the distribution given the parents."""
    rng, parents = np.random.default_rng(SAMPLES_SEED), network.parents
    tables = [np.asarray(table) for table in network.tables]
    # Those whose parents come before them, over and over again in the order of the file.
    order: list[int] = []
    while len(order) < len(parents):
        for variable, above in enumerate(parents):
            if variable not in order and set(above) <= set(order):
                order.append(variable)
    train, validation, test = (np.zeros((number, len(parents)), np.uint8) for number in NUM_ROWS)
    for rows in (train, validation, test):
        for variable in order:
            cumulative = tables[variable].cumsum(-1)[tuple(rows[:, above] for above in parents[variable])]
            rows[:, variable] = (rng.random((len(rows), 1)) > cumulative[..., :-1]).sum(-1)
    log_likelihood = 0.0
    for variable, table in enumerate(tables):
        probs = (table / table.sum(-1, keepdims=True))[tuple(test[:, d] for d in (*parents[variable], variable))]
        log_likelihood += float(np.log(probs).mean())
    return NetworkSamples(train, validation, test, tuple(network.cardinalities), tuple(network.names), log_likelihood)
