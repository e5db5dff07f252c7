"""The subcommands of ``farandole`` for runs: one module each, with ``parser`` and ``main``."""
