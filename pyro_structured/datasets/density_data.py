"""Binary data sets on which density estimators are compared."""

__all__ = ["DensityData", "load_density"]

import gzip
from typing import NamedTuple

import numpy as np

from pyro_structured.datasets.argument_checks import check_name
from pyro_structured.datasets.local_archive import damaged_archive, read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind

REPOSITORY = "nicoladimauro/dcsn"
COMMIT = "dd0f7a43f5fededeeaf37905f48f918a25b8c2c7"

# Digests of the compressed files with the training, validation and test rows.
SHA256 = {
    "nltcs": (
        "da721d2666af894485a4ffe10fedf651953209399cba5e4a94e072ad767c236a",
        "5e661158eb1671f1ca08755ba62cbce7de8689ad16989fc0c8128ae17b4755dc",
        "82ff559f7420f3c8d8e5beb82b7833d2e30d233b5a08cda63e118e6dad750a6f",
    ),
    "msnbc": (
        "0d552846f3a94034569178b9598d21496e4855a82d3220f1a49c4852ae0c03d1",
        "e1f31827e72f2b379d28352e4a6e5eaed6152bdc59a7e55dd8ad71a368c0d591",
        "77ea00490ddd30ac103551c85842f519170698a7ab543419bde4005120b6ac1f",
    ),
    "kdd": (
        "9123531abad55b647c6184b9ad13c95c2a2ad557acadedce0ba5013b2cd9ec15",
        "7473768a69cfc39ab38c03f9ed13428d593f3048688991e8ab6c78fd2ca0c965",
        "8863708bc3e61a09be013b3def5b4149161546b02729f53c22e4609a171ac863",
    ),
    "plants": (
        "2dbcb2fb846093304b98b09c2d2f4fe753ab6f5a53e249022b1a2583178dc0dc",
        "8e52c4b12f9c84b07e6ed1aa7e0dfc5fce140e0603d9c1628160af14e82a50b7",
        "48c90bb9b23f9f9e7e3c58200d276a467995242b7ad97259f9345ea96507b5ba",
    ),
    "baudio": (
        "1648e28dce443af63b27e3c796f3a3c4bc57430a3ed04528a7c27fe6cf202cc1",
        "78f8a634f424e38e1e390c6fe572e25a88b87629699ce40f377d0b01b0f4a5b4",
        "58c075360756615adaeaf490efb75bed5914131cc639608df28b130951f9ff3d",
    ),
    "jester": (
        "a99aa77c21d89a44afbb2ae6c79bb6931afccf4078e379ca6bc61ce01f58e95b",
        "0b41cb1072448575c9f8eea6ed52490bdd442cb8b6528f1b045560f387d559f8",
        "9c3f63b625fda3ae62a0265d99a533615077e8b0ae82c863ca8754bc49429c84",
    ),
    "bnetflix": (
        "a4b93093abcd0b1b0f15ba8c28ad5cb3434e82caef1a68ceed34991d4e367e98",
        "5559ebd9dd6b463ee8022d7777df9e3ca91179a1e605d688632faf9089fb0f66",
        "4bd1826fd4cda7408bfd21fdd7f9b5f16981cba22950d48b806cf4e1d27c73d5",
    ),
    "msweb": (
        "f1d8db4c8448fa43509a0f64a12b64c469b890baafec38401d8b5bdb846204c7",
        "4270db22cd0709e4f84c79b025af3b0a7a1d72aafdc3408ac47a3b2617bc5015",
        "fc50463252e2956e2c650855f24d8342fff61a2d040913595b02d1ac9d69adf8",
    ),
    "book": (
        "e0b7d05507d3df2240db2b4d86fdebbc3adcff4ce3d9788fd35574915330356f",
        "aad1bc0e7f618c14d8a8b012e3f554308f2f854cbba400311a2bb4083ee3cdfb",
        "01c1d55ad7075d623c4960be2fa8303f21699f72ca5dbf91dbfc1bd0dc346fcc",
    ),
    "cwebkb": (
        "2d977f8bcc200260ec9940adfea726171459bfd5ee31f9502c3a63cd342122b2",
        "c360978c81e931a7cb001ec7bf5f22002fbb919ae6a7d27f444f7b2c5f4203eb",
        "90411f2e679b83b23e070ea6905d1a3a30aabfd6fcb09672b85bd5a19a0e44c1",
    ),
    "cr52": (
        "b2731b94edb05c6569b835ddd65f50ece399e50a73017eac6939dedc65e90d7f",
        "442c51c6d6a61734e6854c6b89a0b23884d8d5d3b3a814347a7ebcaf63cc4070",
        "5c8b0e5931d13bfcb3f55512236d7ce60531d4bbfa36287095172ec5268d5e91",
    ),
    "c20ng": (
        "98bd374e6d7221744031273b674e19a53db73fb1ed7f080463b2d49c7433528d",
        "4661f6ea5a920b75b8d5e85e727d42dbe72b6f22fae45a3facea76e4612f1da8",
        "ddc88e7f7e47485033b6c357b401f4205f1172353ddcebf3dbc7e3565fbefc82",
    ),
}
# Rows are packed bits.
KINDS = {
    "n_vars": ArrayKind("iu", (), 1),
    "train": ArrayKind("u", ("training rows", "bytes")),
    "valid": ArrayKind("u", ("validation rows", "bytes")),
    "test": ArrayKind("u", ("test rows", "bytes")),
}


class DensityData(NamedTuple):
    """Three sets of examples, drawn alike: matrices of zeros and ones, uint8, one row for each example.

    :param numpy.ndarray train: For fitting, shape ``(num_train, n)``.
    :param numpy.ndarray validation: Rows for choosing hyperparameters, shape ``(num_validation, n)``.
    :param numpy.ndarray test: Rows for the final comparison, shape ``(num_test, n)``.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def load_density(name: str) -> DensityData:
    """Loads one of twelve binary data sets on which tractable density models are usually compared.

    ============  =========  =======  ==========  ======
    name          variables  train    validation  test
    ============  =========  =======  ==========  ======
    ``nltcs``            16   16,181       2,157   3,236
    ``msnbc``            17  291,326      38,843  58,265
    ``kdd``              64  180,092      19,907  34,955
    ``plants``           69   17,412       2,321   3,482
    ``baudio``          100   15,000       2,000   3,000
    ``jester``          100    9,000       1,000   4,116
    ``bnetflix``        100   15,000       2,000   3,000
    ``msweb``           294   29,441       3,270   5,000
    ``book``            500    8,700       1,159   1,739
    ``cwebkb``          839    2,803         558     838
    ``cr52``            889    6,532       1,028   1,540
    ``c20ng``           910   11,293       3,764   3,764
    ============  =========  =======  ==========  ======

    The rows are read from the local folder, if there is one; or else downloaded, checked and cached: three files of the
    GitHub repository nicoladimauro/dcsn, 1.2 MB at most in all, which states no licence for the data.

    :param str name: One of the names above.
    :return: The training, validation and test rows, in the published order.
    :raises ValueError: if the name is unknown, a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``debd/<name>.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    Lowd, Davis (2010): Learning Markov network structure with decision trees. ICDM.
    Van Haaren, Davis (2012): Markov network structure learning: a randomized feature generation approach. AAAI.

    Example::

        >>> train, validation, test = load_density("nltcs")  # doctest: +SKIP
        >>> train.shape  # doctest: +SKIP
        (16181, 16)
    """
    check_name(name, SHA256)
    files = [
        PublicFile(REPOSITORY, COMMIT, f"data/generative/{name}.{split}.data.gz", digest)
        for split, digest in zip(("ts", "valid", "test"), SHA256[name], strict=True)
    ]
    path = f"debd/{name}.npz"
    archive = read_archive(path, files[0], KINDS)
    if archive is None:
        return DensityData(*(_parse(file.read()) for file in files))
    num_variables, num_bits = int(archive["n_vars"]), 8 * archive["train"].shape[1]
    # Converted files of kdd exist that say 65 of 64 bits: a slice, because unpackbits would append a column of zeros.
    if not num_bits - 8 < num_variables <= num_bits + 1:
        raise damaged_archive(path, f"a number of variables in 'n_vars' that are packed in {num_bits} bits")
    return DensityData(*(np.unpackbits(archive[key], axis=1)[:, :num_variables] for key in ("train", "valid", "test")))


def _parse(content: bytes) -> np.ndarray:
    """Every digit is followed by one byte, a comma or the end of the line."""
    text = gzip.decompress(content)
    rows: np.ndarray = np.frombuffer(text, np.uint8)[::2].reshape(-1, (text.index(b"\n") + 1) // 2) - ord("0")
    return rows
