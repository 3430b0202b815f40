"""Settings of a run: their schema, the layers they come from, methods and published rows."""
