"""Several processes at one job: how they are launched, what they tell each other, how they end."""
