"""The layers below the frameworks: the shared API, the engine, transports and their algorithms."""
