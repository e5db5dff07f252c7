"""The driver's side of a job: planning, starting, watching and explaining. It never imports the
engine.
"""
