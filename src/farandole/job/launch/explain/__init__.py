"""Which rank is the cause when a job fails: pure functions from events to a verdict."""
