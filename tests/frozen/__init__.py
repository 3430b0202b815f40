"""What the commands gave at one point in time, kept to be compared with."""
