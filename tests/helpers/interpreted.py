"""Runs a program with Triton's interpreter, so that GPU kernels compute on a CPU: ``python -m interpreted MODULE ...``.

``MODULE`` may be a file that ends in ``.py`` too. Three things that the compiler does and the interpreter of
triton 3.7 leaves out are added before the program starts; kernels of Liger need the first two:

- a number with a fraction reaches the kernel as a float32 scalar, as integers do already;
- functions of the device's mathematical library are computed by numpy;
- matrix products of bfloat16 tiles are those of the numbers. (Other arithmetic in bfloat16 is still wrong.)
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from typing import Any


def complete_the_interpreter() -> None:
    """Add what is missing, before any kernel is imported."""
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def convert_floats_too(argument: Any) -> Any:
        if isinstance(argument, float):
            return tl.tensor(interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32), tl.float32)
        return convert(argument)

    def by_numpy(function: Callable[[Any], Any]) -> Callable[[tl.tensor], tl.tensor]:
        def compute(x: tl.tensor) -> tl.tensor:
            return tl.tensor(interpreter.TensorHandle(function(x.handle.data), x.dtype.scalar), x.type)

        return compute

    multiply = interpreter.InterpreterBuilder.create_dot

    def multiply_wide(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        """Multiply bfloat16 tiles as the numbers that they are, not as the integers that hold them."""
        wide = [self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)]
        return multiply(self, *wide, d, *options)

    interpreter._implicit_cvt = convert_floats_too
    interpreter.InterpreterBuilder.create_dot = multiply_wide
    libdevice.rsqrt = by_numpy(lambda x: 1 / np.sqrt(x))
    libdevice.tanh = by_numpy(np.tanh)


def main() -> None:
    """Run the program that the arguments name."""
    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before Python starts"
    complete_the_interpreter()
    program, sys.argv = sys.argv[1], sys.argv[1:]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
