"""On a GPU: kernels against float64, whole runs in every precision, two cards against one."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from etesian.graph.edges import Edges
from etesian.kernels.factored import FactoredGraphAttention
from etesian.kernels.pyg import PygGraphAttention
from etesian.kernels.reference import ReferenceGraphAttention

pytestmark = pytest.mark.gpu

TINY = ["--config-name", "debug", "system=gpu", "system.input.dataset=embedded:ncep-monthly-5deg",
        "diagnostics.plot.enabled=false"]  # fmt: skip
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def random_case(device: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], Edges]:
    generator = torch.Generator().manual_seed(7)
    num_src, num_dst, num_edges, heads, channels, dim = 500, 300, 4000, 4, 16, 11
    dst = torch.randint(0, num_dst - 20, (num_edges,), generator=generator).sort().values  # 20 nodes without edges
    src = torch.randint(0, num_src, (num_edges,), generator=generator)
    shapes = [(num_dst, heads, channels), (num_src, heads, channels), (num_src, heads, channels), (num_edges, dim),
              (heads * channels, dim), (heads * channels,)]  # fmt: skip
    tensors = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]
    return tensors, Edges.from_sorted(torch.stack([src, dst]), num_src, num_dst).to(device)


def results(kernel: torch.nn.Module, tensors: list[torch.Tensor], edges: Edges) -> list[torch.Tensor]:
    out = kernel(*tensors, edges)
    seed = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=torch.float64).view_as(out).to(out.dtype)
    return [out, *torch.autograd.grad((out * seed).sum(), tensors)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kernel", [FactoredGraphAttention, PygGraphAttention])
def test_attention_agrees_with_float64(kernel: type[torch.nn.Module], dtype: torch.dtype) -> None:
    tensors, edges = random_case("cuda", dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = results(ReferenceGraphAttention(4, 16), exact, edges)
    for got, want in zip(results(kernel(4, 16), tensors, edges), expected, strict=True):
        assert got.is_cuda
        assert ((got.double() - want).norm() / want.norm()).item() < TOLERANCE[dtype]


def test_kernels_of_liger_are_their_formulas(tmp_path: Path) -> None:
    pytest.importorskip("liger_kernel")
    tests = Path(__file__).parents[1]
    command = ["pytest", "-q", "-p", "no:cacheprovider", "-c", str(tests.parent / "pyproject.toml"), "--rootdir",
               str(tests.parent), str(tests / "unit" / "kernels" / "interpreted_liger.py")]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def train(folder: Path, *arguments: str) -> list[float]:
    environment = {**os.environ, "ETESIAN_CACHE": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-m", "etesian", "train", *arguments], cwd=folder, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout
    (metrics,) = folder.glob("outputs/*/metrics.csv")
    with open(metrics, newline="") as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return train(tmp_path_factory.mktemp("cpu"), *TINY, "system=cpu", "system.input.dataset=embedded:ncep-monthly-5deg")


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("64-true", 1e-3), ("32-true", 1e-3), ("bf16-mixed", 3e-2), ("16-mixed", 3e-2)]
)
def test_a_run_follows_that_on_the_cpu(on_cpu: list[float], tmp_path: Path, precision: str, tolerance: float) -> None:
    losses = train(tmp_path, *TINY, f"training.precision={precision}")
    assert losses == pytest.approx(on_cpu, rel=tolerance)


def test_a_deterministic_run_repeats_its_bits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert train(tmp_path / "a", *TINY) == train(tmp_path / "b", *TINY)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_follow_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = train(tmp_path / "one", *TINY, "training.precision=64-true")
    two = train(tmp_path / "two", *TINY, "training.precision=64-true", "system.hardware.num_gpus_per_node=2",
                "dataloader.batch_size.training=1", "dataloader.batch_size.validation=2")  # fmt: skip
    assert two == pytest.approx(one, rel=1e-9)
