"""The wheel: what is in it, and that it trains from another folder, without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ".", folder=REPOSITORY)
    (built,) = folder.glob("etesian-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the scripts of an environment that holds the wheel and sees this one's libraries."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder, folder=folder)
    python = folder / "bin" / "python"
    libraries = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
    # A plain path entry; this environment's own .pth files, and so an editable etesian, are not read.
    (libraries / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, folder=folder)
    return folder / "bin"


def test_holds_the_config_and_the_embedded_dataset(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {
        f"etesian/config/{file.relative_to(REPOSITORY / 'config')}" for file in REPOSITORY.glob("config/**/*.yaml")
    }
    assert "etesian/config/train.yaml" in shipped
    assert shipped <= set(names)
    assert any(name.startswith("etesian/data/embedded/") and name.endswith(".nc") for name in names)
    assert "etesian/plots/coastlines.npy" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "docs/")) for name in names)


def test_both_scripts_are_there(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "anemoi-training", "version", folder=tmp_path) == run(
        installed / "etesian", "version", folder=tmp_path
    )


def test_is_imported_from_the_environment(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "python", "-c", "import etesian; print(etesian.__file__)", folder=tmp_path)
    assert Path(said.strip()).is_relative_to(installed.parent)


def test_a_users_config_beside_the_installed_one(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [debug, _self_]\ntraining: {seed: 77}\n")
    said = run(installed / "anemoi-training", "config", "show", "--config-name", "mine", folder=tmp_path)
    assert "seed: 77" in said


def test_trains_from_another_folder(installed: Path, tmp_path: Path) -> None:
    run(
        installed / "anemoi-training",
        "train",
        "training.max_steps=5",
        "training.run_id=first",
        folder=tmp_path,
        ETESIAN_CACHE=str(tmp_path / "cache"),
        OMP_NUM_THREADS="1",
    )
    assert (tmp_path / "outputs" / "first" / "checkpoints" / "last.ckpt").is_file()
