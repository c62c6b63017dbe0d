"""What one run of kernel continual learning trains: the network, and what the current task learns beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kcl.methods.kcl_settings import KclSettings
from kcl.methods.ridge_head import KernelRidgeHead
from kcl.methods.ridge_kernels import Kernel
from kcl.nets.amortized import AmortizedGaussians
from kcl.nets.backbone import Backbone


class KernelModel(nn.Module):
    """The shared backbone h_θ, the inference network f_φ and the prior network f_γ (together in `gaussians`),
    and the current task's head."""

    phases: Tensor
    frequencies: Tensor
    gamma: Tensor
    tau: Tensor
    soft_targets: Tensor

    def __init__(self, backbone: Backbone, kernel: Kernel, settings: KclSettings) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = KernelRidgeHead(settings.ridge_strength)
        self.gaussians = AmortizedGaussians(backbone.features, kernel.inferred) if kernel.inferred else None
        for name, tensor in kernel.buffers(backbone.features).items():
            self.register_buffer(name, tensor)
        numbers = kernel.numbers() | {"tau": settings.tau}
        if settings.soft_targets:
            numbers["soft_targets"] = settings.soft_targets
        for name, number in numbers.items():
            self.register_buffer(name, torch.tensor(number), persistent=False)
