from farandole.compat.runner import run

__all__ = ["run"]
