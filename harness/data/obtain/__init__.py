"""Getting published files onto this machine: `fetch` is the flow, `download` one link, `unpack` one archive."""
