"""``model summary``: a table, JSON, kernels that can't be counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import SMALL

from etesian import cli
from etesian.commands.model import _unit
from small_stores import write_store

QUICK = [*SMALL, "model.processor.gradient_checkpointing=full"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "waves.zarr")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETESIAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)


def test_table_and_json_agree(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*QUICK, f"system.input.dataset={store}"]
    assert cli.main(["model", "summary", *options]) == 0
    table = capsys.readouterr().out
    assert cli.main(["model", "summary", "--json", *options]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [part["part"] for part in summary["parts"]] == ["encoder", "processor", "decoder", "rest"]
    assert f"{sum(part['parameters'] for part in summary['parts']):,}" in table
    for part in summary["parts"][:3]:
        assert part["kind"] == summary["kind"] == "graphtransformer"
        row = next(line for line in table.splitlines() if line.strip().startswith(part["part"]))
        assert f"{part['parameters']:,}" in row
        assert _unit(part["flops"], "FLOP") in row
    assert f"{summary['data_nodes']:,} data nodes" in table
    assert list(tmp_path.iterdir()) == []  # nothing is written


def test_a_kernel_that_cannot_be_counted(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "looking.py").write_text(
        "from torch import nn\n\nclass Looking(nn.GELU):\n"
        "    def forward(self, x):\n        return super().forward(x) if float(x.sum()) < 1e9 else x\n"
    )
    options = [*QUICK, f"system.input.dataset={store}", "model.layer_kernels.Activation._target_=looking.Looking"]
    assert cli.main(["model", "summary", *options]) == 2
    said = capsys.readouterr().err
    assert "the model can't be counted with these kernels" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (1500, "1.5 kB"), (2_048_000, "2.05 MB")]
)
def test_three_digits(value: int, text: str) -> None:
    assert _unit(value, "B") == text
