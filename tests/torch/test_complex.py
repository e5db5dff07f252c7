"""Complex parameters: their gradients travel as pairs of numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.messages import mentioning
from tests.run_job import job

torch = pytest.importorskip("torch", reason="torch is not installed")


class Fourier(torch.nn.Module):
    """Weights of frequencies: of both types, one in another layout, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.wave = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.turned = torch.nn.Parameter(torch.randn(4, 3, dtype=torch.complex128).T)
        self.none = torch.nn.Parameter(torch.zeros(0, 2, dtype=torch.complex64))
        self.bias = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: Any) -> Any:
        spectrum = torch.fft.fft(x) @ self.wave
        smooth = torch.fft.ifft(spectrum).real + self.bias
        return smooth.square().mean() + (self.turned @ spectrum.to(torch.complex128).T).abs().mean()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_ranks_step_as_one_process(compressed: bool, passes: int) -> None:
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        compression = hvd.Compression.fp16 if compressed else hvd.Compression.none
        model = Fourier()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.01),
            model.named_parameters(),
            compression=compression,
            backward_passes_per_step=passes,
        )
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(passes):
                model(rows[rank::2]).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    model = Fourier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        (passes * (model(rows[::2]) + model(rows[1::2])) / 2).backward()
        optimizer.step()
    first, second = job(2, train)
    for one, other, expected in zip(first, second, model.parameters(), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(
            one, expected.detach(), rtol=0.0, atol=1e-3 if compressed else 1e-6
        )


def test_a_conjugate_gradient_is_exchanged() -> None:
    def train(rank: int) -> Any:
        import farandole.torch as hvd

        weights = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0))
        (weights * torch.tensor([rank + 1j, 2 - 1j * rank])).sum().real.backward()
        optimizer.step()
        return weights.detach().clone()

    for found in job(2, train):
        assert found.tolist() == [-0.5 + 1j, -2 - 0.5j]


def test_adasum_combines_the_steps_of_all_ranks() -> None:
    """As vectors of real and imaginary parts, whose angle decides."""

    def train(rank: int) -> Any:
        import farandole.torch as hvd

        weights = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0), op=hvd.Adasum)
        way = torch.tensor([1.0, 2.0j] if rank else [2.0, 2.0j])
        (weights * way.conj()).real.sum().backward()
        optimizer.step()
        return weights.detach().clone()

    both, one, two = 2 * 1 + 2 * 2, 2 * 2 + 2 * 2, 1 * 1 + 2 * 2
    shares = 1 - both / 2 / one, 1 - both / 2 / two
    for found in job(2, train):
        wanted = [1 - 2 * shares[0] - shares[1], 1 - 2j * shares[0] - 2j * shares[1]]
        torch.testing.assert_close(found, torch.tensor(wanted))


def test_codecs_take_real_numbers() -> None:
    def check(rank: int) -> None:
        import farandole.torch as hvd

        model = Fourier()
        with pytest.raises(
            ValueError,
            match=mentioning("'wave'", "complex64"),
        ):
            hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), codec="int8"
            )

    job(2, check)
