"""The setting of telemetry. Nothing leaves the machine."""
