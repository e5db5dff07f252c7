"""The configuration of a script's run."""
