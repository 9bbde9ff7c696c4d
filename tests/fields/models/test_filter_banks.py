"""Filters against scikit-image's, and their mirrored responses against scipy's."""

import numpy as np
import pytest
import scipy.ndimage

from pyro_structured.fields.models.pixel_features import gabor_bank, leung_malik_bank, mirrored_responses, schmid_bank


def test_gabor_filters_equal_those_of_scikit_image():
    filters = pytest.importorskip("skimage.filters")
    bank = gabor_bank()
    assert len(bank) == 40
    for number, (real, imaginary) in enumerate(zip(bank[::2], bank[1::2], strict=True)):
        frequency, angle = 0.4 / 2 ** (number // 4 / 2), number % 4 * np.pi / 4
        peer = filters.gabor_kernel(frequency, theta=angle, bandwidth=1, n_stds=3)
        # The peer's is smaller along the axes, where its rotated box ends.
        cut = [(a - b) // 2 for a, b in zip(real.shape, peer.shape, strict=True)]
        assert min(cut) >= 0
        inside = tuple(slice(c, n - c) for c, n in zip(cut, real.shape, strict=True))
        np.testing.assert_allclose(real[inside] + 1j * imaginary[inside], peer, atol=1e-12)


@pytest.mark.parametrize("bank, number", [(gabor_bank, 40), (leung_malik_bank, 48), (schmid_bank, 13)])
def test_filters_are_odd_in_size(bank, number):
    kernels = bank()
    assert len(kernels) == number
    assert all(rows % 2 and columns % 2 for rows, columns in (kernel.shape for kernel in kernels))
    assert len({kernel.tobytes() for kernel in kernels}) == number


def test_band_passes_have_mean_zero():
    for kernel in (*leung_malik_bank()[:44], *schmid_bank()):
        assert abs(kernel.sum()) < 1e-12
        assert np.abs(kernel).sum() == pytest.approx(1)
    for real, imaginary in zip(gabor_bank()[::2], gabor_bank()[1::2], strict=True):
        assert abs(real.sum()) < 0.01
        assert abs(imaginary.sum()) < 1e-12
    for kernel in leung_malik_bank()[44:]:
        assert kernel.sum() == pytest.approx(1)


@pytest.mark.parametrize("number, scale, order", [(0, 2**0.5, 1), (12, 2.0 * 2**0.5, 1), (18, 2**0.5, 2), (24, 2.0, 2)])
def test_edges_and_bars_are_derivatives(number, scale, order):
    """The first orientation: the row's derivative of a Gaussian three times as wide as high."""
    kernel = leung_malik_bank()[number]
    point = np.zeros(kernel.shape)
    point[kernel.shape[0] // 2, kernel.shape[1] // 2] = 1.0
    expected = scipy.ndimage.gaussian_filter(point, (scale, 3 * scale), order=(order, 0), truncate=20)
    correlation = np.corrcoef(kernel.ravel(), expected.ravel())[0, 1]
    assert correlation > 0.999


def test_spots_are_laplacians():
    for kernel, scale in zip(
        leung_malik_bank()[36:44], np.outer([1, 3], 2.0 ** np.arange(0.5, 2.1, 0.5)).flat, strict=True
    ):
        point = np.zeros(kernel.shape)
        point[kernel.shape[0] // 2, kernel.shape[1] // 2] = 1.0
        expected = scipy.ndimage.gaussian_laplace(point, scale, truncate=20)
        assert np.corrcoef(kernel.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("height, width", [(1, 1), (3, 5), (16, 7), (40, 33)])
def test_responses_equal_mirrored_convolution(height, width):
    """Responses are those of mirrored pictures, also of filters larger than the picture."""
    generator = np.random.default_rng(0)
    pictures = generator.normal(size=(2, height, width))
    kernels = [generator.normal(size=shape) / 10 for shape in ((1, 1), (3, 5), (7, 3), (21, 21))]
    found = mirrored_responses(pictures, kernels)
    for picture, responses in zip(pictures, found, strict=True):
        for place, kernel in enumerate(kernels):
            expected = _brute_force(picture, kernel)
            np.testing.assert_allclose(responses[..., place], expected, atol=1e-5)
            if max(kernel.shape) <= min(height, width):
                peer = scipy.ndimage.convolve(picture, kernel, mode="reflect")
                np.testing.assert_allclose(responses[..., place], peer, atol=1e-5)


def _brute_force(picture, kernel):
    height, width = picture.shape
    rows, columns = (n // 2 for n in kernel.shape)
    padded = np.pad(picture, ((rows, rows), (columns, columns)), mode="symmetric")
    flipped = kernel[::-1, ::-1]
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape)
    assert windows.shape[:2] == (height, width)
    return (windows * flipped).sum((2, 3))
