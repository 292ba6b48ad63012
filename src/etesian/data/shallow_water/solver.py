"""Pseudo-spectral solver of the shallow-water equations on the rotating sphere, in vorticity-divergence form.

With absolute vorticity ``zeta + f``, wind **v**, geopotential of the layer's depth ``Phi = g h``, of the ground
``Phi_s``, and kinetic energy ``E = |v|^2 / 2`` (Williamson et al. 1992, J. Comput. Phys. 102, 211-224, eqs. 1-9;
Hack and Jakob 1992, NCAR/TN-343+STR, eqs. 2.4-2.6)::

    d(zeta)/dt  = -div((zeta + f) v)
    d(delta)/dt =  curl((zeta + f) v) - laplacian(E + Phi + Phi_s)
    d(Phi)/dt   = -div(Phi v)

Products are formed on a Gaussian grid that holds quadratic ones without aliasing, and time is stepped by the
classical fourth-order Runge-Kutta scheme. The mass is the (0, 0) coefficient of Phi: the flux form leaves it alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etesian.data.shallow_water.harmonics import EARTH_RADIUS, Complex, Real, SphericalTransform
from etesian.errors import UserError

ROTATION_RATE = 7.292e-5
"""Earth's rotation, s-1 (Williamson et al. 1992)."""
GRAVITY = 9.80616
"""m s-2 (Williamson et al. 1992)."""
RUNGE_KUTTA_LIMIT = 2.0 * math.sqrt(2.0)
"""The fourth-order scheme is stable for oscillations with ``frequency * step`` up to here."""


@dataclass(frozen=True)
class State:
    """A state in spherical harmonics.

    Attributes
    ----------
    vorticity, divergence : numpy.ndarray
        Shape (M, N), s-1.
    geopotential : numpy.ndarray
        Shape (M, N), m2 s-2, of the layer's depth (the ground not included).
    """

    vorticity: Complex
    divergence: Complex
    geopotential: Complex

    def stacked(self) -> Complex:
        """Return the three as one array (M, N, 3)."""
        return np.stack([self.vorticity, self.divergence, self.geopotential], axis=2)

    @classmethod
    def of(cls, stacked: Complex) -> State:
        """Take an array (M, N, 3) apart."""
        return cls(*(np.ascontiguousarray(stacked[..., i]) for i in range(3)))

    @property
    def mean_geopotential(self) -> float:
        """Global mean of the depth's geopotential, m2 s-2: the conserved mass times g over density and area."""
        return float(self.geopotential[0, 0].real)


@dataclass(frozen=True)
class Forcing:
    """What keeps the flow active: relaxation of all three fields, and stirring of the vorticity.

    The mean depth and the mean vorticity are left alone.

    Attributes
    ----------
    equilibrium : State
        What is relaxed to.
    zonal_time, eddy_time : float
        Time scales of the relaxation of the zonal mean (m = 0) and of the rest, s.
    stirring : numpy.ndarray
        Shape (M, N): added to the tendency of vorticity, s-2.
    """

    equilibrium: State
    zonal_time: float
    eddy_time: float
    stirring: Complex

    def tendency(self, stacked: Complex) -> Complex:
        """Time derivative (M, N, 3) that it adds to a stacked state."""
        pull = (self.equilibrium.stacked() - stacked) / self.eddy_time
        pull[0] *= self.eddy_time / self.zonal_time
        pull[..., 0] += self.stirring
        pull[0, 0] = 0.0
        return pull


@dataclass(frozen=True)
class Hyperdiffusion:
    """Damping at a rate ``((n (n + 1) - 2) / (T (T + 1) - 2))^order / time``.

    Subtracting 2 leaves solid-body rotation (n = 1), hence the angular momentum, alone (as in Jakob-Chien, Hack and
    Williamson 1995, J. Comput. Phys. 119, 164-187).

    Attributes
    ----------
    time : float
        E-folding time of the smallest scale, s.
    order : int
        Power of the Laplacian: 1 is diffusion, 2 biharmonic.
    """

    time: float
    order: int = 2

    def rate(self, truncation: int) -> Real:
        """Return the damping rates (N, 1), s-1."""
        n = np.arange(truncation + 1, dtype=np.float64)[:, None]
        scale = np.maximum(n * (n + 1.0) - 2.0, 0.0) / (truncation * (truncation + 1.0) - 2.0)
        return scale**self.order / self.time


class ShallowWater:
    """The equations on one grid.

    Parameters
    ----------
    transform : SphericalTransform
        Truncation and grid.
    coriolis : numpy.ndarray, optional
        Shape (I, J), s-1; ``2 Omega sin(latitude)`` unless given.
    ground : numpy.ndarray, optional
        Shape (M, N): geopotential of the ground, m2 s-2; flat unless given.
    hyperdiffusion : Hyperdiffusion, optional
        None unless given.
    """

    def __init__(
        self,
        transform: SphericalTransform,
        *,
        coriolis: Real | None = None,
        ground: Complex | None = None,
        hyperdiffusion: Hyperdiffusion | None = None,
    ) -> None:
        self.transform = transform
        shape = (transform.nlon, transform.nlat)
        self.coriolis = 2.0 * ROTATION_RATE * transform.sine + np.zeros(shape) if coriolis is None else coriolis  # I J
        self.ground = np.zeros((transform.size,) * 2, complex) if ground is None else ground
        self.hyperdiffusion = hyperdiffusion
        self.forcing: Forcing | None = None
        self._damping = (
            np.zeros((transform.size, 1)) if hyperdiffusion is None else hyperdiffusion.rate(transform.truncation)
        )  # N 1
        self._half_over_cosine2 = 0.5 / transform.cosine**2  # J

    def tendency(self, stacked: Complex) -> Complex:
        """Time derivative of a stacked state (M, N, 3), per second."""
        transform = self.transform
        wind = transform.wind(stacked[..., 0], stacked[..., 1])  # I J 2, times the cosine
        grid = transform.synthesis(stacked[..., ::2])  # I J 2: vorticity, geopotential
        grid[..., 0] += self.coriolis
        flux = np.empty((*wind.shape, 2))  # I J 2 2
        for field in range(2):  # a broadcast product would loop over axes of length 2 innermost
            for component in range(2):
                np.multiply(grid[..., field], wind[..., component], out=flux[..., field, component])
        curl, divergence = transform.curl_and_divergence(flux)  # M N 2 each
        energy = self._energy(wind)
        result = np.empty_like(stacked)
        result[..., 0] = -divergence[..., 0]
        result[..., 1] = curl[..., 0] - transform.laplacian[:, 0] * (energy + stacked[..., 2] + self.ground)
        result[..., 2] = -divergence[..., 1]
        if self.hyperdiffusion is not None:
            result -= self._damping * stacked
        if self.forcing is not None:
            result += self.forcing.tendency(stacked)
        return result

    def step(self, state: State, seconds: float) -> State:
        """Advance by one Runge-Kutta step."""
        y = state.stacked()
        k1 = self.tendency(y)
        k2 = self.tendency(y + 0.5 * seconds * k1)
        k3 = self.tendency(y + 0.5 * seconds * k2)
        k4 = self.tendency(y + seconds * k3)
        return State.of(y + seconds / 6.0 * (k1 + 2.0 * (k2 + k3) + k4))

    def advance(self, state: State, seconds: float, max_step: float | None = None) -> State:
        """Advance by `seconds` in equal steps.

        Parameters
        ----------
        state : State
            Where it starts.
        seconds : float
            How far.
        max_step : float, optional
            Longest step, s; :meth:`stable_step` unless given.

        Raises
        ------
        UserError
            The state is no longer finite.
        """
        steps = max(1, math.ceil(seconds / (self.stable_step(state) if max_step is None else max_step) - 1e-9))
        for _ in range(steps):
            state = self.step(state, seconds / steps)
        if not all(np.isfinite(part).all() for part in (state.vorticity, state.divergence, state.geopotential)):
            raise UserError(
                f"the flow is no longer finite after a step of {seconds / steps:.0f} s",
                where="shallow water",
                mend="take a shorter step, or a longer hyperdiffusion",
            )
        return state

    def stable_step(self, state: State) -> float:
        """Return a step in s, 0.8 of what is stable for the fastest gravity wave carried by the strongest wind."""
        transform = self.transform
        wind = transform.wind(state.vorticity, state.divergence) / transform.cosine[:, None]
        deepest = transform.synthesis(state.geopotential[..., None]).max()
        speed = math.sqrt(max(deepest, 0.0)) + float(np.sqrt((wind**2).sum(axis=2)).max())
        wavenumber = math.sqrt(-transform.laplacian[-1, 0])
        return 0.8 * RUNGE_KUTTA_LIMIT / (speed * wavenumber + 2.0 * ROTATION_RATE)

    def balanced_geopotential(self, vorticity: Complex, mean: float) -> Complex:
        """Depth with which a flow without divergence starts without a tendency of divergence (nonlinear balance).

        ``laplacian(Phi) = curl((zeta + f) v) - laplacian(E + Phi_s)``, solved in spherical harmonics.

        Parameters
        ----------
        vorticity : numpy.ndarray
            Shape (M, N), s-1.
        mean : float
            Global mean of the geopotential of the layer's depth, m2 s-2.

        Returns
        -------
        numpy.ndarray
            Shape (M, N), m2 s-2.
        """
        transform = self.transform
        wind = transform.wind(vorticity, np.zeros_like(vorticity))
        absolute = transform.synthesis(vorticity[..., None]) + self.coriolis[..., None]
        curl, _ = transform.curl_and_divergence((absolute * wind)[:, :, None, :])
        energy = self._energy(wind)
        geopotential: NDArray[np.complex128] = transform.inverse_laplacian[:, 0] * curl[..., 0] - energy - self.ground
        geopotential[0, 0] = mean
        return geopotential

    def _energy(self, wind: Real) -> Complex:
        """Kinetic energy (M, N), m2 s-2, of a wind (I, J, 2) times the cosine."""
        east, north = wind[..., 0], wind[..., 1]
        return self.transform.analysis(((east * east + north * north) * self._half_over_cosine2)[..., None])[..., 0]


def sphere_distance(latitudes: Real, longitudes: Real, latitude: float, longitude: float) -> Real:
    """Great-circle angle in radians between grid points and one point, all in degrees (broadcast)."""
    a, b = np.radians(latitudes), np.radians(latitude)
    half = np.sin((a - b) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(np.radians(longitudes - longitude) / 2) ** 2
    return 2.0 * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0)))


__all__ = [
    "EARTH_RADIUS",
    "GRAVITY",
    "ROTATION_RATE",
    "Forcing",
    "Hyperdiffusion",
    "ShallowWater",
    "State",
    "sphere_distance",
]
