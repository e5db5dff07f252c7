"""The driver's side of a job: plan, start, watch, explain. Never imports the engine."""
