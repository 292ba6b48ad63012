"""What is made of the measurements: tables, the choice of the fastest, the preset, the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from small_model import make_settings

from etesian.errors import UserError
from etesian.kernels.bench.accuracy import Errors
from etesian.kernels.bench.choose import Choice, check_choices, check_preset_path, choose, preset_text
from etesian.kernels.bench.results import KernelResult, ShapeResult, results_json, write_results
from etesian.kernels.bench.show import legend, shape_table
from etesian.kernels.bench.timing import Ceilings, Spread, Timing
from etesian.kernels.families import constants_of, family_of
from etesian.kernels.record import KernelRecord
from etesian.kernels.resolve import resolve_kernels


def timing(ms: float, *, spread: float = 0.01, device: float | None = None) -> Timing:
    return Timing(Spread(ms, ms * (1 - spread), ms * (1 + spread)), 0.5 * ms, device, 10)


def kernel(target: str, ms: float | None, *, own: bool = False, compiled: bool = False, **more: object) -> KernelResult:
    arguments = {"eps": 1e-6 if "RMS" in target else 1e-5}
    family = family_of(target)
    record = KernelRecord("LayerNorm", "model", target, arguments, family, "torch", "2.13",
                          constants=constants_of(target, family, arguments))  # fmt: skip
    spread = more.pop("spread", 0.01)
    result = KernelResult(f"{target}(eps={arguments['eps']})", target, arguments, compiled,
                          ("model",) if own else (), record, **more)  # fmt: skip
    if ms is not None:
        result.forward, result.both = timing(0.4 * ms), timing(ms, spread=spread, device=more.get("device"))
        result.errors = Errors(2e-3, {"input": 1e-3, "weight": 2.5e-3}, "LayerNorm")
    return result


def shape(kernels: list[KernelResult], *, rows: int = 40962, calls: int = 1) -> ShapeResult:
    return ShapeResult("LayerNorm", "rows", rows, calls, {"input": f"{rows:,} x 1,024 bfloat16"}, 3, (0.04, 0.1),
                       ("bytes", "bytes"), kernels)  # fmt: skip


TORCH, LIGER = "torch.nn.LayerNorm", "etesian.kernels.liger.LigerLayerNorm"
RMS = "torch.nn.RMSNorm"


def test_the_fastest_of_the_family_is_chosen_over_all_shapes() -> None:
    shapes = [
        shape([kernel(TORCH, 1.0, own=True), kernel(LIGER, 3.0), kernel(RMS, 0.1)], calls=1),
        shape([kernel(TORCH, 1.0, own=True), kernel(LIGER, 0.5), kernel(RMS, 0.1)], calls=10),
    ]
    choice = choose("LayerNorm", shapes)
    assert choice.best is not None
    assert (choice.best.target, choice.own_ms, choice.best_ms) == (LIGER, pytest.approx(11.0), pytest.approx(8.0))
    assert choice.changes
    assert str(choice) == f"LayerNorm: {LIGER}(eps=1e-05) is 1.38 times as fast as the experiment's own"
    assert list(choice.unequal) == [f"{RMS}(eps=1e-06)"]
    assert choice.unequal[f"{RMS}(eps=1e-06)"].startswith("different mathematics: layer_norm")


def test_what_is_not_faster_by_more_than_the_spread_changes_nothing() -> None:
    choice = choose("LayerNorm", [shape([kernel(TORCH, 1.0, own=True, spread=0.1), kernel(LIGER, 0.9, spread=0.1)])])
    assert choice.best is not None
    assert choice.best.target == LIGER
    assert not choice.changes
    assert "no kernel of the family is faster" in str(choice)
    own = choose("LayerNorm", [shape([kernel(TORCH, 1.0, own=True), kernel(LIGER, 1.1)])])
    assert own.best is own.own
    assert not own.changes
    assert "the experiment's own, is the fastest of its family" in str(own)


def test_a_kernel_must_run_on_every_shape() -> None:
    shapes = [shape([kernel(TORCH, 1.0, own=True), kernel(LIGER, 0.1)]),
              shape([kernel(TORCH, 1.0, own=True), kernel(LIGER, None, reason="fails: out of memory")])]  # fmt: skip
    choice = choose("LayerNorm", shapes)
    assert choice.best is not None
    assert choice.best.target == TORCH


def test_an_own_kernel_that_does_not_run_is_replaced_within_its_family() -> None:
    choice = choose("LayerNorm", [shape([kernel(LIGER, None, own=True, reason="fails"), kernel(TORCH, 1.0)])])
    assert choice.own_ms is None
    assert choice.changes
    assert "the experiment's own was not timed" in str(choice)
    nothing = choose("LayerNorm", [shape([kernel(LIGER, None, own=True, reason="fails"), kernel(RMS, 1.0)])])
    assert nothing.best is None
    assert not nothing.changes


def text_of(choices: list[Choice]) -> str:
    mapping = {
        "LayerNorm": {"_target_": TORCH, "eps": 1e-5, "_partial_": True},
        "Activation": {"_target_": "torch.nn.SiLU"},
    }
    return preset_text(mapping, choices, ["On a card, 2026-01-01."])


def test_the_preset_names_every_slot_and_the_winner_with_its_compilation() -> None:
    compiled = choose("LayerNorm", [shape([kernel(TORCH, 1.0, own=True), kernel(TORCH, 0.5, compiled=True)])])
    content = yaml.safe_load(text_of([compiled]))
    assert content["LayerNorm"] == {"_target_": TORCH, "eps": 1e-5, "_compile_": {"fullgraph": True, "dynamic": False}}
    settings = make_settings(layer_kernels=content)
    resolved = resolve_kernels(settings, preset="fastest", overrides=[]).records
    assert next(r.compile for r in resolved if r.slot == "LayerNorm") == {"fullgraph": True, "dynamic": False}
    assert content["Activation"] == {"_target_": "torch.nn.SiLU"}
    assert content["QueryNorm"] == {"_target_": "etesian.kernels.norms.AutocastLayerNorm", "eps": 1e-5, "bias": False}
    text = text_of([compiled])
    assert "# On a card, 2026-01-01.\n" in text
    assert "2.00 times as fast as the experiment's own (forward and backward" in text.replace("\n# ", " ")
    assert "# Activation: not measured; the experiment's own.\n" in text


@pytest.mark.parametrize(
    ("path", "message"),
    [("fastest.yaml", "would not be found"), ("model/layer_kernels/fastest.yml", "would not be found"),
     ("model/layer_kernels/there.yaml", "is there already"), ("model/layer_kernels/folder.yaml", "is a folder"),
     ("model/layer_kernels/a,b.yaml", "on the command line would not name"),
     ("model/layer_kernels/a b.yaml", "on the command line would not name"),
     ("model/layer_kernels/null.yaml", "on the command line would not name"),
     ("model/layer_kernels/3.yaml", "on the command line would not name"),
     ("model/layer_kernels/rmsnorm.yaml", "a preset rmsnorm comes with the package"),
     (f"model/layer_kernels/{'a' * 300}.yaml", "bytes long")],
)  # fmt: skip
def test_a_preset_is_written_where_it_is_found(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model" / "layer_kernels" / "folder.yaml").mkdir(parents=True)
    (tmp_path / "model" / "layer_kernels" / "there.yaml").touch()
    with pytest.raises(UserError, match=message):
        check_preset_path(tmp_path / path, force="there" not in path, shipped=("rmsnorm",))
    check_preset_path(tmp_path / "model" / "layer_kernels" / "there.yaml", force=True)
    check_preset_path(tmp_path / "model" / "layer_kernels" / "new.yaml", force=False)


def test_no_preset_of_a_kernel_that_failed() -> None:
    lost = kernel(TORCH, None, own=True, reason="wrong: it returns NaN", wrong=True)
    other = kernel(RMS, 0.2)
    (choice,) = [choose("LayerNorm", [shape([lost, other])])]
    assert (choice.own, choice.best) == (None, None)
    with pytest.raises(UserError, match="own LayerNorm was not timed") as caught:
        check_choices([choice])
    assert caught.value.problems[0].where == "model.layer_kernels.LayerNorm"
    check_choices([choose("LayerNorm", [shape([kernel(TORCH, 0.3, own=True), other])])])


def printed(result: ShapeResult, **options: bool) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(shape_table(result, **options), highlight=False)
    return console.export_text()


def test_the_table_of_a_gpu() -> None:
    fast = kernel(RMS, 0.28, compiled=True)
    fast.both, fast.peak_bytes = timing(0.28, device=0.11), 252_000_000
    own = kernel(TORCH, 0.336, own=True)
    own.both, own.peak_bytes = timing(0.336, device=0.33), 420_000_000
    wrong = kernel("torch.nn.GroupNorm", None, reason="wrong: relative error 0.7", wrong=True)
    missing = KernelResult(
        "some.Norm", "some.Norm", {}, reason="the library is missing (some)", mend="pip install some"
    )
    found = printed(shape([own, fast, wrong, missing]))
    assert [line.rstrip() for line in found.splitlines()] == [
        "",
        "LayerNorm on 40,962 rows",
        "input 40,962 x 1,024 bfloat16. Floor fwd+bwd 0.100 ms (bytes)",
        "kernel                                 fwd ms  fwd+bwd  spread  device    GB  x floor  error   grad",
        "─" * 99,
        "  RMSNorm eps=1e-06, compiled           0.112   0.280h      1%   0.110  0.25      1.1  2e-03  3e-03",
        "  torch.nn",
        "* torch.nn.LayerNorm eps=1e-05          0.134    0.336      1%   0.330  0.42      3.3  2e-03  3e-03",
        "not timed",
        "  torch.nn.GroupNorm(eps=1e-05): wrong: relative error 0.7",
        "  some.Norm: the library is missing (some); pip install some",
    ]
    assert "some.Norm" not in printed(shape([own, missing]), with_missing=False)


def test_the_legend_tells_of_what_is_shown() -> None:
    assert "device" in legend(on_device=True)
    assert "device" not in legend(on_device=False)


def test_json(tmp_path: Path) -> None:
    result = shape([kernel(TORCH, 1.0, own=True), kernel(LIGER, None, reason="fails", mend="a GPU")])
    content = results_json([result], Ceilings(4e12, 7e14, "bfloat16"), environment={"date": "today"}, settings={})
    write_results(tmp_path / "new" / "results.json", content)
    read = json.loads((tmp_path / "new" / "results.json").read_text())
    assert read == content
    (slot,) = read["slots"]
    first, second = slot["kernels"]
    assert first["forward_backward_ms"]["median"] == pytest.approx(1.0)
    assert first["relative_error"]["gradients"] == {"input": 1e-3, "weight": 2.5e-3}
    assert first["chosen_by"] == ["model"]
    assert (second["reason"], second["mend"], second["forward_backward_ms"]) == ("fails", "a GPU", None)
    assert read["measured_on_the_device"]["copy_bytes_per_second"] == 4e12
    assert read["end_to_end"] is None
