"""The way of a gradient from backward to the step."""
