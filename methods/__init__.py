"""The methods: one file each, its documented YAML beside it. Found by `harness.method`; nothing is imported here."""
