"""What operators order, and the run that opens the next epoch obeys: where its input begins, which sinks it has."""
