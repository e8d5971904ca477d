"""``StateTable``: what a Delta sink does in addition if its table holds a transform's state; and its readers."""
