import numpy as np
import pytest

from etesian.plots.projection import equal_earth, equal_earth_inverse, make_frame


def regular(step):
    latitudes = np.arange(90 - step / 2, -90, -step)
    grid = np.meshgrid(latitudes, np.arange(0, 360, step), indexing="ij")
    return grid[0].ravel(), grid[1].ravel()


def spiral(count):
    steps = np.arange(count) + 0.5
    return np.rad2deg(np.arcsin(1 - 2 * steps / count)), np.rad2deg(np.pi * (1 + 5**0.5) * steps) % 360


def test_the_inverse_gives_the_place_back():
    latitude, longitude = np.meshgrid([-90, -89, -45, 0, 1e-3, 60, 90], [-180, -90, 0, 0.5, 179], indexing="ij")
    projected = equal_earth(latitude, longitude)
    back_latitude, back_longitude = equal_earth_inverse(projected[..., 0], projected[..., 1])
    # at the poles the height is flat in the latitude: rounding of 1e-16 there is 1e-6 degrees
    np.testing.assert_allclose(back_latitude, latitude, atol=1e-5)
    np.testing.assert_allclose(back_longitude, longitude, atol=1e-9)


def test_equal_earth_shows_equal_areas_alike():
    step = 1e-3
    for latitude in (0.0, 30.0, 75.0):
        x0, y0 = equal_earth(latitude, 40.0)
        east = equal_earth(latitude, 40.0 + step) - [x0, y0]
        north = equal_earth(latitude + step, 40.0) - [x0, y0]
        area = (east[0] * north[1] - east[1] * north[0]) / np.deg2rad(step) ** 2
        assert area / np.cos(np.deg2rad(latitude)) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("grid", [regular(5.0), spiral(4000), regular(15.0)])
def test_a_global_grid_fills_the_globe_poles_and_date_line_included(grid):
    frame = make_frame(*grid)
    assert frame.is_global
    left, right, bottom, top = frame.extent
    rows, columns = frame.nearest.shape
    x = left + (right - left) * (np.arange(columns) + 0.5) / columns
    y = bottom + (top - bottom) * (np.arange(rows) + 0.5) / rows
    _, longitude = equal_earth_inverse(*np.meshgrid(x, y))
    np.testing.assert_array_equal(frame.nearest >= 0, np.abs(longitude) <= 180.0)
    image = frame.image(grid[0])
    assert np.nanmax(image[0]) < -70
    assert np.nanmin(image[-1]) > 70
    assert np.isnan(image[0, 0])


def test_a_pixel_shows_the_point_next_to_it_on_the_sphere():
    latitudes, longitudes = regular(5.0)
    image = make_frame(latitudes, longitudes).image(longitudes)
    middle = image[image.shape[0] // 2]
    assert middle[0] == middle[-1] == 180.0  # the date line has the same point on both sides
    assert middle[len(middle) // 2] == 0.0


def test_a_region_across_the_date_line_is_drawn_in_one_piece():
    latitudes, longitudes = regular(2.0)
    inside = (np.abs(latitudes) < 30) & ((longitudes > 160) & (longitudes < 200))
    frame = make_frame(latitudes[inside], longitudes[inside])
    assert not frame.is_global
    west, east, south, north = frame.extent
    assert 155 < west < 163
    assert 197 < east < 205
    assert -33 < south < -28
    assert 28 < north < 33
    assert (frame.nearest >= 0).mean() > 0.99


def test_what_lies_between_two_regions_is_left_blank():
    latitudes, longitudes = regular(1.0)
    inside = (latitudes > 0) & (latitudes < 20) & ((longitudes < 20) | ((longitudes > 60) & (longitudes < 80)))
    frame = make_frame(latitudes[inside], longitudes[inside])
    assert 0.4 < (frame.nearest >= 0).mean() < 0.6


def test_coastlines_lie_on_the_map_and_may_be_left_out():
    frame = make_frame(*regular(5.0))
    left, right, bottom, top = frame.extent
    x, y = frame.coastlines[np.isfinite(frame.coastlines[:, 0])].T
    assert len(x) > 5000
    assert left < x.min() < x.max() < right
    assert bottom < y.min() < y.max() < top
    cape = equal_earth(-34.8, 20.0)  # Cape Agulhas
    assert np.nanmin(np.hypot(*(frame.coastlines - cape).T)) < 0.01
    assert make_frame(*regular(5.0), False).coastlines.shape == (0, 2)


def test_coastlines_of_a_region_are_in_its_degrees_and_in_pieces_across_the_other_side():
    latitudes, longitudes = regular(2.0)
    inside = (np.abs(latitudes) < 70) & ((longitudes > 160) & (longitudes < 200))
    lines = make_frame(latitudes[inside], longitudes[inside]).coastlines
    assert np.nanmin(np.hypot(*(lines - [178.5, -37.7]).T)) < 0.5  # East Cape
    assert np.nanmin(np.hypot(*(lines - [190.3, 64.3]).T)) < 1.5  # the coast of Chukotka, beyond the date line
    assert np.nanmax(np.abs(np.diff(lines[:, 0]))) < 90.0
