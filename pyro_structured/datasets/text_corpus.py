"""Text corpora as their public sources hold them."""

__all__ = ["POLARITY", "WEBKB_TEST", "WEBKB_TRAIN", "TextCorpus", "read_polarity", "read_webkb"]

import io
import re
import zipfile
from pathlib import PurePosixPath
from typing import NamedTuple

from pyro_structured.datasets.public_file import PublicFile

WEBKB_REPOSITORY = "achyudh/fuzzy-fs"
WEBKB_COMMIT = "3c8fc8b5d4a1883dde8ead22fee0dfafa7b8c767"
WEBKB_TRAIN = PublicFile(
    WEBKB_REPOSITORY,
    WEBKB_COMMIT,
    "data/WebKB/webkb-train-stemmed.txt",
    "bcfab4aaab816ce289409b0ad7926f8a3c21bc4cd78dbfec1a2f394717db1f0d",
)
WEBKB_TEST = PublicFile(
    WEBKB_REPOSITORY,
    WEBKB_COMMIT,
    "data/WebKB/webkb-test-stemmed.txt",
    "2ecc8135835fa2151080488524eaeda757e254160a93d21eac951b13357a0df9",
)
POLARITY = PublicFile(
    "nltk/nltk_data",
    "5db857e6f7df11eabb5e5665836db9ec8df07e28",
    "packages/corpora/movie_reviews.zip",
    "a41211ae685019137410268134db6a1a14428c89b671eb83056151a878539008",
)


class TextCorpus(NamedTuple):
    """Documents, each the set of its words, with their classes and, where they exist, folds.

    :param documents: Words of every document.
    :param labels: Class name of every document.
    :param is_test: Whether the published split tests on the document.
    :param folds: Published cross-validation fold of every document, or None.
    """

    documents: list[set[str]]
    labels: list[str]
    is_test: list[bool]
    folds: list[int] | None


def read_webkb() -> TextCorpus:
    """University pages: on every line a class name, a tab and stemmed words."""
    train, test = (file.read().decode().splitlines() for file in (WEBKB_TRAIN, WEBKB_TEST))
    labels, texts = zip(*(line.split("\t") for line in train + test), strict=True)
    is_test = [False] * len(train) + [True] * len(test)
    return TextCorpus([set(text.split()) for text in texts], list(labels), is_test, None)


def read_polarity() -> TextCorpus:
    """Film reviews ``<class>/cv<number>_<page>.txt``, of which the hundreds of the number are the folds.

    Words are what scikit-learn takes for words: at least two letters, digits or underscores.
    """
    with zipfile.ZipFile(io.BytesIO(POLARITY.read())) as archive:
        paths = sorted(path for path in archive.namelist() if path.endswith(".txt"))
        documents = [set(re.findall(r"\b\w\w+\b", archive.read(path).decode().lower())) for path in paths]
    places = [PurePosixPath(path) for path in paths]
    folds = [int(place.name[2]) for place in places]
    return TextCorpus(documents, [place.parent.name for place in places], [False] * len(paths), folds)
