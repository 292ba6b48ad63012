import numpy as np
import pytest

from etesian.data.shallow_water.harmonics import EARTH_RADIUS, SphericalTransform, legendre
from etesian.errors import UserError

T = 21


@pytest.fixture(scope="module")
def transform():
    return SphericalTransform(T)


def coefficients(fields: int, truncation: int = T, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    shape = (truncation + 1, truncation + 1, fields)
    m, n = np.indices(shape[:2])
    values = (generator.normal(size=shape) + 1j * generator.normal(size=shape)) * (n >= m)[..., None]
    values[0] = values[0].real
    return values


def test_the_first_functions_are_the_textbook_ones():
    latitudes = np.radians(np.linspace(-80.0, 80.0, 9))
    mu, cosine = np.sin(latitudes), np.cos(latitudes)
    functions, derivatives = legendre(3, mu, cosine)
    np.testing.assert_allclose(functions[0, :, 0], 1.0)
    np.testing.assert_allclose(functions[0, :, 1], np.sqrt(3.0) * mu, atol=1e-15)
    np.testing.assert_allclose(functions[0, :, 2], np.sqrt(5.0) / 2.0 * (3.0 * mu**2 - 1.0), atol=1e-14)
    np.testing.assert_allclose(functions[1, :, 1], np.sqrt(1.5) * cosine, atol=1e-15)
    np.testing.assert_allclose(functions[2, :, 2], np.sqrt(15.0 / 8.0) * cosine**2, atol=1e-15)
    np.testing.assert_allclose(derivatives[0, :, 2], cosine**2 * np.sqrt(5.0) * 3.0 * mu, atol=1e-14)


def test_the_functions_are_orthonormal(transform):
    functions, _ = legendre(T, transform.sine, transform.cosine)
    for m in (0, 1, 7, T):
        gram = np.einsum("jn,jk,j->nk", functions[m], functions[m], 0.5 * transform.weights)
        expected = np.diag((np.arange(T + 1) >= m).astype(float))
        np.testing.assert_allclose(gram, expected, atol=1e-12)


def test_functions_over_the_cosine_are_the_quotients_and_finite_at_the_poles():
    latitudes = np.radians(np.array([-75.0, -20.0, 10.0, 60.0]))
    mu, cosine = np.sin(latitudes), np.cos(latitudes)
    functions, derivatives = legendre(T, mu, cosine)
    functions_over, derivatives_over = legendre(T, mu, cosine, over_cosine=True)
    np.testing.assert_allclose(functions_over[1:] * cosine[:, None], functions[1:], atol=1e-12)
    np.testing.assert_allclose(derivatives_over * cosine[:, None], derivatives, atol=1e-11)
    for table in legendre(T, np.array([1.0]), np.array([0.0]), over_cosine=True):
        assert np.isfinite(table).all()


def test_analysis_undoes_synthesis(transform):
    spectral = coefficients(3)
    np.testing.assert_allclose(transform.analysis(transform.synthesis(spectral)), spectral, atol=1e-12)


def test_the_first_coefficient_is_the_global_mean(transform):
    grid = transform.synthesis(coefficients(1))[..., 0]  # I J
    mean = (grid.mean(axis=0) * transform.weights).sum() / 2.0
    assert transform.analysis(grid[..., None])[0, 0, 0] == pytest.approx(mean, rel=1e-12)


def test_curl_and_divergence_undo_the_wind(transform):
    vorticity, divergence = np.moveaxis(coefficients(2), -1, 0)
    vorticity[0, 0] = divergence[0, 0] = 0.0
    curl, found = transform.curl_and_divergence(transform.wind(vorticity, divergence)[:, :, None])
    np.testing.assert_allclose(curl[..., 0], vorticity, atol=1e-11)
    np.testing.assert_allclose(found[..., 0], divergence, atol=1e-11)


def test_curl_and_divergence_of_anything_have_no_mean(transform):
    vectors = np.random.default_rng(2).normal(size=(transform.nlon, transform.nlat, 4, 2))
    curl, divergence = transform.curl_and_divergence(vectors)
    assert (curl[0, 0] == 0.0).all()
    assert (divergence[0, 0] == 0.0).all()


def test_the_wind_of_solid_rotation(transform):
    vorticity = transform.analysis((2.0 * 30.0 / EARTH_RADIUS * transform.sine + np.zeros((64, 32)))[..., None])[..., 0]
    wind = transform.wind(vorticity, np.zeros_like(vorticity))
    np.testing.assert_allclose(wind[..., 0], 30.0 * transform.cosine**2 + np.zeros((64, 32)), atol=1e-11)
    np.testing.assert_allclose(wind[..., 1], 0.0, atol=1e-11)


def test_products_of_two_fields_are_free_of_aliasing(transform):
    fine = SphericalTransform(2 * T)
    pair = coefficients(2)
    wide = np.zeros((2 * T + 1, 2 * T + 1, 2), complex)
    wide[: T + 1, : T + 1] = pair
    on_fine = fine.synthesis(wide).prod(axis=2, keepdims=True)
    on_own = transform.synthesis(pair).prod(axis=2, keepdims=True)
    own, exact = transform.analysis(on_own), fine.analysis(on_fine)[: T + 1, : T + 1]
    np.testing.assert_allclose(own, exact, atol=1e-11)


@pytest.mark.parametrize(("truncation", "grid"), [(21, (32, 64)), (42, (64, 128)), (85, (128, 256))])
def test_the_usual_truncations_have_their_usual_grids(truncation, grid):
    made = SphericalTransform(truncation)
    assert (made.nlat, made.nlon) == grid


def test_too_low_a_truncation_is_refused():
    with pytest.raises(UserError, match="too low"):
        SphericalTransform(1)
