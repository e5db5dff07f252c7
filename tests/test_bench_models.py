"""The nets and settings of the benchmarks that train."""

from __future__ import annotations

import pytest


def test_a_normalised_net_learns_with_the_momentum_of_scripts() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from benchmarks.__main__ import MODELS
    from benchmarks.problems import NORMS, net, setting_of

    assert tuple(NORMS) == MODELS
    sizes = {
        model: [layer.weight.numel() for layer in net(64, 0, 8, model) if hasattr(layer, "weight")]
        for model in MODELS
    }
    assert sizes == {
        "plain": [512, 32, 40],
        "batchnorm": [512, 8, 32, 4, 40],
        "layernorm": [512, 8, 32, 4, 40],
    }
    assert isinstance(net(64, 0, 8, "layernorm")[1], torch.nn.LayerNorm)
    settings = {spec: str(setting_of(spec).for_normalised()) for spec in ("onebit", "sign:0.9")}
    assert settings == {
        "onebit": "SGD 0.1, momentum 0.9, 5 epochs",
        "sign:0.9": "SGD 0.004, 12 epochs, 300 rows a step",
    }


def test_errors_of_final_losses_are_of_paired_differences() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from benchmarks.learning import Result, error, mean

    others = [Result(percent, 1.0, 1.0, 0.0) for percent in (90.0, 94.0, 98.0)]
    results = [
        other._replace(accuracy=other.accuracy - less)
        for other, less in zip(others, (1.0, 2.0, 3.0), strict=True)
    ]
    assert error(results, others) == 0.58  # 1 / sqrt(3)
    assert error(results[:1], others[:1]) == 0.0
    assert mean(results).accuracy == 92.0
