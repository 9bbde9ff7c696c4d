"""Speeds of vehicles on the motorways of Los Angeles."""

__all__ = ["load_traffic_speeds"]

import numpy as np

from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind

SPEEDS = PublicFile(
    "lehaifeng/T-GCN",
    "219a2346f5bf68d54d91a948e7a41a08f9edc46b",
    "data/los_speed.csv",
    "7b732d86ae32b2930595becba28aff39dacbfb2197e250fc0332e1744ce2cbf4",
)
KINDS = {"speed": ArrayKind("f", ("times", "detectors"), 0), "sensor_id": ArrayKind("U", ("detectors",))}


def load_traffic_speeds() -> tuple[np.ndarray, tuple[str, ...]]:
    """Loads the speeds at 207 loop detectors, every five minutes of a week in March 2012.

    They are read from the local folder, if there is one; or else 3.4 MB are downloaded from the GitHub repository
    lehaifeng/T-GCN, which is under the MIT licence, checked and cached.

    :return: Mean speeds in miles per hour, float32, shape ``(2016, 207)``, in the order of time; and the detectors'
        numbers.
    :raises ValueError: if a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``sensors/la_traffic_207x2016.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    Zhao, Song, Zhang, Liu, Wang, Lin, Deng, Li (2020): T-GCN: a temporal graph convolutional network for traffic
    prediction. IEEE Transactions on Intelligent Transportation Systems.

    Example::

        >>> speeds, detectors = load_traffic_speeds()  # doctest: +SKIP
        >>> speeds.shape, detectors[:2]  # doctest: +SKIP
        ((2016, 207), ('773869', '767541'))
    """
    archive = read_archive("sensors/la_traffic_207x2016.npz", SPEEDS, KINDS)
    if archive is not None:
        return archive["speed"], tuple(archive["sensor_id"].tolist())
    header, *lines = SPEEDS.read().decode().splitlines()
    return np.loadtxt(lines, delimiter=",", ndmin=2).astype(np.float32), tuple(header.split(","))
