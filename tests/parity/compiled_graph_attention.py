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
import triton
import triton.backends.nvidia
import triton.language as tl
from etesian.kernels.triton_kernels.attribute_gradient import attribute_gradient_kernel
from etesian.kernels.triton_kernels.attribute_sums import attribute_sums_kernel
from etesian.kernels.triton_kernels.outputs import outputs_kernel
from etesian.kernels.triton_kernels.projections import projections_kernel
from etesian.kernels.triton_kernels.query_gradient import query_gradient_kernel
from etesian.kernels.triton_kernels.score_gradients import score_gradients_kernel
from etesian.kernels.triton_kernels.scores import scores_kernel
from etesian.kernels.triton_kernels.source_gradients import source_gradients_kernel
from etesian.kernels.triton_kernels.weight_gradient import weight_gradient_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROWS_OF = {"query", "key", "value", "grad", "out", "query_grad", "key_grad", "value_grad"}
IDS = {"src", "dst", "pointers", "permutation"}
COUNTS = {"num_dst", "num_src", "num_nodes", "num_edges", "blocks", "nodes_a_part"}

CONSTANTS = {"HEADS": 16, "CHANNELS": 64, "FEATURES": 11, "CHANNEL_BLOCK": 64, "FEATURE_BLOCK": 16, "SCALE": 0.125,
             "BIAS": True, "STORE_PROJECTED": True, "STORE_BY_ALPHA": True, "PROJECT": True}  # fmt: skip
GATHERS = [outputs_kernel, query_gradient_kernel, source_gradients_kernel]
WALKS = [scores_kernel, score_gradients_kernel, attribute_sums_kernel, *GATHERS]
PRODUCTS = [weight_gradient_kernel, projections_kernel, attribute_gradient_kernel]
HOPPER, MI300 = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
DTYPES = {"bf16": (tl.float32, True), "fp16": (tl.float32, False), "fp32": (tl.float32, False)}


def build(kernel: Any, target: GPUTarget, dtype: str, warps: int, **tile: Any) -> Any:
    """Compile a kernel as the launcher calls it."""
    wide, split = DTYPES[dtype]
    given = CONSTANTS | {"WIDE": wide, "SPLIT": split} | tile
    signature, aligned, constants = {}, {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name.isupper():
            signature[name], constants[position,] = "constexpr", given[name]
        elif name in COUNTS:
            signature[name] = "i32"
        else:
            low = dtype if name in ROWS_OF else "i64" if name in IDS else "fp32"
            signature[name] = "i32" if name.endswith("_stride") else f"*{low}"
            aligned[position,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=target, options={"num_warps": warps})


def spilled_bytes(compiled: Any, folder: Path) -> int:
    (folder / "kernel.ptx").write_text(compiled.asm["ptx"])
    assembler = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin", "ptxas")
    command = [assembler, "-v", "-arch=sm_90a", str(folder / "kernel.ptx"), "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return int(re.search(r"(\d+) bytes spill stores", said).group(1))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("rows", "lanes", "heads_first", "warps"), [(16, 1, False, 1), (16, 8, True, 1),
                                                                     (16, 2, True, 2), (32, 4, False, 2)])  # fmt: skip
@pytest.mark.parametrize("kernel", WALKS, ids=lambda kernel: kernel.__name__)
def test_walks_over_edges_on_hopper(
    kernel: Any, rows: int, lanes: int, heads_first: bool, warps: int, dtype: str, tmp_path: Path
) -> None:
    compiled = build(kernel, HOPPER, dtype, warps, ROWS=rows, LANES=lanes, HEADS_FIRST=heads_first)
    assert "wgmma" not in compiled.asm["ptx"]
    if dtype == "bf16":
        assert spilled_bytes(compiled, tmp_path) == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kernel", PRODUCTS, ids=lambda kernel: kernel.__name__)
def test_small_products_on_hopper(kernel: Any, dtype: str) -> None:
    compiled = build(kernel, HOPPER, dtype, 2, ROWS=64 if kernel is attribute_gradient_kernel else 32)
    assert "wgmma" not in compiled.asm["ptx"]  # wrong results were seen where warps multiply together


@pytest.mark.parametrize("kernel", GATHERS, ids=lambda kernel: kernel.__name__)
def test_the_loop_over_rows_has_one_layout(kernel: Any) -> None:
    """What is gathered is added where it arrives: no exchange between threads inside a loop."""
    compiled = build(kernel, HOPPER, "bf16", 1, ROWS=16, LANES=1, HEADS_FIRST=False)
    loops = [found[1] for found in re.findall(r"\n( *)[^\n]*scf\.for(.*?)\n\1}", compiled.asm["ttgir"], re.DOTALL)]
    assert loops
    assert not any("convert_layout" in loop for loop in loops)


@pytest.mark.parametrize("kernel", [*WALKS, *PRODUCTS], ids=lambda kernel: kernel.__name__)
def test_cards_of_amd(kernel: Any) -> None:
    rows = {attribute_gradient_kernel: 64, weight_gradient_kernel: 32, projections_kernel: 32}.get(kernel, 16)
    compiled = build(kernel, MI300, "bf16", 1, ROWS=rows, LANES=2, HEADS_FIRST=True)
    assert int(re.search(r"vgpr_spill_count:\s*(\d+)", compiled.asm["amdgcn"]).group(1)) == 0


@pytest.mark.parametrize("kernel", WALKS, ids=lambda kernel: kernel.__name__)
def test_heads_that_are_no_power_of_two_and_wide_ones(kernel: Any) -> None:
    for channels, block, features, padded in ((48, 64, 1, 16), (200, 128, 64, 64)):
        build(kernel, HOPPER, "bf16", 2, ROWS=16, LANES=2, HEADS_FIRST=True, HEADS=6, CHANNELS=channels,
              CHANNEL_BLOCK=block, FEATURES=features, FEATURE_BLOCK=padded)  # fmt: skip
