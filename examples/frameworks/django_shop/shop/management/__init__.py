"""The application `shop`."""
