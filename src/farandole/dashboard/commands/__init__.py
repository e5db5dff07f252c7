"""The subcommands ``farandole dashboard`` and ``farandole report``."""
