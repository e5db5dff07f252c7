"""ResNet with bottleneck blocks, for torch_imagenet_resnet50.py and
torch_synthetic_benchmark.py.
"""

from collections.abc import Sequence

import torch
from torch import nn


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with its normalization."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """A bottleneck block: 1x1 to fewer channels, 3x3, 1x1 to four times as many, plus the
    shortcut.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.path = nn.Sequential(
            conv(inputs, width, 1),
            nn.ReLU(inplace=True),
            conv(width, width, 3, stride),
            nn.ReLU(inplace=True),
            conv(width, outputs, 1),
        )
        self.shortcut = (
            nn.Identity() if (stride, inputs) == (1, outputs) else conv(inputs, outputs, 1, stride)
        )
        # a block begins as the identity: large batches train more stably
        nn.init.zeros_(self.path[-1][-1].weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.path(images) + self.shortcut(images))


def resnet(blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> nn.Module:
    """Return a ResNet, ResNet-50 by default. ``blocks``: per stage; ``width``: channels of the
    first stage.
    """
    layers: list[nn.Module] = [conv(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(
                Bottleneck(inputs, width << stage, stride=2 if stage and not block else 1)
            )
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
