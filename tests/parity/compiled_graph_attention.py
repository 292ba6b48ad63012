"""Triton compiles the kernels of the graph attention for cards of NVIDIA and AMD; no card is needed.

Run by ``test_triton_graph_attention.py``. Registers are what limits how many programs run side by side, so what spills
them is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.backends.nvidia
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from etesian.kernels.triton_kernels import tuning
from etesian.kernels.triton_kernels.backward import EDGE_ROWS, WEIGHT_CHANNELS
from etesian.kernels.triton_kernels.edges import edges_kernel
from etesian.kernels.triton_kernels.launch import EDGES, NODES
from etesian.kernels.triton_kernels.pairs import pairs_kernel
from etesian.kernels.triton_kernels.project import project_kernel
from etesian.kernels.triton_kernels.slopes import slopes_kernel
from etesian.kernels.triton_kernels.softmax import softmax_kernel
from etesian.kernels.triton_kernels.sources import sources_kernel
from etesian.kernels.triton_kernels.sums import sums_kernel
from etesian.kernels.triton_kernels.tuning import Cut, Work
from etesian.kernels.triton_kernels.weights import weights_kernel

WIDE = {"scores", "products", "alphas", "slopes", "factors", "weight_parts", "bias_parts"}
"""Tensors of sums, in float32."""
IDS = {"nodes", "tiles", "slots", "edges", "pointers"}
COUNTS = {"num_dst", "num_nodes", "num_edges", "nodes_a_part", "blocks", "parts"}

SIZES = {"HEADS": 16, "CHANNELS": 64, "FEATURES": 11, "CHANNEL_BLOCK": 64, "FEATURE_BLOCK": 16, "HEAD_BLOCK": 16}
USUAL = SIZES | {"SCALE": 0.125, "STRIDE": 1, "BIAS": True, "OF_WEIGHT": True, "WIDE": tl.float32}
OTHER_SIZES = {
    "6 x 48, D=1": SIZES | {"HEADS": 6, "CHANNELS": 48, "FEATURES": 1},
    "6 x 200, D=64": SIZES | {"HEADS": 6, "CHANNELS": 200, "CHANNEL_BLOCK": 256, "FEATURES": 64, "FEATURE_BLOCK": 64},
    "40 x 1, D=17": SIZES
    | {"HEADS": 40, "HEAD_BLOCK": 64, "CHANNELS": 1, "CHANNEL_BLOCK": 16, "FEATURES": 17, "FEATURE_BLOCK": 32},
}
CHOSEN = {"scores": pairs_kernel, "outputs": sums_kernel, "slopes": pairs_kernel, "query_gradient": sums_kernel,
          "source_gradients": sources_kernel}  # fmt: skip
"""The kernels that have a choice of cuts, by the names that the choice knows."""
BY_NODE = [softmax_kernel, slopes_kernel]
PRODUCTS = {project_kernel: {"NODES": NODES, "num_warps": 2}, edges_kernel: {"ROWS": EDGE_ROWS, "num_warps": 2},
            weights_kernel: {"NODES": NODES, "num_warps": 2, "num_stages": 2}}  # fmt: skip
HOPPER, MI300 = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)


def dtype_of(kernel: Any, argument: str, dtype: str, factors: str) -> str:
    """Return the dtype of a tensor as the launcher passes it; `dtype` is that of queries."""
    if argument == "factors":
        return factors
    if argument == "dst":
        return "i64"
    if argument == "edges":
        return "i32" if kernel is sources_kernel else "i16"
    return "i32" if argument in IDS else "fp32" if argument in WIDE else dtype


def build(kernel: Any, target: GPUTarget, dtype: str = "bf16", **given: Any) -> Any:
    """Compile a kernel as the launcher calls it: constants in capitals, the others are options of Triton."""
    options = {name: value for name, value in given.items() if not name.isupper()}
    constants = USUAL | {"PRECISION": "ieee" if dtype == "fp32" else "tf32"} | given
    if kernel is weights_kernel:
        constants["CHANNEL_BLOCK"] = min(constants["CHANNEL_BLOCK"], WEIGHT_CHANNELS)
    factors = dtype if constants["STRIDE"] == 2 else "fp32"  # what the backward pass keeps is in the dtype of queries
    signature, aligned, compiled_in = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name.isupper():
            signature[name], compiled_in[position,] = "constexpr", constants[name]
        elif name in COUNTS:
            signature[name] = "i32"
        else:
            stride = name.endswith("stride")
            signature[name] = "i32" if stride else f"*{dtype_of(kernel, name, dtype, factors)}"
            if not stride or constants["CHANNELS"] % 16 == 0:
                aligned[position,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=compiled_in, attrs=aligned)
    return triton.compile(source, target=target, options=options)


def spilled_bytes(compiled: Any, folder: Path) -> int:
    (folder / "kernel.ptx").write_text(compiled.asm["ptx"])
    assembler = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin", "ptxas")
    command = [assembler, "-v", "-arch=sm_90a", str(folder / "kernel.ptx"), "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return int(re.search(r"(\d+) bytes spill stores", said).group(1))


def work(kernel: str, **sizes: int) -> Work:
    """Return some work of a kernel, of 16 heads of 64 channels."""
    known = {"nodes": 40_962, "others": 40_962, "edges": 327_660, "heads": 16, "channels": 64, "features": 11,
             "channel_block": 64}  # fmt: skip
    return Work(kernel, torch.device("cuda", 0), torch.bfloat16, **known | sizes)


def arguments_of(kernel: str, cut: Cut) -> dict[str, Any]:
    return cut.options() | {"STRIDE": 2 if kernel == "query_gradient" else 1, "BIAS": kernel == "outputs"}


def every_cut() -> list[Any]:
    return [pytest.param(kernel, cut, number, id=f"{kernel}-{number}-{cut.heads_first}-{cut.warps}-{cut.stages}")
            for kernel in CHOSEN if kernel != "slopes"  # which runs the kernel of scores
            for cut in tuning.candidates(work(kernel)) for number in (16, 32)]  # fmt: skip


@pytest.mark.parametrize(("kernel", "cut", "rows"), every_cut())
def test_every_cut_on_hopper(kernel: str, cut: Cut, rows: int, tmp_path: Path) -> None:
    """The cut of the table spills nothing; of those that are measured beside it, one may spill two registers."""
    compiled = build(CHOSEN[kernel], HOPPER, ROWS=rows, **arguments_of(kernel, cut))
    assert "wgmma" not in compiled.asm["ptx"]  # wrong results were seen where warps multiply together
    of_table = {tuning.by_table(work(kernel, edges=edges)) for edges in (40_962, 327_660)}
    assert spilled_bytes(compiled, tmp_path) <= (0 if cut in of_table else 8)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("kernel", BY_NODE, ids=lambda kernel: kernel.__name__)
def test_kernels_over_nodes_on_hopper(kernel: Any, edges: int, once: bool, dtype: str, tmp_path: Path) -> None:
    compiled = build(kernel, HOPPER, dtype, EDGES=edges, ONCE=once, num_warps=1, num_stages=1)
    assert "wgmma" not in compiled.asm["ptx"]
    if dtype != "fp32":
        assert spilled_bytes(compiled, tmp_path) == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kernel", PRODUCTS, ids=lambda kernel: kernel.__name__)
def test_small_products_on_hopper(kernel: Any, dtype: str, tmp_path: Path) -> None:
    compiled = build(kernel, HOPPER, dtype, **PRODUCTS[kernel])
    assert "wgmma" not in compiled.asm["ptx"]
    if dtype != "fp32":
        assert spilled_bytes(compiled, tmp_path) == 0


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("kernel", CHOSEN)
def test_other_dtypes_on_hopper(kernel: str, dtype: str) -> None:
    cut = tuning.by_table(work(kernel))
    compiled = build(CHOSEN[kernel], HOPPER, dtype, ROWS=32, **arguments_of(kernel, cut))
    assert "wgmma" not in compiled.asm["ptx"]


@pytest.mark.parametrize("sizes", OTHER_SIZES)
@pytest.mark.parametrize("target", [HOPPER, MI300], ids=lambda target: str(target.arch))
def test_heads_that_are_no_power_of_two_and_wide_ones(target: GPUTarget, sizes: str) -> None:
    of = OTHER_SIZES[sizes]
    for kernel, function in CHOSEN.items():
        cut = tuning.by_table(work(kernel, channels=of["CHANNELS"], channel_block=of["CHANNEL_BLOCK"]))
        compiled = build(function, target, ROWS=32, **of, **arguments_of(kernel, cut))
        assert "wgmma" not in compiled.asm.get("ptx", "")
    for function in BY_NODE:
        build(function, target, EDGES=32, ONCE=False, num_warps=1, num_stages=1, **of)
    for function, constants in PRODUCTS.items():
        assert "wgmma" not in build(function, target, **of, **constants).asm.get("ptx", "")


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("kernel", CHOSEN)
def test_cards_of_amd(kernel: str, rows: int) -> None:
    compiled = build(CHOSEN[kernel], MI300, ROWS=rows, **arguments_of(kernel, tuning.by_table(work(kernel))))
    assert spilled_on_amd(compiled) == 0


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("kernel", BY_NODE, ids=lambda kernel: kernel.__name__)
def test_kernels_over_nodes_on_cards_of_amd(kernel: Any, edges: int) -> None:
    assert spilled_on_amd(build(kernel, MI300, EDGES=edges, ONCE=False, num_warps=1, num_stages=1)) == 0


@pytest.mark.parametrize("kernel", PRODUCTS, ids=lambda kernel: kernel.__name__)
def test_small_products_on_cards_of_amd(kernel: Any) -> None:
    assert spilled_on_amd(build(kernel, MI300, **PRODUCTS[kernel])) == 0


def spilled_on_amd(compiled: Any) -> int:
    return int(re.search(r"vgpr_spill_count:\s*(\d+)", compiled.asm["amdgcn"]).group(1))
