"""Files, arrays, YAML and progress bars: how anything is read, written and shown."""
