"""What operators do at once, by the command line or by the page. Commands of the next epoch: ``coordinator.orders``."""
