"""Initial states, test cases and the climate that the stores' flow is drawn to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from etesian.data.shallow_water.harmonics import EARTH_RADIUS, Complex, Real, SphericalTransform
from etesian.data.shallow_water.solver import GRAVITY, ROTATION_RATE, ShallowWater, State, sphere_distance

MEAN_DEPTH = 4500.0
"""Mean depth of the layer in the stores, m: gravity waves travel at 210 m/s."""


def solid_rotation(transform: SphericalTransform, angle: float = 0.0) -> tuple[ShallowWater, State]:
    """Test case 2 of Williamson et al. (1992): steady solid-body rotation in geostrophic balance.

    Eqs. 90-95: ``u0 = 2 pi a / (12 days)``, ``g h0 = 2.94e4 m2 s-2``,
    ``g h = g h0 - (a Omega u0 + u0^2 / 2) s^2`` and ``f = 2 Omega s`` with
    ``s = -cos(lon) cos(lat) sin(angle) + sin(lat) cos(angle)``.

    Parameters
    ----------
    transform : SphericalTransform
        Truncation and grid.
    angle : float
        Between the axis of the flow and the pole, radians.

    Returns
    -------
    ShallowWater, State
        The equations, with the Coriolis parameter of the tilted axis, and the state.
    """
    speed = 2.0 * math.pi * EARTH_RADIUS / (12.0 * 86400.0)
    longitudes = np.radians(transform.longitudes)[:, None]
    along = -np.cos(longitudes) * transform.cosine * math.sin(angle) + transform.sine * math.cos(angle)  # I J
    vorticity = transform.analysis((2.0 * speed / EARTH_RADIUS * along)[..., None])[..., 0]
    geopotential = 2.94e4 - (EARTH_RADIUS * ROTATION_RATE * speed + 0.5 * speed**2) * along**2
    state = State(vorticity, np.zeros_like(vorticity), transform.analysis(geopotential[..., None])[..., 0])
    return ShallowWater(transform, coriolis=2.0 * ROTATION_RATE * along), state


def galewsky(transform: SphericalTransform, *, perturbed: bool) -> tuple[ShallowWater, State]:
    """The barotropically unstable jet of Galewsky, Scott and Polvani (2004), Tellus 56A, 429-440.

    Eq. 2: ``u = u_max / e_n exp(1 / ((lat - lat0) (lat - lat1)))`` between the latitudes pi/7 and pi/2 - pi/7,
    with ``u_max = 80 m/s``; depth in balance, mean 10 km; eq. 4: a bump of 120 m on the jet.

    Parameters
    ----------
    transform : SphericalTransform
        Truncation and grid.
    perturbed : bool
        Add the bump; without it the jet is steady.
    """
    south, north, fastest = math.pi / 7.0, math.pi / 2.0 - math.pi / 7.0, 80.0
    latitudes = np.radians(transform.latitudes)
    inside = (latitudes > south) & (latitudes < north)
    product = np.where(inside, (latitudes - south) * (latitudes - north), -np.inf)
    speed = np.where(inside, fastest * np.exp(1.0 / product + 4.0 / (north - south) ** 2), 0.0)
    model = ShallowWater(transform)
    vorticity = zonal_vorticity(transform, speed)
    geopotential = model.balanced_geopotential(vorticity, GRAVITY * 10_000.0)
    if perturbed:
        longitudes = (transform.longitudes[:, None] + 180.0) % 360.0 - 180.0
        shape = np.exp(-((np.radians(longitudes) * 3.0) ** 2) - (15.0 * (math.pi / 4.0 - latitudes)) ** 2)
        bump = 120.0 * transform.cosine * shape
        geopotential = geopotential + transform.analysis(GRAVITY * bump[..., None])[..., 0]
    return model, State(vorticity, np.zeros_like(vorticity), geopotential)


def zonal_vorticity(transform: SphericalTransform, speed: Real) -> Complex:
    """Vorticity (M, N) of a zonal flow of `speed` (J,), m s-1, in spherical harmonics."""
    vectors = np.zeros((transform.nlon, transform.nlat, 1, 2))
    vectors[..., 0, 0] = speed * transform.cosine
    curl, _ = transform.curl_and_divergence(vectors)
    return curl[..., 0]


@dataclass(frozen=True)
class Jet:
    """A zonal jet ``speed / cosh^2((lat - latitude) / width)``.

    Attributes
    ----------
    latitude : float
        Of its core, degrees.
    speed : float
        m s-1.
    width : float
        Degrees.
    """

    latitude: float
    speed: float
    width: float

    def profile(self, latitudes: Real) -> Real:
        """Return the speed at `latitudes` (J,), brought to zero at the poles."""
        core = 1.0 / np.cosh((latitudes - self.latitude) / self.width) ** 2
        return self.speed * core * np.minimum(1.0, np.cos(np.radians(latitudes)) / 0.2)


class Climate:
    """A jet in each hemisphere, stronger and nearer the equator in its winter, as a state in balance.

    The jets' curvature exceeds beta on their flanks (Rayleigh-Kuo), so waves keep growing out of them.

    Parameters
    ----------
    model : ShallowWater
        The equations, ground included.
    """

    def __init__(self, model: ShallowWater) -> None:
        self._model = model

    def at(self, date: np.datetime64) -> State:
        """Return the equilibrium at a date."""
        year = date.astype("datetime64[Y]")
        phase = 2.0 * math.pi * ((date - year) / np.timedelta64(1, "s") / 86400.0 - 15.0) / 365.25
        transform = self._model.transform
        speed = np.zeros(transform.nlat)
        for hemisphere in (1.0, -1.0):
            winter = hemisphere * math.cos(phase)
            jet = Jet(latitude=hemisphere * (42.0 - 4.0 * winter), speed=74.0 + 14.0 * winter, width=8.0)
            speed += jet.profile(transform.latitudes)
        vorticity = zonal_vorticity(transform, speed)
        depth = self._model.balanced_geopotential(vorticity, GRAVITY * MEAN_DEPTH)
        return State(vorticity, np.zeros_like(vorticity), depth)


def mountains(transform: SphericalTransform, generator: np.random.Generator) -> Complex:
    """Geopotential of the ground: smooth mountains at random places.

    Parameters
    ----------
    transform : SphericalTransform
        Truncation and grid.
    generator : numpy.random.Generator
        Draws six mountains, 500 to 1500 m high, e-folding radius 9 to 15 degrees.

    Returns
    -------
    numpy.ndarray
        Shape (M, N), m2 s-2, its mean zero (heights count from the mean ground).
    """
    latitudes, longitudes = transform.latitudes[None, :], transform.longitudes[:, None]
    height = np.zeros((transform.nlon, transform.nlat))  # I J
    for _ in range(6):
        latitude, longitude = generator.uniform(-65.0, 65.0), generator.uniform(0.0, 360.0)
        top, radius = generator.uniform(500.0, 1500.0), math.radians(generator.uniform(9.0, 15.0))
        height += top * np.exp(-((sphere_distance(latitudes, longitudes, latitude, longitude) / radius) ** 2))
    ground = transform.analysis(GRAVITY * height[..., None])[..., 0]
    ground[0, 0] = 0.0
    return ground


def random_pattern(transform: SphericalTransform, generator: np.random.Generator) -> Complex:
    """Random coefficients (M, N) at wavenumbers 4 to 12, m >= 1, whose field has a root mean square of 1.

    They are drawn for a fixed number of waves, so that a seed means the same pattern at any truncation.

    Parameters
    ----------
    transform : SphericalTransform
        Truncation and grid.
    generator : numpy.random.Generator
        Draws the coefficients.
    """
    smallest, largest = 4, 12
    m, n = np.arange(largest + 1)[:, None], np.arange(largest + 1)[None, :]
    drawn = generator.normal(size=(2, largest + 1, largest + 1))
    drawn = np.where((n >= m) & (n >= smallest) & (m >= 1), drawn[0] + 1j * drawn[1], 0.0)
    drawn /= math.sqrt(2.0 * (np.abs(drawn) ** 2).sum())
    size = transform.size
    coefficients = np.zeros((size, size), complex)
    part = min(largest + 1, size)
    coefficients[:part, :part] = drawn[:part, :part]
    return coefficients


class Stirring:
    """Random stirring of the vorticity with a memory: what eddies of a deeper atmosphere do to one layer.

    A first-order Markov process for each wave, kept to middle latitudes, as Vallis, Gerber, Kushner and Cash
    (2004), J. Atmos. Sci. 61, 264-280, drive a barotropic atmosphere.

    Parameters
    ----------
    transform : SphericalTransform
        Truncation and grid.
    generator : numpy.random.Generator
        Draws the patterns.
    strength : float
        Root mean square where it is strongest, s-2.
    memory : float
        E-folding time of the memory, s.
    """

    def __init__(
        self, transform: SphericalTransform, generator: np.random.Generator, strength: float, memory: float
    ) -> None:
        self._transform, self._generator = transform, generator
        self._strength, self._memory = strength, memory
        # middle latitudes of both hemispheres: Gaussians of 15 degrees about 40
        self._window = np.exp(-(((np.abs(transform.latitudes) - 40.0) / 15.0) ** 2))  # J
        self.pattern = self._draw()

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass: ``pattern`` (M, N), s-2, keeps part of itself and gains part of a new one."""
        kept = math.exp(-seconds / self._memory)
        self.pattern = kept * self.pattern + math.sqrt(1.0 - kept**2) * self._draw()

    def _draw(self) -> Complex:
        field = self._transform.synthesis(random_pattern(self._transform, self._generator)[..., None])  # I J 1
        pattern = self._strength * self._transform.analysis(field * self._window[:, None])[..., 0]
        pattern[0, 0] = 0.0
        return pattern
