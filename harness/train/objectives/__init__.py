"""What a step of training minimises."""
