"""Encoders: ragged tokens in, [B, D] out."""
