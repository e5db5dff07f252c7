"""One job: configuration, launching, supervision, and a process's place in it."""
