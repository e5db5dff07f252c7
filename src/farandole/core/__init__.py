"""The machine below the frameworks: the shared API, the engine, wires and their algorithms."""
