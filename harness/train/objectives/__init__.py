"""Objectives: the losses that training minimises, with their gradients."""
