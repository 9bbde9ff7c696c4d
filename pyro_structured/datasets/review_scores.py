"""How well reviewers suit the papers of a conference."""

__all__ = ["ReviewScores", "load_review_scores"]

import io
from typing import NamedTuple

import numpy as np

from pyro_structured.datasets.local_archive import read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind

REPOSITORY, COMMIT = "iesl/fair-matching", "d91d907fc6313fa9d4e3a1839eb384c59279ba64"
FILES = {
    "scores": PublicFile(
        REPOSITORY, COMMIT, "data/midl/scores.npy", "63f4e74e4b4a679f223ffb257080b320e1f8b172176b5fc441a546347fa26e47"
    ),
    "covs": PublicFile(
        REPOSITORY, COMMIT, "data/midl/covs.npy", "259bd95f8c913f09b0de0c0376d6f778abaef01c344986fd29f27b8c8d047ca2"
    ),
    "loads": PublicFile(
        REPOSITORY, COMMIT, "data/midl/loads.npy", "34386fb038347af663c4f57da990c1665508d037a42fba0f529e542dea987ea0"
    ),
}
KINDS = {
    "scores": ArrayKind("f", ("reviewers", "papers"), -2.0, 2.0),
    "covs": ArrayKind("iu", ("papers",), 1),
    "loads": ArrayKind("iu", ("reviewers",), 1),
}


class ReviewScores(NamedTuple):
    """Scores of pairs, and how many of each there are to be.

    :param numpy.ndarray scores: How well a reviewer suits a paper, from -1 to 1, float64, shape ``(177, 118)``.
    :param numpy.ndarray reviews: Number of reviews of each paper, int64, shape ``(118,)``.
    :param numpy.ndarray most_papers: Largest number of papers of each reviewer, int64, shape ``(177,)``.
    """

    scores: np.ndarray
    reviews: np.ndarray
    most_papers: np.ndarray


def load_review_scores() -> ReviewScores:
    """Loads the scores of the conference Medical Imaging with Deep Learning of 2018: 177 reviewers, 118 papers.

    They are read from the local folder, if there is one; or else 170 kB are downloaded from the GitHub repository
    iesl/fair-matching, which states no licence, checked and cached.

    :return: Scores, three reviews for each paper, and at most four papers for each reviewer.
    :raises ValueError: if a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks ``matching/reviewer_midl2018.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    Kobren, Saha, McCallum (2019): Paper matching with local fairness constraints. KDD.

    Example::

        >>> conference = load_review_scores()  # doctest: +SKIP
        >>> conference.scores.shape, set(conference.reviews), set(conference.most_papers)  # doctest: +SKIP
        ((177, 118), {3}, {4})
    """
    archive = read_archive("matching/reviewer_midl2018.npz", FILES["scores"], KINDS)
    if archive is None:
        archive = {name: np.load(io.BytesIO(file.read()), allow_pickle=False) for name, file in FILES.items()}
    scores, reviews, most = (archive[name] for name in KINDS)
    return ReviewScores(scores.astype(np.float64), reviews.astype(np.int64), most.astype(np.int64))
