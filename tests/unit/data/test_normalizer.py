import numpy as np
import pytest
import torch

from etesian.data.normalizer import Normalizer
from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.schema.data import NormalizerSettings

VARIABLES = Variables(("a", "b", "c", "d", "e"))
STATISTICS = {
    "mean": np.array([280.0, 1.0, 2.0, 3.0, 0.0]),
    "stdev": np.array([20.0, 0.5, 4.0, 1.0, 0.0]),
    "minimum": np.array([200.0, 0.0, -2.0, 0.0, 0.0]),
    "maximum": np.array([320.0, 2.0, 6.0, 5.0, 0.0]),
}
SETTINGS = NormalizerSettings.model_validate({"std": ["b"], "min-max": ["c"], "max": ["d"], "none": ["e"]})


def test_each_method_is_its_formula():
    normalizer = Normalizer(VARIABLES, STATISTICS, SETTINGS)
    x = torch.tensor([300.0, 3.0, 2.0, 10.0, 7.0])
    torch.testing.assert_close(normalizer.normalize(x), torch.tensor([1.0, 6.0, 0.5, 2.0, 7.0]), rtol=0, atol=2e-6)
    assert normalizer.methods == {"a": "mean-std", "b": "std", "c": "min-max", "d": "max", "e": "none"}


def test_denormalize_is_the_inverse():
    normalizer = Normalizer(VARIABLES, STATISTICS, SETTINGS)
    x = torch.rand(2, 3, 1, 7, 5, generator=torch.Generator().manual_seed(0)) * 300
    torch.testing.assert_close(normalizer.denormalize(normalizer.normalize(x)), x, rtol=2e-6, atol=2e-5)


def test_an_index_picks_the_variables_of_the_last_axis():
    normalizer = Normalizer(VARIABLES, STATISTICS, SETTINGS)
    x = torch.rand(4, 5) * 10
    index = [3, 0]
    torch.testing.assert_close(normalizer.normalize(x[:, index], index), normalizer.normalize(x)[:, index])
    torch.testing.assert_close(normalizer.denormalize(x[:, index], index), normalizer.denormalize(x)[:, index])


def test_scale_and_offset_are_buffers_of_a_number_a_variable():
    state = Normalizer(VARIABLES, STATISTICS, SETTINGS).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {"scale": (5,), "offset": (5,)}


@pytest.mark.parametrize("method", ["mean-std", "std", "max", "min-max"])
def test_a_divisor_of_zero_is_an_error_that_names_the_variable_and_the_mend(method):
    settings = NormalizerSettings.model_validate({"default": "none", method: ["e"]})
    with pytest.raises(UserError, match="'e' cannot be normalised") as error:
        Normalizer(VARIABLES, STATISTICS, settings)
    assert error.value.problems[0].where == f"data.processors.normalizer.{method}"
    assert error.value.problems[0].mend == "'data.processors.normalizer.none=[e]'"


def test_a_negative_divisor_is_an_error():
    statistics = STATISTICS | {"maximum": np.array([320.0, 2.0, 6.0, -5.0, 0.0])}
    with pytest.raises(UserError, match="'d' cannot be normalised by max: its maximum, -5, is negative"):
        Normalizer(VARIABLES, statistics, SETTINGS)


def test_a_constant_field_whose_spread_is_rounding_is_an_error_too():
    statistics = STATISTICS | {"stdev": np.array([1e-6, 0.5, 4.0, 1.0, 1.0])}
    with pytest.raises(UserError, match="'a' cannot be normalised by mean-std"):
        Normalizer(VARIABLES, statistics, NormalizerSettings())


def test_the_default_is_named_where_the_default_fails():
    with pytest.raises(UserError, match="'e' cannot") as error:
        Normalizer(VARIABLES, STATISTICS, NormalizerSettings())
    assert error.value.problems[0].where == "data.processors.normalizer.default"


def test_statistics_that_are_not_finite_are_an_error():
    statistics = STATISTICS | {"mean": np.array([np.nan, 1.0, 2.0, 3.0, 0.0])}
    with pytest.raises(UserError, match="statistics of 'a' are not finite"):
        Normalizer(VARIABLES, statistics, SETTINGS)


def test_unknown_names_and_two_methods_are_errors():
    settings = NormalizerSettings.model_validate({"std": ["aa", "b"], "none": ["b"]})
    with pytest.raises(UserError) as error:
        Normalizer(VARIABLES, STATISTICS, settings)
    unknown, double = error.value.problems
    assert unknown.where == "data.processors.normalizer.std"
    assert "'b' has more than one" in double.what
    assert "normalizer.std" in double.where
    assert "normalizer.none" in double.where
