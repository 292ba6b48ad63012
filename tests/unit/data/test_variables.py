import pytest

from etesian.data.variables import Variables
from etesian.errors import UserError
from etesian.schema.data import DataSettings

NAMES = ("z", "t", "lsm", "tp", "insolation")
METADATA = {
    "lsm": {"constant_in_time": True, "computed_forcing": False},
    "insolation": {"computed_forcing": True},
    "t": {"units": "K"},
}


def roles(**settings):
    return Variables.from_roles(NAMES, DataSettings(**settings), METADATA)


def test_roles_follow_the_order_of_the_dataset():
    variables = roles(forcing=["insolation", "lsm"], diagnostic=["tp"])
    assert variables.names == NAMES
    assert variables.forcing == ("lsm", "insolation")
    assert variables.diagnostic == ("tp",)
    assert variables.prognostic == ("z", "t")
    assert variables.input == ("z", "t", "lsm", "insolation")
    assert variables.output == ("z", "t", "tp")


def test_positions_in_data_input_and_output():
    variables = roles(forcing=["insolation", "lsm"], diagnostic=["tp"])
    assert variables.data_input == [0, 1, 2, 4]
    assert variables.data_output == [0, 1, 3]
    assert variables.data_forcing == [2, 4]
    assert variables.data_prognostic == [0, 1]
    assert variables.input_prognostic == [0, 1]
    assert variables.input_forcing == [2, 3]
    assert variables.output_prognostic == [0, 1]
    assert variables.output_diagnostic == [2]


def test_computed_takes_what_the_metadata_marks():
    assert roles(forcing="computed").forcing == ("lsm", "insolation")


def test_computed_without_such_metadata_is_an_error():
    with pytest.raises(UserError, match="marks no variable") as error:
        Variables.from_roles(NAMES, DataSettings(forcing="computed"), {"t": {"units": "K"}})
    assert error.value.problems[0].where == "data.forcing"


def test_unknown_names_are_all_reported_with_the_nearest():
    with pytest.raises(UserError) as error:
        roles(forcing=["insolatoin"], diagnostic=["tpp"])
    forcing, diagnostic = error.value.problems
    assert forcing.where == "data.forcing"
    assert forcing.mend == "did you mean 'insolation'?"
    assert "z, t, lsm" in forcing.allowed
    assert diagnostic.where == "data.diagnostic"


def test_a_variable_in_two_roles_is_an_error():
    with pytest.raises(UserError, match="'tp' is both forcing"):
        roles(forcing=["tp"], diagnostic=["tp"])


def test_a_variable_listed_twice_is_an_error():
    with pytest.raises(UserError, match="'lsm' is listed twice"):
        roles(forcing=["lsm", "lsm"])


@pytest.mark.parametrize(("role", "lacks"), [("forcing", "no output"), ("diagnostic", "no input")])
def test_a_model_needs_input_and_output(role, lacks):
    with pytest.raises(UserError, match=lacks):
        roles(**{role: list(NAMES)})


def test_metadata_of_roles_is_checked_without_a_config_too():
    with pytest.raises(ValueError, match="both"):
        Variables(("a", "b"), ("a",), ("a",))
    with pytest.raises(ValueError, match="unknown"):
        Variables(("a", "b"), ("c",))
