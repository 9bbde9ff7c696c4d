"""Readings of the sensors in a laboratory."""

__all__ = ["load_lab_readings"]

import numpy as np

from pyro_structured.datasets.argument_checks import check_name
from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind

REPOSITORY = "littlepretty/SensorPGM"
COMMIT = "06c8c980b0724f18247dab31a545c504f99e045b"
# Digests of the training and of the test readings.
SHA256 = {
    "temperature": (
        "20f07cd804b5878206525fb3f53d8a83ce091bf4f07c3b45818f015ba80887be",
        "26d84692a7b6f9248b827c9f17e206eae2800d5ae0bc248580871e663ce8cdc5",
    ),
    "humidity": (
        "76646fa38b40e9e24784cf8aff0bb1418589c50dc347c0cac841cadfd6c7626e",
        "6c79d2f4d73b844b070f71dc6dcb9b16440bfccb84fe8ff1b6a559c577b5170b",
    ),
}


def load_lab_readings(name: str = "temperature") -> tuple[np.ndarray, np.ndarray]:
    """Loads readings of 50 sensors in the Intel Berkeley laboratory, every half hour: three days, and then two.

    The readings are read from the local folder, if there is one; or else 110 kB are downloaded from the GitHub
    repository littlepretty/SensorPGM, which states no licence, checked and cached.

    :param str name: ``"temperature"``, in degrees Celsius, or ``"humidity"``, in percent.
    :return: Training and test readings in the order of time, float32, shapes ``(144, 50)`` and ``(96, 50)``.
    :raises ValueError: if the name is unknown, a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``sensors/intel_lab_50x240.npz``.
    :raises ConnectionError: if a download fails.

    Example::

        >>> train, test = load_lab_readings("humidity")  # doctest: +SKIP
        >>> train.shape, test.shape  # doctest: +SKIP
        ((144, 50), (96, 50))
    """
    check_name(name, SHA256)
    train, test = (
        PublicFile(REPOSITORY, COMMIT, f"intel{name.title()}{part}.csv", digest)
        for part, digest in zip(("Train", "Test"), SHA256[name], strict=True)
    )
    parts = [f"{name.title()}{part}" for part in ("Train", "Test")]
    kinds = {part: ArrayKind("f", (f"rows of {part}", "sensors")) for part in parts}
    archive = read_archive("sensors/intel_lab_50x240.npz", train, kinds)
    if archive is not None:
        return archive[parts[0]], archive[parts[1]]
    return _read(train), _read(test)


def _read(file: PublicFile) -> np.ndarray:
    """The source has a row for each sensor."""
    columns: np.ndarray = np.loadtxt(file.read().decode().splitlines(), np.float32, delimiter=",", ndmin=2).T
    return columns
