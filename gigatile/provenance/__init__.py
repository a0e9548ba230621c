"""What each output was made from, and whether it is current: hashes of code, records of outputs."""
