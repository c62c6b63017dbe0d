"""What only a GPU can show: the kernels against their equivalents, and the stacked engine inside CUDA graphs.

With pytest these are skipped where there is no GPU. `python tests/cuda/test_device.py [WORD…]` needs no pytest: it
prints a line per check (of those whose name holds one of the words) and exits with 1 if any fails. `3/8` as a word: the
third of eight shares of the checks, so that eight processes can share the work.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

try:
    import pytest
except ImportError:
    pytest = None

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[up] / name) for up, name in ((2, "src"), (1, ""))]


from kcl.benchmarks.joint_task import join
from kcl.benchmarks.moved_pixels import PermutedPixels
from kcl.benchmarks.registry import BENCHMARKS, Benchmark
from kcl.benchmarks.task import Stream, Task
from kcl.core.devices import Compute
from kcl.core.randomness import numpy_generator
from kcl.core.settings import Settings
from kcl.data.dataset import Dataset
from kcl.experiments.admission import admit
from kcl.experiments.group_training import Experiment, remaining_groups, train_group
from kcl.experiments.run_folder import Folder
from kcl.experiments.run_spec import RunSpec
from kcl.functional import orthogonal, ridge
from kcl.methods.kcl_settings import KclSettings
from kcl.methods.method import Batch
from kcl.methods.recipes import METHODS, published_backbone, select_settings
from kcl.methods.ridge_kernels import KERNELS
from kcl.methods.strong_recipe import strong_settings
from kcl.nets.backbone import Backbone
from kcl.nets.mlp import MLP
from kcl.nets.resnet import ResNet18, cifar_resnet, miniimagenet_resnet
from kcl.ops import cholesky, draw_philox, gram, philox, triton_available
from kcl.ops.norm_cuda import norm
from kcl.ops.precision import products
from kcl.ops.torch_private import can_compile_cuda
from kcl.training import step_progress
from kcl.training.checkpointer import Checkpointer, Every
from kcl.training.draws import DrawnNoise, Request, Source
from kcl.training.evaluation import as_seen
from kcl.training.optimizers import learning_rate
from kcl.training.stack import RunStack
from kcl.training.stacked_task import batch_order
from kcl.training.stacked_trainer import StackedTrainer
from kcl.training.state import build_model, over_runs
from kcl.training.stopping import Interrupted, Stop
from kcl.training.stream_run import run_streams
from reference_run import TRAINED, ReferenceRun, WeightAverage, optimizer_of
from reference_run import as_seen as seen

DEVICE, CPU = torch.device("cuda"), torch.device("cpu")
NO_GPU = "PyTorch finds no CUDA GPU here"
if pytest is not None:
    # Compilers on a GPU have advice to give; it is none of these tests' business.
    pytestmark = [
        pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU),
        pytest.mark.filterwarnings("default"),
    ]


class Skipped(Exception):
    """A check that does not apply here, where pytest does not hear of it."""


def skip(reason: str) -> None:
    if pytest is not None and __name__ != "__main__":
        pytest.skip(reason)
    raise Skipped(reason)


def cases(names: str, values: Sequence[tuple[Any, ...]]) -> Callable[[Any], Any]:
    """`pytest.mark.parametrize`, or what stands in for it."""

    def mark(function: Any) -> Any:
        function.cases = values
        return function if pytest is None else pytest.mark.parametrize(names.split(), values)(function)

    return mark


def draws(seed: int = 0) -> Callable[..., Tensor]:
    """Standard normal tensors in double precision, on the CPU."""
    random = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=random, dtype=torch.float64)


@contextlib.contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# Philox


DRAWN = ((1, 1, 0), (3, 5, 1), (2, 4096, 7), (2, 4099, 119_999), (5, 100_003, 2**31), (1, 7, 2**32 - 1))


@cases("kind rows size step", [
    (kind, rows, size, step) for kind in (philox.NORMAL, philox.UNIFORM) for rows, size, step in DRAWN
])  # fmt: skip
def test_the_philox_kernel_equals_its_pytorch_twin(kind: int, rows: int, size: int, step: int) -> None:
    """Uniforms to the bit; normals to what sine, cosine and logarithm differ in. Nothing is written beside them."""
    if not triton_available():
        skip("there is no Triton here")
    seeds = torch.randint(0, 2**32, (rows, 2), generator=torch.Generator().manual_seed(1))
    seeds[0] = torch.tensor([2**32 - 1, 2**31])
    expected = torch.empty(rows, size)
    philox.draw(expected, seeds, torch.tensor([step]), kind)
    around = torch.full((rows + 1, size + 9), math.nan, device=DEVICE)
    found = around[:rows, :size]
    draw_philox(found, seeds.to(DEVICE), torch.tensor([step], device=DEVICE), kind)
    if kind == philox.UNIFORM:
        assert torch.equal(found.cpu(), expected)
    else:
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert around[rows:].isnan().all()
    assert around[:, size:].isnan().all()


def test_a_row_longer_than_a_grid_is_high_is_drawn_to_its_end() -> None:
    """What a step over many large images keeps: more blocks of 4,096 than the 65,535 that fit a grid's other sides."""
    if not triton_available():
        skip("there is no Triton here")
    size, end = 65_536 * 4096 + 512, 8192
    key, step, rates = torch.tensor([[5, 6]]), torch.tensor([3]), torch.tensor([0.3])
    found = torch.empty(1, size, dtype=torch.bool, device=DEVICE)
    draw_philox(found, key.to(DEVICE), step.to(DEVICE), philox.KEPT, rates.to(DEVICE))
    for first in (0, size - end):
        expected = torch.empty(1, end, dtype=torch.bool)
        philox.draw(expected, key, step, philox.KEPT, rates, first // 4)
        assert torch.equal(found[:, first : first + end].cpu(), expected)


def test_a_source_on_the_gpu_draws_what_one_on_the_cpu_draws() -> None:
    requests = [Request(philox.UNIFORM, (7, 5)), Request(philox.NORMAL, (33, 3)), Request(philox.UNIFORM, (11,))]
    here, there = (Source(requests, device, [3, 2**63 - 1], "training noise", 2) for device in (DEVICE, CPU))
    for _ in range(3):
        here.draw()
        with swapped(draw_philox, "_on_cpu", []):  # the backend in C++ needs a compiler
            there.draw()
        for request, one, two in zip(requests, here.drawn, there.drawn, strict=True):
            if request.kind == philox.UNIFORM:
                assert torch.equal(one.cpu(), two)
            else:
                torch.testing.assert_close(one.cpu(), two, rtol=1e-5, atol=1e-5)
    assert here.step.item() == 3


# Cholesky

SIZES, CLASSES = (1, 15, 16, 17, 33, 100, 200, 250, 256), (1, 5, 10, 16, 17, 20)


def systems(size: int, classes: int, runs: tuple[int, ...] = (3,), seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """K of rank m/2 + 1, Y and λ, as float32 on the device."""
    draw = draws(seed)
    features = draw(*runs, size, size // 2 + 1) / math.sqrt(size // 2 + 1)
    strength = 0.1 + 0.2 * draw(*runs).abs()
    return tuple(t.float().to(DEVICE) for t in (features @ features.mT, draw(*runs, size, classes), strength))


def exactly(kernel: Tensor, targets: Tensor, strength: Tensor) -> Tensor:
    """(K + λI)⁻¹ Y by LU in double precision on the CPU."""
    identity = torch.eye(kernel.shape[-1], dtype=torch.float64)
    shifted = kernel.cpu().double() + strength.cpu().double()[..., None, None] * identity
    return torch.linalg.solve(shifted, targets.cpu().double())


def assert_solved(found: Tensor, kernel: Tensor, targets: Tensor, strength: Tensor) -> None:
    """As near as rounding lets it be: units of float32 times the condition number, run by run."""
    expected = exactly(kernel, targets, strength)
    assert found.shape == targets.shape
    assert found.isfinite().all()
    largest = torch.linalg.eigvalsh(kernel.cpu().double())[..., -1] + strength.cpu()
    allowed = 16.0 * math.sqrt(kernel.shape[-1]) * 2.0**-24 * (largest / strength.cpu())
    error = (found.cpu() - expected).flatten(-2).norm(dim=-1) / expected.flatten(-2).norm(dim=-1)
    assert (error <= allowed).all(), f"error {error.tolist()}, allowed {allowed.tolist()}"


@cases("size", [(size,) for size in SIZES])
def test_the_cholesky_kernel_equals_double_precision(size: int) -> None:
    """Also with a factor kept for other targets, and the factor itself."""
    for classes in CLASSES:
        kernel, targets, strength = systems(size, classes)
        if not can_compile_cuda():
            skip("this PyTorch cannot compile the kernel")
        found, factor = cholesky.factorise_and_solve(kernel, targets, strength)
        assert_solved(found, kernel, targets, strength)
        for others in (1, classes, classes + 3):
            other = systems(size, others, seed=1)[1]
            assert_solved(cholesky.solve(factor, other), kernel, other, strength)
        lower = factor.cpu().double().tril()[..., :size, :size]
        shifted = kernel.cpu().double() + strength.cpu().double()[..., None, None] * torch.eye(size)
        torch.testing.assert_close(lower @ lower.mT, shifted, rtol=1e-5, atol=1e-5)


@cases("runs", [((),), ((1,),), ((200,),), ((2, 3),)])
def test_the_cholesky_kernel_takes_any_number_of_runs_and_any_layout(runs: tuple[int, ...]) -> None:
    kernel, targets, strength = systems(50, 10, runs)
    assert_solved(cholesky.factorise_and_solve(kernel, targets, strength)[0], kernel, targets, strength)
    turned = targets.mT.contiguous().mT
    assert_solved(cholesky.factorise_and_solve(kernel.mT, turned, strength)[0], kernel, targets, strength)
    one = targets.flatten(0, -3)[:1].expand(*runs, 50, 10) if runs else targets
    assert_solved(cholesky.factorise_and_solve(kernel, one, strength)[0], kernel, one, strength)


@cases("size", [(33,), (200,), (256,)])
def test_the_cholesky_kernel_gives_the_same_bits_every_time(size: int) -> None:
    """Threads that raced for a value would not."""
    kernel, targets, strength = systems(size, 17, (150,))
    found, factor = cholesky.factorise_and_solve(kernel, targets, strength)
    solved = cholesky.solve(factor, targets)
    lower = factor.tril()
    for _ in range(20):
        again, other = cholesky.factorise_and_solve(kernel, targets, strength)
        assert torch.equal(again, found)
        assert torch.equal(other.tril(), lower)
        assert torch.equal(cholesky.solve(factor, targets), solved)


@cases("size", [(257,), (300,), (400,), (500,), (600,), (800,), (1200,)])
def test_matrices_too_large_for_the_kernel_are_solved_too(size: int) -> None:
    kernel, targets, strength = systems(size, 10)
    found, factor = cholesky.factorise_and_solve(kernel, targets, strength)
    assert_solved(found, kernel, targets, strength)
    assert_solved(cholesky.solve(factor, targets), kernel, targets, strength)


@cases("size flaw", [
    (size, flaw) for size in (2, 17, 100, 256, 300) for flaw in ("negative", "nan", "singular")
])  # fmt: skip
def test_a_matrix_that_is_not_positive_definite_spoils_its_own_run_only(size: int, flaw: str) -> None:
    """Not finite in every class of that run, so that no loss can miss it."""
    kernel, targets, strength = systems(size, 10)
    expected = cholesky.factorise_and_solve(kernel, targets, strength)[0]
    if flaw == "negative":
        kernel[1, -1, -1] = -1.0
    elif flaw == "singular":
        kernel[1], strength[1] = 1.0, 0.0
    else:
        kernel[1, size // 2, size // 2] = math.nan
    found, factor = cholesky.factorise_and_solve(kernel, targets, strength)
    assert (~found[1].isfinite()).any(dim=0).all()
    assert (~cholesky.solve(factor, targets)[1].isfinite()).any(dim=0).all()
    assert torch.equal(found[::2], expected[::2])


@cases("solve size classes", [
    (solve, size, classes)
    for solve in ("dual", "primal")
    for size, classes in [(1, 1), (17, 5), (100, 10), (200, 17), (256, 10), (300, 3)]
])  # fmt: skip
def test_ridge_gradients_equal_double_precision_on_the_cpu(solve: str, size: int, classes: int) -> None:
    """Value and all gradients, stacked and under vmap. Well conditioned, so that float32 has five digits left."""
    draw, width = draws(), 60
    features, targets = 0.5 * draw(3, size, width) / math.sqrt(width), draw(3, size, classes)
    given = features @ features.mT if solve == "dual" else features
    function = ridge.dual_weights if solve == "dual" else ridge.primal_weights
    direction = draw(3, size if solve == "dual" else width, classes)

    def differentiated(call: Callable[..., Tensor], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        inputs = [t.to(device, dtype).requires_grad_() for t in (given, targets, 0.5 + 0.5 * draws(2)(3).abs())]
        weights = call(*inputs)
        gradients = torch.autograd.grad((weights * direction.to(device, dtype)).sum(), inputs)
        return [t.detach().cpu().double() for t in (weights, *gradients)]

    expected = differentiated(function, CPU, torch.float64)
    for call in (function, torch.func.vmap(function)):
        for found, wanted in zip(differentiated(call, DEVICE, torch.float32), expected, strict=True):
            assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@cases("tf32 runs size width", [
    (tf32, runs, size, width)
    for tf32 in (False, True)
    for runs, size, width in [((), 1, 1), ((3,), 5, 3), ((2,), 65, 100), ((5,), 200, 1024), ((2, 3), 64, 33)]
])  # fmt: skip
def test_the_gram_matrix_is_float32_whatever_is_allowed(
    tf32: bool, runs: tuple[int, ...], size: int, width: int
) -> None:
    exact = draws()(*runs, size, width).float().double()
    expected = exact @ exact.mT
    scale = exact.norm(dim=-1).max() ** 2
    layouts = [exact.float().to(DEVICE), exact.mT.contiguous().float().to(DEVICE).mT]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for features in layouts:
        with products("tf32" if tf32 else "float32"):
            found = gram(features).cpu().double()
            plain = (features @ features.mT).cpu().double()
        assert (found - expected).abs().max() <= 4e-6 * scale
        if tf32 and width >= 1024 and DEVICE.type == "cuda":  # or the check above would say nothing
            assert (plain - expected).abs().max() > 1e-5 * scale
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


@cases("kernel", [("polynomial",), ("rbf",), ("laplacian",)])
def test_kernels_without_features_are_solved_in_float32_whatever_is_allowed(kernel: str) -> None:
    """Their Gram matrix is inverted too: TF32 in it would come back multiplied by the condition number."""
    method = METHODS["kcl"](SMALL.replace(kernel=kernel), 3)
    model = build_model(method, partial(backbone, "mlp", method.settings), 0)
    draw = draws()
    anchors, targets = nn.functional.normalize(draw(150, 64), dim=-1), draw(150, 3)

    def weights(device: torch.device, dtype: torch.dtype) -> Tensor:
        own = copy.deepcopy(model).to(device, dtype)
        tensors = [tensor.to(device, dtype) for tensor in (anchors, targets, torch.tensor(0.11))]
        with products("tf32"):
            return method.kernel.weights(own, *tensors).cpu().double()

    expected = weights(CPU, torch.float64)
    assert (weights(DEVICE, torch.float32) - expected).norm() <= 3e-5 * expected.norm()


# Stacked runs

SMALL = KclSettings(bases=32, width=16, coreset_size_per_class=4, batch_size=10, lr_floor=0.0)
SEEDS = (3, 11, 2**40 + 1)
SHAPES = {"mlp": (1, 4, 4), "resnet": (3, 6, 6)}
RESNET_CHANNELS = 6
NUMBERS: tuple[dict[str, float], ...] = (
    {"lr": 0.05, "momentum": 0.8, "tau": 0.01, "dropout": 0.2, "ridge_strength": 0.1},
    {"lr": 0.1, "momentum": 0.5, "tau": 0.1, "dropout": 0.4, "ridge_strength": 0.5},
    {"lr": 0.03, "momentum": 0.0, "tau": 0.0, "dropout": 0.1, "ridge_strength": 1.0},
)


def dataset(samples: int, shape: Sequence[int]) -> Dataset:
    random = torch.Generator().manual_seed(0)
    centres = torch.rand(3, *shape, generator=random)

    def images(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % 3
        return (127 * centres[labels] + 128 * torch.rand(count, *shape, generator=random)).byte(), labels

    return Dataset("made up", *images(samples), *images(40), ("0", "1", "2"))


def backbone(net: str, settings: Settings) -> Backbone:
    if net == "mlp":
        return MLP(SHAPES[net], settings.width, settings.layers, settings.dropout)
    widths, strides = (5, RESNET_CHANNELS), (1, 2)
    if settings.feature_stages == 2:
        widths, strides = (5, 6, RESNET_CHANNELS), (1, 2, 1)
    return ResNet18(widths, strides, 3, settings.dropout, settings.feature_stages)


class Made:
    """Runs of one method that differ in seeds and numbers. `which` of the three, in which order."""

    def __init__(
        self,
        method: str = "kcl",
        net: str = "mlp",
        samples: int = 60,
        which: Sequence[int] = (0, 1, 2),
        **settings: Any,
    ) -> None:
        calmer = {"lr": 0.1, "dropout": 0.1} if net == "resnet" else {}
        own = [{name: value * calmer.get(name, 1.0) for name, value in NUMBERS[run].items()} for run in which]
        self.settings = [select_settings(method, SMALL.to_dict() | numbers | settings) for numbers in own]
        data = dataset(samples, SHAPES[net])
        self.seeds = [SEEDS[run] for run in which]
        self.streams: list[Stream] = [PermutedPixels(data, 3, seed) for seed in self.seeds]
        self.methods = [METHODS[method](settings, 3, 9) for settings in self.settings]
        self.backbones = [partial(backbone, net, settings) for settings in self.settings]

    def tasks(self, index: int) -> list[Task]:
        return [stream[index] for stream in self.streams]

    def lessons(self, tasks: int) -> Iterator[list[Task]]:
        """What is learned at once, one after another: some tasks, or all of the stream's."""
        if self.methods[0].joint:
            yield [join(list(stream), 3) for stream in self.streams]
        else:
            yield from map(self.tasks, range(tasks))

    def learner(self, compiled: bool = False, precision: str = "float32") -> RunStack:
        return RunStack(self.methods, self.backbones, self.seeds, DEVICE, compiled, precision)

    def learned(self, tasks: int = 2, **options: Any) -> RunStack:
        learner = self.learner(**options)
        for lesson in self.lessons(tasks):
            learner.learn(lesson, lambda _: None)
        return learner


def states(learner: RunStack) -> list[dict[str, Tensor]]:
    """Parameters and buffers, run by run, on the CPU."""
    return [
        {name: tensor.detach().cpu().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        for model in learner.models
    ]


def assert_near(one: dict[str, Tensor], two: dict[str, Tensor], tolerance: float) -> None:
    torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def assert_moved(learner: RunStack, made: Made, least: float = 1e-3) -> None:
    """Otherwise an agreement would say nothing."""
    fresh = states(made.learner())
    for before, after in zip(fresh, states(learner), strict=True):
        assert max((after[name] - before[name]).abs().max() for name in before) > least


def plain(mask: Tensor) -> Tensor:
    """What was drawn for channels last, perhaps padded, as the plain layers want it."""
    return mask.permute(0, 3, 1, 2)[:, :RESNET_CHANNELS] if mask.ndim == 4 else mask


@cases("kernel net", [*((kernel, "mlp") for kernel in KERNELS), ("vrf", "resnet"), ("rbf", "resnet")])
def test_the_first_step_equals_autograd_on_the_cpu(kernel: str, net: str) -> None:
    """The noise the step drew, replayed to one run at a time on the CPU in double precision: the loss, the weights
    after one step of plain SGD, and the running statistics.
    """
    made = Made("kcl", net, samples=22, kernel=kernel)
    learner = made.learned(1)
    trainer, found = learner._trainer, states(learner)
    assert trainer.sizes == [10]
    drawn = trainer.sources[10].drawn
    for run, (method, task, seed) in enumerate(zip(made.methods, made.tasks(0), made.seeds, strict=True)):
        model = build_model(method, made.backbones[run], seed)
        positions, memory = method.begin_task(model, task, numpy_generator(seed, "coreset", 0))
        order = torch.from_numpy(batch_order(seed, 0, 0, positions))
        model.double()
        working = {name: tensor.double() for name, tensor in seen(memory, task.view).items()}
        inputs = task.view(task.train.inputs[task.train.rows[order]]).double()
        replay = DrawnNoise([plain(tensor[run]).cpu().double() for tensor in drawn])
        loss = method.loss(model, working, Batch(inputs, task.train.labels[order]), replay)
        assert abs(trainer.losses[0, run].item() - loss.item()) < 1e-5 * max(1.0, abs(loss.item()))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(learning_rate(method.settings, 0) * parameter.grad)
        expected = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        assert_near(found[run], {name: tensor.to(found[run][name].dtype) for name, tensor in expected.items()}, 2e-5)


@cases("rows size first", [(1, 4, 0), (3, 4096, 0), (2, 100_004, 7)])
def test_the_philox_kernel_drops_as_its_twin_does(rows: int, size: int, first: int) -> None:
    if not triton_available():
        skip("there is no Triton here")
    key = torch.randint(0, 2**32, (rows, 2), generator=torch.Generator().manual_seed(1))
    rates, step = torch.linspace(0.02, 0.9, rows), torch.tensor([5])
    expected, found = (torch.empty(rows, size, dtype=torch.bool, device=device) for device in (CPU, DEVICE))
    philox.draw(expected, key, step, philox.KEPT, rates, first)
    draw_philox(found, key.to(DEVICE), step.to(DEVICE), philox.KEPT, rates.to(DEVICE), first)
    assert torch.equal(found.cpu(), expected)


@cases("kernel", [(kernel,) for kernel in KERNELS])
def test_the_loss_is_the_same_on_both_devices(kernel: str) -> None:
    """One run with the same noise; TF32 may cost three digits of seven, not more."""
    made = Made(kernel=kernel, which=[0])
    method, task = made.methods[0], made.tasks(0)[0]
    model = build_model(method, made.backbones[0], 3)
    _, memory = method.begin_task(model, task, numpy_generator(3, "coreset", 0))
    working = seen(memory, task.view)
    inputs, labels = task.view(task.train.inputs[:30]), task.train.labels[:30]
    draw = draws(4)
    noise = [torch.special.ndtr(draw(42, 16)).float(), torch.special.ndtr(draw(42, 16)).float(), draw(32, 16).float()]

    def loss(device: torch.device) -> Tensor:
        there = {name: tensor.to(device) for name, tensor in working.items()}
        replay = DrawnNoise([tensor.to(device) for tensor in noise])
        return method.loss(copy.deepcopy(model).to(device), there, Batch(inputs.to(device), labels.to(device)), replay)

    expected = loss(CPU).item()
    with products("float32"):
        assert abs(loss(DEVICE).item() - expected) < 1e-5
    with products("tf32"):
        assert abs(loss(DEVICE).item() - expected) < 2e-2


def plain_norm(x: Tensor, norm: nn.BatchNorm2d, first: int, kept: Tensor, rate: Tensor, before: bool) -> Tensor:
    """What `norm_cuda.norm` computes, by PyTorch's own operations, for one run with its channels last."""
    parts = [part.permute(0, 3, 1, 2) for part in x.split([first, len(x) - first]) if len(part)]
    normed = torch.cat([norm(part.relu()) if before else norm(part).relu() for part in parts])
    return normed.permute(0, 2, 3, 1) * kept / (1.0 - rate)


@cases("samples first side channels padded before", [
    (7, 3, 5, 5, 8, True), (9, 9, 4, 8, 8, True), (30, 4, 12, 3, 4, False), (110, 10, 32, 20, 24, True),
    (160, 10, 3, 512, 512, True), (40, 1, 40, 64, 64, False),
])  # fmt: skip
def test_the_norm_kernels_equal_pytorch_s_batchnorm(
    samples: int, first: int, side: int, channels: int, padded: int, before: bool
) -> None:
    """Output, gradients and running statistics of stacked runs; what pads the channels stays zero."""
    if not triton_available():
        skip("there is no Triton here")
    draw, shape = draws(), (3, samples, side, side, padded)
    x, direction, residual = draw(*shape), draw(*shape), draw(*shape)
    for tensor in (x, residual):
        tensor[..., channels:] = 0.0
    kept, rate = draw(*shape) > -1.0, torch.tensor([0.1, 0.2, 0.3])
    weight, bias, mean, variance = draw(3, channels), draw(3, channels), draw(3, channels), draw(3, channels).abs()
    given = [t.float().to(DEVICE).requires_grad_() for t in (x, weight, bias, residual)]
    running = [t.float().to(DEVICE) for t in (mean, variance)]

    def one(
        x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, kept: Tensor, rate: Tensor, *own: Tensor
    ) -> Tensor:
        layer = SimpleNamespace(weight=weight, bias=bias, running_mean=own[0], running_var=own[1], eps=1e-5)
        return norm(layer, x, first, relu_before=before, kept=kept, rate=rate, residual=residual)[0]

    out = torch.func.vmap(one)(*given, kept.to(DEVICE), rate.to(DEVICE), *running)
    gradients = torch.autograd.grad((out * direction.float().to(DEVICE)).sum(), given)
    assert not out[..., channels:].any()
    assert not gradients[0][..., channels:].any()
    for run in range(3):
        layer = nn.BatchNorm2d(channels).double()
        with torch.no_grad():
            for tensor, value in zip(
                (layer.weight, layer.bias, layer.running_mean, layer.running_var),
                (weight, bias, mean, variance),
                strict=True,
            ):
                tensor.copy_(value[run])
        own = x[run, ..., :channels].clone().requires_grad_()
        expected = plain_norm(own, layer, first, kept[run, ..., :channels], rate[run].double(), before)
        wanted = torch.autograd.grad((expected * direction[run, ..., :channels]).sum(), [own, layer.weight, layer.bias])
        found = [out[run, ..., :channels] - given[3][run, ..., :channels], gradients[0][run, ..., :channels]]
        found += [gradients[1][run], gradients[2][run], *(tensor[run] for tensor in running)]
        for one_found, one_wanted in zip(
            found, [expected, *wanted, layer.running_mean, layer.running_var], strict=True
        ):
            off = (one_found.detach().cpu().double() - one_wanted).abs().max()
            assert off <= 2e-5 * max(1.0, one_wanted.abs().max().item())
    assert torch.equal(gradients[3].cpu(), direction.float())


@cases("precision tolerance benchmark stages", [
    ("float32", 1e-4, "cifar", 1), ("tf32", 2e-2, "cifar", 1), ("bf16", 0.1, "cifar", 1),
    ("float32", 1e-3, "miniimagenet", 1), ("float32", 1e-4, "cifar", 3), ("float32", 1e-3, "miniimagenet", 3),
])  # fmt: skip
def test_both_kinds_of_layers_make_the_same_resnet(
    precision: str, tolerance: float, benchmark: str, stages: int
) -> None:
    """Features, gradients and statistics of three stacked runs on the GPU against plain layers in double precision."""
    draw, parts = draws(), [6, 14]
    make, side = (cifar_resnet, 32) if benchmark == "cifar" else (miniimagenet_resnet, 84)
    nets = [build_model(METHODS["kcl"](SMALL, 3), partial(make, 0.0, stages), seed).backbone for seed in range(3)]
    images, direction = draw(3, sum(parts), 3, side, side).abs(), draw(3, sum(parts), nets[0].features)
    state = {
        name: torch.stack([dict([*net.named_parameters(), *net.named_buffers()])[name] for net in nets]).detach()
        for name, _ in (*nets[0].named_parameters(), *nets[0].named_buffers())
    }
    state = {name: tensor.to(DEVICE) for name, tensor in state.items()}
    leaves = {name: state[name].requires_grad_() for name, _ in nets[0].named_parameters()}
    template = copy.deepcopy(nets[0]).to(DEVICE)

    def features(model: nn.Module, images: Tensor) -> Tensor:
        return torch.cat(model.forward_parts(list(images.split(parts)), DrawnNoise([])))

    with products(precision):
        found = over_runs(template, features, state, images.float().to(DEVICE))
        gradients = torch.autograd.grad((found * direction.float().to(DEVICE)).sum(), list(leaves.values()))
    for run, net in enumerate(nets):
        net.double()
        expected = features(net, images[run])
        (expected * direction[run]).sum().backward()
        statistics = torch.cat([own.flatten() for _, own in net.named_buffers()])
        moved = torch.cat([state[name][run].flatten() for name, _ in net.named_buffers()])
        wanted = torch.cat([own.grad.flatten() for own in net.parameters()])
        gradient = torch.cat([own[run].flatten() for own in gradients])
        for one, two, times in ((found[run], expected, 1), (moved, statistics, 1), (gradient, wanted, 10)):
            one, two = one.detach().cpu().double(), two.detach().double()
            assert (one - two).norm() <= times * tolerance * two.norm(), (precision, (one - two).norm() / two.norm())


@cases("method net samples", [*((method, "mlp", 45) for method in TRAINED), ("kcl", "resnet", 28)])
def test_a_run_alone_equals_the_run_beside_others(method: str, net: str, samples: int) -> None:
    """S = 1 against S = 3 and against other neighbours; rounding may differ with the size of the stack."""
    made = Made(method, net, samples)
    together = made.learned()
    assert_moved(together, made)
    expected = states(together)
    for run in range(3):
        alone = Made(method, net, samples, which=[run]).learned()
        assert_near(states(alone)[0], expected[run], 2e-4)
    turned = Made(method, net, samples, which=[2, 0]).learned()
    assert_near(states(turned)[1], expected[0], 2e-4)


def stepped(made: Made) -> RunStack:
    """Runs that have learned two tasks step by step, without graphs."""

    def step(trainer: StackedTrainer, size: int) -> bool:
        trainer._uncaptured_step(size)
        return True

    with swapped(StackedTrainer, "_step", step):
        return made.learned()


@cases("method net", [*((method, "mlp") for method in TRAINED), ("kcl", "resnet"), ("a-gem", "resnet")])
def test_graphs_replayed_equal_steps_taken(method: str, net: str) -> None:
    """Two tasks of two epochs with a smaller last batch: parameters, statistics, losses, and where the noise stands."""
    made = Made(method, net, samples=28 if net == "resnet" else 35, epochs=2)
    replayed = made.learned()
    taken = stepped(made)
    assert len(set(replayed._trainer.sizes)) == 2
    if DEVICE.type == "cuda":
        assert set(replayed._trainer.graphs) == set(replayed._trainer.sizes)
    assert not taken._trainer.graphs
    assert_moved(replayed, made)
    for one, two in zip(states(replayed), states(taken), strict=True):
        assert_near(one, two, 1e-5 if net == "mlp" else 2e-4)
    torch.testing.assert_close(replayed._trainer.losses, taken._trainer.losses, rtol=1e-3, atol=1e-4)
    for name, tensor in (replayed.method_state or {}).items():
        torch.testing.assert_close(tensor, (taken.method_state or {})[name], rtol=1e-3, atol=1e-5)
    for name in ("done", "cursor"):
        assert torch.equal(getattr(replayed._trainer, name), getattr(taken._trainer, name))
    for size, source in replayed._trainer.sources.items():
        assert torch.equal(source.step, taken._trainer.sources[size].step)
        assert source.step.item() == replayed._trainer.steps


@cases(
    "method net precision",
    [
        *((method, "mlp", "float32") for method in TRAINED),
        ("kcl", "mlp", "tf32"),
        ("naive-sgd", "resnet", "float32"),
    ],
)
def test_compiled_steps_equal_plain_ones(method: str, net: str, precision: str) -> None:
    """A full and a smaller batch, then a second task."""
    made = Made(method, net, samples=28 if net == "resnet" else 35)
    compiled, plain = made.learned(compiled=True, precision=precision), made.learned(precision=precision)
    assert len(compiled._trainer.compiled) == 2
    assert_moved(compiled, made)
    tolerance = 2e-2 if precision == "tf32" else 5e-4
    for one, two in zip(states(compiled), states(plain), strict=True):
        assert_near(one, two, tolerance)
    torch.testing.assert_close(compiled._trainer.losses, plain._trainer.losses, rtol=tolerance, atol=tolerance)


@cases("method fisher", [(name, "running") for name in TRAINED if name != "kcl"] + [("ewc", "classic")])
def test_a_baseline_without_dropout_learns_what_it_learns_on_the_cpu(method: str, fisher: str) -> None:
    """Then nothing is drawn on the device: the same samples, replayed samples and Fisher, three tasks in a row."""
    made = Made(method, samples=45, dropout=0.0, ewc_fisher=fisher, ewc_strength=0.5)
    learner = made.learned(3)
    assert_moved(learner, made)
    for number, (own, make, seed) in enumerate(zip(made.methods, made.backbones, made.seeds, strict=True)):
        run = ReferenceRun(own, make, seed)
        for lesson in made.lessons(3):
            run.learn(lesson[number])
        expected = {name: tensor.detach() for name, tensor in run.model.named_parameters()}
        assert_near({name: states(learner)[number][name] for name in expected}, expected, 2e-3)
        assert run.memory_use() == learner.memory_use()[number]
        method_state = {name: tensor[number].cpu() for name, tensor in (learner.method_state or {}).items()}
        torch.testing.assert_close(method_state, run.method_state or {}, rtol=2e-2, atol=2e-3)


@cases("compiled", [(False,), (True,)])
def test_a_run_that_diverges_touches_no_other(compiled: bool) -> None:
    """Against the same stack with that run sound: the others' parameters agree to the last bits, over two tasks."""
    made, sound = (Made(samples=52, feature_norm="none") for _ in range(2))  # batches of one size: compiled once
    made.settings[1] = made.settings[1].replace(lr=1e30)
    made.methods[1] = METHODS["kcl"](made.settings[1], 3)
    spoiled, expected = made.learned(compiled=compiled), sound.learned(compiled=compiled)
    assert spoiled.diverged == [False, True, False]
    assert expected.diverged == [False] * 3
    for run in (0, 2):
        assert_near(states(spoiled)[run], states(expected)[run], 1e-6)
        assert spoiled.accuracy(made.tasks(1))[run] == expected.accuracy(made.tasks(1))[run]
    frozen = states(spoiled)[1]
    assert all(tensor.isfinite().all() for tensor in frozen.values())
    spoiled.learn(made.tasks(2), lambda _: None)
    for name, tensor in states(spoiled)[1].items():
        assert name.startswith("head.") or torch.equal(tensor, frozen[name])  # the head begins anew at every task
    if compiled:
        return
    outcomes = run_streams(made.learner(), made.streams)
    assert [outcome.diverged for outcome in outcomes] == [False, True, False]
    assert [outcome.matrix.average_accuracy is None for outcome in outcomes] == [False, True, False]


@cases("kernel net", [("vrf", "mlp"), ("rbf", "mlp"), ("rff", "mlp"), ("vrf", "resnet")])
def test_answers_equal_those_of_the_same_weights_on_the_cpu(kernel: str, net: str) -> None:
    """Run by run, with the same test noise; samples whose best classes nearly tie may fall either way."""
    made = Made("kcl", net, samples=60, kernel=kernel, epochs=2, test_draws=2)
    learner = made.learned()
    if net == "resnet":  # statistics of so few steps would leave every answer hanging on rounding
        for module in (module for model in learner.models for module in model.modules()):
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.zero_()
                module.running_var.fill_(1.0)
    for index in range(2):
        measured, (memory, view) = learner.accuracy(made.tasks(index)), learner.kept[index]
        requests = learner._evaluator._classifier_requests(learner.test_groups[0], as_seen(memory, view))
        source = learner.source(requests, "test noise", index, learner.training_seeds)
        source.draw()
        for run, (method, task) in enumerate(zip(made.methods, made.tasks(index), strict=True)):
            model = copy.deepcopy(learner.models[run]).cpu().double()
            own = seen({name: tensor[run].cpu() for name, tensor in memory.items()}, task.view)
            with torch.no_grad():
                working = {name: tensor.double() for name, tensor in own.items()}
                classifier = method.classifier(
                    model, working, DrawnNoise([t[run].cpu().double() for t in source.drawn])
                )
                scores = method.logits(model, classifier, task.view(task.test.inputs[task.test.rows]).double())
            doubtful = int((scores.topk(2).values.diff().abs() < 1e-4).sum())
            expected = 100.0 * (scores.argmax(-1) == task.test.labels).double().mean().item()
            assert doubtful <= 4
            assert abs(measured[run] - expected) <= 100.0 * doubtful / len(task.test) + 1e-6


def test_progress_is_told_in_order_and_truly() -> None:
    """In chunks, while the device runs ahead: each told loss is the mean over the runs of that very step."""
    made, told = Made(samples=60, epochs=5), []
    learner = made.learner()
    with swapped(step_progress, "CHUNK", 3):
        learner.learn(made.tasks(0), told.append)
    losses = learner._trainer.losses.mean(1).tolist()
    assert [step.step for step in told] == ([*range(3, 25, 3), 25] if DEVICE.type == "cuda" else list(range(1, 26)))
    for step in told:
        assert step.steps == len(losses) == 25
        assert abs(step.loss - losses[step.step - 1]) < 1e-6


def test_one_run_by_itself_learns_on_the_gpu() -> None:
    """A plain stack, which draws on the device: no numbers to compare with, but the task is easy."""
    made = Made(which=[0], epochs=20, dropout=0.0, kernel="rbf")
    learner = RunStack(made.methods, made.backbones, [3], DEVICE, plain=True)
    losses: list[float] = []
    learner.learn(made.tasks(0), lambda step: losses.append(step.loss))
    assert learner.diverged == [False]
    assert sum(learner._trainer.losses[-5:]) < sum(learner._trainer.losses[:5])
    assert losses[-1] == learner._trainer.losses[-1].item()
    assert learner.accuracy(made.tasks(0))[0] > 50.0
    assert all(parameter.device.type == DEVICE.type for parameter in learner.models[0].parameters())


class Impatient(Checkpointer):
    """Asks its runs to stop after some steps."""

    def __init__(self, folder: Path, steps: int) -> None:
        super().__init__(folder, {}, Every(seconds=1e9, thrifty=False), Stop())
        self.left = steps

    def after_step(self, state: Callable[[], Any]) -> None:
        self.left -= 1
        if self.left == 0:
            self.stop.signal = 15
        super().after_step(state)


@cases("method net", [*((method, "mlp") for method in TRAINED), ("kcl", "resnet"), ("a-gem", "resnet")])
def test_runs_that_were_stopped_go_on_where_they_were(method: str, net: str) -> None:
    """Stopped in the first epoch, in the second and in later tasks; the graphs are captured anew each time."""
    made = Made(method, net, samples=28 if net == "resnet" else 35, epochs=2)
    whole = made.learner()
    expected = run_streams(whole, made.streams)
    with tempfile.TemporaryDirectory() as folder:
        found, stops = [], 0
        while not found and stops < 100:
            learner = made.learner()
            try:
                found = run_streams(learner, made.streams, checkpointer=Impatient(Path(folder), 3))
            except Interrupted:
                stops += 1
    assert stops > 2
    assert [own.resumed for own in found] == [stops] * 3
    assert_moved(learner, made)
    for one, two in zip(states(learner), states(whole), strict=True):
        assert_near(one, two, 1e-5 if net == "mlp" else 2e-4)
    for name, tensor in (learner.method_state or {}).items():
        torch.testing.assert_close(tensor, (whole.method_state or {})[name], rtol=1e-3, atol=1e-5)
    if net == "mlp":
        for one, two in zip(found, expected, strict=True):
            assert abs((one.matrix.average_accuracy or 0.0) - (two.matrix.average_accuracy or 0.0)) < 3.0


# The strong recipe

STRONG: dict[str, Any] = {
    "rotation_labels": True, "augmentation": "flip", "test_views": "flip", "optimizer": "muon", "muon_lr": 0.02,
    "weight_average": 0.8, "feature_stages": 2,
}  # fmt: skip
OWN: dict[str, Any] = {"batch_norm": "coreset", "warm_start": True, "log_variance_bound": 4.0, "soft_targets": 0.5,
                       "test_strength": 0.4, "shared_metric": 0.6}  # fmt: skip
LIGHT: dict[str, Any] = {"network_loss": "linear", "kernel": "linear", "soft_targets": 0.0, "matched_targets": True}


def strong(method: str, samples: int = 28, **settings: Any) -> Made:
    """Runs with every ingredient that goes with the method; their rates differ."""
    made = Made(method, "resnet", samples, **(STRONG | (OWN if method == "kcl" else {}) | settings))
    made.settings = [own.replace(muon_lr=0.02 / (1 + run)) for run, own in enumerate(made.settings)]
    made.methods = [METHODS[method](own, 3, 9) for own in made.settings]
    return made


def assert_near_in_norm(one: dict[str, Tensor], two: dict[str, Tensor], begun: dict[str, Tensor], share: float) -> None:
    """Apart by no more than a share of the way from where both began, over all parameters and over all statistics:
    Muon makes much of the directions in which a gradient is little more than rounding.
    """
    for running in (False, True):
        names = [name for name in one if one[name].is_floating_point() and ("running" in name) == running]
        flat = [torch.cat([own[name].flatten().double() for name in names]) for own in (one, two, begun)]
        assert (flat[1] - flat[2]).norm() > 1e-3
        assert (flat[0] - flat[1]).norm() <= share * (flat[1] - flat[2]).norm()


def averages(learner: RunStack) -> list[dict[str, Tensor]]:
    found = [learner.model_at_test(run) for run in range(learner.count)]
    return [
        {name: tensor.detach().cpu() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        for model in found
    ]


@cases("shape", [((20, 27),), ((160, 80),), ((160, 1440),), ((512, 4608),)])
def test_muon_orthogonalises_as_in_double_precision(shape: tuple[int, int]) -> None:
    """Many matrices at once, in float32 closely and in TF32 as well as bfloat16 would."""
    matrices = draws()(2, *shape)
    expected = orthogonal.update(matrices)
    for precision, tolerance in (("float32", 1e-4), ("tf32", 2e-2)):
        with products(precision):
            found = orthogonal.update(matrices.float().to(DEVICE)).cpu().double()
        assert (found - expected).norm() <= tolerance * expected.norm()


@cases("kernel", [("linear",), ("vrf",), ("rbf",)])
def test_the_first_strong_step_equals_the_cpu(kernel: str) -> None:
    """The noise the step drew, replayed on the CPU in double precision: loss, weights, statistics and averages."""
    made = strong("kcl", 22, kernel=kernel, feature_norm="l2")
    learner = made.learned(1)
    trainer, found, averaged = learner._trainer, states(learner), averages(learner)
    assert trainer.sizes == [10]
    for run, (method, task, seed) in enumerate(zip(made.methods, made.tasks(0), made.seeds, strict=True)):
        model = build_model(method, made.backbones[run], seed)
        begun = {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        positions, memory = method.begin_task(model, task, numpy_generator(seed, "coreset", 0))
        order = torch.from_numpy(batch_order(seed, 0, 0, positions))
        model.double()
        average = WeightAverage(model, method.settings)
        working = {name: tensor.double() for name, tensor in seen(memory, task.view).items()}
        inputs = task.view(task.train.inputs[task.train.rows[order]]).double()
        replay = DrawnNoise([plain(tensor[run]).cpu().double() for tensor in trainer.sources[10].drawn])
        loss = method.observe(model, working, Batch(inputs, task.train.labels[order]), replay)[0]
        assert abs(trainer.losses[0, run].item() - loss.item()) < 1e-4 * max(1.0, abs(loss.item()))
        loss.backward()
        optimizer_of(model, method.settings, 0).step()
        average.update(model)
        for own, expected in ((found[run], model), (averaged[run], average.model)):
            named = (*expected.named_parameters(), *expected.named_buffers())
            assert_near_in_norm(own, {name: tensor.detach() for name, tensor in named}, begun, 1e-2)


@cases("method changes", [("kcl", {}), ("kcl", LIGHT), ("ewc", {}), ("a-gem", {}), ("er-reservoir", {})])
def test_strong_graphs_replayed_equal_steps_taken(method: str, changes: dict[str, Any]) -> None:
    """With a coreset, with a linear output layer, with a penalty that steps change, with a direction of its own, with
    replayed samples: two updates on every batch, the last batch smaller, two tasks; weights, averages, cursors, counts.
    """
    made = strong(method, updates_per_batch=2, **changes)
    replayed = made.learned()
    taken = stepped(made)
    assert len(set(replayed._trainer.sizes)) == 2
    begun = states(made.learner())
    for found in (states, averages):
        for one, two, was in zip(found(replayed), found(taken), begun, strict=True):
            assert_near_in_norm(one, two, was, 5e-2)
    for name in ("done", "cursor"):
        assert torch.equal(getattr(replayed._trainer, name), getattr(taken._trainer, name))
    updates = [int(learner.state.averages[0].updates) for learner in (replayed, taken)]
    assert updates == [len(list(made.lessons(2))) * replayed._trainer.steps] * 2
    assert replayed.diverged == [False] * 3


def test_compiled_steps_of_the_mnist_recipe_equal_plain_ones() -> None:
    """Averaged weights, warm start and bounded log-variances of an MLP: what a long run of the recipe compiles."""
    own = {"weight_average": 0.8, "warm_start": True, "log_variance_bound": 4.0, "updates_per_batch": 2}
    own |= {"soft_targets": 0.5}
    made = Made("kcl", "mlp", 52, dropout=0.1, **own)
    compiled, taken = made.learned(compiled=True), made.learned()
    assert_moved(compiled, made)
    for found in (states, averages):
        for one, two in zip(found(compiled), found(taken), strict=True):
            assert_near(one, two, 1e-4)
    updates = [int(learner.state.averages[0].updates) for learner in (compiled, taken)]
    assert updates == [2 * compiled._trainer.steps] * 2


def test_strong_runs_that_were_stopped_go_on_where_they_were() -> None:
    """Also between two updates on one batch."""
    made = strong("kcl", updates_per_batch=2)
    whole = made.learner()
    run_streams(whole, made.streams)
    with tempfile.TemporaryDirectory() as folder:
        done, stops = False, 0
        while not done and stops < 100:
            learner = made.learner()
            try:
                run_streams(learner, made.streams, checkpointer=Impatient(Path(folder), 3))
                done = True
            except Interrupted:
                stops += 1
    assert stops > 2
    assert int(learner.state.averages[0].updates) == int(whole.state.averages[0].updates)
    for one, two, was in zip(averages(learner), averages(whole), states(made.learner()), strict=True):
        assert_near_in_norm(one, two, was, 5e-2)


@cases("shape make", [
    ((3, 32, 32), partial(cifar_resnet, feature_stages=3)),
    ((3, 84, 84), partial(miniimagenet_resnet, feature_stages=3)),
    ((3, 7, 7), partial(ResNet18, (5, 6, 7), (1, 2, 1), 3)),
])  # fmt: skip
def test_a_resnet_answers_as_on_the_cpu(shape: tuple[int, ...], make: Callable[[], ResNet18]) -> None:
    """With running statistics, with those of a set, and with what another pass has gathered; alone and stacked."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draw, nets = draws(), [make().requires_grad_(False).double() for _ in range(3)]
    for net in nets:
        for name, tensor in (*net.named_parameters(), *net.named_buffers()):
            if "norm" in name and tensor.is_floating_point():
                tensor.copy_(draw(*tensor.shape).abs() + 0.1)
    x = draw(3, 24, *shape)
    here = [copy.deepcopy(net).float().to(DEVICE) for net in nets]
    state = {
        name: torch.stack([dict((*net.named_parameters(), *net.named_buffers()))[name] for net in here])
        for name, _ in (*here[0].named_parameters(), *here[0].named_buffers())
    }
    with torch.no_grad(), products("float32"):
        for how, tolerance in ((passed, 1e-5), (gathered, 1e-4), (passed_with_moments, 1e-3)):
            expected = torch.stack([how(net, own) for net, own in zip(nets, x, strict=True)])
            found = [how(net, own) for net, own in zip(here, x.float().to(DEVICE), strict=True)]
            together = over_runs(here[0], how, state, x.float().to(DEVICE))
            for one in (torch.stack(found), together):
                assert (one.cpu() - expected).abs().max() <= tolerance * expected.abs().max()


def passed(net: ResNet18, x: Tensor) -> Tensor:
    return net(x)


def gathered(net: ResNet18, x: Tensor) -> Tensor:
    features, moments = net.gather(x)
    return torch.cat([features.flatten(), moments])


def passed_with_moments(net: ResNet18, x: Tensor) -> Tensor:
    return net(x[:4], None, net.gather(x[4:])[1])


@cases("method kernel", [("kcl", "vrf"), ("kcl", "rbf"), ("naive-sgd", "vrf")])
def test_strong_answers_equal_those_of_the_same_weights_on_the_cpu(method: str, kernel: str) -> None:
    """Rotations, mirror images, averaged weights and the coreset's statistics, with the same test noise."""
    made = strong(method, 60, kernel=kernel, test_draws=2)
    learner = made.learned()
    for index in range(2):
        memory, view = learner.kept[index]
        requests = learner._evaluator._classifier_requests(learner.test_groups[0], as_seen(memory, view))
        source = learner.source(requests, "test noise", index, learner.training_seeds)
        source.draw()
        scores = learner.scores(made.tasks(index))
        for run, (own, task) in enumerate(zip(made.methods, made.tasks(index), strict=True)):
            model = copy.deepcopy(learner.model_at_test(run)).cpu().double()
            stored = [
                seen({name: tensor[run].cpu() for name, tensor in kept.items()}, shown)
                for kept, shown in learner.kept.values()
            ]
            working = [
                {name: t.double() if t.is_floating_point() else t for name, t in kept.items()} for kept in stored
            ]
            with torch.no_grad():
                common = own.in_common(model, working)
                replay = DrawnNoise([t[run].cpu().double() for t in source.drawn])
                classifier = own.classifier(model, own.show(working[index] | common), replay)
                expected = own.answer(model, classifier, task.view(task.test.inputs[task.test.rows]).double())
            assert expected.shape == (len(task.test), task.ways)
            assert (scores[run].cpu() - expected).abs().max() <= 2e-3 * max(1.0, expected.abs().max().item())


@cases("method", [("kcl",), ("er-reservoir",)])
def test_runs_that_share_a_training_are_what_they_are_alone(method: str) -> None:
    """Of every way of testing: after the one training, weights and averages as after one of its own; with the same
    weights, the same answers. Steps in graphs, a smaller last batch, two tasks.
    """
    made = strong(method)
    ways: list[dict[str, Any]] = [{}, {"weight_average": 0.0}, {"test_views": "plain"}, {"weight_average": 0.15}]
    ways += [{"average_ramp": 2.0}]
    ways += [{"batch_norm": "running"}, {"weight_average": 0.0, "test_draws": 3}] if method == "kcl" else []
    variants = [[METHODS[method](own.replace(**way), 3, 9) for way in ways] for own in made.settings]
    options = {"device": DEVICE, "precision": "float32"}
    shared = RunStack(made.methods, made.backbones, made.seeds, variants=variants, **options)
    for index in range(2):
        shared.learn([task for task in made.tasks(index) for _ in ways], lambda _: None)
    count, begun = len(ways), states(made.learner())
    assert shared.seeds == [seed for seed in made.seeds for _ in ways]
    assert [int(own.updates) for own in shared.state.averages] == [2 * shared._trainer.steps] * 3
    for place in range(count):
        methods = [own[place] for own in variants]
        alone = RunStack(methods, made.backbones, made.seeds, **options)
        for index in range(2):
            alone.learn(made.tasks(index), lambda _: None)
        assert alone.memory_use() == shared.memory_use()[place::count]
        for run, (model, was) in enumerate(zip(averages(alone), begun, strict=True)):
            own = shared.model_at_test(count * run + place)
            found = {name: t.detach().cpu() for name, t in (*own.named_parameters(), *own.named_buffers())}
            assert_near_in_norm(found, model, was, 5e-2)
        stack = {name: part for name, part in shared.state.saved().items() if not name.startswith("average")}
        average = shared.runs[place].average
        alone.state.load(
            {"stack": stack if average is None else stack | {"average": shared.state.averages[average].saved()}}
        )
        alone.kept = shared.kept
        for index in range(2):
            repeated = [task for task in made.tasks(index) for _ in ways]
            for one, two in zip(shared.scores(repeated)[place::count], alone.scores(made.tasks(index)), strict=True):
                assert (one - two).abs().max() <= 1e-4 * max(1.0, two.abs().max().item())
    assert len({tuple(scores.flatten().tolist()) for scores in shared.scores(repeated)}) == 3 * count


@cases("benchmark kernel side coreset", [("split-cifar100", "vrf", 32, 34), ("split-miniimagenet", "linear", 84, 50)])
def test_the_strong_recipe_learns_at_full_size(benchmark: str, kernel: str, side: int, coreset: int) -> None:
    """The published backbone and a coreset as large, of three classes in place of five; two runs, two small tasks, in
    graphs: every loss finite, and far above chance on classes that are easy to tell apart.
    """
    settings = strong_settings(benchmark, "kcl").replace(kernel=kernel, coreset_size_per_class=coreset)
    settings = settings.replace(weight_average=0.0)  # an average over two short tasks knows little of either
    size = 3 * (settings.coreset_size_per_class + 20)
    data = dataset(size, (3, side, side))
    streams: list[Stream] = [PermutedPixels(data, 2, seed) for seed in SEEDS[:2]]
    methods = [METHODS["kcl"](settings, 3, 6) for _ in streams]
    backbones = [partial(published_backbone, (3, side, side), settings)] * 2
    learner = RunStack(methods, backbones, SEEDS[:2], DEVICE, precision="tf32")
    for index in range(2):
        learner.learn([stream[index] for stream in streams], lambda _: None)
        assert learner._trainer.losses.isfinite().all()
    assert learner.diverged == [False, False]
    assert min(learner.accuracy([stream[1] for stream in streams])) > 60.0


@cases("precision", [("float32",), ("tf32",)])
def test_an_experiment_stacks_its_runs_and_keeps_them_all(precision: str) -> None:
    """Seeds and learning rates together as one stack, as many as fit; every run recorded, in order."""
    data = dataset(200, SHAPES["mlp"])
    changes = {"epochs": 3, "dropout": 0.1}
    settings = {method: select_settings(method, SMALL.to_dict() | changes) for method in METHODS}
    specs = [
        RunSpec("made-up", method, seed, settings[method].replace(lr=lr, weight_average=average), 2, None)
        for method in METHODS
        for lr, average in ((0.1, 0.0), (0.05, 0.0), (0.05, 0.9))
        for seed in (0, 1, 2)
    ]
    BENCHMARKS["made-up"] = Benchmark("for tests", lambda *_: data, PermutedPixels, 20)
    try:
        with tempfile.TemporaryDirectory() as out:
            folder = Folder(Path(out), resume=False)
            plan = admit(specs, Compute(DEVICE.type, compiled=False, precision=precision))
            experiment = Experiment(plan, folder)
            for group in remaining_groups(experiment):
                train_group(experiment, group, lambda _: lambda _: None)
            records = plan.records(folder.finished)
    finally:
        del BENCHMARKS["made-up"]
    assert [(record["method"], record["seed"], record["settings"]["lr"]) for record in records] == [
        (spec.method, spec.seed, spec.settings.lr) for spec in specs
    ]
    assert not any(record["diverged"] for record in records)
    assert all(record["average_accuracy"] > 40.0 for record in records if record["method"] == "kcl")
    assert [record["training_shared_by"] for record in records] == [1, 1, 1, *[2] * 6] * len(METHODS)
    if DEVICE.type == "cuda":
        assert {record["runs_at_once"] for record in records} == {6}
        assert {record["precision"] for record in records} == {precision}


def main() -> int:
    """Every check once for each of its cases, one line each."""
    if not torch.cuda.is_available():
        print(f"nothing was checked: {NO_GPU}")
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    outcomes: list[str] = []
    shares = [word.split("/") for word in sys.argv[1:] if "/" in word]
    words, count = [word for word in sys.argv[1:] if "/" not in word], itertools.count()
    for name, check in list(globals().items()):
        if not name.startswith("test_") or (words and not any(word in name for word in words)):
            continue
        for case in getattr(check, "cases", [()]):
            number = next(count)
            if any(number % int(parts) != int(share) - 1 for share, parts in shares):
                continue
            begun, reason = time.perf_counter(), ""
            try:
                check(*case)
                outcomes.append("passed")
            except Skipped as error:
                outcomes.append("skipped")
                reason = str(error)
            except Exception as error:
                outcomes.append("FAILED")
                reason = "".join(traceback.format_exception(error))
            seconds = time.perf_counter() - begun
            print(f"{outcomes[-1]:7} {seconds:6.2f} s  {name[5:]} {', '.join(map(str, case))}", flush=True)
            if reason:
                print(reason, flush=True)
    counts = {outcome: outcomes.count(outcome) for outcome in ("passed", "skipped", "FAILED")}
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return int("FAILED" in outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
