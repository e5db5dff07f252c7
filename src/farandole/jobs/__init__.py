"""Recorded jobs: experiments, runs, their queue, targets, environments and inputs."""
