"""The configuration of runs: processes, framework, environment."""
