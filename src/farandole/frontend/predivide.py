"""How an average of gradients is divided: partly before they are summed, so that sums of small types stay in range."""

from __future__ import annotations

from farandole.types import ReduceOp


def predivided(op: int, factor: float) -> tuple[float, float]:
    """``gradient_predivide_factor`` as factors before and after an average: 1 / factor, and factor.

    Raises ValueError if ``factor`` is not positive, or if it is not 1 and ``op`` is not Average.
    """
    if factor == 1.0:
        return 1.0, 1.0
    if op != ReduceOp.AVERAGE:
        raise ValueError(
            f"gradient_predivide_factor not supported with op != Average (gradient_predivide_factor={factor}, "
            f"op={_name(op)}): leave the factor out, or use op=hvd.Average"
        )
    if not factor > 0:
        raise ValueError(f"gradient_predivide_factor must be > 0, not {factor}: 1.0 divides after the sum alone")
    return 1.0 / factor, factor


def _name(op: int) -> str:
    try:
        return ReduceOp(op).name.capitalize()
    except ValueError:
        return repr(op)
