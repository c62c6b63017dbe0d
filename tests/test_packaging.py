"""The core imports where only PyTorch, NumPy and safetensors are installed."""

import subprocess
import sys

HEAVY = (
    "platformdirs",
    "requests",
    "urllib3",
    "tqdm",
    "sklearn",
    "matplotlib",
    "PIL",
    "jaxtyping",
    "beartype",
    "triton",
    "torchvision",
    "wandb",
    "tensorboard",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "pandas",
    "pyarrow",
    "ray",
    "submitit",
    "optuna",
    "fsspec",
)


def test_the_core_imports_with_torch_numpy_and_safetensors_alone() -> None:
    blocked = "\n".join(f"sys.modules[{name!r}] = None" for name in HEAVY)
    code = f"import sys\n{blocked}\nfrom kcl.cli.commands import main\nmain(['list', 'kernels'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "vrf" in done.stdout
