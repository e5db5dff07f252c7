"""The address of a registry of container images."""
