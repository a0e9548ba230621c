"""What a result was made from: the code, the settings and the input that decide its bytes."""
