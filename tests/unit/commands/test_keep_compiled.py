"""What torch.compile makes is kept for the next run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from etesian.commands.common import keep_compiled

COMPILE = """
import sys
import torch
from pathlib import Path
from etesian.commands.common import keep_compiled
from etesian.runtime.compile import Compilation, compile_modules
from etesian.runtime.entries import Entry
from etesian.schema.compilation import CompileOptions

keep_compiled(Path(sys.argv[1]))
layer = torch.nn.GELU()
entry = Entry("model.compile[0]", "GELU", CompileOptions(fullgraph=True, dynamic=False), kind=torch.nn.GELU)
compilation = compile_modules(layer, [entry])
layer(torch.randn(4, 8))
print(compilation.report())
"""


def compiled(folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    first, second = compiled(tmp_path), compiled(tmp_path)
    assert first.startswith("1 graph in ")
    assert "kept" not in first
    assert second.endswith("(GELU 1), 1 of them kept from before\n")
    assert any((tmp_path / "compiled").iterdir())


def test_a_folder_that_the_environment_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    keep_compiled(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
