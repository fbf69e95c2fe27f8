"""What is told of a fleet's condition: findings about nodes, and numbers for Prometheus."""
