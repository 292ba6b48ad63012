import numpy as np
import pytest

from etesian.data.shallow_water.harmonics import SphericalTransform
from etesian.data.shallow_water.initial import galewsky, mountains, random_pattern, solid_rotation
from etesian.data.shallow_water.solver import GRAVITY, Forcing, Hyperdiffusion, ShallowWater, State
from etesian.errors import UserError

DAY = 86400.0


@pytest.fixture(scope="module")
def transform():
    return SphericalTransform(21)


def geopotential_error(transform: SphericalTransform, state: State, exact: State) -> float:
    """Largest error relative to the largest value, on the grid."""
    difference = transform.synthesis((state.geopotential - exact.geopotential)[..., None])
    return np.abs(difference).max() / np.abs(transform.synthesis(exact.geopotential[..., None])).max()


def stormy(transform: SphericalTransform, **options) -> tuple[ShallowWater, State]:
    generator = np.random.default_rng(3)
    model = ShallowWater(transform, ground=mountains(transform, generator), **options)
    vorticity = 3e-5 * random_pattern(transform, generator)
    return model, State(
        vorticity, 3e-6 * random_pattern(transform, generator), model.balanced_geopotential(vorticity, GRAVITY * 5000.0)
    )


@pytest.mark.parametrize("truncation", [5, 21])
@pytest.mark.parametrize("angle", [0.0, np.pi / 4.0, np.pi / 2.0 - 0.05])
def test_williamson_2_stays_steady_to_rounding_for_five_days(truncation, angle):
    transform = SphericalTransform(truncation)
    model, start = solid_rotation(transform, angle)
    end = model.advance(start, 5.0 * DAY)
    assert geopotential_error(transform, end, start) < 1e-11
    np.testing.assert_allclose(end.vorticity, start.vorticity, atol=1e-11 * np.abs(start.vorticity).max())


def test_williamson_2_stays_steady_with_hyperdiffusion_as_far_as_the_wind_goes(transform):
    _, start = solid_rotation(transform)
    model = ShallowWater(transform, hyperdiffusion=Hyperdiffusion(DAY))
    assert np.abs(model.tendency(start.stacked())[..., 0]).max() < 1e-19


def test_the_error_falls_with_the_fourth_power_of_the_step(transform):
    model, start = galewsky(transform, perturbed=True)
    reference = model.advance(start, 0.25 * DAY, 50.0)
    coarse, middle, fine = (
        geopotential_error(transform, model.advance(start, 0.25 * DAY, step), reference)
        for step in (600.0, 300.0, 150.0)
    )
    assert 14.0 < coarse / middle < 18.0
    assert 14.0 < middle / fine < 18.0


def test_a_steady_jet_is_steadier_the_finer_the_truncation():
    def drift(truncation: int) -> float:
        transform = SphericalTransform(truncation)
        # a steady zonal flow whose depth is not a polynomial: only its projection is steady
        latitude = np.radians(transform.latitudes)
        speed = 40.0 * np.exp(np.cos(latitude) ** 2 - 1.0) * np.cos(latitude)
        vectors = np.zeros((transform.nlon, transform.nlat, 1, 2))
        vectors[..., 0, 0] = speed * np.cos(latitude)
        vorticity = transform.curl_and_divergence(vectors)[0][..., 0]
        wind = transform.wind(vorticity, np.zeros_like(vorticity))[..., 0] / transform.cosine
        return float(np.abs(wind - speed).max())

    errors = [drift(truncation) for truncation in (5, 10, 15)]
    assert errors[1] < 1e-2 * errors[0]
    assert errors[2] < 1e-2 * errors[1]


def test_the_tendency_of_the_mass_is_zero_exactly(transform):
    model, state = stormy(transform, hyperdiffusion=Hyperdiffusion(DAY))
    assert model.tendency(state.stacked())[0, 0, 2] == 0.0


@pytest.mark.parametrize("forced", [False, True])
def test_mass_is_conserved_to_ten_digits_over_ten_days(transform, forced):
    model, start = stormy(transform, hyperdiffusion=Hyperdiffusion(0.25 * DAY, order=2))
    if forced:
        model.forcing = Forcing(
            start, 5.0 * DAY, 20.0 * DAY, 1e-10 * random_pattern(transform, np.random.default_rng(1))
        )
    end = model.advance(start, 10.0 * DAY)
    assert abs(end.mean_geopotential / start.mean_geopotential - 1.0) < 1e-10
    depth = transform.synthesis(end.geopotential[..., None])[..., 0]  # I J
    on_grid = (depth.mean(axis=0) * transform.weights).sum() / 2.0
    assert abs(on_grid / start.mean_geopotential - 1.0) < 1e-10
    assert geopotential_error(transform, end, start) > 1e-3  # it moved


def energy(transform: SphericalTransform, model: ShallowWater, state: State) -> float:
    wind = transform.wind(state.vorticity, state.divergence) / transform.cosine[:, None]
    depth, ground = (transform.synthesis(part[..., None])[..., 0] for part in (state.geopotential, model.ground))
    density = 0.5 * depth * (wind**2).sum(axis=2) + 0.5 * depth**2 + depth * ground  # I J
    return (density.mean(axis=0) * transform.weights).sum() / 2.0


@pytest.mark.parametrize(("truncation", "bound"), [(21, 1e-4), (31, 1e-6)])
def test_without_damping_energy_is_conserved_as_well_as_the_truncation_resolves_the_flow(truncation, bound):
    transform = SphericalTransform(truncation)
    model, start = stormy(transform)
    before, after = (energy(transform, model, state) for state in (start, model.advance(start, 0.25 * DAY, 300.0)))
    available = before - 0.5 * start.mean_geopotential**2
    assert abs(after - before) < bound * available


def test_a_balanced_state_has_no_tendency_of_divergence(transform):
    model, start = stormy(transform)
    balanced = State(start.vorticity, np.zeros_like(start.vorticity), start.geopotential).stacked()
    assert np.abs(model.tendency(balanced)[..., 1]).max() < 1e-20
    unbalanced = balanced.copy()
    unbalanced[3, 5, 2] += GRAVITY
    assert np.abs(model.tendency(unbalanced)[..., 1]).max() > 1e-12


def test_the_balance_of_solid_rotation_is_williamsons_depth(transform):
    model, start = solid_rotation(transform, 0.3)
    depth = model.balanced_geopotential(start.vorticity, start.mean_geopotential)
    np.testing.assert_allclose(depth, start.geopotential, atol=1e-12 * start.mean_geopotential)


def test_hyperdiffusion_damps_the_smallest_scale_in_its_time_and_leaves_solid_rotation():
    rate = Hyperdiffusion(time=3600.0, order=4).rate(21)[:, 0]
    assert rate[0] == rate[1] == 0.0
    assert rate[-1] == pytest.approx(1.0 / 3600.0)
    assert (np.diff(rate[1:]) > 0.0).all()


def test_mountains_move_a_flow_that_would_be_steady(transform):
    _, start = solid_rotation(transform)
    model = ShallowWater(transform, ground=mountains(transform, np.random.default_rng(0)))
    assert geopotential_error(transform, model.advance(start, DAY), start) > 1e-3


def test_the_jet_of_galewsky_is_steady_until_it_is_perturbed(transform):
    for perturbed in (False, True):
        model, start = galewsky(transform, perturbed=perturbed)
        error = geopotential_error(transform, model.advance(start, DAY), start)
        assert (error > 1e-4) if perturbed else (error < 1e-12)


def test_a_step_that_is_too_long_is_an_error_not_a_store_of_nan(transform):
    model, start = stormy(transform)
    with np.errstate(all="ignore"), pytest.raises(UserError, match="no longer finite"):
        model.advance(start, 20.0 * DAY, 3.0 * model.stable_step(start))
