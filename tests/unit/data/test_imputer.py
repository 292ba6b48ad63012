import numpy as np
import pytest
import torch

from etesian.data.imputer import Imputer
from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.schema.data import ImputerSettings

VARIABLES = Variables(("sst", "t", "snow"))
STATISTICS = {"mean": np.array([290.0, 280.0, np.nan])}
NAN = float("nan")


def test_named_variables_are_filled_and_the_others_left():
    imputer = Imputer(VARIABLES, STATISTICS, ImputerSettings(mean=["sst"], constant={"snow": -1.0}))
    x = torch.tensor([[NAN, NAN, NAN], [1.0, 2.0, 3.0]])
    filled = imputer(x)
    assert filled[:, [0, 2]].tolist() == [[290.0, -1.0], [1.0, 3.0]]
    assert torch.isnan(filled[0, 1])
    assert filled[1, 1] == 2.0
    assert imputer.variables == ("sst", "snow")


def test_its_state_holds_no_nan_and_no_mask_of_the_grid():
    state = Imputer(VARIABLES, STATISTICS, ImputerSettings(mean=["sst"])).state_dict()
    assert all(tuple(value.shape) == (3,) and not torch.isnan(value.float()).any() for value in state.values())


def test_without_names_nothing_changes():
    x = torch.tensor([[NAN, 1.0, 2.0]])
    assert Imputer(VARIABLES, STATISTICS, ImputerSettings())(x) is x


@pytest.mark.parametrize(
    ("settings", "key", "what"),
    [
        ({"mean": ["sstt"]}, "mean", "'sstt' is not in the dataset"),
        ({"constant": {"snoww": 1.0}}, "constant", "'snoww' is not in the dataset"),
        ({"mean": ["sst"], "constant": {"sst": 1.0}}, "mean", "two imputers"),
        ({"mean": ["snow"]}, "mean", "not finite"),
    ],
)
def test_errors(settings, key, what):
    with pytest.raises(UserError, match=what) as error:
        Imputer(VARIABLES, STATISTICS, ImputerSettings(**settings))
    assert f"data.processors.imputer.{key}" in error.value.problems[0].where
