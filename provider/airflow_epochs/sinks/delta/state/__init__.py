"""``StateTable``: what a Delta sink does besides, where its table holds the state of a transform; and its readers."""
