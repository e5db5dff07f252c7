"""The driver's side of a job: plan, start, watch and explain. It never imports the engine."""
