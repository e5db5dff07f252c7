"""Jobs with a history: experiments, runs, their queue, targets, environments and inputs."""
