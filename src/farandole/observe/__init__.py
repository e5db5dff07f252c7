"""Who watches an engine: timeline, autotune, stall check, and whether a job that began alike learned together."""
