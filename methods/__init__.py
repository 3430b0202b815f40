"""The methods: one file each, with a YAML beside it. Found by `harness.settings.method`; nothing is imported here."""
